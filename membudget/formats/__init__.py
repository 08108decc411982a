"""Weight formats: what a model's tensors take in a file, to the byte.

`get` knows formats by name, `of_config` reads the one that a config.json declares,
and `Format.weigh` sums a model.  KV cache dtypes are in `membudget.formats.kv`.
"""

from __future__ import annotations

from membudget.formats.base import Format, FormatError, Stored, UnknownFormat, Weights
from membudget.formats.registry import describe, get, names

__all__ = ["Format", "FormatError", "Stored", "UnknownFormat", "Weights", "describe", "get", "names", "of_config"]


def of_config(config: object) -> Format:
    """The format that a config.json declares (quantization_config, else its dtype)."""
    from membudget.formats.declared import of_config as read

    return read(config)  # type: ignore[arg-type]
