"""The JSON of a safetensors header or index, read member by member, so that memory stays bounded.

The decoder is json's own; a value that takes more bytes than its kind may is refused before it is built.
Every error names the byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from membudget.checkpoint.entries import MAX_TENSORS, CheckpointError, StoredTensor
from membudget.formats.dtypes import DTYPE_BITS

#: The library's own limit of a header, in bytes.
MAX_HEADER = 100_000_000
#: Tensors of one file; sharded ones have about 1,000 a file.
MAX_FILE_TENSORS = 100_000
#: Larger than any real extent, small enough that products stay exact and cheap.
MAX_EXTENT = 2**53
#: Bytes of a tensor's name and entry; of __metadata__.
MAX_ENTRY, MAX_METADATA = 4096, 4 * 2**20

_GAP = re.compile(rb"[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its members in order, also those whose name is a duplicate."""


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _integer(digits: str) -> int | float:
    """-0 as a float: the safetensors library refuses it where a whole number >= 0 is required."""
    return -0.0 if digits == "-0" else int(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs, parse_constant=_no_constant)
#: For texts with a -0 in them; its callback takes longer.
_CAREFUL = json.JSONDecoder(object_pairs_hook=_Pairs, parse_constant=_no_constant, parse_int=_integer)


class _Member(NamedTuple):
    """One member of an object: its name and value, the bytes at which they begin, and the byte behind the value."""

    name: str
    value: Any
    at: int
    value_at: int
    end: int


class _Object:
    """The members of the JSON object that begins at byte `at` of `content`; `end` is the byte behind it, once read.

    most: bytes that a member may take, by the first of them.  base: added to the bytes that errors name.
    """

    def __init__(self, content: bytes, at: int, path: str, base: int, most: Callable[[bytes], int]) -> None:
        self.content, self.path, self.base, self.most = content, path, base, most
        self.end = at

    def error(self, at: int, what: str) -> CheckpointError:
        """The error at this byte."""
        return CheckpointError(self.path, self.base + at, what)

    def __iter__(self) -> Iterator[_Member]:
        content = self.content
        at = self._gap(self.end)
        if content[at : at + 1] != b"{":
            raise self.error(self.end, f"the header is not a JSON object: it starts with {_excerpt(content, self.end)}")
        at = self._gap(at + 1)
        if content[at : at + 1] == b"}":
            self.end = at + 1
            return
        while True:
            member = self._member(at)
            yield member
            at = self._gap(member.end)
            separator = content[at : at + 1]
            if separator not in (b",", b"}"):
                what = f"{short(member.name)}: expected ',' or '}}' behind its value, found {_excerpt(content, at)}"
                raise self.error(member.value_at, what)
            at = self._gap(at + 1)
            if separator == b"}":
                self.end = at
                return

    def _gap(self, at: int) -> int:
        found = _GAP.match(self.content, at)
        return found.end() if found else at

    def _member(self, at: int) -> _Member:
        most = self.most(self.content[at : at + 16])
        text = self.content[at : at + most].decode("utf-8", "surrogateescape")
        plain = text.isascii() and "\\u" not in text
        try:
            name, length = _DECODER.raw_decode(text) if text[:1] == '"' else ("", 0)
        except ValueError:
            length = 0
        colon = _BETWEEN.match(text, length) if length else None
        if colon is None:
            raise self.error(at, f"expected a name in quotes and a colon, found {_excerpt(self.content, at)}")
        try:
            if not plain:
                name.encode()
        except UnicodeEncodeError as error:
            raise self.error(at, f"a name is not text: {error}") from None
        value_at = at + _bytes(text, colon.end())
        try:
            value, end = (_CAREFUL if "-0" in text else _DECODER).raw_decode(text, colon.end())
            if not plain:
                json.dumps(value, ensure_ascii=False).encode()  # an escape can be a lone surrogate
        except UnicodeEncodeError as error:
            raise self.error(value_at, f"{short(name)}: a name is not text: {error}") from None
        except (ValueError, RecursionError) as error:
            within = f" within {most:,} bytes" if len(self.content) - at > most else ""
            raise self.error(value_at, f"{short(name)}: not JSON{within}: {error}") from None
        return _Member(name, value, at, value_at, at + _bytes(text, end))


def _bytes(text: str, end: int) -> int:
    return end if text.isascii() else len(text[:end].encode("utf-8", "surrogateescape"))


def parse_header(header: bytes, path: str, name: str) -> tuple[list[StoredTensor], dict[str, Any]]:
    """The header's JSON: its tensors (offsets absolute in the file) and its __metadata__."""
    metadata: dict[str, Any] = {}
    entries: list[StoredTensor] = []
    seen: set[str] = set()
    start = 8 + len(header)
    whole = _Object(header, 0, path, 8, lambda first: MAX_METADATA if first.startswith(b'"__meta') else MAX_ENTRY)
    for member in whole:
        key, value = member.name, member.value
        if key in seen:
            raise whole.error(member.at, f"duplicate name {short(key)}")
        seen.add(key)
        if key == "__metadata__":
            if value is not None:
                if not isinstance(value, _Pairs) or not all(isinstance(item, str) for _, item in value):
                    raise whole.error(member.value_at, "__metadata__ must be an object of strings")
                metadata.update(value)
            continue
        if len(entries) >= MAX_FILE_TENSORS:
            raise whole.error(member.at, f"more than {MAX_FILE_TENSORS:,} tensors in one file")
        entries.append(_entry(whole, member, path, name, start))
    rest = len(header) - whole.end
    if rest:
        raise whole.error(whole.end, f"{rest:,} bytes follow the end of the JSON object")
    return entries, metadata


