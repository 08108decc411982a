"""Four buckets in all of the memory: weights, every user's cache, the largest step, overhead.

transformers and llama.cpp allocate so; `arithmetic` is this and nothing else.  Sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from membudget.budgets.settings import Settings
from membudget.data.defaults import DEFAULT_OVERHEAD, DRAWN, MAX_CTX, MAX_USERS
from membudget.engines import activations, share
from membudget.engines.base import BUCKETS, Answer, Bucket, Change, Limit, Line, Load, Phase, Prepared, Rank, sums_of
from membudget.engines.search import largest
from membudget.formats import Format
from membudget.formats.kv import KvBytes
from membudget.machines import Machine
from membudget.model import Model
from membudget.units import both


class UserCache(Protocol):
    """One user's cache by its tokens, in bytes."""

    def bytes(self, tokens: int) -> int:
        """Of so many tokens."""

    def per_token(self, position: int) -> int:
        """What token number `position` adds."""

    def read(self, tokens: int) -> int:
        """What one decode step reads."""

    def why(self, tokens: int) -> str:
        """The formula with its numbers."""

    @property
    def bends(self) -> tuple[int, ...]:
        """Lengths from which on fewer layers grow, in tokens."""


@dataclass(frozen=True)
class TokenCache:
    """A cache that keeps tokens and nothing more: the floor that every engine starts from."""

    kept: KvBytes

    def bytes(self, tokens: int) -> int:
        """Of so many tokens."""
        return self.kept.bytes(tokens)

    def per_token(self, position: int) -> int:
        """What token number `position` adds."""
        return self.kept.per_token(position)

    def read(self, tokens: int) -> int:
        """All of it."""
        return self.kept.bytes(tokens)

    @property
    def bends(self) -> tuple[int, ...]:
        """Lengths from which on fewer layers grow, in tokens."""
        return self.kept.bends

    def why(self, tokens: int) -> str:
        """Every sum of layers with its tokens."""
        parts = []
        for size, window in self.kept.grows:
            kept = f"min({tokens:,}, window {window:,})" if window and window < tokens else f"{tokens:,}"
            parts.append(f"{size:,} bytes x {kept} tokens")
        for size, rate in self.kept.entries:
            parts.append(f"{size:,} bytes x {tokens // rate:,} entries of {rate} tokens")
        if self.kept.fixed:
            parts.append(f"{self.kept.fixed:,} bytes of recurrent state")
        return " + ".join(parts) or "no cache"


def width_of(weights: Format) -> int:
    """Bytes of an activation's element."""
    return 4 if weights.name == "fp32" else 2


