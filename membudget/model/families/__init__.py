"""All families that membudget knows, by model_type.

Every module of this folder may declare families; a new one is found by being here.  A
plan loads the module that declares its model_type and those tried before it, no more:
the most asked for come first.  Iterating loads them all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module

from membudget.model.families.base import FAMILIES as _declared
from membudget.model.families.base import Family

#: Tried before the others, in this order.
FIRST = ("dense", "experts")


class Families:
    """A read-only mapping from model_type to `Family`."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        #: modules not loaded yet; None before the folder was read
        self._left: list[str] | None = None

    def get(self, model_type: str) -> Family | None:
        """The family of this model_type, None where no module declares it."""
        while model_type not in _declared and self._load():
            pass
        return _declared.get(model_type)

    def __getitem__(self, model_type: str) -> Family:
        family = self.get(model_type)
        if family is None:
            raise KeyError(model_type)
        return family

    def __contains__(self, model_type: object) -> bool:
        return isinstance(model_type, str) and self.get(model_type) is not None

    def __iter__(self) -> Iterator[str]:
        while self._load():
            pass
        return iter(_declared)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _load(self) -> bool:
        """Load the next module; False when all are loaded."""
        if self._left is None:
            files = os.listdir(os.path.dirname(os.path.abspath(__file__)))
            names = {name[:-3] for name in files if name.endswith(".py") and not name.startswith("_")}
            # popped from the end
            self._left = [*sorted(names.difference(FIRST), reverse=True), *reversed(FIRST)]
        if not self._left:
            return False
        import_module(f"{__name__}.{self._left.pop()}")
        return True


FAMILIES = Families()

__all__ = ["FAMILIES", "Families", "Family"]
