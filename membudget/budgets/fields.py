"""Kinds of values in a budget file: each reads a node, says what it allows, and writes its JSON Schema.

One table of these (`membudget.budgets.schema`) is both the loader and the schema that editors
use, so the two cannot disagree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from membudget.budgets import tolerance
from membudget.budgets.reader import REFUSED, Reader, anchored, cut, near, shown
from membudget.text.yaml_strict import Node
from membudget.units import UnitError, parse_bytes, parse_context, parse_count

MAX_BYTES = 2**63 - 1


class Kind:
    """What a value may be.  `allowed` says it in words, with examples."""

    allowed = ""

    def read(self, node: Node, path: str, reader: Reader) -> Any:
        """The node's value, or `REFUSED` after noting why."""
        reader.where[path] = node.line
        if node.trap:
            return reader.refuse(node, path, node.trap)
        if node.kind == "scalar" and node.value is None:
            return reader.refuse(node, path, f"it is empty; allowed: {self.allowed}, or leave the field out")
        return self.value(node, path, reader)

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """As `read`, for a node that is not empty and no trap."""
        raise NotImplementedError

    def json(self) -> dict[str, Any]:
        """The JSON Schema of this kind."""
        raise NotImplementedError

    def _with_allowed(self, text: str) -> str:
        return text if "; allowed: " in text else f"{text}; allowed: {self.allowed}"

    def _wrong(self, node: Node, path: str, reader: Reader) -> Any:
        return reader.refuse(node, path, f"{shown(node)} is refused; allowed: {self.allowed}")


class Text(Kind):
    """A name or a sentence."""

    def __init__(self, allowed: str, examples: Iterable[str] = ()) -> None:
        self.allowed, self.examples = allowed, list(examples)

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """The text; numbers and booleans must be in quotes."""
        if isinstance(node.value, str) and node.value.strip():
            return node.value
        return self._wrong(node, path, reader)

    def json(self) -> dict[str, Any]:
        """A string that is not blank."""
        return {"type": "string", "pattern": r"\S", **({"examples": self.examples} if self.examples else {})}


class Choice(Kind):
    """One of a few words."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices
        self.allowed = " or ".join((", ".join(choices[:-1]), choices[-1])) if len(choices) > 1 else choices[0]

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """The word, spelt exactly."""
        if isinstance(node.value, str) and node.value in self.choices:
            return node.value
        hint = near(str(node.value), self.choices) if isinstance(node.value, str) else ""
        return reader.refuse(node, path, f"{shown(node)} is refused; allowed: {self.allowed}{hint}")

    def json(self) -> dict[str, Any]:
        """An enumeration."""
        return {"enum": list(self.choices)}


class Boolean(Kind):
    """true or false, in lower case."""

    allowed = "true or false"

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """A bool; nothing else is one."""
        return node.value if isinstance(node.value, bool) else self._wrong(node, path, reader)

    def json(self) -> dict[str, Any]:
        """A boolean."""
        return {"type": "boolean"}


class Count(Kind):
    """A whole number of tokens, users, blocks: 8192, 8_192, 8Ki."""

    #: How a count is written.
    pattern, example = tolerance.COUNT, "8192, 8_192 or 8Ki"
    number = staticmethod(parse_count)

    def __init__(self, low: int = 1, high: int = 2**30) -> None:
        self.low, self.high = low, high
        self.allowed = f"a whole number from {low:,} to {high:,}, like {self.example}"

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """An int within the bounds."""
        value = node.value
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            value = self.number(value)
        elif isinstance(value, str):
            try:
                self.number(value)
            except UnitError as error:
                return reader.refuse(node, path, self._with_allowed(str(error)))
            return self._wrong(node, path, reader)
        if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
            return self._wrong(node, path, reader)
        return value

    def json(self) -> dict[str, Any]:
        """An integer within the bounds, or one with a suffix."""
        return {
            "anyOf": [
                {"type": "integer", "minimum": self.low, "maximum": self.high},
                {"type": "string", "pattern": anchored(self.pattern)},
            ]
        }


class Tokens(Count):
    """A length in tokens: as a count, and 8k means 8,192, as on the command line and in models' names."""

    pattern, example = tolerance.COUNT.replace("Ki|Mi", "Ki|Mi|k|K"), "8192, 8Ki or 8k"
    number = staticmethod(parse_context)


