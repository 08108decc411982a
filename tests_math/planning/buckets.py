"""What a plan of four buckets says of itself, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from membudget.budgets.budget import Budget
from membudget.budgets.settings import Settings
from membudget.engines import share
from membudget.engines.activations import Peak
from membudget.engines.buckets import Buckets, Split
from membudget.planning.capacity import prepared

#: The textbook's sum, whose figures are by hand in tests.
ARITHMETIC = Settings("arithmetic")


def summed(*args: Any, **fields: Any) -> Budget:
    """A budget of four buckets, unless it names another engine."""
    if len(args) < 8:
        fields.setdefault("engine", ARITHMETIC)
    return Budget(*args, **fields)


def held(budget: Budget) -> list[Buckets]:
    """What one rank of each pipeline stage holds; one where there is one machine."""
    plan = prepared(budget)
    if isinstance(plan, Split):
        return [stage.held for stage in plan.stages]
    assert isinstance(plan, Buckets)
    return [plan]


def left_over(budget: Budget) -> Callable[[int, int], int]:
    """The headroom as a function of (ctx, users), in bytes."""
    return prepared(budget).headroom


def headroom(budget: Budget, total: int) -> int:
    """What is left when `total` bytes are taken."""
    return share.headroom(budget.device, budget.engine, total)


def activation_peak(budget: Budget, ctx: int, users: int) -> Peak:
    """The largest step."""
    return held(budget)[0].peak(ctx, users)


def kv_growth(budget: Budget, position: int) -> int:
    """Bytes that token number `position` adds to one user's cache."""
    return held(budget)[0].cache.per_token(position)
