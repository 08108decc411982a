"""A GGUF file's key-values for one architecture, checked as they are read."""

from __future__ import annotations

from typing import Any

from membudget.checkpoint.entries import Checkpoint, StoredTensor
from membudget.model.config import ConfigError


def _layer_of(name: str) -> int:
    """7 for ``blk.7.attn_q.weight``; -1 for a tensor of no layer."""
    number = name[4:].partition(".")[0] if name.startswith("blk.") else ""
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= 6 else -1


class Keys:
    """The architecture's key-values, checked as they are read, and the tensors by name."""

    __slots__ = ("arch", "layers", "metadata", "nextn", "source", "tensors")

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.source, self.metadata = checkpoint.source, checkpoint.metadata
        self.tensors: dict[str, StoredTensor] = {entry.name: entry for entry in checkpoint.entries}
        arch = self.metadata.get("general.architecture")
        if not isinstance(arch, str) or not arch:
            raise ConfigError(f"{self.source}: general.architecture is missing: not a model that can be planned")
        self.arch = arch
        # Layers of a multi-token-prediction head are counted in block_count (GLM-4.5, Qwen3.5).
        self.nextn = self.integer("nextn_predict_layers", 0)
        self.layers = 0

    def read_layers(self) -> int:
        """block_count without the prediction head's layers; no more than the file has tensors of."""
        count = self.integer("block_count")
        stored = 1 + max((_layer_of(name) for name in self.tensors), default=-1)
        if self.nextn > stored or count > stored + self.nextn:
            raise self.error("block_count", f"is {count:,}, and the file has tensors of {stored:,} layers")
        self.layers = count - self.nextn
        if self.layers < 1:
            raise self.error("block_count", f"leaves {self.layers} layers without {self.nextn} of prediction")
        return self.layers

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number >= 1: something is divided by it."""
        value = self.integer(key, default)
        if value < 1:
            raise self.error(key, f"is {value}, allowed is 1 or more")
        return value

    def value(self, key: str) -> Any:
        """The value of ``<architecture>.<key>``, or None."""
        return self.metadata.get(f"{self.arch}.{key}")

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number >= 0; a list whose entries are all alike counts as one."""
        value = self.value(key)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if value is None:
            if default is None:
                raise self.error(key, "is missing")
            return default
        if isinstance(value, list):
            raise self.error(key, "differs from layer to layer, which membudget does not plan for this architecture")
        if type(value) is not int or value < 0:
            raise self.error(key, f"is {value!r}, not a whole number")
        return value

    def each(self, key: str, default: int | None = None) -> list[int]:
        """One whole number a layer, whether the file has a list or a single one."""
        value = self.value(key)
        if not isinstance(value, list):
            return [self.integer(key, default)] * self.layers
        if len(value) not in (self.layers, self.layers + self.nextn):
            raise self.error(key, f"has {len(value)} entries for {self.layers} layers")
        if not all(type(item) in (int, bool) and item >= 0 for item in value):
            raise self.error(key, "is not a list of whole numbers")
        return [int(item) for item in value[: self.layers]]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's shape in PyTorch's order; ``blk.*`` stands for the first layer that has it."""
        if name.startswith("blk.*"):
            names = (name.replace("*", str(layer), 1) for layer in range(self.layers))
            found = next((self.tensors[name] for name in names if name in self.tensors), None)
        else:
            found = self.tensors.get(name)
        return found.shape if found is not None else None

    def error(self, key: str, what: str) -> ConfigError:
        """A `ConfigError` naming the file and the key."""
        return ConfigError(f"{self.source}: {self.arch}.{key} {what}")
