"""Budget -> Ledger: every predicted line with its why, the verdict, and what would fit."""

from __future__ import annotations

from typing import Any, NamedTuple

from membudget.budgets.budget import DEFAULT_OVERHEAD, Budget
from membudget.errors import MembudgetError
from membudget.formats import kv
from membudget.planning.capacity import (
    MAX_CTX,
    MAX_USERS,
    activation_peak,
    engine_limit,
    headroom,
    held,
    kv_growth,
    kv_read,
    kv_request,
    limit_text,
    max_ctx,
    max_users,
    share_text,
    takes_the_systems,
    user_cache,
)
from membudget.planning.suggestions import Change, nothing_helps, suggest, users_text
from membudget.units import both, short

BUCKETS = ("weights", "kv_cache", "activations", "overhead")
#: What `Ledger.broken_by` names where no bucket does it.
SHARE = "gpu_memory_utilization"


class Line(NamedTuple):
    """One part of a bucket: bytes, and the formula with its numbers in it."""

    bucket: str
    part: str
    bytes: int
    why: str


class Ledger:
    """The predicted lines of one budget and what follows from them.  All sizes in bytes.

    Where a budget names several machines, all figures are those of the tightest rank: `held` is what that rank
    holds, as a budget of one machine, and `stages` has a ledger for each pipeline stage.  Else `held` is the budget.
    """

    __slots__ = (
        "_changes", "_max_ctx", "_max_users", "budget", "held", "kv_per_request", "lines", "stages", "sums", "total",
    )  # fmt: skip

    def __init__(
        self, budget: Budget, lines: tuple[Line, ...], kv_per_request: int, held: Budget | None = None
    ) -> None:
        self.budget, self.lines, self.kv_per_request = budget, lines, kv_per_request
        self.held = budget if held is None else held
        self.stages: tuple[Ledger, ...] = ()
        self.sums = dict.fromkeys(BUCKETS, 0)
        for line in lines:
            self.sums[line.bucket] += line.bytes
        self.total = sum(self.sums.values())
        self._max_users: int | None = None
        self._max_ctx: int | None = None
        self._changes: list[Change] | None = None

    @property
    def weights(self) -> int:
        """Parameters x bytes a parameter."""
        return self.sums["weights"]

    @property
    def kv_cache(self) -> int:
        """All users' caches at the full context."""
        return self.sums["kv_cache"]

    @property
    def activations(self) -> int:
        """The peak of one step's temporaries."""
        return self.sums["activations"]

    @property
    def overhead(self) -> int:
        """CUDA context, allocator slack, CUDA graphs and the operating system."""
        return self.sums["overhead"]

    @property
    def capacity(self) -> int:
        """The machine's memory."""
        return self.budget.capacity

    @property
    def headroom(self) -> int:
        """What is left over; negative when it does not fit."""
        return headroom(self.budget, self.total)

    @property
    def fits(self) -> bool:
        """Whether every bucket together fits."""
        return self.headroom >= 0

    @property
    def kv_per_token(self) -> int:
        """Bytes that the first token of a sequence adds; fewer once windows are full.  Of llama.cpp a cell's."""
        return kv_growth(self.held, 1)

    @property
    def kv_per_token_at_ctx(self) -> int:
        """Bytes that one more token adds at the budget's context, beyond every full window; of llama.cpp a cell's."""
        return kv_growth(self.held, self.budget.ctx + 1)

    @property
    def max_users(self) -> int:
        """The most users that fit at this context, 0 if none."""
        if self._max_users is None:
            self._max_users = max_users(self.budget)
        return self._max_users

    @property
    def max_ctx(self) -> int:
        """The longest context that fits for these users, 0 if none; not capped by the model's own."""
        if self._max_ctx is None:
            self._max_ctx = max_ctx(self.budget)
        return self._max_ctx

    @property
    def broken_by(self) -> str | None:
        """The bucket at which the sum first exceeds the memory; None when it fits.

        ``gpu_memory_utilization`` where that takes what the operating system is left: it does whatever the sum.
        """
        if self.fits:
            return None
        if takes_the_systems(self.budget):
            return SHARE
        running = 0
        for bucket in ("overhead", "weights", "activations", "kv_cache"):
            running += self.sums[bucket]
            if headroom(self.budget, running) < 0:
                return bucket
        return "kv_cache"

    @property
    def changes(self) -> list[Change]:
        """What would make it fit: single changes, the smallest first, else one combination; empty when it fits."""
        if self._changes is None:
            self._changes = [] if self.fits else suggest(self.budget)
        return self._changes

    @property
    def verdict(self) -> str:
        """One sentence: does it fit, by how much, what broke it, what would make it fit."""
        budget = self.budget
        who = f"{users_text(budget.users)} x {budget.ctx:,} tokens"
        if self.fits:
            most = users_text(self.max_users)
            room = f"{short(self.headroom)} of {limit_text(budget, False)}{self._tightest(' on ')}"
            return f"fits: {who} leave {room}; {most} would fit."
        bucket = self.broken_by
        assert bucket is not None
        if not self.changes:
            help_text = f"{nothing_helps(budget)} fits {budget.machine_name}."
        else:
            help_text = "it would fit with " + "; or ".join(change.text for change in self.changes) + "."
        if bucket == SHARE:
            return f"does not fit: {share_text(budget)}; {help_text}"
        return (
            f"does not fit: {bucket} breaks it{self._tightest(' on ')}, "
            f"{short(-self.headroom)} over {limit_text(budget)} "
            f"({bucket} is {short(self.sums[bucket])}); {help_text}"
        )

    @property
    def ranks(self) -> list[Rank]:
        """Every rank where the budget names several machines, in vLLM's order; else none."""
        found = []
        for stage, ledger in enumerate(self.stages):
            for tensor_rank in range(self.budget.tensor_parallel):
                rank = stage * self.budget.tensor_parallel + tensor_rank
                found.append(Rank(rank, stage, tensor_rank, layers_of(ledger.held), ledger))
        return found

    def _tightest(self, before: str) -> str:
        """``rank 1 (layers 40 to 79)`` behind a word; nothing on one machine."""
        tightest = [rank for rank in self.ranks if rank.ledger.held is self.held]
        return f"{before}{ranks_text(tightest, len(self.stages) > 1)}" if tightest else ""

    @property
    def step_seconds(self) -> float | None:
        """The least time of one decode step: (weights read + caches read) / bandwidth."""
        if not self.budget.machine.bandwidth:
            return None
        return self.bytes_read / self.budget.machine.bandwidth

    @property
    def bytes_read(self) -> int:
        """What one decode step reads: active weights once, every user's cache once; stages read one after the other."""
        held = [ledger.held for ledger in self.stages or (self,)]
        return sum(budget.format.weigh(budget.model).active + kv_read(budget) for budget in held)

    def as_json(self) -> dict[str, Any]:
        """The plan as documented JSON: bytes as integers, stable keys."""
        budget, step = self.budget, self.step_seconds
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
            "limit": engine_limit(budget),
            "headroom": self.headroom,
            "fits": self.fits,
            "max_users": self.max_users,
            "max_ctx": self.max_ctx,
            "kv_per_token": self.kv_per_token,
            "kv_per_token_at_ctx": self.kv_per_token_at_ctx,
            "kv_per_request": self.kv_per_request,
            "broken_by": self.broken_by,
            "changes": [change._asdict() for change in self.changes],
            "verdict": self.verdict,
            "decode_upper_bound": None
            if step is None
            else {
                "bytes_read": self.bytes_read,
                "bandwidth": budget.machine.bandwidth,
                "step_seconds": step,
                "tokens_per_second_per_user": 1 / step if step else None,
            },
            "lines": [line._asdict() for line in self.lines],
            **self._parallel_json(),
        }

    def _parallel_json(self) -> dict[str, Any]:
        if not self.stages:
            return {}
        budget = self.budget
        return {
            "machines": budget.machines,
            "tensor_parallel_size": budget.tensor_parallel,
            "pipeline_parallel_size": budget.pipeline_parallel,
            "ranks": [rank.as_json() for rank in self.ranks],
        }


