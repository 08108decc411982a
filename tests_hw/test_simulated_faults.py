"""Faults on the device's path: each is committed on a simulated card, and the CUDA plan's own judgement is red."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from membudget.budgets.budget import Budget
from membudget.units import MIB
from tests_hw import faults
from tests_hw.conftest import rehearsal

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def budget() -> Budget:
    """The dense tiny model, under a ceiling that a card's segments of 20 MiB fit under."""
    pytest.importorskip("torch")
    return replace(rehearsal("llama")[0], ceiling=400 * MIB, breaks=())


def _broken(budget: Budget, *groups: str, **how: Any) -> set[str]:
    from tests_hw.simulate import simulate

    return {row.name for row in simulate(budget, groups, **how) if row.holds is False}


@pytest.mark.parametrize(
    ("fault", "groups", "red"),
    [
        (faults.doubled_cache, ("growth",), {"kv_growth"}),
        (faults.upcast, ("weights",), {"weights"}),
        (faults.loaded_twice, ("weights",), {"weights"}),
        (faults.logits_kept, ("activations",), {"prefill_last"}),
        (faults.leak, ("growth",), {"freed"}),
    ],
)
def test_a_fault_is_red(
    fault: Callable[[Any], None], groups: tuple[str, ...], red: set[str], budget: Budget, monkeypatch: Any
) -> None:
    """The faults of the rehearsal, by requested_bytes of a caching allocator: the same lines are red."""
    from transformers.cache_utils import DynamicLayer

    monkeypatch.setattr(DynamicLayer, "update", DynamicLayer.update)  # put back afterwards
    assert red <= _broken(budget, *groups, fault=fault)


@pytest.mark.parametrize("keys", [{"num_key_value_heads": 4}, {"num_hidden_layers": 3}, {"vocab_size": 5120}])
def test_another_model_than_predicted_is_red(keys: dict[str, int], budget: Budget) -> None:
    """Twice the key-value heads, a layer more, a larger vocabulary: weights or cache, and the total, say so."""
    raw = budget.model.config.raw
    assert all(raw[key] != value for key, value in keys.items())
    red = _broken(budget, "weights", "growth", "total", runs=keys)
    assert red & {"weights", "kv_growth"}
    assert "total_allocator" in red


def test_a_card_that_ignores_its_ceiling_is_red(budget: Budget) -> None:
    """Where nothing is ever out of memory, a sandwich and an edge are no proof: both are red."""
    from tests_hw.cudasim import Card

    class Boundless(Card):
        """Takes a limit and does not hold it."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, None if name == "limit" else value)

    red = _broken(budget, "activations", "sandwich", "edge", card=Boundless)
    assert {"sandwich_below", "max_users"} <= red


def test_a_card_that_reserves_more_is_red(budget: Budget) -> None:
    """An allocator that takes twice the segment: fewer users run than its own algorithm says, and more is reserved."""
    from tests_hw.cudasim import Card

    class Wasteful(Card):
        """Reserves every segment twice."""

        def _segment(self, size: int, small: bool) -> Any:
            made = super()._segment(size, small)
            self.reserved += made.size
            self.peak_reserved = max(self.peak_reserved, self.reserved)
            return made

    red = _broken(budget, "total", "edge", card=Wasteful)
    assert {"total_reserved", "max_users"} <= red
