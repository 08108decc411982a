"""What an engine is asked, and what it answers: the one door from a budget to figures.

    prepared = engine.prepare(model, weights, machine, settings)     # once
    prepared.answer(Load(ctx=8192, users=8))                         # for any load
    engine.ask(model, weights, machine, settings, load)              # both

A new engine is a folder of `membudget.engines` with `options.py` (`DECLARED`, what a budget may say of it) and
`engine.py` (`ENGINE`, an `Engine`).  `membudget.engines.table` finds it by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from membudget.budgets.settings import Settings
from membudget.formats import Format, FormatError
from membudget.machines import Machine
from membudget.model import Model


class LayoutError(FormatError):
    """Devices that the engine does not split this model over.  reason: why, in one sentence; advice: behind it."""

    default_code = "refused_layout"
    #: Whether it is the engine that refuses; else the layout is not supported here.
    known: ClassVar[bool] = True

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason.removesuffix('.')}{advice}" if advice else reason)
        self.reason = reason.removesuffix(".")


class Bucket(StrEnum):
    """Where a byte belongs."""

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"
    ACTIVATIONS = "activations"
    OVERHEAD = "overhead"


class Phase(StrEnum):
    """What a step does."""

    PREFILL = "prefill"
    DECODE = "decode"


class Limit(StrEnum):
    """What makes a plan not fit, where it is not a bucket."""

    #: The engine's claim takes what the operating system needs, whatever the sum.
    SHARE = "gpu_memory_utilization"
    #: The engine refuses to start (`Answer.starts`), though the bytes are there.
    START = "start"
    #: More users than the engine runs at once, though the bytes are there.
    SEQUENCES = "max_num_seqs"
    TOKENS = "max_num_batched_tokens"
    #: More users than a llama.cpp server has slots.
    SLOTS = "parallel"
    #: The devices have room, the RAM beside them has not.
    HOST = "host_memory"


#: In the order in which plans show them.
BUCKETS = tuple(Bucket)


@dataclass(frozen=True)
class Load:
    """What is served."""

    #: Tokens of context that every user has.
    ctx: int
    #: Sequences at once, each at the full context.
    users: int


@dataclass(frozen=True)
class Line:
    """One part of a bucket."""

    bucket: Bucket
    #: ``bf16``, ``cuda_graphs``: unique within the bucket.
    part: str
    bytes: int
    #: The formula with its numbers in it.
    why: str
    #: What it may be at least and at most, in bytes; None where it is exact or nothing is known of its range.
    low: int | None = None
    high: int | None = None
    #: Where the figure or its range comes from: a run, a log, a file of the engine.
    source: str = ""
    #: ``host`` for RAM beside the devices' memory, "" for the device itself.
    place: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values; the range and its source only where there is one."""
        found: dict[str, Any] = {"bucket": self.bucket.value, "part": self.part, "bytes": self.bytes, "why": self.why}
        if self.low is not None or self.high is not None:
            found |= {"low": self.low, "high": self.high}
        found |= {"source": self.source} if self.source else {}
        return found | ({"place": self.place} if self.place else {})


@dataclass(frozen=True)
class Refusal:
    """Why the engine does not start."""

    #: For programs: ``kv_cache_too_small``.
    code: str
    #: For people, in the engine's own words where it has any.
    text: str
    #: What would start, as it is typed, or "" where nothing is known to.
    remedy: str = ""
    #: The same as options of the engine, each alone: ((name, value), ...).
    values: tuple[tuple[str, Any], ...] = ()

    def as_json(self) -> dict[str, str]:
        """Plain values."""
        return {"code": self.code, "text": self.text, "would_start": self.remedy}


@dataclass(frozen=True)
class Note:
    """What a reader of the answer should know."""

    code: str
    text: str

    def as_json(self) -> dict[str, str]:
        """Plain values."""
        return {"code": self.code, "text": self.text}


@dataclass(frozen=True)
class Change:
    """Options of the engine with which a load would fit that does not."""

    #: As it is typed: ``-ngl 21``, with what it costs behind it.
    text: str
    #: Bytes of a device that it frees.
    frees: int
    #: The options by their names in a budget.
    values: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Rank:
    """What one device of several holds."""

    #: The engine's own number.
    rank: int
    #: Its pipeline stage, and its place among the ranks that share every layer.
    stage: int
    tensor_rank: int
    #: Its decoder layers: the first, and one past the last.
    layers: tuple[int, int]
    #: The model as this rank holds it.
    model: Model
    #: Its own bytes.
    lines: tuple[Line, ...]
    #: Bytes left over, negative where it does not fit.
    headroom: int
    #: What it is short of first, None where it fits.
    limiting: Bucket | Limit | None

    @property
    def sums(self) -> dict[str, int]:
        """Bytes by bucket."""
        return sums_of(self.lines)

    @property
    def total(self) -> int:
        """Bytes of all buckets."""
        return sum(line.bytes for line in self.lines)

    @property
    def fits(self) -> bool:
        """Whether its bytes fit its device."""
        return self.headroom >= 0

    @property
    def alike(self) -> tuple[int, tuple[Line, ...]]:
        """What ranks that hold the same share."""
        return self.stage, self.lines

    def as_json(self) -> dict[str, Any]:
        """Bytes as integers, stable keys."""
        limiting = None if self.limiting is None else self.limiting.value
        return {
            "rank": self.rank,
            "pipeline_stage": self.stage,
            "tensor_parallel_rank": self.tensor_rank,
            "layers": list(self.layers),
            **self.sums,
            "total": self.total,
            "headroom": self.headroom,
            "fits": self.fits,
            "limiting_bucket": limiting,
            "broken_by": limiting,
            "lines": [line.as_json() for line in self.lines],
        }


