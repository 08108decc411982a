"""What the headers of real files say, for `count`: as JSON and for people."""

from __future__ import annotations

from typing import Any

from membudget.checkpoint import Checkpoint
from membudget.checkpoint.differences import UNUSED, Differences
from membudget.checkpoint.stored_format import files_text
from membudget.text.terminal import plain, table
from membudget.units import both


def as_json(checkpoint: Checkpoint, differ: Differences | None, params: int | None) -> dict[str, Any]:
    """What the headers say, and how it differs from the config's inventory."""
    document: dict[str, Any] = {
        "kind": checkpoint.kind,
        "files": len(checkpoint.files),
        "tensors": len(checkpoint),
        "bytes": checkpoint.nbytes,
        "file_bytes": checkpoint.file_bytes,
        "total_size": checkpoint.total_size,
        "bits_per_weight": round(_bits(checkpoint, differ, params), 4),
        "by_dtype": {dtype: total._asdict() for dtype, total in checkpoint.by_dtype.items()},
    }
    if differ is not None:
        document["differences"] = {
            "ok": differ.ok,
            "missing": [{"name": item.name, "shape": list(item.shape)} for item in differ.missing],
            "extra": [{"name": item.name, "shape": list(item.shape)} for item in differ.extra],
            "wrong_shape": [
                {"name": item.name, "expected": list(item.expected), "found": list(item.found)}
                for item in differ.wrong_shape
            ],
            "unused": {kind: sum(entry.nbytes for entry in entries) for kind, entries in differ.unused.items()},
            "regrouped": len(differ.regrouped),
            "packed": differ.packed,
        }
    return document


def _bits(checkpoint: Checkpoint, differ: Differences | None, params: int | None) -> float:
    """Bits per weight; tensors stored beside the model (a second head, MTP layers) do not count."""
    if differ is None or not params:
        return checkpoint.bits_per_weight(params)
    return (checkpoint.nbytes - differ.unused_bytes) * 8 / params


def _some(names: tuple[str, ...]) -> str:

    return ", ".join(map(plain, names[:2])) + (", ..." if len(names) > 2 else "")


def text(checkpoint: Checkpoint, differ: Differences | None, params: int | None) -> list[str]:
    """The same for people."""

    bits = f"{_bits(checkpoint, differ, params):.4g} bits a weight"
    lines = [f"stored: {len(checkpoint):,} tensors in {files_text(checkpoint)}, {both(checkpoint.nbytes)}, {bits}"]
    if checkpoint.total_size_difference:
        lines.append(f"the index says total_size {checkpoint.total_size:,} B: {checkpoint.total_size_difference:+,} B")
    rows = [["dtype", "tensors", "elements", "bytes"]]
    rows += [[d, f"{t.tensors:,}", f"{t.elements:,}", f"{t.nbytes:,}"] for d, t in checkpoint.by_dtype.items()]
    lines += table(rows, "<>>>")
    if differ is None:
        return lines
    for kind, entries in differ.unused.items():
        lines.append(f"not loaded: {sum(entry.nbytes for entry in entries):,} B: {UNUSED.get(kind, kind)}")
    if differ.ok:
        lines.append("every tensor that the config predicts is stored, and nothing else")
    for group in differ.regrouped[:3]:
        lines.append(f"under other names: {_some(group.found)} for {_some(group.expected)}")
    if len(differ.regrouped) > 3:
        lines.append(f"and {len(differ.regrouped) - 3:,} more groups under other names")
    for what, items in (("missing", differ.missing), ("not predicted", differ.extra)):
        shown = [f"{plain(item.name)} {' x '.join(map(str, item.shape))}" for item in items[:5]]
        if items:
            lines.append(f"{what}, {len(items):,}: {'; '.join(shown)}{'; ...' if len(items) > 5 else ''}")
    for item in differ.wrong_shape[:5]:
        lines.append(f"another shape: {plain(item.name)} is {list(item.found)}, the config says {list(item.expected)}")
    return lines
