"""Writes a GGUF file that is only a header: true metadata and tensor list, a sparse body of the full size.

A real llama.cpp loads such a file without reading a weight (``no_alloc``) and checks every tensor's name and
shape on the way, so the file is a question and a proof in one.  Layout: ggml docs/gguf.md, version 3.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from membudget.formats.ggml import TYPES
from membudget.formats.gguf import Gguf
from membudget.model import Model

#: What a key may hold: a bool, a whole number, a float, a text, or a list of one of them.
Value = bool | int | float | str | list[bool] | list[int] | list[float] | list[str]

ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_FORMATS = {_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?"}


class HeaderTensor(NamedTuple):
    """A tensor of the file: its name, its ggml type by name, its shape in PyTorch's order."""

    name: str
    kind: str
    shape: tuple[int, ...]


def tensors(layout: Gguf, model: Model) -> list[HeaderTensor]:
    """The tensors of the text model's file in this format; towers lie in a file of their own.

    Raises `membudget.formats.FormatError` for a tensor that has no name in GGUF files.
    """
    found = [stored for tensor in model.tensors for stored in layout.stored(tensor, model)]
    found += layout.extras(model)
    return [
        HeaderTensor(stored.name, stored.dtype, stored.shape)
        for stored in found
        if not stored.name.startswith("mmproj:")
    ]


def write(path: str | os.PathLike[str], metadata: Mapping[str, Value], tensors: Iterable[HeaderTensor]) -> int:
    """Write the header to `path` and extend the file, sparse, to the size of all tensors; returns that size in bytes.

    Raises `membudget.formats.FormatError` for a tensor whose rows are not made of whole blocks, and OSError.
    """
    infos, offset = [], 0
    for tensor in tensors:
        kind = TYPES[tensor.kind]
        size = kind.size(tensor.shape)
        shape = tensor.shape[::-1]
        infos.append(_text(tensor.name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind.id, offset))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    keys = [_text(key) + _typed(value) for key, value in metadata.items()]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys)) + b"".join(keys) + b"".join(infos)
    header += b"\0" * (-len(header) % ALIGNMENT)
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + offset)
    return len(header) + offset


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _kind(value: Value) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _INT32 if value < 0 else _UINT32
    if isinstance(value, float):
        return _FLOAT32
    return _STRING


def _typed(value: Value) -> bytes:
    """A value with its type before it."""
    if isinstance(value, list):
        kinds = {_kind(item) for item in value}
        kind = _INT32 if kinds == {_INT32, _UINT32} else (kinds.pop() if kinds else _UINT32)
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(_raw(item, kind) for item in value)
    kind = _kind(value)
    return struct.pack("<I", kind) + _raw(value, kind)


def _raw(value: bool | int | float | str, kind: int) -> bytes:
    return _text(value) if isinstance(value, str) else struct.pack(_FORMATS[kind], value)


__all__ = ["ALIGNMENT", "HeaderTensor", "Value", "tensors", "write"]
