"""The row of the most users that ran, judged against the prediction: by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from membudget.budgets.tolerance import parse
from membudget.measure.comparison import Row, Unit
from membudget.measure.edge_rows import edge_row

pytestmark = pytest.mark.suite

FIGURES: dict[str, Any] = {
    "users": 9, "tried": [(8, True), (9, True), (10, False)], "capped": False, "peak": None, "weights": 100,
}  # fmt: skip


def row(users: int, *, predicted: int = 10, device: str = "cuda", **more: Any) -> Row:
    """max_users after a run that found so many; a trace predicts."""
    line = Row("max_users", "edge", None, None, Unit.COUNT, parse("within 1%", "count"))
    closed = Row("max_users_closed_form", "edge", predicted, None, Unit.COUNT, None, why="the closed form")
    plan: Any = SimpleNamespace(line=lambda _: closed, ceiling=1000, device=device)
    trace = {"users": predicted, "parts": {}}
    return edge_row(plan, line, {**FIGURES, "users": users, **more}, {"trace_edge": trace})


def test_as_many_as_predicted() -> None:
    """No word about a difference."""
    done = row(10)
    assert (done.holds, done.measured, done.predicted) == (True, 10, 10)
    assert done.note == "tried 8, 9, 10 out of memory"


def test_one_below_is_told_and_holds_on_a_device() -> None:
    """One user is more than 1% of ten; a CPU has no such grain."""
    done = row(9)
    assert (done.holds, done.measured) == (True, 9)
    assert done.note.startswith("1 below the prediction")
    assert row(9, device="cpu").holds is False
    assert row(8).holds is False
    assert row(8).note.startswith("2 below the prediction")


def test_more_than_predicted_never_holds() -> None:
    """A quantized cache, or a ceiling that is not held."""
    done = row(11)
    assert done.holds is False
    assert done.note.startswith("more than predicted is suspicious")


def test_a_ceiling_that_nothing_reaches_is_not_held() -> None:
    """All that was tried ran."""
    done = row(10, capped=True)
    assert done.holds is False
    assert "everything that was tried fitted, up to 10" in done.note


def test_the_samples_are_what_was_tried() -> None:
    """Users, and whether they ran."""
    assert row(9).samples == ({"users": 8, "fits": 1}, {"users": 9, "fits": 1}, {"users": 10, "fits": 0})
