"""Weight formats: what a model's tensors take in a file, to the byte.

`get` knows formats by name, `of_config` reads the one that a config.json declares,
and `Format.weigh` sums a model.  KV cache dtypes are in `membudget.formats.kv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from membudget.formats.base import Format, FormatError, Stored, UnknownFormat, Weights
from membudget.formats.registry import describe, get, names
from membudget.model.config import Config

__all__ = ["Format", "FormatError", "Stored", "UnknownFormat", "Weights", "describe", "get", "names", "of_config"]

#: A config without a quantization, in one of these dtypes, needs no reader of declarations.
_PLAIN = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_QUANTIZED = ("quantization_config", "compression_config")


def of_config(config: Config, hf_quant_config: Mapping[str, Any] | None = None) -> Format:
    """The format that a checkpoint's config.json declares; see `membudget.formats.declared`."""
    plain = _PLAIN.get(config.dtype or "")
    places = (config.raw, config.text)
    if plain and hf_quant_config is None and not any(key in place for key in _QUANTIZED for place in places):
        return get(plain)
    from membudget.formats.declared import of_config as read

    return read(config, hf_quant_config)