class Size(Kind):
    """A size with its unit."""

    allowed = "a size with its unit, like 512 MiB, 1.5 GiB or 16 GB"

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """An int of bytes."""
        if isinstance(node.value, str) and re.fullmatch(tolerance.SIZE, node.value):
            return self._checked(node, path, reader, lambda: parse_bytes(str(node.value)))
        if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            text = node.text
            return reader.refuse(node, path, f"{text} has no unit: write {text} GiB, {text} GB or {text} B")
        if isinstance(node.value, str):
            return self._checked(node, path, reader, lambda: _unread(parse_bytes(str(node.value)), node))
        return self._wrong(node, path, reader)

    def _checked(self, node: Node, path: str, reader: Reader, parse: Any) -> Any:
        try:
            value = parse()
        except UnitError as error:
            return reader.refuse(node, path, self._with_allowed(str(error)))
        if value > MAX_BYTES:
            return reader.refuse(node, path, f"{shown(node)} is more than any machine has; allowed: {self.allowed}")
        return value

    def json(self) -> dict[str, Any]:
        """A string with a number and a unit."""
        return {"type": "string", "pattern": anchored(tolerance.SIZE), "examples": ["10 GiB", "512 MiB"]}


class Share(Kind):
    """A part of a whole, above 0 and at most 1."""

    allowed = "a number above 0 and at most 1, like 0.85"

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """A float."""
        value = node.value
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1:
            return float(value)
        return self._wrong(node, path, reader)

    def json(self) -> dict[str, Any]:
        """A number within the bounds."""
        return {"type": "number", "exclusiveMinimum": 0, "maximum": 1}


class Expected(Kind):
    """A number that the prediction is held against."""

    def __init__(self, unit: str = "bytes", signed: bool = False) -> None:
        self.unit, self.signed = unit, signed
        self.allowed = tolerance.allowed_values(unit)

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """An `Expectation`."""
        value = node.value
        if isinstance(value, float):
            write = f"{node.text} GiB, {node.text} GB" if self.unit == "bytes" else "a whole number"
            return reader.refuse(node, path, f"{node.text} has no unit: write {write}; allowed: {self.allowed}")
        if isinstance(value, (bool, type(None))):
            return self._wrong(node, path, reader)
        if isinstance(value, str) and re.fullmatch("[1-9][0-9]{0,2}(?:_[0-9]{3}){1,6}", value):
            value = int(value.replace("_", ""))
        try:
            return tolerance.parse_expectation(value, self.unit, self.signed)
        except UnitError as error:
            return reader.refuse(node, path, self._with_allowed(str(error)))

    def json(self) -> dict[str, Any]:
        """An integer or a value with unit and tolerance."""
        return {
            "anyOf": [
                {"type": "integer", **({} if self.signed else {"minimum": 0})},
                {"type": "string", "pattern": anchored(tolerance.expectation_pattern(self.unit, self.signed))},
            ]
        }


class Allowance(Kind):
    """By how much a measurement may differ."""

    def __init__(self, unit: str = "bytes") -> None:
        self.unit = unit
        self.allowed = tolerance.allowed(unit)

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """A `Tolerance`."""
        if not isinstance(node.value, str):
            return self._wrong(node, path, reader)
        try:
            return tolerance.parse(node.value, self.unit)
        except UnitError as error:
            return reader.refuse(node, path, self._with_allowed(str(error)))

    def json(self) -> dict[str, Any]:
        """A string that is a tolerance."""
        return {"type": "string", "pattern": anchored(tolerance.pattern(self.unit)), "examples": ["within 1%", "exact"]}


class Json(Kind):
    """An object that is passed on as it is: a mapping, or JSON in a string."""

    def __init__(self, allowed: str) -> None:
        self.allowed = allowed

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """A dict of plain values."""
        if node.kind == "map":
            return {name: _plain(child) for name, child in node.fields.items()}
        try:
            value = json.loads(node.value) if isinstance(node.value, str) else None
        except (ValueError, RecursionError):
            value = None
        return value if isinstance(value, dict) else self._wrong(node, path, reader)

    def json(self) -> dict[str, Any]:
        """An object, or one in a string."""
        return {"anyOf": [{"type": "object"}, {"type": "string"}]}


def _plain(node: Node) -> Any:
    if node.kind == "map":
        return {name: _plain(child) for name, child in node.fields.items()}
    return [_plain(item) for item in node.items] if node.kind == "list" else node.value