class Rank(NamedTuple):
    """One rank of several machines.  rank: vLLM's own number.  layers: its first and one past its last."""

    rank: int
    stage: int
    tensor_rank: int
    layers: tuple[int, int]
    ledger: Ledger

    def as_json(self) -> dict[str, Any]:
        """Bytes as integers, stable keys."""
        ledger = self.ledger
        return {
            "rank": self.rank,
            "pipeline_stage": self.stage,
            "tensor_parallel_rank": self.tensor_rank,
            "layers": list(self.layers),
            **ledger.sums,
            "total": ledger.total,
            "headroom": ledger.headroom,
            "fits": ledger.fits,
            "broken_by": ledger.broken_by,
            "lines": [line._asdict() for line in ledger.lines],
        }


def layers_of(held: Budget) -> tuple[int, int]:
    """The decoder layers that a rank holds: the first, and one past the last."""
    layers = [spec.layer for spec in held.model.caches]
    return (min(layers), max(layers) + 1) if layers else (0, 0)


def ranks_text(ranks: list[Rank], staged: bool) -> str:
    """``each of ranks 0 and 1``; where layers are staged, ``rank 1 (layers 40 to 79)``: ranks of one stage."""
    first, last, (start, stop) = ranks[0].rank, ranks[-1].rank, ranks[0].layers
    text = f"rank {first}" if first == last else f"each of ranks {first} {'to' if last - first > 1 else 'and'} {last}"
    return f"{text} (layers {start} to {stop - 1})" if staged else text


