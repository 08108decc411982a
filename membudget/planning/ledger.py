"""Budget -> Ledger: its engine's answer, the verdict, and what would fit."""

from __future__ import annotations

import functools
from typing import Any

from membudget.budgets.budget import Budget
from membudget.engines import table
from membudget.engines.base import BUCKETS as ALL
from membudget.engines.base import Answer, LayoutError, Line, Load, Rank
from membudget.errors import MembudgetError
from membudget.planning import suggestions
from membudget.planning.capacity import prepared
from membudget.planning.suggestions import Suggestion
from membudget.planning.verdict import short_text, verdict_text

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

    @property
    def short_text(self) -> str:
        """What is short, in one clause; empty where it fits."""
        return "" if self.fits else short_text(self)

    @functools.cached_property
    def suggestions(self) -> list[Suggestion]:
        """What would make it fit: single changes, the smallest first, else one combination; empty when it fits."""
        return [] if self.fits else suggestions.suggest(self.budget)

    @property
    def verdict(self) -> str:
        """One sentence: does it fit, by how much, what is short, what would make it fit."""
        return verdict_text(self)

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
            "headroom_low": answer.headroom_low,
            "max_users": self.max_users,
            "max_users_low": answer.users_low,
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
            "pool": None if answer.details is None else answer.details.as_json(),
            "engine_notes": [note.as_json() for note in answer.notes],
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
