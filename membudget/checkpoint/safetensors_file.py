"""The header of a safetensors file, read within bounds whatever it claims.

Layout: 8 bytes with the header's length N (little-endian), N bytes of JSON, the data.
The rules are those of the safetensors library, and one more: a name may stand only once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from membudget.checkpoint.entries import CheckpointError, StoredFile, StoredTensor
from membudget.formats.dtypes import DTYPE_BITS

#: The library's own limit.
MAX_HEADER = 100_000_000
#: Tensors of one file; sharded ones have about 1,000 a file.
MAX_FILE_TENSORS = 100_000
#: Larger than any real extent, small enough that products stay exact and cheap.
MAX_EXTENT = 2**53
#: Longer headers are walked entry by entry, so that memory stays bounded.
QUICK = 2**20
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


def parse_header(header: bytes, path: str, name: str) -> tuple[list[StoredTensor], dict[str, Any]]:
    """The header's JSON: its tensors (offsets absolute in the file) and its __metadata__."""
    if len(header) <= QUICK:
        found = _quick(header, path, name)
        if found is not None:
            return found
    from membudget.checkpoint.safetensors_strict import parse_header as parse

    return parse(header, path, name)


class _Pairs(list):  # type: ignore[type-arg]
    """A JSON object with its members in order, also those that stand twice."""


class _Settings:
    """What `json.JSONDecoder` hands to its scanner."""

    strict = True
    object_hook = None
    object_pairs_hook = _Pairs
    parse_float = float
    parse_int = int
    parse_constant = {"": None}.__getitem__  # NaN is not JSON: KeyError


def _quick(header: bytes, path: str, name: str) -> tuple[list[StoredTensor], dict[str, Any]] | None:
    """A sound header by the scanner of `json` itself, whose import takes longer; None for any doubt."""
    try:
        from _json import make_scanner

        text = header.decode("utf-8").strip(" \t\r\n")
        if "\\u" in text or "-0" in text:  # an escape can hide what is no text, and Python reads -0 as 0
            return None
        members, end = make_scanner(_Settings)(text, 0)  # type: ignore[arg-type]
    except (ImportError, ValueError, KeyError, StopIteration, RecursionError, AttributeError, TypeError):
        return None
    if end != len(text) or type(members) is not _Pairs or len(members) > MAX_FILE_TENSORS:
        return None
    entries, metadata, start = [], {}, 8 + len(header)
    for key, pairs in members:
        if key == "__metadata__":
            if type(pairs) is not _Pairs or not all(type(value) is str for _, value in pairs):
                return None
            metadata = dict(pairs)
            continue
        if type(pairs) is not _Pairs or len(pairs) != 3:
            return None
        value = dict(pairs)
        dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
        if type(dtype) is not str or type(shape) is not list or type(offsets) is not list or len(offsets) != 2:
            return None
        for number in (*shape, *offsets):
            if type(number) is not int or number < 0:
                return None
        try:
            entries.append(checked(key, dtype, tuple(shape), offsets[0], offsets[1], path, 8, name, start))
        except CheckpointError:
            return None
    if len(dict(members)) != len(members):
        return None
    return entries, metadata


def checked(
    key: str, dtype: str, shape: tuple[int, ...], begin: int, end: int, path: str, at: int, name: str, start: int
) -> StoredTensor:
    """A header's entry, if its dtype is known and its shape fills [begin, end) of the data exactly."""
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        known = ", ".join(DTYPE_BITS)
        raise CheckpointError(path, at, f"{short(key)}: unknown dtype {dtype[:40]!r}; known are {known}")
    elements = 1
    for extent in shape:
        if extent > MAX_EXTENT:
            raise CheckpointError(path, at, f"{short(key)}: an extent of {extent:,} in its shape")
        elements *= extent
        if elements > MAX_EXTENT:
            raise CheckpointError(path, at, f"{short(key)}: shape {list(shape)[:8]} is beyond any file")
    if end < begin:
        raise CheckpointError(path, at, f"{short(key)}: data_offsets [{begin:,}, {end:,}] run backwards")
    size, rest = divmod(elements * bits, 8)
    if rest:
        raise CheckpointError(path, at, f"{short(key)}: {elements:,} x {bits} bits are not whole bytes")
    if size != end - begin:
        raise CheckpointError(
            path,
            at,
            f"{short(key)}: {dtype} {list(shape)} takes {size:,} bytes, "
            f"data_offsets [{begin:,}, {end:,}] hold {end - begin:,}",
        )
    return StoredTensor(key, dtype, shape, size, name, start + begin)


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


def short(name: str) -> str:
    """A name as an error shows it: quoted, cut."""
    return repr(name if len(name) <= 80 else name[:77] + "...")