class Buckets:
    """One model on one device.

    cache: of one user.  whole_prompts: whether one step takes every prompt at once; else max_num_batched_tokens.
    pad: tokens between two sizes of a cache.  command: what to type for a load.
    """

    def __init__(
        self,
        model: Model,
        weights: Format,
        machine: Machine,
        settings: Settings,
        cache: UserCache,
        *,
        whole_prompts: bool = False,
        pad: int = 1,
        command: Callable[[Load], str] | None = None,
    ) -> None:
        self.model, self.weights, self.machine, self.settings = model, weights, machine, settings
        self.cache, self.whole_prompts, self.pad, self.command = cache, whole_prompts, pad, command
        self.width = width_of(weights)
        self._left: Callable[[int, int], int] | None = None

    def step(self, ctx: int, users: int) -> tuple[int, int]:
        """(tokens, sequences) of the largest prefill step."""
        if self.whole_prompts:
            return ctx * users, users
        return self.settings.step_tokens, 1

    def peak(self, ctx: int, users: int) -> activations.Peak:
        """The larger of a decode step for all users and one prefill step."""
        tokens, sequences = self.step(ctx, users)
        prefill = activations.prefill(
            self.model,
            tokens,
            sequences=sequences,
            attention=self.settings.attention,
            logits=self.settings.logits,
            width=self.width,
        )
        return max(prefill, activations.decode(self.model, users, self.width), key=lambda peak: peak.bytes)

    def request(self, ctx: int) -> int:
        """Bytes of one user's cache."""
        return self.cache.bytes(ctx)

    @property
    def claimed(self) -> float | None:
        """The share of the memory that may be claimed, None for all."""
        return self.settings.gpu_memory_utilization

    @property
    def step_tokens(self) -> int:
        """Tokens of one prefill step."""
        return self.settings.step_tokens

    @property
    def bends(self) -> tuple[int, ...]:
        """Contexts from which on fewer layers grow, in tokens."""
        return self.cache.bends

    def headroom(self, ctx: int, users: int) -> int:
        """Bytes left over; negative where it does not fit."""
        if self._left is None:
            self._left = self._headroom()
        return self._left(ctx, users)

    def _headroom(self) -> Callable[[int, int], int]:
        """Integers alone, and fast, for searches."""
        settings, width, machine = self.settings, self.width, self.machine
        held = self.weights.weigh(self.model).total + sum(settings.overhead.values())
        room = machine.memory - machine.os_reserve - held
        limit = share.claim(machine, settings)
        if limit is not None:
            room = min(room, limit - held)
        request, step = self.cache.bytes, self.step
        wide, attention, logits = activations.widths(self.model), settings.attention, settings.logits
        per_user = activations.decode_bytes(wide, 1, width)

        def left(ctx: int, users: int) -> int:
            prefill = activations.prefill_bytes(wide, *step(ctx, users), attention, logits, width)
            return room - request(ctx) * users - max(prefill, per_user * users)

        beside = share.room_beside(machine, settings)
        if beside is None or beside >= 0:
            return left
        return lambda ctx, users: min(left(ctx, users), beside)

    def fits(self, ctx: int, users: int) -> bool:
        """Whether the load fits."""
        return self.headroom(ctx, users) >= 0

    def total(self, ctx: int, users: int) -> int:
        """Bytes of all buckets."""
        return (
            self.weights.weigh(self.model).total
            + self.request(ctx) * users
            + self.peak(ctx, users).bytes
            + sum(self.settings.overhead.values())
            + self.machine.os_reserve
        )

    def users(self, ctx: int, near: int = 1) -> int:
        """The most users of `ctx` tokens, 0 for none."""
        return largest(lambda users: self.headroom(ctx, users), MAX_USERS, near)

    def longest(self, users: int, near: int = 1) -> int:
        """The longest context of so many users, 0 for none; not capped by the model's own."""
        return longest(self.headroom, users, near, self.pad)

    def lines(self, load: Load) -> tuple[Line, ...]:
        """Every part of every bucket, in bytes."""
        weights, settings = self.weights.weigh(self.model), self.settings
        request = self.request(load.ctx)
        why = f"{load.users:,} users x {request:,} bytes at {load.ctx:,} tokens ({self.cache.why(load.ctx)})"
        peak = self.peak(load.ctx, load.users)
        lines = [
            Line(Bucket.WEIGHTS, self.weights.name, weights.total, weights.why),
            Line(Bucket.KV_CACHE, settings.kv_cache_dtype, request * load.users, why),
            Line(Bucket.ACTIVATIONS, f"{peak.phase}, {peak.moment}", peak.bytes, peak.why),
        ]
        return (*lines, *overhead_lines(self.machine, settings))

    def answer(self, load: Load) -> Answer:
        """All of it."""
        lines, ctx = self.lines(load), load.ctx
        headroom = share.headroom(self.machine, self.settings, sum(line.bytes for line in lines))
        return Answer(
            load=load,
            lines=lines,
            headroom=headroom,
            limiting=limiting(self.machine, self.settings, lines),
            limit=share.claim(self.machine, self.settings),
            claimed=self.claimed,
            starts=(),
            users=self.users(ctx, load.users),
            longest=self.longest(load.users, ctx),
            request=self.request(ctx),
            token=self.cache.per_token(1),
            token_at_ctx=self.cache.per_token(ctx + 1),
            read=self.read(load),
            command=self.command(load) if self.command else "",
        )

    def changes(self, load: Load) -> tuple[Change, ...]:
        """None of its own."""
        return ()

    def read(self, load: Load) -> int:
        """Bytes that one decode step reads."""
        return self.weights.weigh(self.model).active + self.cache.read(load.ctx) * load.users


@dataclass(frozen=True)
class Stage:
    """One pipeline stage of several devices: what each of its ranks holds."""

    #: Its decoder layers: the first, and one past the last.
    layers: tuple[int, int]
    held: Buckets


