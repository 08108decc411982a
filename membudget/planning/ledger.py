"""Budget -> Ledger: its engine's answer, the verdict, and what would fit."""

from __future__ import annotations

import functools
from typing import Any

from membudget.budgets.budget import Budget
from membudget.engines import table
from membudget.engines.base import BUCKETS as ALL
from membudget.engines.base import Answer, LayoutError, Limit, Line, Load, Rank
from membudget.errors import MembudgetError
from membudget.planning import suggestions
from membudget.planning.capacity import prepared
from membudget.planning.suggestions import Suggestion
from membudget.planning.words import limit_text, ranks_text, share_text, users_text
from membudget.units import short

#: Names of the buckets, in the order in which plans show them.
BUCKETS = tuple(bucket.value for bucket in ALL)


class Ledger:
    """A budget, its engine's answer, and what follows from both.  All sizes in bytes.

    Where a budget names several machines, all figures are those of the tightest rank.
    """

    def __init__(self, budget: Budget, answer: Answer) -> None:
        self.budget, self.answer = budget, answer
        self.lines: tuple[Line, ...] = answer.lines
        self.sums = answer.sums
        self.total = answer.total
        self.headroom = answer.headroom
        self.kv_per_request = answer.request

    @property
    def weights(self) -> int:
        """Bytes of the weights."""
        return self.sums["weights"]

    @property
    def kv_cache(self) -> int:
        """Bytes of all users' caches at the full context."""
        return self.sums["kv_cache"]

    @property
    def activations(self) -> int:
        """Bytes of the largest step's temporaries."""
        return self.sums["activations"]

    @property
    def overhead(self) -> int:
        """Bytes of the CUDA context, allocator slack, CUDA graphs and the operating system."""
        return self.sums["overhead"]

    @property
    def capacity(self) -> int:
        """Bytes of one machine."""
        return self.budget.capacity

    @property
    def fits(self) -> bool:
        """Whether the engine starts and serves the budget's users."""
        return self.answer.fits

    @property
    def kv_per_token(self) -> int:
        """Bytes that the first token of a sequence adds; fewer once windows are full.  Of llama.cpp a cell's."""
        return self.answer.token

    @property
    def kv_per_token_at_ctx(self) -> int:
        """Bytes that one more token adds at the budget's context, beyond every full window; of llama.cpp a cell's."""
        return self.answer.token_at_ctx

    @property
    def max_users(self) -> int:
        """The most users that fit at this context, 0 if none."""
        return self.answer.users

    @property
    def max_ctx(self) -> int:
        """The longest context that fits for these users, in tokens, 0 if none; not capped by the model's own."""
        return self.answer.longest

    @property
    def limiting_bucket(self) -> str | None:
        """The bucket at which the sum first exceeds the memory, or what else is short (`Limit`); None when it fits."""
        return None if self.answer.limiting is None else self.answer.limiting.value

    @functools.cached_property
    def suggestions(self) -> list[Suggestion]:
        """What would make it fit: single changes, the smallest first, else one combination; empty when it fits."""
        return [] if self.fits else suggestions.suggest(self.budget)

    @property
    def verdict(self) -> str:
        """One sentence: does it fit, by how much, what is short, what would make it fit."""
        budget = self.budget
        who = f"{users_text(budget.users)} x {budget.ctx:,} tokens"
        if self.fits:
            most = users_text(self.max_users)
            room = f"{short(self.headroom)} of {limit_text(budget, False)}{self._tightest(' on ')}"
            return f"fits: {who} leave {room}; {most} would fit."
        if not self.suggestions:
            help_text = f"{suggestions.nothing_helps(budget)} fits {budget.machine_name}."
        else:
            help_text = "it would fit with " + "; or ".join(change.text for change in self.suggestions) + "."
        if self.answer.limiting is Limit.SHARE:
            return f"does not fit: {share_text(budget)}; {help_text}"
        bucket = self.limiting_bucket
        assert bucket is not None
        return (
            f"does not fit: {bucket} breaks it{self._tightest(' on ')}, "
            f"{short(-self.headroom)} over {limit_text(budget)} "
            f"({bucket} is {short(self.sums[bucket])}); {help_text}"
        )

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Every rank where the budget names several machines, in vLLM's order; else none."""
        return self.answer.ranks

    @property
    def tightest_rank(self) -> Rank | None:
        """The rank with the least headroom, whose figures these are; None on one machine."""
        return min(self.ranks, key=lambda rank: rank.headroom, default=None)

    @property
    def staged(self) -> bool:
        """Whether there is more than one pipeline stage."""
        return len({rank.stage for rank in self.ranks}) > 1

    def _tightest(self, before: str) -> str:
        """``rank 1 (layers 40 to 79)`` behind a word; nothing on one machine."""
        tightest = self.tightest_rank
        if tightest is None:
            return ""
        return before + ranks_text([rank for rank in self.ranks if rank.stage == tightest.stage], self.staged)

    @property
    def step_seconds(self) -> float | None:
        """The least seconds of one decode step: (weights read + caches read) / bandwidth."""
        if not self.budget.machine.bandwidth:
            return None
        return self.bytes_read / self.budget.machine.bandwidth

    @property
    def bytes_read(self) -> int:
        """What one decode step reads: active weights once, every user's cache once; stages read one after the other."""
        return self.answer.read

    def as_json(self) -> dict[str, Any]:
        """The plan as documented JSON: bytes as integers, stable keys."""
        budget, step, answer = self.budget, self.step_seconds, self.answer
        changes = [change.as_json() for change in self.suggestions]
        return {
            "model": budget.model.name,
            "model_type": budget.model.model_type,
            "params": budget.model.count.params,
            "unknown": list(budget.model.unknown),
            "unproven": budget.model.unproven,
            "assumed": budget.model.config.assumed(),
            "format": budget.format.name,
            "kv_cache_dtype": budget.kv_cache_dtype,
            "ctx": budget.ctx,
            "users": budget.users,
            "machine": budget.machine_name,
            "engine": budget.engine.name,
            "convention": budget.convention,
            **self.sums,
            "total": self.total,
            "capacity": self.capacity,
            "limit": answer.limit,
            "headroom": self.headroom,
            "fits": self.fits,
            "starts": not answer.starts,
            "refusals": [refusal.as_json() for refusal in answer.starts],
            "max_users": self.max_users,
            "concurrency": answer.concurrency,
            "max_ctx": self.max_ctx,
            "kv_per_token": self.kv_per_token,
            "kv_per_token_at_ctx": self.kv_per_token_at_ctx,
            "kv_per_request": self.kv_per_request,
            "limiting_bucket": self.limiting_bucket,
            "broken_by": self.limiting_bucket,
            "suggestions": changes,
            "changes": changes,
            "verdict": self.verdict,
            "command": answer.command,
            "decode_upper_bound": None
            if step is None
            else {
                "bytes_read": self.bytes_read,
                "bandwidth": budget.machine.bandwidth,
                "step_seconds": step,
                "tokens_per_second_per_user": 1 / step if step else None,
            },
            "lines": [line.as_json() for line in self.lines],
            **self._parallel_json(),
        }

    def _parallel_json(self) -> dict[str, Any]:
        if not self.ranks:
            return {}
        budget = self.budget
        return {
            "machines": budget.machines,
            "tensor_parallel_size": budget.tensor_parallel,
            "pipeline_parallel_size": budget.pipeline_parallel,
            "ranks": [rank.as_json() for rank in self.ranks],
        }


def predict(budget: Budget) -> Ledger:
    """Ask a budget's engine for every line; where it names several machines, of its tightest rank (see `Ledger`).

    Raises `MembudgetError` for ctx or users below 1, naming the field, for a format or dtype that does not apply,
    and for a layout that the engine refuses, with those that it takes.
    """
    for name, value in (("ctx", budget.ctx), ("users", budget.users)):
        if value < 1:
            raise MembudgetError(f"{name} is {value:,}; allowed is a whole number >= 1")
    try:
        return Ledger(budget, prepared(budget).answer(Load(budget.ctx, budget.users)))
    except LayoutError as error:
        raise advised(budget, error) from None


def advised(budget: Budget, error: LayoutError) -> LayoutError:
    """The refusal of a layout with those that the engine takes behind it."""
    advice = table.get(budget.engine.name).advice(budget.model, budget.format, budget.settings)
    return type(error)(str(error), f". {advice}") if advice else error


__all__ = ["BUCKETS", "Ledger", "Line", "Rank", "Suggestion", "advised", "predict"]
