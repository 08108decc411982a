"""Weight formats: what a model's tensors take in a file, to the byte.

`get` knows formats by name, `of_config` reads the one that a config.json declares,
and `Format.weigh` sums a model.  KV cache dtypes are in `membudget.formats.kv`.
"""

from __future__ import annotations

from membudget.formats.base import Format, FormatError, Stored, UnknownFormat, Weights
from membudget.formats.declared import of_config
from membudget.formats.registry import common, describe, get, names

__all__ = [
    "Format", "FormatError", "Stored", "UnknownFormat", "Weights", "common", "describe", "get", "names", "of_config",
]  # fmt: skip
