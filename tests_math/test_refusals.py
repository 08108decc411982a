"""A refusal of ours is a `MembudgetError`; nothing wider is caught around our own code: a bug is never an answer."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import membudget
from membudget.errors import MembudgetError, _snake

pytestmark = pytest.mark.suite

PACKAGE = Path(__file__).parents[1] / "membudget"
WIDE = {"ValueError", "Exception", "BaseException", "TypeError"}
#: Where everything is caught around our own code, and why.
ALLOWED = {
    "cli/main.py": "the one place where errors become messages: what is no refusal is told to be a bug",
    "sources/hub.py": "the hub's library raises its transport's exceptions; ours are raised again before",
    "sources/locate.py": "the same",
    "measure/worker.py": "the worker says what went wrong to the guard, traceback on stderr",
    "measure/survey.py": "one model of transformers that is not built never hides the others",
    "measure/server.py": "the worker's own reading of a server's answer, told to the guard",
    "host/sources.py": "a driver in trouble: the value is then unknown, with the reason",
    "history/store.py": "a line that is no JSON; what is no record is caught before, by its own class",
    "engines/vllm/profile/learned.py": "a record made of a file's fields: one that is missing is a TypeError",
    "history/changes.py": "the same",
    "text/yaml_strict.py": "PyYAML's constructors raise ValueError for dates and numbers that are none",
}


def _names(node: ast.expr | None) -> set[str]:
    if node is None:
        return {"BaseException"}
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return {part.id if isinstance(part, ast.Name) else getattr(part, "attr", "") for part in parts}


def _ours(tree: ast.Module) -> set[str]:
    """Names of functions and classes that are membudget's own in this module."""
    found = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("membudget"):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def _calls(body: list[ast.stmt], ours: set[str]) -> Iterator[str]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                own = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
                if own and isinstance(node.func, ast.Attribute) and node.func.value.id in ("self", *ours):  # type: ignore[attr-defined]
                    name = node.func.attr
                if name in ours:
                    yield name


def test_nothing_wide_is_caught_around_our_own_code() -> None:
    """A handler of ValueError, TypeError or Exception stands around foreign calls only, but where a reason is given."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_child" in path.parts or path.name == "child.py":
            continue  # they run in another Python, without membudget
        tree = ast.parse(path.read_text(encoding="utf-8"))
        ours = _ours(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Try) and any(WIDE & _names(handler.type) for handler in node.handlers):
                calls = sorted(set(_calls(node.body, ours)) - {"ConfigError"})
                if calls:
                    name = path.relative_to(PACKAGE).as_posix()
                    found.add(name)
                    assert name in ALLOWED, f"{name}:{node.lineno} catches more than refusals of {calls}"
    assert found == set(ALLOWED)


def _classes() -> set[type[MembudgetError]]:
    for module in pkgutil.walk_packages(membudget.__path__, "membudget."):
        parts = module.name.split(".")
        if not {"measure", "pytest_plugin", "_child", "child", "__main__"} & set(parts):
            importlib.import_module(module.name)
    classes: set[type[MembudgetError]] = set()
    todo: list[type[MembudgetError]] = [MembudgetError]
    while todo:
        one = todo.pop()
        classes.add(one)
        todo += [child for child in one.__subclasses__() if child.__module__.startswith("membudget.")]
    return classes


def test_refusals_have_a_code() -> None:
    """Every class of refusal has a short code that programs can rely on; one of its own is written there on purpose."""
    classes = _classes()
    for one in classes:
        code = one.default_code or _snake(one.__name__)
        assert code.replace("_", "").isalnum(), one
        assert code == code.lower(), one
        if one.__init__ is MembudgetError.__init__:
            assert one("why", code="x").code == "x"
    assert len(classes) > 20