class Split:
    """Several devices: `tensor` ranks hold the same part of every stage; the tightest decides."""

    def __init__(self, stages: Sequence[Stage], tensor: int) -> None:
        self.stages, self.tensor = tuple(stages), tensor

    def headroom(self, ctx: int, users: int) -> int:
        """Of the tightest rank."""
        return min([stage.held.headroom(ctx, users) for stage in self.stages])

    def fits(self, ctx: int, users: int) -> bool:
        """Whether the load fits every rank."""
        return self.headroom(ctx, users) >= 0

    def total(self, ctx: int, users: int) -> int:
        """Bytes of the first stage's ranks."""
        return self.stages[0].held.total(ctx, users)

    def request(self, ctx: int) -> int:
        """Bytes of one user's cache on a rank of the first stage."""
        return self.stages[0].held.request(ctx)

    @property
    def claimed(self) -> float | None:
        """The share of the memory that may be claimed, None for all."""
        return self.stages[0].held.settings.gpu_memory_utilization

    @property
    def step_tokens(self) -> int:
        """Tokens of one prefill step."""
        return self.stages[0].held.settings.step_tokens

    @property
    def bends(self) -> tuple[int, ...]:
        """Contexts from which on fewer layers grow, in tokens."""
        return self.stages[0].held.bends

    def users(self, ctx: int, near: int = 1) -> int:
        """The most users of `ctx` tokens, 0 for none."""
        return largest(lambda users: self.headroom(ctx, users), MAX_USERS, near)

    def longest(self, users: int, near: int = 1) -> int:
        """The longest context of so many users, 0 for none."""
        return longest(self.headroom, users, near, 1)

    def changes(self, load: Load) -> tuple[Change, ...]:
        """None of its own."""
        return ()

    def answer(self, load: Load) -> Answer:
        """The tightest rank's, and every rank."""
        ranks = []
        for place, stage in enumerate(self.stages):
            held, lines = stage.held, stage.held.lines(load)
            headroom = share.headroom(held.machine, held.settings, sum(line.bytes for line in lines))
            short = limiting(held.machine, held.settings, lines)
            for tensor in range(self.tensor):
                number = place * self.tensor + tensor
                ranks.append(Rank(number, place, tensor, stage.layers, held.model, lines, headroom, short))
        tightest = min(ranks, key=lambda rank: rank.headroom)
        answer = self.stages[tightest.stage].held.answer(load)
        return replace(
            answer,
            users=self.users(load.ctx, load.users),
            longest=self.longest(load.users, load.ctx),
            read=sum(stage.held.read(load) for stage in self.stages),
            ranks=tuple(ranks),
        )


def longest(headroom: Callable[[int, int], int], users: int, near: int, pad: int) -> int:
    """The longest context of so many users in steps of `pad` tokens: those between take as much as the upper one."""
    near = -(-near // pad)
    return pad * largest(lambda steps: headroom(steps * pad, users), MAX_CTX // pad, near)


def overhead_lines(machine: Machine, settings: Settings) -> list[Line]:
    """What is neither weights, cache nor a step's, in bytes."""
    source = "assumed until measured" if settings.overhead is DEFAULT_OVERHEAD else "as the budget says"
    lines = [Line(Bucket.OVERHEAD, part, size, f"{both(size)} {source}") for part, size in settings.overhead.items()]
    if machine.os_reserve:
        why = f"{both(machine.os_reserve)} left to the operating system"
        lines.append(Line(Bucket.OVERHEAD, "os_reserve", machine.os_reserve, why))
    return lines


def limiting(machine: Machine, settings: Settings, lines: tuple[Line, ...]) -> Bucket | Limit | None:
    """The bucket at which the sum first exceeds the memory, in the order of `DRAWN`; None when it fits."""
    if share.headroom(machine, settings, sum(line.bytes for line in lines)) >= 0:
        return None
    if share.takes_reserve(machine, settings):
        return Limit.SHARE
    sums, running = sums_of(lines), 0
    for name in DRAWN:
        running += sums[name]
        if share.headroom(machine, settings, running) < 0:
            return Bucket(name)
    return Bucket.KV_CACHE


class BucketEngine:
    """An engine that is four buckets: what differs is the cache of a user and the step."""

    name = ""

    def prepare(self, model: Model, weights: Format, machine: Machine, settings: Settings) -> Prepared:
        """Weigh a model once."""
        raise NotImplementedError

    def ask(self, model: Model, weights: Format, machine: Machine, settings: Settings, load: Load) -> Answer:
        """`prepare`, then the answer."""
        return self.prepare(model, weights, machine, settings).answer(load)

    def advice(self, model: Model, weights: Format, settings: Settings) -> str:
        """Nothing: one device has one layout."""
        return ""


__all__ = ["BUCKETS", "BucketEngine", "Buckets", "Phase", "Split", "Stage", "TokenCache", "UserCache", "limiting"]