class Details(Protocol):
    """What an engine says beyond what all engines say."""

    def as_json(self) -> dict[str, Any]:
        """Plain values, by the engine's own names."""


@dataclass(frozen=True)
class Answer:
    """Whether it starts, how many users it serves, and every byte of it.  Of several devices: of the tightest."""

    #: What was asked.
    load: Load
    #: Every part of every bucket at the asked load, in bytes.
    lines: tuple[Line, ...]
    #: Bytes left over at the asked load; negative where it does not fit.
    headroom: int
    #: What is short first, None where the load fits.
    limiting: Bucket | Limit | None
    #: Bytes that the engine may claim, None where it may claim all.
    limit: int | None
    #: The share of the memory that this is; None where it is not a share.
    claimed: float | None
    #: Why it does not start; empty where it does.
    starts: tuple[Refusal, ...]
    #: Requests of `ctx` tokens that run at once, 0 for none.
    users: int
    #: The longest context at which the asked users run at once, in tokens, 0 for none.
    longest: int
    #: Bytes of one user's cache at the full context.
    request: int
    #: Bytes that the first token of a sequence adds, and one more at the full context.
    token: int
    token_at_ctx: int
    #: Bytes that one decode step reads: active weights once, every user's cache once.
    read: int
    #: The same in the worst case of what is bounded: bytes left over, and users; None where nothing is bounded.
    headroom_low: int | None = None
    users_low: int | None = None
    #: What the engine prints as its concurrency: a worst case reserved at the start; None where it prints none.
    concurrency: float | None = None
    #: What to type to get this, "" where nothing is known.
    command: str = ""
    notes: tuple[Note, ...] = ()
    #: Every device where there are several, in the engine's order.
    ranks: tuple[Rank, ...] = ()
    #: The engine's own details, by its own names, for `--json` and detail views.
    details: Details | None = None
    #: What lies in RAM beside the devices' memory; not in `lines`.
    host: tuple[Line, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it starts and serves the asked users."""
        return not self.starts and self.headroom >= 0 and self.users >= self.load.users

    @property
    def sums(self) -> dict[str, int]:
        """Bytes by bucket."""
        return sums_of(self.lines)

    @property
    def total(self) -> int:
        """Bytes of all buckets."""
        return sum(line.bytes for line in self.lines)


class Prepared(Protocol):
    """One model on one machine, weighed once, to be asked of many loads."""

    def headroom(self, ctx: int, users: int) -> int:
        """Bytes left over; negative where it does not fit.  Falls with both."""

    def fits(self, ctx: int, users: int) -> bool:
        """Whether the engine starts and serves the load."""

    def total(self, ctx: int, users: int) -> int:
        """Bytes of all buckets."""

    def request(self, ctx: int) -> int:
        """Bytes of one user's cache."""

    @property
    def claimed(self) -> float | None:
        """The share of the memory that the engine claims, as given or as it assumes; None where it claims none."""

    @property
    def step_tokens(self) -> int:
        """Tokens of one prefill step, as given or as the engine takes them."""

    @property
    def bends(self) -> tuple[int, ...]:
        """Contexts from which on fewer layers grow, in tokens."""

    def users(self, ctx: int, near: int = 1) -> int:
        """The most users of `ctx` tokens at once, 0 for none.  near: where a search starts."""

    def longest(self, users: int, near: int = 1) -> int:
        """The longest context of so many users at once, 0 for none."""

    def answer(self, load: Load) -> Answer:
        """All of it."""

    def changes(self, load: Load) -> tuple[Change, ...]:
        """The engine's own ways to fit a load that does not: each is enough, and leaves ctx and users as they are."""


class Engine(Protocol):
    """One engine: its rules for bytes, start and users."""

    name: str

    def prepare(self, model: Model, weights: Format, machine: Machine, settings: Settings) -> Prepared:
        """Weigh a model once.  machine: of which a replica has tensor_parallel x pipeline_parallel.

        Raises `MembudgetError` for a format or dtype that does not apply, and for a layout that the engine refuses.
        """

    def ask(self, model: Model, weights: Format, machine: Machine, settings: Settings, load: Load) -> Answer:
        """`prepare`, then `Prepared.answer`."""

    def advice(self, model: Model, weights: Format, settings: Settings) -> str:
        """The layouts that it would take in place of one that it refuses, as a sentence; "" where there are none."""


def sums_of(lines: tuple[Line, ...]) -> dict[str, int]:
    """Bytes by bucket's name, every bucket."""
    sums = {bucket.value: 0 for bucket in BUCKETS}
    for line in lines:
        sums[line.bucket.value] += line.bytes
    return sums
