"""How much a budget takes and how much would fit, asked of its engine: integers alone, and fast, for searches.

`membudget.planning.ledger` says the same line by line, with reasons.
"""

from __future__ import annotations

from membudget.budgets.budget import Budget
from membudget.engines import share, table
from membudget.engines.base import Prepared


def prepared(budget: Budget) -> Prepared:
    """The budget's engine with the budget's model weighed.

    Raises `MembudgetError` for a format or dtype that does not apply, and for a layout that the engine refuses.
    """
    return table.get(budget.engine.name).prepare(budget.model, budget.format, budget.device, budget.settings)


def total_of(budget: Budget) -> int:
    """Bytes of all four buckets."""
    return prepared(budget).total(budget.ctx, budget.users)


def kv_request(budget: Budget, ctx: int) -> int:
    """Bytes that one user's cache of `ctx` tokens takes."""
    return prepared(budget).request(ctx)


def fits(budget: Budget) -> bool:
    """Whether everything fits."""
    return prepared(budget).fits(budget.ctx, budget.users)


def max_users(budget: Budget) -> int:
    """The most users that fit at the budget's context, 0 if none."""
    return prepared(budget).users(budget.ctx, budget.users)


def max_ctx(budget: Budget) -> int:
    """The longest context that fits for the budget's users, 0 if none; not capped by the model's own."""
    return prepared(budget).longest(budget.users, budget.ctx)


def engine_limit(budget: Budget) -> int | None:
    """Bytes that the engine may claim by gpu_memory_utilization, None if there is no such limit."""
    return share.claim(budget.device, budget.engine)


def share_that_leaves(budget: Budget) -> float | None:
    """The largest gpu_memory_utilization, in hundredths, that leaves the operating system its part; None for none."""
    return share.largest(budget.device)


def takes_the_systems(budget: Budget) -> bool:
    """Whether gpu_memory_utilization claims what the operating system is left."""
    return share.takes_reserve(budget.device, budget.engine)
