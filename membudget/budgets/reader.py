"""What reading a budget file collects: its problems, the line of every field, and how a value is shown in a message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from membudget.text.yaml_strict import Node, Problem

#: Returned where a node was refused; the problem is in the reader.
REFUSED: Any = object()


class Reader:
    """Collects what a file's nodes say: problems, and the line of every field that was read."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.where: dict[str, int] = {}

    def refuse(self, node: Node | int, path: str, text: str) -> Any:
        """Note a problem at a node's line (or at a line); returns `REFUSED`."""
        line = node if isinstance(node, int) else node.line
        self.problems.append(Problem(self.file, line, path, text))
        return REFUSED


def anchored(pattern: str) -> str:
    """A pattern that must match the whole text."""
    return f"^(?:{pattern})$"


def near(word: str, words: Iterable[str]) -> str:
    """``; did you mean ...?``, or nothing."""
    found = difflib.get_close_matches(word.lower()[:80], list(words), 2, 0.6)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def shown(node: Node) -> str:
    """A node's value as the file has it, cut."""
    if node.kind == "list":
        return "a list"
    if node.kind == "map":
        return "a mapping"
    return f"'{cut(node.text)}'" if isinstance(node.value, str) else cut(node.text)


def cut(text: str) -> str:
    """One short line of any text."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."
