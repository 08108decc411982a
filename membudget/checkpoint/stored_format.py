"""Weights as they lie in files: the headers' own bytes in place of a format's prediction."""

from __future__ import annotations

import math

from membudget.checkpoint import Checkpoint, CheckpointError, by_role
from membudget.checkpoint.differences import Differences, compare
from membudget.formats import Format, Weights
from membudget.model import Model

#: What may be missing, as 1 / PART of the parameters, before files are taken for a part of the model.
PART = 4


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
        self._refuse_a_part(model)
        self.beside = {
            kind: sum(entry.nbytes for entry in entries) for kind, entries in self.differences.unused.items() if entries
        }
        self._loaded = self._weights(model, checkpoint.nbytes - sum(self.beside.values()))

    def _refuse_a_part(self, model: Model) -> None:
        """Files without much of the model would weigh too little: a download that stopped, a single shard."""
        missing = sum(math.prod(item.shape) for item in self.differences.missing)
        extra = sum(math.prod(entry.shape) for entry in self.differences.extra)
        if missing - extra > model.count.params // PART:
            raise CheckpointError(
                self.checkpoint.source,
                None,
                f"{len(self.differences.missing):,} tensors that the config says ({missing:,} of "
                f"{model.count.params:,} parameters) are not in the files; fetch the rest, or name a format to "
                "plan from the config alone",
            )

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
        why = f"{len(self.checkpoint):,} tensors in {files_text(self.checkpoint)}: {self.checkpoint.nbytes:,} B"
        for kind, size in self.beside.items():
            why += f", less {size:,} B of {kind}"
        return Weights(loaded, buckets, by_dtype, layers, active, why)


def files_text(checkpoint: Checkpoint) -> str:
    """``1 file`` or ``4 files``."""
    return f"{len(checkpoint.files):,} file{'s' if len(checkpoint.files) != 1 else ''}"


__all__ = ["AsStored", "files_text"]
