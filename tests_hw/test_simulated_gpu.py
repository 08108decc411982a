"""The CUDA plan's own judgement over a simulated card: green on a healthy one, red on a wrong one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from membudget.budgets.budget import Budget
from membudget.measure.comparison import Row
from membudget.units import MIB
from tests_hw.conftest import rehearsal

pytestmark = pytest.mark.cpu

GROUPS = ("weights", "growth", "static", "activations", "sandwich", "total", "edge")


@pytest.fixture(scope="module")
def torch() -> object:
    """torch, where it is installed."""
    return pytest.importorskip("torch")


@pytest.fixture(scope="module", params=["llama", "deepseek"])
def budget(request: pytest.FixtureRequest) -> Budget:
    """A dense model, and one with unlike key and value heads; a ceiling that a card's segments of 20 MiB fit under."""
    return replace(rehearsal(request.param)[0], ceiling=400 * MIB, breaks=())


@pytest.fixture(scope="module")
def rows(torch: object, budget: Budget) -> dict[str, Row]:
    """The worksheet on the simulated card."""
    from tests_hw.simulate import simulate

    return {row.name: row for row in simulate(budget, GROUPS)}


def test_a_healthy_card_is_green(rows: dict[str, Row]) -> None:
    """Every line that is judged holds: by torch's allocator written a second time, with CUDA's attention kernels.

    Loading is not simulated, so its peak is not.
    """
    broken = {name: f"{row.predicted} {row.measured} {row.note}" for name, row in rows.items() if row.holds is False}
    broken.pop("loading_peak", None)
    assert broken == {}


def test_what_tensors_ask_for_is_exact(rows: dict[str, Row]) -> None:
    """requested_bytes has no remainders: weights, caches and totals are those of the trace, to the byte."""
    assert rows["weights"].off == 0
    assert rows["freed"].measured == 0
    assert rows["total_allocator"].off == 0


def test_the_edge_is_the_allocators(rows: dict[str, Row]) -> None:
    """As many users as the algorithm says, never more; at most one fewer."""
    users = rows["max_users"]
    assert users.predicted is not None
    assert users.predicted - 1 <= users.measured <= users.predicted


def test_a_larger_workspace_is_green(torch: object, budget: Budget) -> None:
    """cuBLAS keeps 32 MiB on Hopper and 8.1 elsewhere: which one it is turns no line red."""
    from membudget.measure.fakes import WORKSPACE_HOPPER
    from tests_hw.simulate import simulate

    found = simulate(budget, ("growth", "total"), workspace=WORKSPACE_HOPPER)
    assert [row.name for row in found if row.holds is False and row.name != "total_reserved"] == []
