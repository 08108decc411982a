"""A quantization_config, read: every value is checked where it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from membudget.formats.base import FormatError, is_layer_matrix
from membudget.formats.dtypes import TORCH_DTYPES
from membudget.model.config import Config
from membudget.model.tensors import Tensor

#: The keys under which lists of modules left alone are found.
_IGNORE_KEYS = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules")


#: Keys that change what is stored: one that a method does not read is refused, never ignored.
_CHANGES_BYTES = (
    "block_name_to_quantize", "config_groups", "dynamic", "extra_config", "include_input_output_embeddings",
    "is_marlin_format", "modules_in_block_to_quantize", "quant_lm_head", "quantized_layers", "sparsity_config",
    "transform_config",
)  # fmt: skip


class _Recorded(dict[str, Any]):
    """A mapping that knows which of its keys were asked for."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        super().__init__(raw)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


class Quantization:
    """A quantization_config, its values checked as they are read; errors name the file and the key."""

    __slots__ = ("model_type", "raw", "source", "where")

    def __init__(
        self, raw: Mapping[str, Any], source: str, where: str = "quantization_config", model_type: str = ""
    ) -> None:
        self.raw = _Recorded(raw)
        self.source, self.where, self.model_type = source, where, model_type

    def refuse_unread(self, method: str) -> None:
        """Refuse what changes the stored bytes and was not asked for while this method's format was made."""
        for key in _CHANGES_BYTES:
            value = self.raw.get(key) if key not in self.raw.read else None
            if value in (None, False, {}, []):
                continue
            if key == "sparsity_config" and isinstance(value, Mapping) and value.get("format") in (None, "dense"):
                continue
            raise self.error(key, f"is set, and what {method} stores then is not known", "not set")

    def error(self, key: str, what: str, allowed: str) -> FormatError:
        """A `FormatError` that says where, what and what is allowed."""
        at = f"{self.where}.{key}" if key else self.where
        return FormatError(f"{self.source}: {at} {what}; allowed is {allowed}")

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        value = self.raw.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= 10**6:
            raise self.error(key, f"is {value!r}"[:80], "a whole number, 1 or more (-1: a whole row)")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r}"[:80], "true or false")
        return value

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, f"is {value!r}"[:80], "a string")
        return value

    def strings(self, key: str) -> list[str]:
        """A list of strings; absent or null gives an empty one."""
        value = self.raw.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "is not a list of strings", "a list of module names")
        return value

    def table(self, key: str) -> Mapping[str, Any]:
        """An object; absent or null gives an empty one."""
        value = self.raw.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.error(key, f"is {value!r}"[:80], "an object")
        return value

    def ignored(self) -> list[str]:
        """The modules left alone, under any of the names for that list."""
        return [item for key in _IGNORE_KEYS for item in self.strings(key)]


def declaration(config: Config, hf_quant_config: Mapping[str, Any] | None = None) -> Quantization | None:
    """What the checkpoint says about its quantization, wherever it says it; None when it says nothing."""
    if hf_quant_config is None:
        hf_quant_config = config.hf_quant_config
    if hf_quant_config is not None:
        inner = hf_quant_config.get("quantization")
        if not isinstance(inner, Mapping):
            raise FormatError("hf_quant_config.json: has no quantization; allowed is an object")
        return Quantization(
            {"quant_method": "modelopt", **inner}, "hf_quant_config.json", "quantization", config.model_type
        )
    for place in (config.raw, config.text):
        for key in ("quantization_config", "compression_config", "quantization"):
            value = place.get(key)
            if value is None or value == {}:
                continue
            if not isinstance(value, Mapping):
                raise FormatError(f"{config.source}: {key} is {value!r}; allowed is an object"[:200])
            experts = config.get("expert_dtype", config.raw.get("expert_dtype"))
            if experts is not None and "expert_dtype" not in value:
                value = {**value, "expert_dtype": experts}
            return Quantization(value, config.source, key, config.model_type)
    return None


def dense_dtype(config: Config) -> str:
    """The dtype of what is left dense, as a safetensors header names it."""
    name = config.dtype
    if name is None:
        return "BF16"  # a quantized config without a dtype; its dense parts are 16 bits wide
    if name not in TORCH_DTYPES:
        raise FormatError(f"{config.source}: dtype is {name!r}; known are {', '.join(TORCH_DTYPES)}")
    return TORCH_DTYPES[name]


def is_linear(tensor: Tensor) -> bool:
    """Any nn.Linear: also heads, routers and other towers, unlike `is_layer_matrix`."""
    name, bucket = tensor.name, tensor.role.partition(".")[0]
    if bucket in ("embed", "norms") or len(tensor.shape) != 2 or not name.endswith(".weight"):
        return is_layer_matrix(tensor)
    return "norm" not in name and "conv" not in name and "embed" not in name
