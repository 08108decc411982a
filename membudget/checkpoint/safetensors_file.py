"""The header of a safetensors file, read within bounds whatever it claims.

Layout: 8 bytes with the header's length N (little-endian), N bytes of JSON, the data.
The rules are those of the safetensors library, and one more: no name may be a duplicate.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from membudget.checkpoint.entries import CheckpointError, StoredFile, StoredTensor
from membudget.checkpoint.safetensors_json import MAX_HEADER, parse_header, short

#: What people pass instead, by its first bytes.
_NOT_SAFETENSORS = {
    b"PK": "it is a zip archive, perhaps a PyTorch .bin",
    b"GGUF": "it is a GGUF file",
    b"version ": "it is a git-lfs pointer, not the weights",
    b"\x80\x02": "it is a pickle",
    b"<": "it is a web page",
}


def read_file(path: str, name: str | None = None) -> tuple[list[StoredTensor], StoredFile, dict[str, Any]]:
    """Read one file's header: its tensors, the file, and its __metadata__."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise CheckpointError(path, None, "is not a regular file: a pipe or a device is not read")
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            prefix = stream.read(8)
            length = header_length(prefix, size, path)
            header = stream.read(length)
    except OSError as error:
        raise CheckpointError(path, None, f"cannot be read: {error.strerror or error}") from None
    if len(header) < length:
        raise CheckpointError(path, 8 + len(header), f"ends inside the header of {length:,} bytes: truncated")
    entries, metadata = parse_header(header, path, name or os.path.basename(path))
    check_layout(entries, path, 8 + length, size)
    return entries, StoredFile(name or os.path.basename(path), size, 8 + length), metadata


def header_length(prefix: bytes, size: int, path: str) -> int:
    """The header's length from the first 8 bytes, if it can be true for a file of `size` bytes."""
    if len(prefix) < 8:
        raise CheckpointError(path, 0, f"{size} bytes are no safetensors file: it starts with 8 bytes of length")
    length = int.from_bytes(prefix, "little")
    if length > min(MAX_HEADER, max(size - 8, 0)):
        allowed = f"at most {MAX_HEADER:,} are allowed" if length > MAX_HEADER else f"{size - 8:,} follow: truncated"
        hint = next((f" ({what})" for magic, what in _NOT_SAFETENSORS.items() if prefix.startswith(magic)), "")
        raise CheckpointError(path, 0, f"claims a header of {length:,} bytes, {allowed}, or no safetensors file{hint}")
    if length < 2:
        raise CheckpointError(path, 0, f"claims a header of {length} bytes; the shortest is {{}}")
    return length


def check_layout(entries: Iterable[StoredTensor], path: str, start: int, size: int | None) -> None:
    """The data must be covered from `start` to the end of the file, without holes or overlaps."""
    at, previous = start, None
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.offset != at:
            what = "overlaps" if entry.offset < at else f"leaves a hole of {entry.offset - at:,} bytes after"
            before = short(previous.name) if previous else "the header"
            raise CheckpointError(path, entry.offset, f"{short(entry.name)} {what} {before}")
        at, previous = at + entry.nbytes, entry
    if size is not None and at != size:
        what = "truncated" if at > size else "bytes that belong to no tensor follow"
        raise CheckpointError(path, min(at, size), f"the tensors end at byte {at:,}, the file at {size:,}: {what}")
