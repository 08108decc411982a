"""A budget's limits in words: made last, from figures."""

from __future__ import annotations

from collections.abc import Sequence

from membudget.budgets.budget import Budget
from membudget.budgets.settings import Settings
from membudget.engines import share
from membudget.engines.base import Rank
from membudget.machines import Machine
from membudget.units import short


def users_text(number: int) -> str:
    """``1 user``, ``8 users``."""
    return f"{number:,} user{'s' if number != 1 else ''}"


def share_text(budget: Budget) -> str:
    """What a gpu_memory_utilization that leaves the operating system less than its reserve, in one sentence."""
    return claim_text(budget.device, budget.engine)


def claim_text(machine: Machine, settings: Settings) -> str:
    """What a gpu_memory_utilization claims of a machine, and what it leaves of the operating system's part."""
    claim = share.claim(machine, settings) or 0
    return (
        f"gpu_memory_utilization {settings.gpu_memory_utilization} claims {short(claim)} of "
        f"{short(machine.memory)} and leaves {short(max(machine.memory - claim, 0))} of the operating system's "
        f"{short(machine.os_reserve)}"
    )


def limit_text(budget: Budget, machine: bool = True, limit: int | None = None, share_: float | None = None) -> str:
    """The memory that counts, in words; machine: also where it is the machine's own.

    limit, share_: bytes that the engine may claim, and which part that is, where an answer says so.
    """
    if limit is None:
        limit, share_ = share.claim(budget.device, budget.engine), budget.engine.gpu_memory_utilization
    if limit is not None and limit + budget.os_bytes < budget.capacity:
        given = "kv_cache_memory_bytes" if share_ is None else f"gpu_memory_utilization {share_:g}"
        return f"the {short(limit)} that {given} gives {budget.engine.name} on {budget.machine.name}"
    return f"the {short(budget.capacity)} of {budget.machine.name}" if machine else short(budget.capacity)


def ranks_text(ranks: Sequence[Rank], staged: bool) -> str:
    """``each of ranks 0 and 1``; where layers are staged, ``rank 1 (layers 40 to 79)``: ranks of one stage."""
    first, last, (start, stop) = ranks[0].rank, ranks[-1].rank, ranks[0].layers
    text = f"rank {first}" if first == last else f"each of ranks {first} {'to' if last - first > 1 else 'and'} {last}"
    return f"{text} (layers {start} to {stop - 1})" if staged else text
