"""A budget's predictions and settings as a record keeps them."""

from __future__ import annotations

from typing import Any

from membudget.budgets.budget import Budget
from membudget.history.record import WHOLE_MACHINE, Line
from membudget.planning.ledger import BUCKETS, Ledger, predict


def predicted(budget: Budget) -> dict[str, Line]:
    """Every bucket and part of the ledger, and what follows from it.

    Raises `ValueError` where nothing can be predicted.
    """
    return of_ledger(predict(budget))


def of_ledger(ledger: Ledger) -> dict[str, Line]:
    """The lines of a ledger."""
    lines = {name: Line(ledger.sums[name]) for name in BUCKETS}
    for part in ledger.lines:
        if part.bucket == "overhead":
            lines[f"overhead.{part.part}"] = Line(part.bytes)
    lines["total"] = Line(ledger.total)
    lines["kv_per_token"] = Line(ledger.kv_per_token)
    lines["params"] = Line(ledger.budget.model.count.params, unit="count")
    lines[WHOLE_MACHINE] = Line(ledger.max_users, unit="count")
    return lines


def settings(budget: Budget) -> dict[str, Any]:
    """What a budget asks, flags of its engine included: two runs that differ here are not compared."""
    engine = budget.engine
    found: dict[str, Any] = {
        "model": budget.model.name,
        "format": budget.format.name,
        "kv_cache_dtype": budget.kv_cache_dtype,
        "ctx": budget.ctx,
        "users": budget.users,
        "machine": budget.machine_name,
        "engine": engine.name,
        "max_num_batched_tokens": engine.step_tokens,
        "attention": engine.attention,
        "logits": engine.logits,
        "caches": caches(budget),
    }
    if engine.gpu_memory_utilization is not None:
        found["gpu_memory_utilization"] = engine.gpu_memory_utilization
    if budget.machines > 1:
        found |= {"tensor_parallel": budget.tensor_parallel, "pipeline_parallel": budget.pipeline_parallel}
    return found | {f"engine.{name}": value for name, value in engine.options.items()}


def caches(budget: Budget) -> list[str]:
    """The kinds of cache that the budget's model has."""
    return sorted({spec.kind for spec in budget.model.caches if spec.kind not in ("none", "shared")})
