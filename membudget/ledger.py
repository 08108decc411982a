"""Budget -> Ledger: every predicted line with its why, the verdict, and what would fit."""

from __future__ import annotations

from collections.abc import Callable

from membudget import formats
from membudget.budget import DEFAULT_OVERHEAD, Budget
from membudget.engines import activations
from membudget.engines.cache import cache_bytes
from membudget.records import NamedTuple
from membudget.units import GIB, both, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BUCKETS = ("weights", "kv_cache", "activations", "overhead")
#: Formats to suggest, from the least compressed on.
SMALLER = ("fp8", "q8_0", "awq", "q4_k_m")
#: No search looks further; a plan beyond is memory without a model to use it.
MAX_CTX = 2**30
MAX_USERS = 2**24


class Line(NamedTuple):
    """One part of a bucket: bytes, and the formula with its numbers in it."""

    bucket: str
    part: str
    bytes: int
    why: str


class Change(NamedTuple):
    """What makes a budget fit: the change in words, the bytes it frees, the budget's fields it sets."""

    text: str
    frees: int
    values: dict[str, str | int]


class Ledger:
    """The predicted lines of one budget and what follows from them.  All sizes in bytes."""

    __slots__ = ("_changes", "_max_ctx", "_max_users", "budget", "kv_per_request", "lines", "sums", "total")

    def __init__(self, budget: Budget, lines: tuple[Line, ...], kv_per_request: int) -> None:
        self.budget, self.lines, self.kv_per_request = budget, lines, kv_per_request
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
        return _headroom(self.budget, self.total)

    @property
    def fits(self) -> bool:
        """Whether every bucket together fits."""
        return self.headroom >= 0

    @property
    def kv_per_token(self) -> int:
        """Bytes that the first token of a sequence adds; fewer once sliding windows are full."""
        return kv_growth(self.budget, 1)

    @property
    def kv_per_token_at_ctx(self) -> int:
        """Bytes that one more token adds at the budget's context, beyond every full window."""
        return kv_growth(self.budget, self.budget.ctx + 1)

    @property
    def max_users(self) -> int:
        """The most users that fit at this context, 0 if none."""
        if self._max_users is None:
            left, ctx = _left(self.budget), self.budget.ctx
            self._max_users = _largest(lambda users: left(ctx, users), MAX_USERS, self.budget.users)
        return self._max_users

    @property
    def max_ctx(self) -> int:
        """The longest context that fits for these users, 0 if none; not capped by the model's own."""
        if self._max_ctx is None:
            left, users = _left(self.budget), self.budget.users
            self._max_ctx = _largest(lambda ctx: left(ctx, users), MAX_CTX, self.budget.ctx)
        return self._max_ctx

    @property
    def broken_by(self) -> str | None:
        """The bucket at which the sum first exceeds the memory; None when it fits."""
        if self.fits:
            return None
        running = 0
        for bucket in ("overhead", "weights", "activations", "kv_cache"):
            running += self.sums[bucket]
            if _headroom(self.budget, running) < 0:
                return bucket
        return "kv_cache"

    @property
    def changes(self) -> list[Change]:
        """What would make it fit: single changes, the smallest first, else one combination; empty when it fits."""
        if self._changes is None:
            self._changes = [] if self.fits else _changes(self)
        return self._changes

    @property
    def verdict(self) -> str:
        """One sentence: does it fit, by how much, what broke it, what would make it fit."""
        budget = self.budget
        who = f"{_users(budget.users)} x {budget.ctx:,} tokens"
        if self.fits:
            return f"fits: {who} leave {short(self.headroom)} of {short(self.capacity)}; {_users(self.max_users)} would fit."
        bucket = self.broken_by
        assert bucket is not None
        if not self.changes:
            help_text = (
                f"no format, KV dtype, context or number of users that membudget knows fits {budget.machine.name}."
            )
        else:
            help_text = "it would fit with " + "; or ".join(change.text for change in self.changes) + "."
        return (
            f"does not fit: {bucket} breaks it, {short(-self.headroom)} over {limit_text(budget)} "
            f"({bucket} is {short(self.sums[bucket])}); {help_text}"
        )

    @property
    def step_seconds(self) -> float | None:
        """The least time of one decode step: (weights read + caches read) / bandwidth."""
        if not self.budget.machine.bandwidth:
            return None
        return self.bytes_read / self.budget.machine.bandwidth

    @property
    def bytes_read(self) -> int:
        """What one decode step reads: active weights once, every user's cache once."""
        return self.budget.format.weigh(self.budget.model).active + self.kv_cache

    def as_json(self) -> dict[str, Any]:
        """The plan as documented JSON: bytes as integers, stable keys."""
        budget, step = self.budget, self.step_seconds
        return {
            "model": budget.model.name,
            "model_type": budget.model.model_type,
            "params": budget.model.count.params,
            "unknown": list(budget.model.unknown),
            "format": budget.format.name,
            "kv_cache_dtype": budget.kv_cache_dtype,
            "ctx": budget.ctx,
            "users": budget.users,
            "machine": budget.machine.name,
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
        }