def _entry(whole: _Object, member: _Member, path: str, name: str, start: int) -> StoredTensor:
    def refused(what: str) -> CheckpointError:
        return whole.error(member.value_at, f"{short(member.name)}: {what}")

    pairs = member.value
    if not isinstance(pairs, _Pairs):
        raise refused(f"expected {{dtype, shape, data_offsets}}, found {_excerpt(whole.content, member.value_at)}")
    value = dict(pairs)
    if len(value) != len(pairs):
        raise refused("duplicate field")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str):
        raise refused("dtype is missing or no string")
    if not isinstance(shape, list) or not _are_counts(shape):
        raise refused("shape must be a list of whole numbers >= 0")
    if not isinstance(offsets, list) or not _are_counts(offsets):
        raise refused("data_offsets must be a list of whole numbers >= 0")
    if len(offsets) != 2:
        raise refused(f"data_offsets has {len(offsets)} numbers; it is [begin, end]")
    tensor = StoredTensor(member.name, dtype, tuple(shape), offsets[1] - offsets[0], name, start + offsets[0])
    check_entry(tensor, path, 8 + member.value_at)
    return tensor


def _are_counts(numbers: list[Any]) -> bool:
    return all(type(number) is int and number >= 0 for number in numbers)


def check_entry(tensor: StoredTensor, path: str, at: int) -> None:
    """Refuse a header's entry whose dtype is unknown or whose shape does not fill its bytes exactly."""
    bits = DTYPE_BITS.get(tensor.dtype)
    if bits is None:
        known = ", ".join(DTYPE_BITS)
        raise CheckpointError(path, at, f"{short(tensor.name)}: unknown dtype {tensor.dtype[:40]!r}; known are {known}")
    elements = 1
    for extent in tensor.shape:
        if extent > MAX_EXTENT:
            raise CheckpointError(path, at, f"{short(tensor.name)}: an extent of {extent:,} in its shape")
        elements *= extent
        if elements > MAX_EXTENT:
            raise CheckpointError(path, at, f"{short(tensor.name)}: shape {list(tensor.shape)[:8]} is beyond any file")
    if tensor.nbytes < 0:
        raise CheckpointError(path, at, f"{short(tensor.name)}: data_offsets run backwards by {-tensor.nbytes:,} B")
    size, rest = divmod(elements * bits, 8)
    if rest:
        raise CheckpointError(path, at, f"{short(tensor.name)}: {elements:,} x {bits} bits are not whole bytes")
    if size != tensor.nbytes:
        taken = f"{tensor.dtype} {list(tensor.shape)} takes {size:,} bytes"
        raise CheckpointError(path, at, f"{short(tensor.name)}: {taken}, data_offsets hold {tensor.nbytes:,}")


def parse_index(content: bytes, path: str) -> tuple[dict[str, str], int | None]:
    """model.safetensors.index.json: (tensor name -> file name, metadata.total_size)."""
    if len(content) > MAX_HEADER:
        raise CheckpointError(path, None, f"{len(content):,} bytes exceed the limit of an index ({MAX_HEADER:,})")
    found = re.search(rb'"weight_map"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}\{', content)
    if found is None:
        raise CheckpointError(path, 0, "has no weight_map: not an index of a sharded checkpoint")
    brace = found.end() - 1
    weights: dict[str, str] = {}
    checked: set[str] = set()
    members = _Object(content, brace, path, 0, lambda _: MAX_ENTRY)
    for key, file, at, value_at, _ in members:
        if not isinstance(file, str):
            raise members.error(value_at, f"weight_map: expected a file name, found {_excerpt(content, value_at)}")
        if file not in checked:
            if "/" in file or "\\" in file or not file.endswith(".safetensors") or file.startswith("."):
                raise members.error(value_at, f"weight_map names {short(file)}, not a file beside it")
            checked.add(file)
        if key in weights:
            raise members.error(at, f"weight_map: duplicate name {short(key)}")
        if len(weights) >= MAX_TENSORS:
            raise members.error(at, f"weight_map: more than {MAX_TENSORS:,} tensors")
        weights[key] = file
    return weights, _total_size(content[:brace], content[members.end :], path)


def _total_size(before: bytes, after: bytes, path: str) -> int | None:
    for part in (before, after):
        found = re.search(rb'"total_size"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}([0-9]{1,19})(\.0{1,8})?[ \t\r\n,}]', part)
        if found is not None:
            return int(found[1])
    if b'"total_size"' in before + after:
        raise CheckpointError(path, None, "metadata.total_size is not a whole number of bytes")
    return None


def short(name: str) -> str:
    """A name as an error shows it: quoted, cut."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


def _excerpt(content: bytes, at: int) -> str:
    piece = content[at : at + 32]
    return repr(piece.decode("utf-8", "replace")) if piece else "the end"
