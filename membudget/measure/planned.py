"""A plan of one measurement: its steps, its predictions, what it may take, and the same in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from membudget.budgets.budget import Budget
from membudget.errors import MembudgetError
from membudget.measure.comparison import Row, Unit
from membudget.measure.need import Moment, needed
from membudget.units import short


class CannotMeasure(MembudgetError):
    """This budget cannot be measured here: says why, and what could be."""


@dataclass(frozen=True)
class Plan:
    """One measurement of one budget.

    device: cpu, cuda or mps.  steps: what the worker is asked to do, in order.
    rows: the predictions.  peak: the most bytes that all of it takes at once: an upper bound, and what
    the trace says once there is one (`traced`).  peak_why: what says so.  moments: what `peak` is the most of.
    ceiling: our own, under which breakages run.  dtype: of weights and cache.  weights: as predicted.
    """

    budget: Budget
    device: str
    dtype: str
    steps: tuple[dict[str, Any], ...]
    rows: tuple[Row, ...]
    peak: int
    ceiling: int
    peak_why: str = ""
    moments: tuple[Moment, ...] = ()
    weights: int = 0

    def traced(self, found: Mapping[str, Mapping[str, Any]]) -> Plan:
        """The same plan with the peak that the trace says; `found`: figures by step."""
        need = needed(self.weights, self.moments, found)
        return replace(self, peak=need.bytes, peak_why=need.why)

    def line(self, name: str) -> Row:
        """The line of that name."""
        return next(row for row in self.rows if row.name == name)

    def only(self, groups: Iterable[str]) -> Plan:
        """The plan of some groups of lines: their lines, and the most that they take."""
        wanted = set(groups)
        rows = tuple(row for row in self.rows if row.group in wanted)
        return replace(self, rows=rows, moments=tuple(m for m in self.moments if m.group in wanted)).traced({})

    def text(self) -> str:
        """What would be loaded and run, for people."""
        lines = [f"{self.budget.id}: {self.budget.model.name}, {self.dtype}, on {self.device}"]
        lines.append(f"  would take at most {short(self.peak)}; breakages stop at {short(self.ceiling)}")
        lines.append(f"  the most is of {self.peak_why}")
        lines += [f"  {step.get('name', step['do'])}: {_describe(step)}" for step in self.steps]
        lines.append("  predicted")
        for row in self.rows:
            if row.predicted is not None:
                value = short(row.predicted) if row.unit is Unit.BYTES else f"{row.predicted}"
                lines.append(f"    {row.name} {value}: {row.why}")
        return "\n".join(lines)


_WORDS = {"context": "touch the device", "second_context": "a second process touches the device too"}


def _describe(step: dict[str, Any]) -> str:
    words = [f"{key} {value}" for key, value in step.items() if key not in ("do", "name")]
    return ", ".join(words) or _WORDS.get(step["do"], "load the model")