class Many(Kind):
    """A list of one kind; with `alone`, also a single value."""

    def __init__(self, kind: Kind, alone: bool = True, most: int = 64) -> None:
        self.kind, self.alone, self.most = kind, alone, most
        self.allowed = f"{kind.allowed}{', or a list of them' if alone else ', in a list'}"

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """A tuple of values."""
        if node.kind != "list":
            if not self.alone:
                return self._wrong(node, path, reader)
            value = self.kind.read(node, path, reader)
            return value if value is REFUSED else (value,)
        if not node.items or len(node.items) > self.most:
            few = f"1 to {self.most:,} values, each {self.kind.allowed}"
            return reader.refuse(node, path, f"a list of {len(node.items):,}; allowed: {few}")
        values = [self.kind.read(item, f"{path}[{place}]", reader) for place, item in enumerate(node.items)]
        if any(value is REFUSED for value in values):
            return REFUSED
        for place, value in enumerate(values):
            if value in values[:place]:
                item = node.items[place]
                return reader.refuse(item, f"{path}[{place}]", f"{shown(item)} is in the list twice")
        return tuple(values)

    def json(self) -> dict[str, Any]:
        """An array, or the kind itself."""
        kind = self.kind.json()
        many = {"type": "array", "items": kind, "minItems": 1, "maxItems": self.most, "uniqueItems": True}
        return {"anyOf": [kind, many]} if self.alone else many


class Field(NamedTuple):
    """A field of a mapping: what it may be, what it means, an example as YAML, what is taken when it is left out.

    short: other spellings of its option on the command line.  off: those that say no to a boolean.
    """

    kind: Kind
    doc: str
    example: str = ""
    default: str = ""
    required: bool = False
    short: tuple[str, ...] = ()
    off: tuple[str, ...] = ()


class Fields(Kind):
    """A mapping with known fields, and no others.

    single: exactly one of them is given.  needs: a field that is given only together with another.
    refused: names that people will try, and why they are no fields.  aliases: other names of fields.
    """

    def __init__(
        self,
        what: str,
        fields: Mapping[str, Field],
        single: bool = False,
        needs: Mapping[str, str] | None = None,
        refused: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.what, self.fields, self.single, self.needs = what, fields, single, needs or {}
        self.refused, self.aliases = refused or {}, aliases or {}
        self.allowed = f"{what}: {'one of ' if single else ''}{', '.join(fields)}"

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """A dict of the fields that were given, in the file's order."""
        if node.kind != "map":
            return reader.refuse(node, path, f"{shown(node)} is refused; allowed: fields of {self.allowed}")
        inside = f"{path}." if path else ""
        values = {}
        for given, child in node.fields.items():
            name = self.aliases.get(given, given)
            field = self.fields.get(name)
            if name != given and name in node.fields:
                reader.refuse(child, inside + given, f"it is another name of {name}, which is given too")
            elif field is None:
                why = self.refused.get(name)
                text = why or f"unknown field; allowed in {self.allowed}{near(name, self.fields)}"
                reader.refuse(child, inside + cut(name), text)
            else:
                values[name] = field.kind.read(child, inside + name, reader)
        for name, field in self.fields.items():
            if field.required and name not in node.fields:
                example = f", for example `{name}: {field.example}`" if field.example else ""
                reader.refuse(node, inside + name, f"it is missing; allowed: {field.kind.allowed}{example}")
        if self.single and len(node.fields) != 1:
            reader.refuse(node, path, f"{len(node.fields)} given; allowed: exactly one of {', '.join(self.fields)}")
        for name, other in self.needs.items():
            if name in node.fields and other not in node.fields:
                text = f"it needs {inside}{other} beside it; allowed: {self.fields[other].kind.allowed}"
                reader.refuse(node.fields[name], inside + name, text)
        return values

    def json(self) -> dict[str, Any]:
        """An object without further properties."""
        properties = {}
        for name, field in self.fields.items():
            properties[name] = {"description": field.doc, **field.kind.json()}
        for name, field_name in self.aliases.items():
            properties[name] = {**properties[field_name], "description": f"Another name of {field_name}."}
        schema: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
        required = [name for name, field in self.fields.items() if field.required]
        if required:
            schema["required"] = required
        if self.single:
            schema |= {"minProperties": 1, "maxProperties": 1}
        if self.needs:
            schema["dependentRequired"] = {name: [other] for name, other in self.needs.items()}
        return schema


def _unread(_: int, node: Node) -> int:
    raise UnitError(f"{shown(node)} is not written like '8 GiB'")
