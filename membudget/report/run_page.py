"""The page of a run: failures first, bars against the machine, growth, fragmentation, what moved.  No script."""

from __future__ import annotations

from typing import NamedTuple

from membudget import __version__
from membudget.budgets.tolerance import parse
from membudget.history.record import Line
from membudget.report import charts, html
from membudget.report.charts import NAMES, size
from membudget.report.story import DRAWN, Steps, Story, Told
from membudget.units import GB, GIB, UnitError, both, parse_bytes, short

#: With more budgets than this only those that failed are open.
OPEN = 3
_KINDS = {"failed": "no", "passed": "yes", "recorded": "none"}


class Tile(NamedTuple):
    """One bucket: its size in both units, and what was measured of it, in words."""

    bucket: str
    binary: str
    decimal: str
    seen: str


class Gap(NamedTuple):
    """One fragmentation line.  measured, most: bytes, None where not measured or without a limit."""

    label: str
    text: str
    measured: int | None = None
    most: int | None = None


def render(story: Story) -> str:
    """The whole file; budgets that failed stand first."""
    told = sorted(story.told, key=lambda item: list(_KINDS).index(item.verdict))
    return html.page(
        "report.html",
        f"{story.title}: memory",
        styles=("base.css", "report.css"),
        story=story,
        told=[_View(item) for item in told],
        kinds=_KINDS,
        drawn=DRAWN,
        names=NAMES,
        charts=charts,
        fragmentation=_fragmentation,
        steps_said=_steps_said,
        off=_off,
        size=size,
        short=short,
        open=OPEN,
        version=__version__,
        gib=GIB,
        gb=GB,
    )


class _View:
    """A told budget and the words that its template shows."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.moved = [course for course in told.courses if course.off]
        self.runs = max((len(course.values) for course in told.courses), default=0)
        self.tiles = [tile for bucket in DRAWN if (tile := _tile(told, bucket)) is not None]

    def __getattr__(self, name: str) -> object:
        return getattr(self.told, name)

    @property
    def asked(self) -> str:
        """Model, format, users, engine and machine in one line."""
        asked = self.told.settings
        words = [str(asked[key]) for key in ("model", "format") if key in asked]
        if "users" in asked and "ctx" in asked:
            words.append(f"{asked['users']:,} × {asked['ctx']:,} tokens")
        return " · ".join([*words, *(str(asked[key]) for key in ("engine", "machine") if key in asked)])

    @property
    def caption(self) -> str:
        """What the lines in the bars stand for."""
        told = self.told
        if told.capacity is None:
            return "the machine's memory is unknown"
        memory = f"the line: {both(told.capacity)}"
        if told.limit is not None and told.limit < told.capacity:
            memory += f"; dashed: what the engine may claim, {both(told.limit)}"
        return memory


def _tile(told: Told, bucket: str) -> Tile | None:
    line = told.lines.get(bucket, Line())
    value = line.predicted if isinstance(line.predicted, int) else line.measured
    if not isinstance(value, int):
        return None
    binary, _, decimal = both(value).partition(" (")
    seen = f"{short(line.measured)} measured" if isinstance(line.measured, int) else "not measured"
    return Tile(bucket, binary, decimal.rstrip(")"), seen if told.measured else "")


def _fragmentation(told: Told) -> list[Gap]:
    found = []
    for name, line in told.lines.items():
        if not name.startswith("fragmentation"):
            continue
        label = name.partition("_")[2].capitalize() + " cache" if "_" in name else name
        if not isinstance(line.measured, int):
            found.append(Gap(label, f"{label}: not measured; only a caching allocator fragments"))
            continue
        allowed = f", allowed {line.allowed}" if line.allowed else ""
        found.append(Gap(label, f"{label}: {both(line.measured)}{allowed}", line.measured, _limit(line.allowed)))
    return found


def _limit(allowed: str) -> int | None:
    try:
        return parse_bytes(allowed.removeprefix("below ")) if parse(allowed).kind == "below" else None
    except UnitError:
        return None


def _steps_said(steps: tuple[Steps, ...]) -> str:
    if charts.reserves(steps):
        return "reserved and not allocated, by step, with each kind of cache"
    return (
        "what is allocated beside the weights, by step. This device has no caching allocator: "
        "what it reserves is unknown, because there is nothing that would reserve"
    )


def _off(line: Line) -> str:
    if not isinstance(line.predicted, int) or not isinstance(line.measured, int):
        return ""
    gap = line.measured - line.predicted
    return f"{gap:+,}" if gap else "0"
