"""Reads machine files: the shipped `machines.yaml` and users' own, by the same rules.

    my-box:
      memory: 24_564 MiB     # nvidia-smi
      bandwidth: 1008 GB/s
      platform: cuda

Closed schema: an unknown field, a field twice, a size without a unit or a value of
another type is an error that says file:line, the field and what is allowed.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from typing import Any

from membudget.machines.machine import Machine
from membudget.machines.names import THIS_MACHINE, MachineFileError, UnknownMachine, counted, normalize
from membudget.text.yaml_strict import Node, Problem, read_file
from membudget.text.yaml_strict import parse as parse_yaml
from membudget.units import UnitError, parse_bytes

PLATFORMS = ("cuda", "rocm", "vulkan", "metal", "cpu")
SIZE = "a size such as 24564 MiB or 128 GiB"
RATE = "a rate such as 273 GB/s or 3.35 TB/s"
EXAMPLE = "`name:` and, indented below it, `memory: 24564 MiB`; see docs/machines.md"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_NAMES_ALLOWED = f"lower-case letters, digits, '-', '.', '_', and not {THIS_MACHINE}"


class _Refused(Exception):
    """One value is refused: the line, what is wrong with it, what is allowed."""

    def __init__(self, line: int, wrong: str, allowed: str) -> None:
        super().__init__(f"{wrong}; allowed: {allowed}")
        self.line = line


def read(path: str | os.PathLike[str]) -> list[Machine]:
    """Every machine of a file, in its order."""
    name = os.fspath(path)
    try:
        data = read_file(name)
    except OSError as error:
        raise MachineFileError(f"{name}: cannot be read: {error.strerror}") from None
    return parse(data, name)


def parse(data: bytes, source: str = "<string>") -> list[Machine]:
    """Every machine in a YAML text; `source` is what errors call the file."""
    root, problems = parse_yaml(data, source)
    machines: list[Machine] = []
    if root is None or root.kind != "map":
        problems = problems or [Problem(source, root.line if root else 1, "", f"no machines here; allowed: {EXAMPLE}")]
        root = Node("map", 1)
    for name, node in root.fields.items():
        machine = _machine(name, node, source, problems)
        if machine is not None:
            machines.append(machine)
    spellings: dict[str, str] = {}
    for machine in machines:
        for spelling in (machine.name, *machine.aliases):
            other = spellings.setdefault(normalize(spelling), machine.name)
            if other != machine.name:
                text = f"{spelling!r} also names {other}; allowed: a spelling for one machine"
                problems.append(Problem(source, root.fields[machine.name].line, machine.name, text))
    if problems:
        raise MachineFileError("\n".join(map(str, sorted(problems, key=lambda problem: problem.line))))
    return machines


def _machine(name: str, node: Node, source: str, problems: list[Problem]) -> Machine | None:
    before = len(problems)
    found: dict[str, Any] = {}

    def refuse(line: int, field: str, text: str) -> None:
        problems.append(Problem(source, line, f"{name}.{field}" if field else name, text))

    if not _NAME.fullmatch(name) or normalize(name) == normalize(THIS_MACHINE):
        refuse(node.line, "", f"no name for a machine; allowed: {_NAMES_ALLOWED}")
    elif _reads_as_many(name):
        refuse(node.line, "", f"reads as several machines, as in `2x dgx-spark`; allowed: {_NAMES_ALLOWED}")
    if node.kind != "map":
        refuse(node.line, "", f"not a machine; allowed: {EXAMPLE}")
        return None
    for field, value in node.fields.items():
        reader = FIELDS.get(field)
        if reader is None:
            refuse(value.line, field, _unknown_field(field))
            continue
        try:
            found[field] = reader(value)
        except _Refused as refused:
            refuse(refused.line, field, str(refused))
    memory = found.get("memory")
    if "memory" not in node.fields:
        refuse(node.line, "memory", f"missing; allowed: {SIZE}, as the driver reports it")
    for field in ("os_reserve", "cuda_total", "cuda_total_low", "cuda_total_high", "gpu_limit"):
        if memory is not None and found.get(field, 0) > memory:
            wrong = f"{found[field]:,} B is more than the machine has"
            refuse(node.fields[field].line, field, f"{wrong}; allowed: at most memory, {memory:,} B")
    if "gpu_limit" in found and "os_reserve" in found:
        refuse(node.fields["gpu_limit"].line, "gpu_limit", "stands beside os_reserve; allowed: one of the two")
    if len(problems) > before:
        return None
    limit = found.pop("gpu_limit", None)
    if limit is not None:
        found["os_reserve"] = memory - limit
    return Machine(name, **{"nominal": memory, "unified": False, "bandwidth": 0, **found})


def _unknown_field(field: str) -> str:
    near = difflib.get_close_matches(field, FIELDS, 1)
    return f"unknown field{f', did you mean {near[0]}?' if near else ''}; allowed: {', '.join(FIELDS)}"


def _text(node: Node, allowed: str = "text") -> str:
    if node.kind != "scalar" or node.trap or not isinstance(node.value, str) or not node.value.strip():
        wrong = node.trap or (f"{node.text!r} is not text" if node.kind == "scalar" else f"a {node.kind}")
        raise _Refused(node.line, wrong, allowed)
    return node.value


def _size(node: Node) -> int:
    if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        raise _Refused(node.line, f"{node.text} has no unit", SIZE)
    try:
        return parse_bytes(_text(node, SIZE))
    except UnitError as error:
        raise _Refused(node.line, str(error), SIZE) from None


def _size_above_zero(node: Node) -> int:
    size = _size(node)
    if not size:
        raise _Refused(node.line, "0 bytes", SIZE)
    return size


def _rate(node: Node) -> int:
    if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        raise _Refused(node.line, f"{node.text} has no unit", RATE)
    text = _text(node, RATE).strip()
    if not text.endswith("/s"):
        raise _Refused(node.line, f"{text!r} is not a rate", RATE)
    try:
        return parse_bytes(text.removesuffix("/s"))
    except UnitError as error:
        raise _Refused(node.line, str(error), RATE) from None


def _capability(node: Node) -> tuple[int, int]:
    allowed = 'major.minor in quotes, as "9.0"'
    major, point, minor = _text(node, allowed).strip().partition(".")
    if not (point and major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()) or len(major) > 2:
        raise _Refused(node.line, f"invalid compute capability {node.text!r}", allowed)
    return int(major), int(minor[:2])


def _count(node: Node) -> int:
    if isinstance(node.value, bool) or not isinstance(node.value, int) or not 0 < node.value <= 100_000:
        raise _Refused(node.line, f"invalid number of multiprocessors {node.text}", "a whole number from 1")
    return node.value


def _flag(node: Node) -> bool:
    if not isinstance(node.value, bool):
        raise _Refused(node.line, node.trap or f"invalid flag {node.text!r}", "true or false")
    return node.value


def _platform(node: Node) -> str:
    text = _text(node, ", ".join(PLATFORMS))
    if text not in PLATFORMS:
        raise _Refused(node.line, f"unknown platform {text!r}", ", ".join(PLATFORMS))
    return text


def _names(node: Node) -> tuple[str, ...]:
    if node.kind != "list":
        raise _Refused(node.line, "not a list", 'a list of names: [h100, "NVIDIA H100 80GB HBM3"]')
    names = []
    for item in node.items:
        name = _text(item, f"a name (a number in quotes), and not {THIS_MACHINE}")
        if normalize(name) in ("", normalize(THIS_MACHINE)):
            raise _Refused(item.line, f"{name!r} cannot be a name", f"letters and digits, and not {THIS_MACHINE}")
        if _reads_as_many(name):
            raise _Refused(item.line, f"{name!r} reads as several machines", "a name that does not begin as `2x `")
        names.append(name)
    return tuple(names)


def _reads_as_many(name: str) -> bool:
    try:
        return counted(name)[1] != name
    except UnknownMachine:
        return True


#: Every field of a machine and what reads it.
FIELDS: dict[str, Callable[[Node], Any]] = {
    "title": _text,
    "aliases": _names,
    "platform": _platform,
    "unified": _flag,
    "memory": _size_above_zero,
    "nominal": _size_above_zero,
    "os_reserve": _size,
    "gpu_limit": _size_above_zero,
    "cuda_total": _size_above_zero,
    "cuda_total_low": _size_above_zero,
    "cuda_total_high": _size_above_zero,
    "compute_capability": _capability,
    "sm_count": _count,
    "bandwidth": _rate,
    "source": _text,
}
