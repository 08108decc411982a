"""What one engine's start-up printed: figures, refusals, settings, and which of them decide."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from membudget import units
from membudget.engines.vllm.logs.kinds import Event, RefusalKind
from membudget.engines.vllm.logs.messages import Hole

#: Of these the smallest rank decides: all ranks get the pool of the one with the least memory.
SMALLEST = frozenset(
    {"available_kv", "reserved_kv", "kv_tokens", "num_blocks", "max_concurrency", "suggested_kv_requested"}
    | {"suggested_kv_full", "free_memory", "estimated_max_model_len"}
)
#: How many prints of one figure are kept: 512 ranks, or a log that repeats itself for days.
KEEP = 512


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure as printed."""

    #: As in `table`.
    name: str
    #: Bytes, tokens and blocks are integers; seconds, multiples, percentages and fractions floats; text is text.
    value: int | float | str
    #: B, tokens, blocks, s, x, %, text, or "" for a plain number.
    unit: str
    #: Half of the last printed digit, in the unit of `value`; the true value is within value +- half.  0: exact.
    half: int | float
    #: The digits in the log.
    printed: str
    #: 1 is the first line; 0 for a figure that an option gave.
    line: int
    #: The line without colours and control characters, cut.
    raw: str
    #: Of the process that printed it, "" where it speaks for the engine.
    rank: str
    #: Key of the row in `table`.
    message: str

    @property
    def low(self) -> float:
        """The smallest value that prints like this."""
        return float(self.value) - self.half

    @property
    def high(self) -> float:
        """The largest value that prints like this."""
        return float(self.value) + self.half

    @property
    def number(self) -> int:
        """The value of a figure that is a whole number."""
        return int(self.value)


@dataclass(frozen=True, slots=True)
class Refusal:
    """vLLM would not start: which refusal, and its own figures."""

    kind: RefusalKind
    #: Where the log has it.
    line: int
    #: The line, cut.
    raw: str
    #: Of the process that printed it.
    rank: str
    #: What its message says.
    figures: tuple[Figure, ...] = ()

    def value(self, name: str) -> int | float | str | None:
        """The refusal's own figure of that name, None where it has none."""
        return next((figure.value for figure in self.figures if figure.name == name), None)


@dataclass(frozen=True, slots=True)
class Setting:
    """An argument or a config entry as the engine printed it."""

    value: Any
    #: Where the log has it; 0 for one that an option gave.
    line: int
    #: ``args``, ``config``, or ``option`` for one that an option gave.
    source: str


class EngineLog:
    """One engine's start-up: everything found, nothing guessed."""

    __slots__ = (
        "dp",
        "dropped",
        "error",
        "events",
        "figures",
        "first_line",
        "last_line",
        "name",
        "refusals",
        "settings",
        "source",
    )

    def __init__(self, name: str, source: str, first_line: int) -> None:
        self.name = name
        self.source = source
        self.dp: int | None = None
        self.first_line = first_line
        self.last_line = first_line
        self.figures: dict[str, list[Figure]] = {}
        self.refusals: list[Refusal] = []
        self.settings: dict[str, Setting] = {}
        self.events: dict[Event, int] = {}
        self.error: tuple[int, str] | None = None
        self.dropped = 0

    def add(self, figure: Figure) -> None:
        """Keep a figure, unless the same rank printed the same before (a retry, a second reader)."""
        kept = self.figures.setdefault(figure.name, [])
        if figure.unit == "text" and kept:
            kept[:] = [figure]
        elif len(kept) < KEEP:
            kept.append(figure)
        else:
            self.dropped += 1

    def full(self, name: str) -> bool:
        """Whether no more prints of that figure are kept."""
        return len(self.figures.get(name, ())) >= KEEP

    def all(self, name: str) -> list[Figure]:
        """Every print of a figure, in the order of the log."""
        return self.figures.get(name, [])

    def get(self, name: str) -> Figure | None:
        """The print that decides: of the smallest rank for the pool, else of the rank that has the least KV memory."""
        found = self.figures.get(name)
        if not found:
            return None
        if name in SMALLEST:
            return min(found, key=lambda figure: (figure.value, figure.half))
        if len(found) == 1:
            return found[0]
        decides = self.get("available_kv")
        mine = [figure for figure in found if decides is not None and figure.rank == decides.rank]
        sharpest = min(figure.half for figure in mine or found)
        sharp = [figure for figure in mine or found if figure.half == sharpest]
        return sharp[-1] if mine else max(sharp, key=lambda figure: figure.low if figure.unit != "text" else 0)

    def value(self, name: str) -> Any:
        """The deciding value, or None."""
        figure = self.get(name)
        return None if figure is None else figure.value

    def setting(self, name: str) -> Any:
        """A setting's value, or None where the log does not say."""
        setting = self.settings.get(name)
        return None if setting is None else setting.value

    @property
    def version(self) -> str | None:
        """The version as printed, without a leading v."""
        value = self.value("version")
        return None if value is None else str(value).removeprefix("v")

    @property
    def model(self) -> str | None:
        """The model's name or path, as configured."""
        for value in (self.setting("model"), self.setting("model_tag"), self.value("model")):
            if isinstance(value, str) and value.strip():
                return value.strip()
        return None

    @property
    def max_model_len(self) -> int | None:
        """Tokens a request may have, as the pool was sized for: its own line, auto-fit, then the configuration."""
        for name in ("max_model_len", "autofit_max_model_len", "configured_max_model_len"):
            if (value := self.value(name)) is not None:
                return int(value)
        for name in ("max_seq_len", "max_model_len"):
            value = self.setting(name)
            if isinstance(value, int) and value > 0:
                return value
        return None

    @property
    def utilization(self) -> Figure | None:
        """gpu_memory_utilization, sharpest print first, then the arguments."""
        figure = self.get("utilization")
        value = self.setting("gpu_memory_utilization")
        if (
            isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value <= 1
        ):  # else it is not a share
            return figure
        if figure is None or figure.half:
            line = self.settings["gpu_memory_utilization"].line
            return Figure("utilization", float(value), "", 0, str(value), line, "", "", "args")
        return figure

    @property
    def memory(self) -> Figure | None:
        """The bytes of the pool: set by an argument (exact), as reserved, else what the smallest rank has left."""
        explicit = self.setting("kv_cache_memory_bytes")
        if isinstance(explicit, int) and not isinstance(explicit, bool) and explicit > 0:
            line = self.settings["kv_cache_memory_bytes"].line
            return Figure("available_kv", explicit, "B", 0, f"{explicit:,} B", line, "", "", "args")
        return self.get("reserved_kv") or self.get("available_kv")

    @property
    def blocks(self) -> Figure | None:
        """Blocks of the pool: the override where there is one, else as printed."""
        return self.get("override_blocks") or self.get("num_blocks")

    @property
    def context_parallel(self) -> int:
        """How often the printed tokens were multiplied (decode context parallelism before 0.20.1), 1 for not."""
        value = self.value("context_parallel")
        return int(value) if value else 1

    @property
    def ranks(self) -> int:
        """Ranks in the world: as configured, at least as many as spoke."""
        world = 1
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            value = self.setting(name)
            world *= value if isinstance(value, int) and value > 0 else 1
        spoke = {figure.rank for figures in self.figures.values() for figure in figures if figure.rank}
        return max(world, len(spoke), 1)


