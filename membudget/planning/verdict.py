"""A ledger's verdict in words: made last, from its answer."""

from __future__ import annotations

from typing import Protocol

from membudget.budgets.budget import Budget
from membudget.data.defaults import DRAWN
from membudget.engines.base import Answer, Bucket, Limit, Rank
from membudget.planning.suggestions import Suggestion, nothing_helps
from membudget.planning.words import limit_text, ranks_text, share_text, users_text
from membudget.units import short

#: Buckets as the subject of a sentence.
_NEED = {
    Bucket.WEIGHTS: "weights need",
    Bucket.KV_CACHE: "the KV cache needs",
    Bucket.ACTIVATIONS: "activations need",
    Bucket.OVERHEAD: "overhead needs",
}


class Judged(Protocol):
    """What a verdict is made of: `membudget.planning.ledger.Ledger`."""

    budget: Budget
    answer: Answer

    @property
    def suggestions(self) -> list[Suggestion]:
        """What would make it fit."""

    @property
    def tightest_rank(self) -> Rank | None:
        """The rank whose figures these are."""


def verdict_text(ledger: Judged) -> str:
    """One sentence: does it fit, by how much, what is short, what would make it fit."""
    budget, answer = ledger.budget, ledger.answer
    if answer.fits:
        who = f"{users_text(budget.users)} x {budget.ctx:,} tokens"
        room = f"{short(answer.headroom)} of {memory_text(ledger, False)}{_on(ledger)}"
        most = f"at most {users_text(answer.users)} at once"
        low = answer.headroom_low
        if low is not None and low < 0:
            return f"fits, but not in the worst case ({short(-low)} short): {who} leave {room}; {most}."
        return f"fits: {who} leave {room}; {most}."
    changes = ledger.suggestions
    if not changes:
        return f"does not fit: {short_text(ledger)}; {nothing_helps(budget)} fits {budget.machine_name}."
    return f"does not fit: {short_text(ledger)}; it would fit with {'; or '.join(change.text for change in changes)}."


def short_text(ledger: Judged) -> str:
    """What is short, in one clause, with what it needs and what there is."""
    budget, answer = ledger.budget, ledger.answer
    limiting = answer.limiting
    if limiting is Limit.SHARE:
        return share_text(budget)
    if limiting is Limit.START:
        return (
            f"{budget.engine.name} refuses to start: {answer.starts[0].text}" if answer.starts else "it does not start"
        )
    if limiting is Limit.HOST:
        held = sum(line.bytes for line in answer.host)
        return (
            f"{short(held)} of RAM are needed beside {budget.machine_name}: {short(-answer.headroom)} over host_memory"
        )
    if limiting in (Limit.SEQUENCES, Limit.TOKENS, Limit.SLOTS):
        return f"{limiting.value} lets {users_text(answer.users)} run at once, not {budget.users:,}"
    assert isinstance(limiting, Bucket)
    sums, before = answer.sums, 0
    for name in DRAWN[: DRAWN.index(limiting.value)]:
        before += sums[name]
    over = f"{short(-answer.headroom)} over"
    need = f"{_NEED[limiting]} {short(sums[limiting.value])}{_on(ledger)}"
    left = _limit(ledger) - before
    if limiting is Bucket.WEIGHTS or left <= 0:
        return f"{need}, {over} {memory_text(ledger)}"
    return f"{need}, {short(left)} is left of {memory_text(ledger)}: {over}"


def memory_text(ledger: Judged, machine: bool = True) -> str:
    """The memory that counts, in words."""
    budget, answer = ledger.budget, ledger.answer
    return limit_text(budget, machine, answer.limit, answer.claimed)


def _limit(ledger: Judged) -> int:
    """Bytes that all buckets together may take, the operating system's part included."""
    budget, limit = ledger.budget, ledger.answer.limit
    return budget.capacity if limit is None else min(budget.capacity, limit + budget.os_bytes)


def _on(ledger: Judged) -> str:
    """`` on rank 1 (layers 40 to 79)``; nothing on one machine."""
    tightest, ranks = ledger.tightest_rank, ledger.answer.ranks
    if tightest is None:
        return ""
    staged = len({rank.stage for rank in ranks}) > 1
    return f" on {ranks_text([rank for rank in ranks if rank.stage == tightest.stage], staged)}"
