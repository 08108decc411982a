"""Weights as they lie in files: the headers' own bytes in place of a format's prediction."""

from __future__ import annotations

import os
import re

from membudget.checkpoint import Checkpoint, CheckpointError, by_role, read_path
from membudget.checkpoint.compare import compare
from membudget.formats import Format, Weights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from membudget.checkpoint.compare import Differences
    from membudget.locate import Located
    from membudget.model import Model


class AsStored(Format):
    """The weights of one checkpoint, by its headers.

    What is stored beside the model's own tensors (a second copy of a tied head, MTP layers,
    towers that the config does not count) is not loaded and not weighed; `beside` has it by kind, in bytes.
    """

    def __init__(self, checkpoint: Checkpoint, model: Model) -> None:
        self.checkpoint = checkpoint
        dtypes = list(checkpoint.by_dtype)
        self.name = f"stored {'+'.join(dtypes[:2])}{'+...' if len(dtypes) > 2 else ''}"
        self.key = ("stored", checkpoint.source)
        self.differences: Differences = compare(checkpoint, model)
        self.beside = {
            kind: sum(entry.nbytes for entry in entries) for kind, entries in self.differences.unused.items() if entries
        }
        self._loaded = self._weights(model, checkpoint.nbytes - sum(self.beside.values()))

    def weigh(self, model: Model, *, total: str = "params") -> Weights:
        """Bytes as stored; with ``checkpoint`` also what lies beside."""
        if total == "checkpoint":
            return self._loaded._replace(total=self.checkpoint.nbytes)
        return self._loaded

    def notes(self) -> list[str]:
        """What a reader of the plan should know about the files."""
        files = len(self.checkpoint.files)
        where = self.checkpoint.source if files == 1 else f"{files:,} files of {self.checkpoint.source}"
        found = [f"weights by the headers of {where}"]
        found += [f"stored, not loaded: {size:,} B of {kind}" for kind, size in self.beside.items()]
        differ = self.differences
        if not differ.ok:
            parts = (
                ("missing", differ.missing),
                ("unexplained", differ.extra),
                ("of another shape", differ.wrong_shape),
            )
            text = ", ".join(f"{len(items):,} {what}" for what, items in parts if items)
            found.append(f"the files are not what the config says: tensors {text}; see `membudget count`")
        return found

    def _weights(self, model: Model, loaded: int) -> Weights:
        roles = by_role(self.checkpoint, model)
        buckets: dict[str, int] = {}
        for role, size in roles.items():
            bucket = role.partition(".")[0]
            buckets[bucket] = buckets.get(bucket, 0) + size
        inner = [
            t for t in model.tensors if t.part == "params" and t.role.partition(".")[0] in ("attn", "mlp", "mixer")
        ]
        layers = (sum(buckets.get(name, 0) for name in ("attn", "mlp", "mixer")), sum(t.elements for t in inner))
        experts = [t for t in model.tensors if t.role == "mlp.experts"]
        stored, active = roles.get("mlp.experts", 0), loaded
        if experts and stored:
            active -= stored - stored * sum(t.active_elements for t in experts) // sum(t.elements for t in experts)
        embed, vocab = buckets.get("embed", 0), model.config.get("vocab_size")
        if buckets.get("lm_head") and not model.config.tied and isinstance(vocab, int) and vocab > 0:
            active -= embed - embed // vocab
        by_dtype = {dtype: total.nbytes for dtype, total in self.checkpoint.by_dtype.items()}
        why = f"{len(self.checkpoint):,} tensors in {_files(self.checkpoint)}: {self.checkpoint.nbytes:,} B"
        for kind, size in self.beside.items():
            why += f", less {size:,} B of {kind}"
        return Weights(loaded, buckets, by_dtype, layers, active, why)


def checkpoint_of(found: Located) -> Checkpoint | None:
    """The checkpoint at a located path: a weight file that was named, or the folder's files; None where none lie.

    Raises `CheckpointError` for files that cannot be read.
    """
    if found.kind == "safetensors" and re.search(r"-\d{5}-of-\d{5}\.safetensors$", found.path):
        # one shard of several: its model is all of them
        return read_path(os.path.dirname(found.path) or ".")
    if found.kind in ("gguf", "safetensors"):
        return read_path(found.path)
    if found.kind != "path" or not os.path.isdir(found.path):
        return None
    names = os.listdir(found.path)
    if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        return read_path(found.path)
    return None


def as_json(checkpoint: Checkpoint, differ: Differences | None, params: int | None) -> dict[str, Any]:
    """What the headers say, and how it differs from the config's inventory."""
    document: dict[str, Any] = {
        "kind": checkpoint.kind,
        "files": len(checkpoint.files),
        "tensors": len(checkpoint),
        "bytes": checkpoint.nbytes,
        "file_bytes": checkpoint.file_bytes,
        "total_size": checkpoint.total_size,
        "bits_per_weight": round(checkpoint.bits_per_weight(params), 4),
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


def text(checkpoint: Checkpoint, differ: Differences | None, params: int | None) -> list[str]:
    """The same for people."""
    from membudget.checkpoint.compare import UNUSED
    from membudget.report.terminal import plain, table
    from membudget.units import both

    bits = f"{checkpoint.bits_per_weight(params):.4g} bits a weight"
    lines = [f"stored: {len(checkpoint):,} tensors in {_files(checkpoint)}, {both(checkpoint.nbytes)}, {bits}"]
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
    for what, items in (("missing", differ.missing), ("not predicted", differ.extra)):
        shown = [f"{plain(item.name)} {' x '.join(map(str, item.shape))}" for item in items[:5]]
        if items:
            lines.append(f"{what}, {len(items):,}: {'; '.join(shown)}{'; ...' if len(items) > 5 else ''}")
    for item in differ.wrong_shape[:5]:
        lines.append(f"another shape: {plain(item.name)} is {list(item.found)}, the config says {list(item.expected)}")
    return lines


def _files(checkpoint: Checkpoint) -> str:
    return f"{len(checkpoint.files):,} file{'s' if len(checkpoint.files) != 1 else ''}"


__all__ = ["AsStored", "CheckpointError", "as_json", "checkpoint_of", "text"]
