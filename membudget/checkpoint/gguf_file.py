"""The header of a GGUF file, read within bounds whatever it claims.

Layout (ggml docs/gguf.md): magic, version, counts, key-values, tensor infos, padding, data.
Vocabularies are walked, not kept.  The rules are those of llama.cpp's own loader: tensors
lie in order, each at a multiple of the alignment, rows are made of whole blocks.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any

from membudget.checkpoint.entries import CheckpointError, Skipped, StoredFile, StoredTensor
from membudget.formats.base import FormatError
from membudget.formats.ggml import by_id

_Info = tuple[str, int, tuple[int, ...], str, int, int]

MAGIC = b"GGUF"
#: Real headers are under 32 MiB (a vocabulary of 262,144 with its merges).
MAX_HEADER = 128 * 2**20
#: Strings in all arrays together: Gemma 3 has 780,000.
MAX_STRINGS = 3_000_000
MAX_KEYS = 10_000
#: Experts are stacked, so real files have under 2,000; before, Mixtral 8x22B had 2,700.
MAX_TENSORS = 50_000
MAX_NAME = 1024
#: Longer texts (chat templates) and arrays (vocabularies) are passed over, and all once this much is kept.
KEEP_TEXT = 64 * 2**10
KEEP_ITEMS = 4096
KEEP_BYTES = 8 * 2**20
MAX_EXTENT = 2**53
DEFAULT_ALIGNMENT = 32

_KINDS = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "float32",
    "bool",
    "string",
    "array",
    "uint64",
    "int64",
    "float64",
)
_CODES = {"uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i", "float32": "f"}
_CODES |= {"bool": "B", "uint64": "Q", "int64": "q", "float64": "d"}
_STRUCTS = {(order, kind): struct.Struct(order + code) for order in "<>" for kind, code in _CODES.items()}


class NeedMore(Exception):
    """The header goes on behind the bytes at hand."""


class Header:
    """A parsed header.  start: where the data begins; end: where the last tensor's data ends."""

    __slots__ = ("alignment", "end", "entries", "metadata", "start", "version")

    def __init__(self, version: int, metadata: dict[str, Any], alignment: int, start: int, end: int) -> None:
        self.version, self.metadata, self.alignment, self.start, self.end = version, metadata, alignment, start, end
        self.entries: list[StoredTensor] = []


