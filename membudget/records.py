"""`NamedTuple` as `typing` has it, made without importing `typing`.

A plan is answered in about the time that `import typing` takes, and `typing.NamedTuple`
compiles every annotation on top.  Type checkers see the real one.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from collections import namedtuple

    class _Meta(type):
        # what typing.NamedTuple does, less the check and compilation of annotations
        def __new__(mcs, name, bases, body):
            if not bases:
                return super().__new__(mcs, name, bases, body)
            fields = tuple(body.pop("__annotations__", {}))
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            for key, value in body.items():
                if key != "__module__":
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_Meta):
        """The base of a record: fields are its annotations, in order, with their defaults."""


__all__ = ["NamedTuple"]
