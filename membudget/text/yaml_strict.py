"""YAML in which nothing is silently another value: a tree of nodes with their lines.

YAML 1.1 reads ``010`` as 8, ``12:30`` as 750, ``1e3`` as text and ``on`` as true, and
takes the last of two equal keys.  Here each of them is a trap: the node says what is
wrong with it, and whoever reads the node reports it with the field's name.  Tags,
anchors, aliases and merge keys are not read at all.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

import yaml

from membudget.text.sanitize import printable

MAX_BYTES = 64 * 2**10
MAX_DEPTH = 12
#: Parts of a document: far beyond any budget, far below what takes time.
MAX_NODES = 5_000

_INT = re.compile(r"-?(?:0|[1-9][0-9]*|[1-9][0-9]{0,2}(?:_[0-9]{3})+)")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+")
_WORDS = ("on", "off", "yes", "no", "y", "n")
#: What people did where the parser's words do not help.
_HINTS = {
    "\\t": "; indent with spaces",
    "mapping values are not allowed": "; text with ': ' in it stands in quotes",
    "<block end>": "; check the indentation, and that quotes begin and end a value",
    "could not find expected ':'": "; a line is `field: value`",
}


class Problem(NamedTuple):
    """What is wrong, and where: file, line (from 1), field (``engine.vllm.block_size``)."""

    file: str
    line: int
    field: str
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        field = self.field if len(self.field) <= 120 else self.field[:117] + "..."
        return printable(f"{place}: {field + ': ' if field else ''}{self.text}")


#: Takes one problem: its line and what is wrong.
Report = Callable[[int, str], None]
Scalar = str | int | float | bool | None


class Node:
    """One value of the document.

    kind: ``scalar``, ``list`` or ``map``.  value: of a scalar; text where it is a trap.
    text: as it is written.  trap: why this scalar is refused, or "".  line: from 1.
    items: of a list.  fields: of a map.
    """

    __slots__ = ("fields", "items", "kind", "line", "text", "trap", "value")

    def __init__(self, kind: str, line: int, text: str = "", value: Scalar = None, trap: str = "") -> None:
        self.kind, self.line, self.text, self.value, self.trap = kind, line, text, value, trap
        self.items: list[Node] = []
        self.fields: dict[str, Node] = {}

    @property
    def plain(self) -> object:
        """The same as Python data: dicts, lists and scalars."""
        if self.kind == "map":
            return {key: node.plain for key, node in self.fields.items()}
        return [node.plain for node in self.items] if self.kind == "list" else self.value


def read_file(path: str) -> bytes:
    """A file's bytes, at most one more than `MAX_BYTES`.

    Raises `OSError` that says why in its `strerror`, also where it is not a regular file: opening a pipe would wait
    for its writer.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(0, "it is a folder" if stat.S_ISDIR(mode) else "it is a pipe or a device, no regular file")
    with open(path, "rb") as file:
        return file.read(MAX_BYTES + 1)


#: libyaml's parser where PyYAML has it: the same events, ten times as fast.
_LIBYAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Stop(Exception):
    """Nothing can be read beyond this."""


def parse(data: bytes, file: str) -> tuple[Node | None, list[Problem]]:
    """Read one document; the node is None where nothing can be read at all.

    file: what problems call the file.  Never raises for what is in `data`.
    """
    problems: list[Problem] = []

    def problem(line: int, text: str) -> None:
        problems.append(Problem(file, line, "", text))

    if len(data) > MAX_BYTES:
        problem(1, f"{len(data):,} bytes are too many; a file has at most {MAX_BYTES:,}")
        return None, problems
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem(data[: error.start].count(b"\n") + 1, f"byte {error.object[error.start]:#04x} is not UTF-8 text")
        return None, problems
    try:
        return _build(text, problem, _LIBYAML), problems
    except _Stop:
        return None, problems
    except yaml.YAMLError:
        problems.clear()  # what is wrong is said in the words of PyYAML's own parser
    try:
        return _build(text, problem, yaml.SafeLoader), problems
    except _Stop:
        pass
    except yaml.reader.ReaderError as error:
        problem(text[: error.position].count("\n") + 1, f"character U+{error.character:04X} is not allowed in YAML")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        hint = next((text for part, text in _HINTS.items() if part in str(error.problem)), "")
        problem(mark.line + 1 if mark else 1, f"not YAML: {error.problem}{hint}")
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        problem(1, f"not YAML: {str(error).splitlines()[0]}")
    return None, problems