def predict(budget: Budget) -> Ledger:
    """Predict every line of a budget.

    Raises `ValueError` for ctx or users below 1, naming the field.
    """
    for name, value in (("ctx", budget.ctx), ("users", budget.users)):
        if value < 1:
            raise ValueError(f"{name} is {value:,}; allowed is a whole number >= 1")
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


def kv_request(budget: Budget, ctx: int) -> int:
    """Bytes that one sequence of `ctx` tokens keeps."""
    return cache_bytes(budget.model, budget.kv_cache_dtype).request(ctx)


def kv_growth(budget: Budget, position: int) -> int:
    """Bytes that token number `position` adds to one sequence."""
    return cache_bytes(budget.model, budget.kv_cache_dtype).growth(position)


def activation_peak(budget: Budget, ctx: int, users: int) -> activations.Peak:
    """The larger of a decode step for all users and one prefill step."""
    engine, width = budget.engine, _width(budget)
    tokens, sequences = _step(budget, ctx, users)
    prefill = activations.prefill(
        budget.model, tokens, sequences=sequences, attention=engine.attention, logits=engine.logits, width=width
    )
    return max(prefill, activations.decode(budget.model, users, width), key=lambda peak: peak.bytes)


def _width(budget: Budget) -> int:
    """Bytes of an activation's element."""
    return 4 if budget.format.name == "fp32" else 2


def _step(budget: Budget, ctx: int, users: int) -> tuple[int, int]:
    """(tokens, sequences) of the largest prefill step."""
    if budget.engine.name == "transformers":
        # A plain forward takes every prompt at once.
        return ctx * users, users
    return budget.engine.max_num_batched_tokens, 1


def engine_limit(budget: Budget) -> int | None:
    """Bytes that the engine may claim by gpu_memory_utilization, None if there is no such limit."""
    share = budget.engine.gpu_memory_utilization
    if share is None:
        return None
    total = budget.machine.cuda_total if budget.convention == "reported" else None
    return int((total or budget.capacity) * share)


def limit_text(budget: Budget) -> str:
    """The memory that counts, in words."""
    limit = engine_limit(budget)
    if limit is not None and limit + budget.os_bytes < budget.capacity:
        share = budget.engine.gpu_memory_utilization
        return f"the {short(limit)} that gpu_memory_utilization {share} gives {budget.engine.name} on {budget.machine.name}"
    return f"the {short(budget.capacity)} of {budget.machine.name}"


def _headroom(budget: Budget, total: int) -> int:
    left = budget.capacity - total
    limit = engine_limit(budget)
    return left if limit is None else min(left, limit - (total - budget.os_bytes))


def _left(budget: Budget) -> Callable[[int, int], int]:
    """The headroom as a function of (ctx, users): what `predict` finds, without its lines."""
    engine, width, model = budget.engine, _width(budget), budget.model
    overhead = sum(budget.overhead.values())
    held = budget.format.weigh(model).total + overhead
    capacity, limit = budget.capacity - budget.os_bytes - held, engine_limit(budget)
    room = capacity if limit is None else min(capacity, limit - held)
    request = cache_bytes(model, budget.kv_cache_dtype).request
    wide, fixed = activations.widths(model), budget.engine.name != "transformers"
    attention, logits = engine.attention, engine.logits
    per_user = activations.decode_bytes(wide, 1, width)
    prefill = activations.prefill_bytes(wide, *_step(budget, 1, 1), attention, logits, width) if fixed else 0

    def left(ctx: int, users: int) -> int:
        step = prefill
        if not fixed:
            step = activations.prefill_bytes(wide, *_step(budget, ctx, users), attention, logits, width)
        return room - request(ctx) * users - max(step, per_user * users)

    return left


