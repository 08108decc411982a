"""The probe table: what every ledger says of a measurement, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from membudget.units import short

#: Columns: the reading's name, and its heading.
COLUMNS = (
    ("torch_allocated", "allocated"), ("torch_reserved", "reserved"), ("torch_peak_allocated", "peak"),
    ("device_process", "process"), ("cuda_free", "driver's free"), ("mem_available", "MemAvailable"), ("rss", "RSS"),
)  # fmt: skip


def stages(readings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One object a stage: its label and the readings of `COLUMNS` in bytes, None where unknown."""
    return [
        {"stage": item.get("label", ""), **{name: _known(item.get(name)) for name, _ in COLUMNS}} for item in readings
    ]


def stage_table(readings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The same for people; columns that no stage has are left out."""
    from membudget.text.terminal import table

    found = stages(readings)
    shown = [(name, heading) for name, heading in COLUMNS if any(item[name] is not None for item in found)]
    if not found or not shown:
        return []
    rows: list[tuple[str, ...]] = [("stage", *(heading for _, heading in shown))]
    for item in found:
        sizes = ("?" if item[name] is None else short(item[name]) for name, _ in shown)
        rows.append((str(item["stage"]), *sizes))
    return table(rows, "<" + ">" * len(shown))


def _known(reading: Any) -> int | None:
    return reading if isinstance(reading, int) and not isinstance(reading, bool) else None