def read_figure(hole: Hole, printed: str, line: int, raw: str, rank: str, message: str) -> Figure | None:
    """A matched hole as a figure; None for digits that cannot be such a figure (1,23 tokens, 400 digits)."""
    if hole.unit == "text":
        return Figure(hole.name, printed.strip()[:2000], "text", 0, printed.strip()[:200], line, raw, rank, message)
    if len(printed) > 40:
        return None
    if hole.unit == "size":
        number, unit = printed.split(" ")
        return _bytes(hole.name, number, {"bytes": "B"}.get(unit, unit), 2, line, raw, rank, message)
    if hole.unit in ("GiB", "B"):
        return _bytes(hole.name, printed, hole.unit, hole.digits or 0, line, raw, rank, message)
    if hole.unit in ("tokens", "blocks") or (hole.unit == "" and hole.digits is None and "." not in printed):
        value = _grouped(printed)
        return None if value is None else Figure(hole.name, value, hole.unit, 0, printed, line, raw, rank, message)
    number_value = float(printed)
    half = 0.0 if hole.digits is None else 0.5 * 10.0 ** -max(hole.digits, _decimals(printed))
    if not math.isfinite(number_value):
        return None
    return Figure(hole.name, number_value, hole.unit, half, printed, line, raw, rank, message)


def _bytes(name: str, printed: str, unit: str, digits: int, line: int, raw: str, rank: str, message: str) -> Figure:
    scale = units.BYTE_UNITS[unit]
    shown = printed if unit == "B" else f"{printed} {unit}"
    sign = -1 if printed.startswith("-") else 1
    whole, _, fraction = printed.lstrip("-").partition(".")
    value = sign * ((int(whole + fraction) * scale * 2 + 10 ** len(fraction)) // (2 * 10 ** len(fraction)))
    if unit == "B":
        return Figure(name, value, "B", 0, shown, line, raw, rank, message)
    # the printed digits stand for an integer of bytes: half a digit, rounded up
    half = -(-scale // (2 * 10 ** max(digits, len(fraction))))
    return Figure(name, value, "B", half, shown, line, raw, rank, message)


def _decimals(printed: str) -> int:
    return len(printed.partition(".")[2])


def _grouped(printed: str) -> int | None:
    """An integer with or without thousands commas; None where the commas are not where they belong."""
    if "," not in printed:
        return int(printed)
    head, *rest = printed.lstrip("-").split(",")
    if not 1 <= len(head) <= 3 or any(len(group) != 3 for group in rest):
        return None
    return int(printed.replace(",", ""))
