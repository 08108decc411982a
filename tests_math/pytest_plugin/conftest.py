"""Projects of somebody's own, in which the plugin's tests run pytest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from membudget.budgets.file import Sources, parse
from membudget.planning.ledger import predict

FITS = (
    "model: meta-llama/Llama-3.2-1B\nformat: bf16\nkv_cache_dtype: bf16\nctx: 8Ki\nusers: 4\nmachine: rtx-4090\n"
    "engine: {arithmetic: {}}\n"
)
Run = Callable[..., pytest.RunResult]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes find membudget, installed or not, and load no plugins but the named ones."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """All that a budget needs is imported once: pytester forgets what its runs import."""
    budgets, problems = parse(FITS.encode(), "warm-up", "warm-up", ".", Sources())
    assert not problems
    predict(budgets[0])


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run pytest in this project with the plugin, as an installed package would."""

    def run(*arguments: str) -> pytest.RunResult:
        return pytester.runpytest("-p", "membudget.pytest_plugin.plugin", "-p", "no:cacheprovider", *arguments)

    return run
