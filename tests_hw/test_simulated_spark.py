"""Every budget of a Spark that transformers measures, at full size over a simulated card, by the product itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from membudget.budgets.budget import Budget
from membudget.budgets.file import Sources, load
from membudget.measure.comparison import Row
from membudget.measure.plan import DENSE

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[1]
#: What is judged of each: single-token steps by the hundred take minutes a budget, and are those of the tiny ones.
GROUPS = ("weights", "growth", "static", "activations", "sandwich", "total", "break", "edge")


def sparks() -> list[Budget]:
    """Budgets of one DGX Spark in a format that transformers holds."""
    files = load(sorted(map(str, (ROOT / "budgets").glob("*.dgx-spark.yaml"))), Sources(), str(ROOT))
    found = [budget for file in files for budget in file.budgets]
    return [budget for budget in found if budget.format.name in DENSE and budget.machines == 1]


def _rows(budget: Budget, *groups: str, **how: Any) -> tuple[Row, ...]:
    pytest.importorskip("torch")
    from tests_hw.simulate import simulate

    return simulate(budget, groups, **how)


def _green(budget: Budget, *groups: str) -> None:
    rows = _rows(budget, *groups)
    broken = {row.name: f"{row.predicted} {row.measured} {row.note}" for row in rows if row.holds is False}
    assert broken == {}
    absent = {"break"} if not budget.breaks else set()
    absent |= {"edge"} if budget.ceiling is None else set()
    assert {row.group for row in rows if row.measured is not None} >= set(groups) - absent


@pytest.mark.parametrize("budget", sparks()[:1], ids=lambda budget: budget.id)
def test_a_spark_as_predicted_is_green_and_another_is_red(budget: Budget) -> None:
    """Weights and cache at full size hold to the byte; a model with twice the key-value heads does not."""
    _green(budget, "weights", "static")
    heads = budget.model.config.integer("num_key_value_heads")
    red = {
        row.name
        for row in _rows(budget, "weights", "static", runs={"num_key_value_heads": 2 * heads})
        if row.holds is False
    }
    assert {"weights", "static_cache"} <= red


@pytest.mark.slow
@pytest.mark.parametrize("budget", sparks(), ids=lambda budget: budget.id)
def test_every_budget_of_a_spark_is_green(budget: Budget) -> None:
    """Every line that is judged holds on a healthy card: also the edge, the sandwich and what must break."""
    _green(budget, *GROUPS)
