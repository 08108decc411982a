"""What a projector (``--mmproj``) takes: its file, and the buffer in which it encodes the largest image.

Its buffer is reserved when it is first used: known is the attention over an image's patches, without and with flash
attention.  Source: llama.cpp v0.4.0 tools/mtmd/clip.cpp (graph, warmup), the keys ``clip.vision.*`` of a file.
"""

from __future__ import annotations

from dataclasses import dataclass

from membudget.checkpoint import Checkpoint, read_path
from membudget.formats.gguf import Gguf
from membudget.model import Model

_SOURCE = "clip.cpp: scores of attention and a layer's temporaries"


@dataclass(frozen=True)
class Projector:
    """One projector, in bytes."""

    #: of its tensors
    nbytes: int
    #: patches of the largest image, 0 where that is unknown
    patches: int = 0
    #: of the vision tower
    hidden: int = 0
    intermediate: int = 0
    heads: int = 0
    #: whether it stays on the host (``--no-mmproj-offload``)
    on_host: bool = False

    @classmethod
    def read(cls, path: str) -> Projector:
        """Of a file.  Raises `membudget.checkpoint.CheckpointError`."""
        return cls.stored(read_path(path))

    @classmethod
    def stored(cls, checkpoint: Checkpoint) -> Projector:
        """Of a file's header."""
        keys = checkpoint.metadata

        def key(name: str) -> int:
            value = keys.get(f"clip.vision.{name}", 0)
            return value if isinstance(value, int) and not isinstance(value, bool) else 0

        side, patch = key("image_size"), key("patch_size")
        pixels = max(key("image_max_pixels"), side * side)
        patches = pixels // (patch * patch) if patch else 0
        width = key("embedding_length"), key("feed_forward_length"), key("attention.head_count")
        return cls(sum(entry.nbytes for entry in checkpoint.entries), patches, *width)

    @classmethod
    def written(cls, model: Model, layout: Gguf) -> Projector | None:
        """Of the file that the converter would write of a model's towers, in F16; None where it has none."""
        stored = [one for tensor in model.tensors for one in layout.stored(tensor, model)]
        size = sum(one.nbytes for one in stored if one.name.startswith("mmproj:"))
        return cls(size) if size else None

    def lines(self, device: str, notes: list[tuple[str, str]]) -> list[tuple[str, str, str, int, int, int, str, str]]:
        """As the fields of a plan's lines; what is not known is noted."""
        place = "host" if self.on_host else device
        size = self.nbytes
        found = [("weights", "mmproj", place, size, size, size, "tensors of the projector's file", "--mmproj")]
        layer = 4 * self.patches * (self.intermediate + 4 * self.hidden)
        if not layer:
            text = "the projector's compute buffer is not counted: its file says nothing of an image's size"
            notes.append(("mmproj_compute_unknown", text))
            return found
        scores = 4 * self.patches**2 * self.heads
        why = f"{self.patches:,} patches of the largest image: a layer's temporaries; more without flash attention"
        found.append(("activations", "mmproj", place, layer, layer // 4, 2 * layer + scores, why, _SOURCE))
        return found


__all__ = ["Projector"]