def read_file(path: str, name: str | None = None) -> tuple[list[StoredTensor], StoredFile, dict[str, Any]]:
    """Read one file's header: its tensors, the file, and its key-values."""
    name = name or os.path.basename(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise CheckpointError(path, None, "not a regular file: pipes and devices are not read")
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size < 24:
                raise CheckpointError(path, 0, f"{size} bytes are no GGUF file: the shortest header has 24")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                header = parse_header(content, size, path, name)
    except OSError as error:
        raise CheckpointError(path, None, f"cannot be read: {error.strerror or error}") from None
    return header.entries, stored_file(header, size, path, name), header.metadata


def stored_file(header: Header, size: int, path: str, name: str) -> StoredFile:
    """The file, if all its tensors are in it."""
    if header.end > size:
        missing = header.end - size
        raise CheckpointError(path, size, f"the tensors end at byte {header.end:,}: {missing:,} bytes are missing")
    return StoredFile(name, size, size - sum(entry.nbytes for entry in header.entries))


def parse_header(content: bytes | mmap.mmap, size: int, path: str, name: str) -> Header:
    """Parse a header from the first bytes of a file of `size` bytes.

    Raises `NeedMore` where `content` is only a part of the file and ends inside the header.
    """
    cursor = _Cursor(content, size, path)
    magic = cursor.take(4)
    if magic != MAGIC:
        raise CheckpointError(path, 0, f"not a GGUF file: it starts with {magic!r}{_what_else(magic)}")
    version = cursor.number("uint32", "the version")
    if version & 0xFFFF == 0:  # written on a machine of the other byte order
        cursor.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (2, 3):
        raise CheckpointError(path, 4, f"GGUF version {version}; 2 and 3 are read (convert the file with llama.cpp)")
    at = cursor.at
    tensor_count, key_count = cursor.number("uint64", "the tensor count"), cursor.number("uint64", "the key count")
    # The least a tensor info (24 bytes) and a key-value (13 bytes) take.
    if tensor_count > MAX_TENSORS or tensor_count * 24 > size:
        raise CheckpointError(path, at, f"claims {tensor_count:,} tensors in a file of {size:,} bytes")
    if key_count > MAX_KEYS or key_count * 13 > size:
        raise CheckpointError(path, at + 8, f"claims {key_count:,} keys in a file of {size:,} bytes")
    metadata = _metadata(cursor, key_count)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= 2**20 or alignment & (alignment - 1):
        raise CheckpointError(path, None, f"general.alignment is {alignment!r}; it must be a power of two")
    infos = [_info(cursor) for _ in range(tensor_count)]
    start = -(-cursor.at // alignment) * alignment
    return _place(infos, Header(version, metadata, alignment, start, cursor.at), path, name)


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        at = cursor.at
        key = cursor.name("a key", 65_535)
        if key in metadata:
            raise CheckpointError(cursor.path, at, f"duplicate key {key[:80]!r}")
        metadata[key] = cursor.value(key)
    return metadata


def _info(cursor: _Cursor) -> _Info:
    """One tensor info: name, position, shape in PyTorch's order, type, bytes, offset in the data."""
    path, at = cursor.path, cursor.at
    name = cursor.name("a tensor's name", MAX_NAME)
    dimensions = cursor.number("uint32", "the dimensions")
    if not 1 <= dimensions <= 4:
        raise CheckpointError(path, cursor.at - 4, f"{name[:80]!r}: {dimensions:,} dimensions; 1 to 4 are possible")
    shape = tuple(cursor.number("uint64", "an extent") for _ in range(dimensions))
    elements = 1
    for extent in shape:
        elements *= extent
        if extent > MAX_EXTENT or elements > MAX_EXTENT:
            at = cursor.at - 8 * dimensions
            raise CheckpointError(path, at, f"{name[:80]!r}: extents {shape} are beyond any file")
    number = cursor.number("uint32", "the type")
    try:
        kind = by_id(number)
        nbytes = kind.size(shape[::-1])
    except FormatError as error:
        raise CheckpointError(path, cursor.at - 4, f"{name[:80]!r}: {error}") from None
    return name, at, shape[::-1], kind.name, nbytes, cursor.number("uint64", "the offset")


def _place(infos: list[_Info], header: Header, path: str, name: str) -> Header:
    """Check each offset: tensors follow one another, each padded to the alignment."""
    seen: set[str] = set()
    expected = 0
    for tensor, at, shape, kind, nbytes, offset in infos:
        if tensor in seen:
            raise CheckpointError(path, at, f"duplicate tensor {tensor[:80]!r}")
        seen.add(tensor)
        if offset != expected:
            what = "overlaps the one before" if offset < expected else "leaves a hole before it"
            where = f"{tensor[:80]!r} lies at data offset {offset:,}, not {expected:,}"
            raise CheckpointError(path, at, f"{where}: it {what}")
        header.entries.append(StoredTensor(tensor, kind, shape, nbytes, name, header.start + offset))
        header.end = header.start + offset + nbytes
        expected = -(-(offset + nbytes) // header.alignment) * header.alignment
    return header


class _Cursor:
    """Walks the header; every length is checked against the file before it is believed."""

    __slots__ = ("at", "content", "have", "kept", "order", "path", "size", "strings")

    def __init__(self, content: bytes | mmap.mmap, size: int, path: str) -> None:
        self.content, self.size, self.path = content, size, path
        self.have, self.at, self.order, self.strings, self.kept = len(content), 0, "<", 0, 0

    def take(self, count: int, what: str = "the header") -> bytes:
        """The next `count` bytes."""
        end = self.at + count
        if end > self.size:
            left = self.size - self.at
            raise CheckpointError(self.path, self.at, f"{what} takes {count:,} bytes, {left:,} are left: truncated")
        if end > MAX_HEADER:
            raise CheckpointError(self.path, self.at, f"the header goes on beyond {MAX_HEADER:,} bytes")
        if end > self.have:
            raise NeedMore
        piece = self.content[self.at : end]
        self.at = end
        return piece

    def skip(self, count: int, what: str) -> None:
        """Pass over `count` bytes."""
        end = self.at + count
        if end > self.size or end > MAX_HEADER:
            self.take(count, what)
        if end > self.have:
            raise NeedMore
        self.at = end

    def number(self, kind: str, what: str) -> Any:
        """One number."""
        code = _STRUCTS[self.order, kind]
        return code.unpack(self.take(code.size, what))[0]

    def name(self, what: str, longest: int) -> str:
        """A key or a tensor's name."""
        at = self.at
        length = self.number("uint64", what)
        if length > longest:
            raise CheckpointError(self.path, at, f"{what} of {length:,} bytes; at most {longest:,} are possible")
        raw = self.take(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(self.path, at + 8, f"{what} is not UTF-8: {error}") from None

    def value(self, key: str) -> Any:
        """A key's value; long texts and vocabularies come back as `Skipped`."""
        kind = self.kind(key)
        if kind == "string":
            return self.text(key)
        if kind == "array":
            return self.array(key)
        number = self.number(kind, key[:80])
        return bool(number) if kind == "bool" else number

    def kind(self, key: str) -> str:
        """A value's type."""
        number = self.number("uint32", f"the type of {key[:80]!r}")
        if number >= len(_KINDS):
            what = f"{key[:80]!r}: value type {number:,} is unknown; known are 0 to {len(_KINDS) - 1}"
            raise CheckpointError(self.path, self.at - 4, what)
        return _KINDS[number]

    def text(self, key: str) -> str | Skipped:
        """A string; a long one is passed over."""
        length = self.number("uint64", f"the length of {key[:80]!r}")
        self.kept += min(length, KEEP_TEXT) + 64
        if length > KEEP_TEXT or self.kept > KEEP_BYTES:
            self.skip(length, f"the text of {key[:80]!r}")
            return Skipped("string", length)
        return self.take(length, f"the text of {key[:80]!r}").decode("utf-8", "replace")

    def array(self, key: str) -> Any:
        """A list; a long one is passed over."""
        at = self.at
        kind = self.kind(key)
        count = self.number("uint64", f"the length of {key[:80]!r}")
        if kind == "array":
            raise CheckpointError(self.path, at, f"{key[:80]!r}: arrays of arrays are not read")
        if kind == "string":
            if count * 8 > self.size - self.at or self.strings + count > MAX_STRINGS:
                raise CheckpointError(self.path, at + 4, f"{key[:80]!r}: claims {count:,} strings")
            self.strings += count
            if count <= 256 and self.kept < KEEP_BYTES:
                return [self.text(key) for _ in range(count)]
            self.walk(count, key)
            return Skipped("string[]", count)
        code = _CODES[kind]
        width = struct.calcsize("<" + code)
        self.kept += 40 * min(count, KEEP_ITEMS)
        if count > KEEP_ITEMS or self.kept > KEEP_BYTES:
            self.skip(count * width, f"the {count:,} values of {key[:80]!r}")
            return Skipped(kind + "[]", count)
        raw = self.take(count * width, f"the {count:,} values of {key[:80]!r}")
        values = list(struct.unpack(f"{self.order}{count}{code}", raw))
        return [bool(value) for value in values] if kind == "bool" else values

    def walk(self, count: int, key: str) -> None:
        """Pass over `count` strings: the one loop that runs once a token of the vocabulary."""
        length_of = struct.Struct(self.order + "Q").unpack_from
        content, at = self.content, self.at
        before = at
        try:
            for _ in range(count):
                before = at
                at += length_of(content, at)[0] + 8
        except (struct.error, OverflowError):
            at = max(at, self.have + 1)
        if at > self.size or at > MAX_HEADER:
            what = f"the strings of {key[:80]!r} go on beyond the end of the file or {MAX_HEADER:,} bytes"
            raise CheckpointError(self.path, before, what)
        if at > self.have:
            raise NeedMore
        self.at = at


def _what_else(magic: bytes) -> str:
    if magic.startswith(b"PK"):
        return " (a zip archive)"
    if magic in (b"ggml", b"ggjt", b"lmgg", b"tjgg", b"fmgg", b"FUGG"):
        return " (an older ggml format, or the other byte order: convert it with llama.cpp)"
    if magic == b"vers":
        return " (a git-lfs pointer, not the weights)"
    return ""
