"""Predicted against measured, line by line: what a worksheet, a record and a failure are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from membudget.budgets.tolerance import Tolerance


class Row(NamedTuple):
    """One line of a budget's worksheet.

    name: ``weights``, ``kv_growth``, ``break[0].outcome``.  group: the measurement it belongs to.
    predicted: bytes, a count or a word, written before anything ran; None where nothing predicts it.
    measured: the same; None where it was not measured.  unit: ``bytes``, ``count`` or ``word``.
    allowed: by how much they may differ; None: the line is recorded, not judged.
    holds: None where it was not judged.  why: where the prediction comes from.
    note: what the measurement itself says: a suspect by name, why it is missing.
    samples: what the measured figure was made from, one object each: sizes at some tokens, steps or users.
    """

    name: str
    group: str
    predicted: Any
    measured: Any = None
    unit: str = "bytes"
    allowed: Tolerance | None = None
    holds: bool | None = None
    why: str = ""
    note: str = ""
    samples: tuple[dict[str, int | None], ...] = ()

    @property
    def off(self) -> int | None:
        """Measured minus predicted, where both are numbers."""
        if isinstance(self.predicted, int) and isinstance(self.measured, int):
            return self.measured - self.predicted
        return None

    @property
    def verdict(self) -> str:
        """``ok``, ``over``, ``under``, ``differs``, ``recorded`` or ``not measured``."""
        if self.measured is None:
            return "not measured"
        if self.holds is None:
            return "recorded"
        if self.holds:
            return "ok"
        off = self.off
        if self.allowed is not None and self.allowed.kind == "below":
            return "over"
        return "differs" if off is None or self.unit == "word" else "over" if off > 0 else "under"

    def as_json(self) -> dict[str, Any]:
        """The line as a record keeps it."""
        return {
            **{name: value for name, value in self._asdict().items() if name != "samples" or value},
            "allowed": None if self.allowed is None else str(self.allowed),
            "off": self.off,
            "verdict": self.verdict,
        }


class Comparison(NamedTuple):
    """A measured budget.

    status: how the measurement ended (`membudget.measure.guard.Outcome`), ``done`` when every process was.
    why: the sentence for people when it was not.  detail: last stage, readings and stderr of what broke.
    versions: of what was running.  readings: the machine's figures by stage.
    seconds: how long it took.  lowest: the least memory that was available meanwhile.
    """

    budget: str
    rows: tuple[Row, ...]
    status: str = "done"
    why: str = ""
    detail: str = ""
    versions: dict[str, str] = {}  # noqa: RUF012
    readings: tuple[dict[str, Any], ...] = ()
    seconds: float = 0.0
    lowest: int | None = None

    def of(self, *groups: str) -> list[Row]:
        """The lines of some measurements."""
        return [row for row in self.rows if row.group in groups]

    @property
    def broken(self) -> list[Row]:
        """The lines that do not hold."""
        return [row for row in self.rows if row.holds is False]


def judged(row: Row, measured: Any, note: str = "") -> Row:
    """The line with what was measured, held against what it allows."""
    holds: bool | None = None
    if row.allowed is not None and measured is not None:
        if row.unit == "word":
            holds = measured == row.predicted
        elif row.predicted is not None or row.allowed.kind == "below":
            holds = row.allowed.allows(row.predicted or 0, measured)
    return row._replace(measured=measured, holds=holds, note=note or row.note)
