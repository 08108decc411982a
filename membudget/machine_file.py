"""Reads machine files: the shipped `machines.yaml` and users' own, by the same rules.

    my-box:
      memory: 24_564 MiB     # nvidia-smi
      bandwidth: 1008 GB/s
      platform: cuda

Closed schema: an unknown field, a field twice, a size without a unit or a value of
another type is an error that says file:line, the field and what is allowed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import yaml

from membudget.machines import THIS_MACHINE, Machine, normalize
from membudget.units import UnitError, parse_bytes

PLATFORMS = ("cuda", "rocm", "metal", "cpu")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


class MachineFileError(ValueError):
    """A machine file that cannot be read: file:line, the field, what is allowed."""


def read(path: str | os.PathLike[str]) -> list[Machine]:
    """Every machine of a file, in its order."""
    name = os.fspath(path)
    try:
        with open(name, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise MachineFileError(f"{name}: cannot be read: {reason}") from None
    return parse(text, name)


def parse(text: str, source: str = "<string>") -> list[Machine]:
    """Every machine in a YAML text; `source` is what errors call the file."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise MachineFileError(f"{source}:{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise MachineFileError(f"{source}: not YAML: {error}") from None
    if root is None:
        raise MachineFileError(f"{source}:1: empty; allowed: `name: {{memory: 24564 MiB}}`, see docs/machines.md")
    machines: list[Machine] = []
    spellings: dict[str, str] = {}
    for key, value in _pairs(root, source, "the file"):
        machine = _machine(key, value, source)
        machines.append(machine)
        for spelling in (machine.name, *machine.aliases):
            other = spellings.setdefault(normalize(spelling), machine.name)
            if other != machine.name:
                wrong = f"{machine.name} and {other} are both called so"
                raise _error(source, key, spelling, wrong, "one of them")
    return machines


def _machine(key: yaml.Node, node: yaml.Node, source: str) -> Machine:
    name = key.value
    if not _NAME.fullmatch(name) or normalize(name) == normalize(THIS_MACHINE):
        allowed = f"lower-case letters, digits, '-', '.', '_', but not {THIS_MACHINE}"
        raise _error(source, key, name, "not a machine's name", allowed)
    found: dict[str, Any] = {}
    where: dict[str, yaml.Node] = {}
    for field, value in _pairs(node, source, name):
        reader = FIELDS.get(field.value)
        if reader is None:
            import difflib

            near = difflib.get_close_matches(field.value, FIELDS, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise _error(source, field, f"{name}.{field.value}", f"unknown field{hint}", ", ".join(FIELDS))
        found[field.value] = reader(value, source, f"{name}.{field.value}")
        where[field.value] = value
    if "memory" not in found:
        raise _error(source, key, f"{name}.memory", "missing", "a size such as 24564 MiB, as nvidia-smi prints it")
    memory = found["memory"]
    for field in ("os_reserve", "cuda_total", "gpu_limit"):
        if found.get(field, 0) > memory:
            wrong = f"{found[field]:,} B is more than the machine has"
            raise _error(source, where[field], f"{name}.{field}", wrong, f"at most memory, {memory:,} B")
    limit = found.pop("gpu_limit", None)
    if limit is not None:
        if "os_reserve" in found:
            raise _error(source, where["gpu_limit"], f"{name}.gpu_limit", "given beside os_reserve", "one of the two")
        found["os_reserve"] = memory - limit
    found.setdefault("nominal", memory)
    found.setdefault("unified", False)
    found.setdefault("bandwidth", 0)
    return Machine(name, **found)


def _pairs(node: yaml.Node, source: str, what: str) -> list[tuple[yaml.Node, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        raise _error(source, node, what, "not a mapping", "`key: value` lines")
    seen: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _error(source, key, what, "a key that is not plain text", "plain names")
        if key.value in seen:
            raise _error(
                source, key, f"{what}.{key.value}", f"given twice, first in line {seen[key.value]}", "each key once"
            )
        seen[key.value] = key.start_mark.line + 1
    return list(node.value)


def _size(node: yaml.Node, source: str, field: str) -> int:
    text = _scalar(node, source, field, "a size such as 24564 MiB or 128 GiB")
    try:
        size = parse_bytes(text)
    except UnitError as error:
        raise _error(source, node, field, str(error), "a size such as 24564 MiB or 128 GiB") from None
    if size == 0 and not field.endswith(".os_reserve"):
        raise _error(source, node, field, "0 bytes", "a size above 0")
    return size


def _rate(node: yaml.Node, source: str, field: str) -> int:
    text = _scalar(node, source, field, "a rate such as 273 GB/s")
    try:
        if not text.endswith("/s"):
            raise UnitError(f"{text!r} is not a rate")
        return parse_bytes(text.removesuffix("/s"))
    except UnitError as error:
        raise _error(source, node, field, str(error), "a rate such as 273 GB/s or 3.35 TB/s") from None


def _flag(node: yaml.Node, source: str, field: str) -> bool:
    text = _scalar(node, source, field, "true or false")
    if text not in ("true", "false"):
        raise _error(source, node, field, f"{text!r}", "true or false")
    return text == "true"


def _text(node: yaml.Node, source: str, field: str) -> str:
    return _scalar(node, source, field, "text")


def _platform(node: yaml.Node, source: str, field: str) -> str:
    text = _scalar(node, source, field, ", ".join(PLATFORMS))
    if text not in PLATFORMS:
        raise _error(source, node, field, f"{text!r}", ", ".join(PLATFORMS))
    return text


def _names(node: yaml.Node, source: str, field: str) -> tuple[str, ...]:
    if not isinstance(node, yaml.SequenceNode):
        raise _error(source, node, field, "not a list", "a list of names: [h100, h100-80]")
    names = tuple(_scalar(item, source, field, "names") for item in node.value)
    for item, name in zip(node.value, names, strict=True):
        if not normalize(name) or normalize(name) == normalize(THIS_MACHINE):
            raise _error(source, item, field, f"{name!r} cannot be an alias", f"a name, but not {THIS_MACHINE}")
    return names


def _scalar(node: yaml.Node, source: str, field: str, allowed: str) -> str:
    if not isinstance(node, yaml.ScalarNode) or node.value == "" or node.tag == "tag:yaml.org,2002:null":
        raise _error(source, node, field, "empty or not a single value", allowed)
    return str(node.value)


def _error(source: str, node: yaml.Node, field: str, wrong: str, allowed: str) -> MachineFileError:
    return MachineFileError(f"{source}:{node.start_mark.line + 1}: {field}: {wrong}; allowed: {allowed}")


#: Every field of a machine and what reads it.
FIELDS: dict[str, Callable[[yaml.Node, str, str], Any]] = {
    "title": _text,
    "aliases": _names,
    "platform": _platform,
    "unified": _flag,
    "memory": _size,
    "nominal": _size,
    "os_reserve": _size,
    "gpu_limit": _size,
    "cuda_total": _size,
    "bandwidth": _rate,
    "source": _text,
}