def predict(budget: Budget) -> Ledger:
    """Predict every line of a budget; where it names several machines, of its tightest rank (see `Ledger`).

    Raises `ValueError` for ctx or users below 1, naming the field, and for a layout that vLLM refuses.
    """
    for name, value in (("ctx", budget.ctx), ("users", budget.users)):
        if value < 1:
            raise MembudgetError(f"{name} is {value:,}; allowed is a whole number >= 1")
    if budget.machines == 1:
        return _predict(budget)
    from membudget.engines.vllm.parallel.layouts import laid_out

    laid_out(budget.model, budget.format, budget.tensor_parallel, budget.pipeline_parallel)
    stages = tuple(_predict(part) for part in held(budget))
    tightest = min(stages, key=lambda ledger: ledger.headroom)
    ledger = Ledger(budget, tightest.lines, tightest.kv_per_request, tightest.held)
    ledger.stages = stages
    return ledger


def _predict(budget: Budget) -> Ledger:
    weights = budget.format.weigh(budget.model)
    request = kv_request(budget, budget.ctx)
    cache = request * budget.users
    peak = activation_peak(budget, budget.ctx, budget.users)
    lines = [
        Line("weights", budget.format.name, weights.total, weights.why),
        Line(
            "kv_cache",
            budget.kv_cache_dtype,
            cache,
            f"{budget.users:,} users x {request:,} bytes at {budget.ctx:,} tokens ({_kv_why(budget)})",
        ),
        Line("activations", f"{peak.phase}, {peak.moment}", peak.bytes, peak.why),
    ]
    source = "assumed until measured" if budget.overhead is DEFAULT_OVERHEAD else "as the budget says"
    lines += [Line("overhead", part, size, f"{both(size)} {source}") for part, size in budget.overhead.items()]
    if budget.os_bytes:
        lines.append(
            Line("overhead", "os_reserve", budget.os_bytes, f"{both(budget.os_bytes)} left to the operating system")
        )
    return Ledger(budget, tuple(lines), request)


def _kv_why(budget: Budget) -> str:
    cache = user_cache(budget)
    if not isinstance(cache, kv.KvBytes):
        return cache.why(budget.ctx)
    parts = []
    for size, window in cache.grows:
        kept = f"min({budget.ctx:,}, window {window:,})" if window and window < budget.ctx else f"{budget.ctx:,}"
        parts.append(f"{size:,} bytes x {kept} tokens")
    for size, rate in cache.entries:
        parts.append(f"{size:,} bytes x {budget.ctx // rate:,} entries of {rate} tokens")
    if cache.fixed:
        parts.append(f"{cache.fixed:,} bytes of recurrent state")
    return " + ".join(parts) or "no cache"


__all__ = [
    "BUCKETS",
    "MAX_CTX",
    "MAX_USERS",
    "SHARE",
    "Change",
    "Ledger",
    "Line",
    "engine_limit",
    "kv_request",
    "limit_text",
    "predict",
    "share_text",
]
