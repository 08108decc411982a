"""docs/cli.md is what the parsers say, and names every key that the commands print."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from membudget.cli.commands.registry import available

pytestmark = pytest.mark.suite

SCRIPT = Path(__file__).parents[2] / "tools" / "cli_docs.py"


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("cli_docs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_fresh(docs: ModuleType) -> None:
    """After a change of an option: `python tools/cli_docs.py`."""
    assert docs.PAGE.read_text(encoding="utf-8") == docs.page(), "docs/cli.md is stale: run python tools/cli_docs.py"


def test_every_command_documents_its_json(docs: ModuleType) -> None:
    """No command without its keys."""
    assert set(available()) <= set(docs.KEYS)


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "Qwen/Qwen3-8B", "--machine", "h100"],
        ["plan", "Qwen/Qwen3-8B"],
        ["count", "Qwen/Qwen3-8B", "--tensors"],
        ["check", "budgets"],
        ["init", "Qwen/Qwen3-8B", "--machine", "h100", "--to", "budgets"],
        ["fleet", "Qwen/Qwen3-8B"],
        ["fleet", "--params", "70", "--layers", "80", "--kv-heads", "8"],
        ["machines"],
        ["formats"],
        ["formats", "Qwen/Qwen3-8B", "--machine", "h100"],
        ["models"],
        ["fetch", "Qwen/Qwen3-8B"],
        ["pool", "Qwen/Qwen3-8B", "--machine", "h100"],
    ],
    ids=" ".join,
)
def test_every_key_is_documented(
    docs: ModuleType,
    ask: Callable[..., tuple[int, Any]],
    argv: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The documents' top-level keys are exactly those of the page, as far as the case has them."""
    monkeypatch.chdir(tmp_path)
    if argv[0] == "check":
        ask("init", "Qwen/Qwen3-8B", "--machine", "h100")
    _, document = ask(*argv)
    known = {key for keys in docs.KEYS[argv[0]] for key in keys.split(", ")}
    assert set(document) <= known, f"undocumented: {set(document) - known}"
    optional = {"plan": {"plans"}, "count": {"tensors", "stored"}}.get(argv[0], set())
    if argv[0] == "formats":
        alone = {"kv_cache_dtypes"}
        optional = alone if "model" in document else known - alone - {"formats"}
    if "plans" not in document:
        assert known - set(document) <= optional, f"documented, not there: {known - set(document)}"
