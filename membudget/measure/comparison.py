"""Predicted against measured, line by line: what a worksheet, a record and a failure are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from membudget.budgets.tolerance import Tolerance
from membudget.measure.status import Status


class Unit(StrEnum):
    """What a line's figures are."""

    BYTES = "bytes"
    COUNT = "count"
    WORD = "word"


class Verdict(StrEnum):
    """How a line ended."""

    OK = "ok"
    OVER = "over"  # more was measured than is allowed
    UNDER = "under"
    DIFFERS = "differs"  # another word, or a figure where none can be subtracted
    RECORDED = "recorded"  # measured, with nothing to judge it by
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Row:
    """One line of a budget's worksheet."""

    name: str  # weights, kv_growth, break[0].outcome
    group: str  # the measurement it belongs to
    predicted: Any  # bytes, a count or a word, written before anything ran; None where nothing predicts it
    measured: Any = None  # the same; None where it was not measured
    unit: Unit = Unit.BYTES
    allowed: Tolerance | None = None  # by how much they may differ; None: the line is recorded, not judged
    holds: bool | None = None  # None where it was not judged
    why: str = ""  # where the prediction comes from
    note: str = ""  # what the measurement itself says: a suspect by name, why it is missing
    # what the measured figure was made from, one object each: sizes at some tokens, steps or users
    samples: tuple[dict[str, int | None], ...] = ()

    @property
    def off(self) -> int | None:
        """Measured minus predicted, where both are numbers."""
        if isinstance(self.predicted, int) and isinstance(self.measured, int):
            return self.measured - self.predicted
        return None

    @property
    def verdict(self) -> Verdict:
        """How the line ended."""
        if self.measured is None:
            return Verdict.NOT_MEASURED
        if self.holds is None:
            return Verdict.RECORDED
        if self.holds:
            return Verdict.OK
        off = self.off
        if self.allowed is not None and self.allowed.kind == "below":
            return Verdict.OVER
        if off is None or self.unit == Unit.WORD:
            return Verdict.DIFFERS
        return Verdict.OVER if off > 0 else Verdict.UNDER

    def as_json(self) -> dict[str, Any]:
        """The line as a record keeps it."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        if not self.samples:
            del found["samples"]
        return {
            **found,
            "allowed": None if self.allowed is None else str(self.allowed),
            "off": self.off,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Comparison:
    """A measured budget."""

    budget: str  # its id
    rows: tuple[Row, ...]
    status: Status = Status.DONE  # of the first process that was not done, if any
    why: str = ""  # in words, where it was not done
    detail: str = ""  # last stage, readings and stderr of what broke
    versions: Mapping[str, str] = field(default_factory=dict)  # of what was running
    readings: tuple[dict[str, Any], ...] = ()  # the machine's figures by stage
    seconds: float = 0.0
    lowest: int | None = None  # the least memory that was available meanwhile, bytes

    def of(self, *groups: str) -> list[Row]:
        """The lines of some measurements."""
        return [row for row in self.rows if row.group in groups]

    @property
    def broken(self) -> list[Row]:
        """The lines that do not hold."""
        return [row for row in self.rows if row.holds is False]


def judged(row: Row, measured: Any, note: str = "") -> Row:
    """The line with what was measured, and whether that is within what it allows."""
    holds: bool | None = None
    if row.allowed is not None and measured is not None:
        if row.unit == Unit.WORD:
            holds = measured == row.predicted
        elif row.predicted is not None or row.allowed.kind == "below":
            holds = row.allowed.allows(row.predicted or 0, measured)
    return replace(row, measured=measured, holds=holds, note=note or row.note)
