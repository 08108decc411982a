"""Imports run one way, and in no circle: between modules, and between the packages of every folder.

Imports inside functions count too: a circle that is only put off is one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.suite

PACKAGE = Path(__file__).parents[1] / "membudget"
#: A package imports only from its own row or those before it; docs/structure.md draws it.
TIERS = (
    ("errors", "units", "text", "data"),
    ("model", "formats"),
    ("checkpoint", "sources", "machines", "host"),
    ("budgets",),
    ("engines",),
    ("planning",),
    ("history", "measure"),
    ("doctor", "report"),
    ("api", "cli", "pytest_plugin", "tests"),
)
TIER = {name: index for index, tier in enumerate(TIERS) for name in tier}
#: The public face imports the rest when it is asked for a name.
FACE = frozenset({"", "__main__"})
#: Circles that are still there, each as its sorted members.  Empty it, and never add one.
KNOWN_CIRCLES: frozenset[tuple[str, ...]] = frozenset({})


@cache
def modules() -> dict[str, Path]:
    """Every module by its name without `membudget`, "" for the package itself."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> dict[str, frozenset[str]]:
    """What each module imports of the package, wherever in it the import stands."""
    known = modules()
    found: dict[str, frozenset[str]] = {}
    for name, path in known.items():
        targets: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "membudget":
                base = node.module.removeprefix("membudget").lstrip(".")
                for alias in node.names:
                    target = f"{base}.{alias.name}".lstrip(".")
                    targets.add(target if target in known else base)
            elif isinstance(node, ast.Import):
                targets |= {alias.name.removeprefix("membudget.") for alias in node.names if "membudget." in alias.name}
        found[name] = frozenset(targets & known.keys()) - {name}
    return found


def circles(edges: Mapping[str, Iterable[str]]) -> set[tuple[str, ...]]:
    """The sets of nodes that reach each other, each sorted; by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: set[tuple[str, ...]] = set()

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in edges.get(node, ()):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            members = []
            while not members or members[-1] != node:
                members.append(stack.pop())
            if len(members) > 1:
                found.add(tuple(sorted(members)))

    for node in edges:
        if node not in index:
            visit(node)
    return found


def between_packages() -> set[tuple[str, ...]]:
    """Circles between what lies in one folder: each module or package in it is a node, for every folder."""
    found: set[tuple[str, ...]] = set()
    folders = {name.rpartition(".")[0] for name in modules() if name}
    for folder in folders:
        prefix = f"{folder}." if folder else ""
        edges: dict[str, set[str]] = {}
        for name, targets in imports().items():
            if not name.startswith(prefix) or name in FACE | {folder}:
                continue
            own = prefix + name[len(prefix) :].partition(".")[0]
            children = {
                prefix + target[len(prefix) :].partition(".")[0] for target in targets if _below(target, prefix)
            }
            edges.setdefault(own, set()).update(children - {own})
        found |= circles(edges)
    return found


def _below(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name != prefix.rstrip(".") and name not in FACE


def test_circles_are_found() -> None:
    """A circle of two, one of three, and none."""
    assert circles({"a": ["b"], "b": ["a"]}) == {("a", "b")}
    assert circles({"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": []}) == {("a", "b", "c")}
    assert circles({"a": ["b", "c"], "b": ["c"], "c": []}) == set()


def test_no_module_is_in_a_circle() -> None:
    """No two modules need each other."""
    assert circles({name: targets for name, targets in imports().items() if name not in FACE}) - KNOWN_CIRCLES == set()


def test_no_package_is_in_a_circle() -> None:
    """No two packages of one folder need each other."""
    assert between_packages() - KNOWN_CIRCLES == set()


def test_the_known_circles_are_still_there() -> None:
    """A circle that was broken is taken off the list."""
    modules_ = circles({name: targets for name, targets in imports().items() if name not in FACE})
    assert KNOWN_CIRCLES - modules_ - between_packages() == set()


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_run_one_way(name: str) -> None:
    """From the bottom of the drawing up, never back."""
    own = name.partition(".")[0]
    if own in FACE:
        return
    assert own in TIER, f"{own} has no place in the import order: give it one in TIERS"
    backwards = {target for target in imports()[name] if TIER.get(target.partition(".")[0], 0) > TIER[own]}
    assert not backwards, f"{name} (tier {TIER[own]}) imports {sorted(backwards)} from a later tier"


def test_the_drawing_is_the_rule() -> None:
    """docs/structure.md shows the tiers that are held here, in their order."""
    text = (PACKAGE.parent / "docs" / "structure.md").read_text(encoding="utf-8")
    table = text.partition("<!-- tiers -->")[2].splitlines()
    rows = [line.split("|")[1] for line in table if "|" in line]
    drawn = tuple(tuple(row.split("`")[1::2]) for row in rows)
    assert drawn[2 : 2 + len(TIERS)] == TIERS


def test_the_paths_of_the_drawing_are_there() -> None:
    """Every file and folder that docs/structure.md names exists."""
    root = PACKAGE.parent
    text = (root / "docs" / "structure.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:membudget|tests_math|tests_hw|tools|fixtures)/[\w./]*)`", text)
    assert len(named) > 30
    assert [path for path in named if not (root / path).exists()] == []


def test_import_stays_light() -> None:
    """The arithmetic leaves torch, transformers, vllm, numpy and yaml alone."""
    loaded = "membudget, membudget.planning.ledger, membudget.cli.main"
    heavy = ["torch", "transformers", "vllm", "numpy", "yaml", "huggingface_hub", "hypothesis"]
    code = f"import sys, {loaded}; print([m for m in {heavy!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
