"""What a fragmentation measurement saw, step by step, as text: a line of blocks for a terminal, a table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from membudget.history.record import samples_of
from membudget.report.charts import reserves
from membudget.report.story import steps_of
from membudget.units import short

_BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.-=+*%#"
_UNKNOWN = "allocated beside the weights; this device has no caching allocator, so what it reserves is unknown"
_KNOWN = "reserved and not allocated"


def lines(rows: Iterable[Any], unicode: bool = True) -> list[str]:
    """A heading and one line for each kind of cache; nothing where nothing was measured.

    rows: of `membudget.measure.comparison`.
    """
    found = steps_of(samples_of(rows))
    if not found:
        return []
    known = reserves(found)
    sizes = {item.kind: item.sizes(known) for item in found}
    high = max(size for points in sizes.values() for _, size in points)
    wide = max(map(len, sizes))
    out = [f"fragmentation: {_KNOWN if known else _UNKNOWN}"]
    for kind, points in sizes.items():
        drawn = blocks([size for _, size in points], high, unicode)
        ends = ", ".join(f"{short(size)} at step {step:,}" for step, size in (points[0], points[-1]))
        out.append(f"  {kind:<{wide}}  {drawn}  {ends}, most {short(max(size for _, size in points))}")
    return out


def markdown(rows: Iterable[Any]) -> list[str]:
    """The same as a Markdown table, a row for each step that was looked at; nothing where nothing was measured."""
    found = steps_of(samples_of(rows))
    if not found:
        return []
    known = reserves(found)
    sizes = {item.kind: dict(item.sizes(known)) for item in found}
    at = sorted({step for item in sizes.values() for step in item})
    out = [f"Fragmentation: {_KNOWN if known else _UNKNOWN}.", "", f"| step | {' | '.join(sizes)} |"]
    out.append("|---:|" + "---:|" * len(sizes))
    out += [f"| {step:,} | {' | '.join(_cell(item.get(step)) for item in sizes.values())} |" for step in at]
    return [*out, ""]


def blocks(values: Sequence[int], high: int, unicode: bool = True) -> str:
    """One character a value, as high as its share of `high`."""
    steps = _BLOCKS if unicode else _ASCII
    places = (max(value, 0) * len(steps) // max(high, 1) for value in values)
    return "".join(steps[min(len(steps) - 1, place)] for place in places)


def _cell(size: int | None) -> str:
    return "" if size is None else f"{size:,} B"