def _fits(budget: Budget, ctx: int, users: int) -> bool:
    return _left(budget)(ctx, users) >= 0


def _largest(left: Callable[[int], int], most: int, near: int) -> int:
    """The largest n in [0, most] for which left(n) >= 0, given that left falls; 0 if not even 1.

    near: where the search begins: from there it goes where the slope says, and doubles its steps.
    """
    if left(1) < 0:
        return 0
    near = min(max(near, 1), most)
    here = left(near)
    slope = here - left(near + 1)
    guess = near + here // slope if slope > 0 else near
    guess = min(max(guess, 1), most)
    step = 1
    if left(guess) >= 0:
        low, high = guess, guess + 1
        while high <= most and left(high) >= 0:
            step *= 2
            low, high = high, high + step
        high = min(high, most + 1)
    else:
        low, high = guess - 1, guess
        while low > 1 and left(low) < 0:
            step *= 2
            low, high = low - step, low
        low = max(low, 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if left(middle) >= 0 else (low, middle)
    return low


def _changes(ledger: Ledger) -> list[Change]:
    budget, found = ledger.budget, []
    if 0 < ledger.max_users < budget.users:
        frees = ledger.kv_per_request * (budget.users - ledger.max_users)
        found.append(
            Change(f"{_users(ledger.max_users)} instead of {budget.users:,}", frees, {"users": ledger.max_users})
        )
    if 0 < ledger.max_ctx < budget.ctx:
        frees = ledger.kv_cache - kv_request(budget, ledger.max_ctx) * budget.users
        found.append(
            Change(f"{ledger.max_ctx:,} tokens of context instead of {budget.ctx:,}", frees, {"ctx": ledger.max_ctx})
        )
    fp8 = budget._replace(kv_cache_dtype="fp8")
    if kv_request(fp8, budget.ctx) < ledger.kv_per_request and _fits(fp8, budget.ctx, budget.users):
        frees = ledger.kv_cache - kv_request(fp8, budget.ctx) * budget.users
        found.append(Change("an fp8 KV cache", frees, {"kv_cache_dtype": "fp8"}))
    for name in SMALLER:
        smaller = _with_format(budget, name)
        if smaller is None:
            continue
        frees = ledger.weights - smaller.format.weigh(budget.model).total
        if frees > 0 and _fits(smaller, budget.ctx, budget.users):
            found.append(Change(f"{name} weights", frees, {"format": name}))
            break
    return sorted(found, key=lambda change: change.frees) or _together(ledger)


def _together(ledger: Ledger) -> list[Change]:
    """No single change is enough: the least compressed weights that fit some users with an fp8 cache."""
    budget = ledger.budget
    for name in (budget.format.name, *SMALLER):
        smaller = _with_format(budget, name)
        if smaller is None or smaller.format.weigh(budget.model).total > ledger.weights:
            continue
        smaller = smaller._replace(kv_cache_dtype="fp8")
        users = min(budget.users, predict(smaller).max_users)
        if users:
            after = predict(smaller._replace(users=users))
            values: dict[str, str | int] = {"kv_cache_dtype": "fp8", "users": users}
            text = f"an fp8 KV cache and {_users(users)}"
            if name != budget.format.name:
                values["format"] = name
                text = f"{name} weights, {text}"
            return [Change(text + " together", ledger.total - after.total, values)]
    return []


def _with_format(budget: Budget, name: str) -> Budget | None:
    """The budget in another format; None where that format does not apply to the model's shapes."""
    if name == budget.format.name:
        return budget
    smaller = budget._replace(format=formats.get(name))
    try:
        smaller.format.weigh(budget.model)
    except formats.FormatError:
        return None
    return smaller


def _users(number: int) -> str:
    return f"{number:,} user{'s' if number != 1 else ''}"


def _kv_why(budget: Budget) -> str:
    cache = cache_bytes(budget.model, budget.kv_cache_dtype)
    parts = []
    for size, window in cache.grows:
        kept = f"min({budget.ctx:,}, window {window:,})" if window and window < budget.ctx else f"{budget.ctx:,}"
        parts.append(f"{size:,} bytes x {kept} tokens")
    if cache.fixed:
        parts.append(f"{cache.fixed:,} bytes of recurrent state")
    return " + ".join(parts) or "no cache"


__all__ = ["BUCKETS", "GIB", "Change", "Ledger", "Line", "engine_limit", "limit_text", "predict"]
