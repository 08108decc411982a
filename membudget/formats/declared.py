"""The format that a config.json declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from membudget.formats.base import Format, FormatError
from membudget.formats.registry import get

if TYPE_CHECKING:
    from membudget.model.config import Config

_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def of_config(config: Config) -> Format:
    """The format of the checkpoint that this config.json lies beside."""
    dtype = config.dtype
    if dtype is None:
        raise FormatError(f"{config.source}: says no dtype and no quantization_config; name a format, for example bf16")
    if dtype not in _DTYPES:
        raise FormatError(f"{config.source}: dtype is {dtype!r}; known are {', '.join(_DTYPES)}")
    return get(_DTYPES[dtype])
