"""Kinds of values that are words as well as numbers: a count or ``all``, a switch with three states, a small syntax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from membudget.budgets.fields import Choice, Count, Text
from membudget.budgets.reader import Reader
from membudget.errors import MembudgetError
from membudget.text.yaml_strict import Node


class CountOr(Count):
    """A whole number, or one of a few words."""

    def __init__(self, low: int, high: int, *words: str) -> None:
        super().__init__(low, high)
        self.words = words
        self.allowed = f"{self.allowed}, or {' or '.join(words)}"

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """The int or the word."""
        return node.value if node.value in self.words else super().value(node, path, reader)

    def json(self) -> dict[str, Any]:
        """A count, or an enumeration."""
        found = super().json()
        return {"anyOf": [*found["anyOf"], {"enum": list(self.words)}]}


class Switch(Choice):
    """One of a few words, of which true means ``on`` and false ``off``."""

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """The word."""
        if isinstance(node.value, bool):
            return "on" if node.value else "off"
        return super().value(node, path, reader)

    def json(self) -> dict[str, Any]:
        """A boolean, or an enumeration."""
        return {"anyOf": [{"type": "boolean"}, super().json()]}


class Parsed(Text):
    """A text of a small syntax, kept as it is written; `parse` raises `MembudgetError` for one that is not."""

    def __init__(self, allowed: str, parse: Callable[[str], Any]) -> None:
        super().__init__(allowed)
        self.parse = parse

    def value(self, node: Node, path: str, reader: Reader) -> Any:
        """The text."""
        text = str(node.value) if isinstance(node.value, (int, float)) else node.value
        if isinstance(text, str) and text.strip() and not isinstance(node.value, bool):
            try:
                self.parse(text)
            except MembudgetError as error:
                return reader.refuse(node, path, self._with_allowed(str(error)))
            return text
        return self._wrong(node, path, reader)


__all__ = ["CountOr", "Parsed", "Switch"]