def _build(text: str, problem: Report, loader: Any) -> Node | None:
    """Build the tree from the parser's events; open containers are a stack, so depth costs nothing."""
    root: Node | None = None
    stack: list[Node] = []
    keys: list[Node | None] = []
    documents = nodes = 0
    for event in yaml.parse(text, Loader=loader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                problem(line, "a second document begins here (---); a file holds one budget")
                raise _Stop
            continue
        if isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
            stack.pop()
            keys.pop()
            continue
        if isinstance(event, yaml.AliasEvent):
            problem(line, f"alias *{event.anchor} is not read: write the value out")
            raise _Stop
        if not isinstance(event, (yaml.ScalarEvent, yaml.SequenceStartEvent, yaml.MappingStartEvent)):
            continue
        nodes += 1
        if event.anchor is not None:
            problem(line, f"anchor &{event.anchor} is not read: write the value out where it is used")
            raise _Stop
        if event.tag is not None:
            problem(line, f"tag {event.tag} is not read: write the plain value")
            raise _Stop
        if nodes > MAX_NODES or len(stack) >= MAX_DEPTH:
            problem(line, f"more than {MAX_NODES:,} values or {MAX_DEPTH} levels: too large")
            raise _Stop
        node = _node(event, line)
        if not stack:
            root = node
        elif stack[-1].kind == "list":
            stack[-1].items.append(node)
        elif keys[-1] is None:
            _check_key(node, stack[-1], problem)
            keys[-1] = node
            continue
        else:
            key = keys[-1]
            node.line = key.line
            # Of a key that is written twice the first stays; it was reported.
            stack[-1].fields.setdefault(key.text, node)
            keys[-1] = None
        if node.kind != "scalar":
            stack.append(node)
            keys.append(None)
    return root


def _check_key(key: Node, parent: Node, problem: Report) -> None:
    if key.kind != "scalar":
        problem(key.line, "a field's name is a word, not a list or mapping")
        raise _Stop
    first = parent.fields.get(key.text)
    if first is not None:
        problem(key.line, f"{key.text!r} is written twice, first on line {first.line}: keep one")


def _node(event: yaml.Event, line: int) -> Node:
    if isinstance(event, yaml.SequenceStartEvent):
        return Node("list", line)
    if isinstance(event, yaml.MappingStartEvent):
        return Node("map", line)
    if event.style:  # in quotes, or a block: text as it is
        return Node("scalar", line, event.value, event.value)
    value, trap = _resolve(event.value)
    return Node("scalar", line, event.value, value, trap)


def _resolve(text: str) -> tuple[Scalar, str]:
    """The value of a plain scalar, and why it is refused."""
    if text in ("true", "false"):
        return text == "true", ""
    if text in ("", "~", "null", "Null", "NULL"):
        return None, "it is empty: write a value, or leave the field out"
    if text.lower() in ("true", "false"):
        return text, f"write {text.lower()}"
    if text.lower() in _WORDS:
        write = "true" if text.lower() in ("on", "yes", "y") else "false"
        return text, f"{text} is a boolean to some YAML readers and text to others: write {write}; in quotes it is text"
    if _INT.fullmatch(text):
        if len(text) > 30:
            return text, f"{text[:20]}... is too large"
        return int(text), ""
    if _FLOAT.fullmatch(text) and len(text) <= 30:
        return float(text), ""
    return text, _number_trap(text)


def _number_trap(text: str) -> str:
    shown = text if len(text) <= 40 else text[:40] + "..."
    if re.fullmatch(r"[-+]?0[0-9_]+", text):
        digits = text.lstrip("-+0_") or "0"
        return f"{shown} is octal to some YAML readers: write {digits} without the leading 0"
    if re.fullmatch(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?", text):
        return f"{shown} is a number in base 60 to some YAML readers: write it out in decimal digits"
    if re.fullmatch(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)[eE][-+]?[0-9]+", text):
        return f"{shown} is text to some YAML readers and a number to others: write all its digits"
    if re.fullmatch(r"[-+]?0[xob][0-9a-fA-F_]+", text):
        return f"{shown} is a number to some YAML readers: write it in decimal digits"
    if re.fullmatch(r"[-+]?\.(?:inf|nan)", text, re.IGNORECASE):
        return f"{shown} is not finite"
    if re.fullmatch(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)", text):
        return f"{shown} is not a plain number: write it like 8192, 8_192 or 0.85"
    return ""
