"""A measured budget for people: predicted, measured, off by, allowed, verdict; as text, Markdown and a failure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from membudget.measure.comparison import Comparison, Row
from membudget.report import samples
from membudget.text.terminal import table
from membudget.units import GIB, MIB, short

HEAD = ("line", "predicted", "measured", "off by", "allowed", "verdict")


def lines(rows: Iterable[Row]) -> list[str]:
    """The worksheet as aligned text."""
    return table([HEAD, *map(_cells, rows)], "<>>><<")


def markdown(comparisons: Iterable[Comparison], title: str) -> str:
    """All budgets of a run as one Markdown page."""
    parts = [f"# {title}", ""]
    for comparison in comparisons:
        parts += [f"## {comparison.budget}", ""]
        if comparison.why:
            parts += [f"{comparison.status}: {comparison.why}", ""]
        parts += ["| " + " | ".join(HEAD) + " | why |", "|---|---:|---:|---:|---|---|---|"]
        parts += ["| " + " | ".join([*_cells(row), _escaped(_reason(row))]) + " |" for row in comparison.rows]
        parts += ["", *samples.markdown(comparison.rows)]
    return "\n".join(parts)


def failure(comparison: Comparison, rows: Sequence[Row], subject: str = "", where: str = "", rerun: str = "") -> str:
    """The message of lines that do not hold: which one and by how much first, then the table, then why."""
    broken = [row for row in rows if row.holds is False]
    more = f" (also: {', '.join(row.name for row in broken[1:])})" if len(broken) > 1 else ""
    parts = [[headline(broken[0]) + more]] if broken else [[f"{comparison.status}: {comparison.why}"]]
    if subject:
        parts.append([subject])
    parts.append(lines(rows))
    parts.append([text for row in broken for text in (f"{row.name}: {row.note}", f"predicted: {row.why}") if text])
    if comparison.status != "done":
        parts.append([f"{comparison.status}: {comparison.why}", *comparison.detail.splitlines()])
    parts.append([f"budget   {where}"] * bool(where) + [f"rerun    {rerun}"] * bool(rerun))
    return "\n\n".join("\n".join(part) for part in parts if part)


def headline(row: Row) -> str:
    """What is wrong with a line, in one line."""
    if row.measured is None:
        return f"{row.name} was not measured: {row.note}"
    if row.unit == "word" or row.predicted is None:
        return f"{row.name} is {_value(row.measured, row.unit)}: {_limit(row)} expected"
    off = row.off or 0
    side = "over" if off >= 0 else "under"
    size = f"{abs(off):,}" if row.unit == "count" else short(abs(off))
    show = short if row.unit == "bytes" else "{:,}".format
    predicted, measured = show(row.predicted), show(row.measured)
    if predicted == measured:
        predicted, measured = f"{row.predicted:,} B", f"{row.measured:,} B"
    return f"{row.name} is {size} {side}: {measured} measured, {predicted} predicted (allowed {row.allowed})"


def _limit(row: Row) -> str:
    return str(row.predicted) if row.predicted is not None else str(row.allowed)


def _cells(row: Row) -> tuple[str, ...]:
    allowed = "" if row.allowed is None else "as predicted" if row.unit == "word" else str(row.allowed)
    off = "" if row.off is None else _off(row.off, row.unit)
    mark = row.verdict if row.holds is not False else f"<- {row.verdict}"
    return row.name, _value(row.predicted, row.unit), _value(row.measured, row.unit), off, allowed, mark


def _value(value: Any, unit: str) -> str:
    if value is None:
        return ""
    if unit == "word":
        return str(value)
    if unit == "count":
        return f"{value:,}"
    return f"{value / GIB:,.3f} GiB" if abs(value) >= GIB // 4 else f"{value:,} B"


def _off(off: int, unit: str) -> str:
    if unit == "count":
        return f"{off:+,}"
    return f"{off / MIB:+,.1f} MiB" if abs(off) >= MIB else f"{off:+,} B"


def _reason(row: Row) -> str:
    return "; ".join(text for text in (row.why, row.note) if text)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
