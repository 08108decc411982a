"""The path of a card with memory of its own: what it has room for is measured, and only what it has not is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from membudget.budgets.file import load
from membudget.host import nvidia_smi
from membudget.machines import get
from membudget.measure import guard
from membudget.measure.comparison import Comparison
from membudget.measure.plan import plan
from membudget.measure.run import Settings, measure
from membudget.measure.status import Status
from membudget.units import GIB
from tests_math.measure.spark import WEIGHTS, Spark

pytestmark = pytest.mark.suite

BUDGETS = Path(__file__).parents[2] / "budgets"
#: Of 24 GiB, with a desktop on it.
FREE = 23 * GIB


def _measured(monkeypatch: pytest.MonkeyPatch, folder: Path, free: int, **changes: object) -> tuple[Spark, Comparison]:
    (file,) = load([BUDGETS / "llama-3.1-8b-bf16.dgx-spark.yaml"])
    budget = next(item for item in file.budgets if item.ctx == 8192)
    card = Spark(**changes)
    monkeypatch.setattr(guard, "run", card)
    monkeypatch.setattr(nvidia_smi, "card_free", lambda *_: free)
    made = plan(replace(budget, machine=get("rtx-4090")), "cuda")
    assert made.peak > free  # by the bound of what was not traced yet
    settings = Settings(lock=str(folder / "lock"), available=lambda: 60 * GIB)
    return card, measure(made, settings)


def _ran(card: Spark) -> set[str]:
    return {step["do"] for request in card.requests for step in request["steps"]}


def test_an_upper_bound_does_not_refuse_what_proves_the_ceiling(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither the proof nor the traces need the model's memory: both run, and the traces say what the rest takes."""
    card, _ = _measured(monkeypatch, tmp_path, FREE)
    assert {"preflight", "trace", "weights", "growth"} <= _ran(card)


def test_what_is_too_large_does_not_refuse_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An edge under 40 GiB is none for a 4090; weights, growth and prefills of the same budget are measured there."""
    card, found = _measured(monkeypatch, tmp_path, FREE)
    assert {"weights", "growth", "static", "peak", "fragmentation", "total"} <= _ran(card)
    assert "edge" not in _ran(card)
    assert found.status is Status.REFUSED
    assert "is free" in found.why
    assert found.broken == []
    assert all(row.measured is not None for row in found.of("growth", "static"))
    assert all(row.measured is None for row in found.of("edge"))


def test_a_card_that_is_full_runs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Somebody else's model is there: the proof itself is refused, with both numbers, and nothing relies on it."""
    card, found = _measured(monkeypatch, tmp_path, 2 * GIB)
    assert _ran(card) <= {"trace", "trace_served", "trace_edge", "trace_steps"}
    assert found.status is Status.REFUSED
    assert "needs 3.00 GiB" in found.why


def test_the_traced_figures_are_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker looks again before it loads, at its own device and by the same trace."""
    card, _ = _measured(monkeypatch, tmp_path, FREE)
    (growth,) = [request for request in card.requests if request["steps"][0]["do"] == "growth"]
    assert growth["start"]["pool"] == "card"
    assert growth["start"]["traced"]["trace_growth"]["weights"] == WEIGHTS
