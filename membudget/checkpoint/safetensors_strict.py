"""The JSON of a safetensors header or index, walked entry by entry with bounded memory.

Every error names the byte; nothing is built that is not kept.  This is the exact reading:
`safetensors_file` has a quicker one for headers of usual size that leaves all doubts to it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from membudget.checkpoint.entries import MAX_TENSORS, CheckpointError, StoredTensor
from membudget.checkpoint.safetensors_file import MAX_FILE_TENSORS, MAX_HEADER, checked, short

MAX_METADATA = 4 * 2**20

# Every repetition is bounded: a hostile header must not make the matcher allocate.
_GAP = rb"[ \t\r\n]{0,64}"
_QUOTED = rb'"([^"\\\x00-\x1f]{0,4096}(?:\\.[^"\\\x00-\x1f]{0,4096}){0,64})"'
_KEY = re.compile(_GAP + _QUOTED + _GAP + b":" + _GAP, re.S)
_PAIR = re.compile(_GAP + _QUOTED + _GAP + b":" + _GAP + _QUOTED + _GAP + rb"([,}])", re.S)
_NEXT = re.compile(_GAP + rb"([,}])")
_INTEGER = rb"(?:0|[1-9][0-9]{0,18})"
_USUAL = re.compile(
    rb'\{"dtype":"([A-Z0-9_]{1,16})","shape":\[(%b(?:,%b){0,15})?\],"data_offsets":\[(%b),(%b)\]\}([,}])'
    % ((_INTEGER,) * 4)
)
_SPACE = b" \t\r\n"


def parse_header(header: bytes, path: str, name: str) -> tuple[list[StoredTensor], dict[str, Any]]:
    """The header's JSON: its tensors (offsets absolute in the file) and its __metadata__."""
    metadata: dict[str, Any] = {}
    entries: list[StoredTensor] = []
    seen: set[str] = set()
    start = 8 + len(header)
    at = _open(header, path, 8)
    separator = b","
    if header[at : at + 1] == b"}":
        separator, at = b"}", at + 1
    while separator == b",":
        match = _KEY.match(header, at)
        if match is None:
            raise CheckpointError(path, 8 + at, f"expected a name in quotes and a colon, found {_excerpt(header, at)}")
        key = _text(match[1], path, 8 + match.start(1))
        if key in seen:
            raise CheckpointError(path, 8 + at, f"the name {short(key)} stands twice")
        seen.add(key)
        at = match.end()
        if key == "__metadata__":
            separator, at = _metadata(header, at, path, metadata)
            continue
        if len(entries) >= MAX_FILE_TENSORS:
            raise CheckpointError(path, 8 + at, f"more than {MAX_FILE_TENSORS:,} tensors in one file")
        usual = _USUAL.match(header, at)
        if usual is not None:
            dtype, extents, begin, end = usual[1].decode(), usual[2], int(usual[3]), int(usual[4])
            shape = tuple(map(int, extents.split(b","))) if extents else ()
            separator, after = usual[5], usual.end()
        else:
            dtype, shape, begin, end, separator, after = _unusual(key, header, at, path)
        entries.append(checked(key, dtype, shape, begin, end, path, 8 + at, name, start))
        at = after
    rest = header[at:].strip(_SPACE)
    if rest:
        raise CheckpointError(path, 8 + at, f"{len(rest):,} bytes follow the end of the JSON object")
    return entries, metadata


def _open(header: bytes, path: str, base: int) -> int:
    """Position of the first member, or of the closing brace."""
    match = re.match(rb"[ \t\r\n]{0,4096}\{[ \t\r\n]{0,4096}", header)
    if match is None:
        raise CheckpointError(path, base, f"the header is not a JSON object: it starts with {_excerpt(header, 0)}")
    return match.end()


def _metadata(header: bytes, at: int, path: str, metadata: dict[str, Any]) -> tuple[bytes, int]:
    """Parse __metadata__ (strings by name, or null); returns the separator behind it and where to go on."""
    value, separator, after = _value(header, at, MAX_METADATA, path, "__metadata__")
    if value is not None:
        if not isinstance(value, _Pairs) or not all(isinstance(item, str) for _, item in value):
            raise CheckpointError(path, 8 + at, "__metadata__ must be an object of strings")
        metadata.update(value)
    return separator, after


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its members in order, also those that stand twice."""


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _integer(digits: str) -> int | float:
    """-0 is no whole number >= 0, though its int is: the safetensors library refuses it."""
    return -0.0 if digits == "-0" else int(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs, parse_constant=_no_constant, parse_int=_integer)


def _value(header: bytes, at: int, most: int, path: str, what: str) -> tuple[Any, bytes, int]:
    """One JSON value of at most `most` bytes; returns it, the separator behind it and where to go on."""
    text = header[at : at + most].decode("utf-8", "surrogateescape")
    try:
        value, length = _DECODER.raw_decode(text)
        raw = text[:length].encode()
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # an escape can hide what is no text
    except (ValueError, RecursionError) as error:
        within = f" within {most:,} bytes" if len(header) - at > most else ""
        raise CheckpointError(path, 8 + at, f"{what}: not JSON{within}: {error}") from None
    at += len(raw)
    match = _NEXT.match(header, at)
    if match is None:
        found = _excerpt(header, at)
        raise CheckpointError(path, 8 + at, f"{what}: expected ',' or '}}' behind its value, found {found}")
    return value, match[1], match.end()


def _unusual(key: str, header: bytes, position: int, path: str) -> tuple[str, tuple[int, ...], int, int, bytes, int]:
    """An entry in another order, with spaces or further fields: parsed as JSON, at most 4 KiB."""
    at, what = 8 + position, short(key)
    if header[position : position + 1] != b"{":
        found = _excerpt(header, position)
        raise CheckpointError(path, at, f"{what}: expected {{dtype, shape, data_offsets}}, found {found}")
    pairs, separator, after = _value(header, position, 4096, path, what)
    value = dict(pairs)
    if len(value) != len(pairs):
        raise CheckpointError(path, at, f"{what}: a field stands twice")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str):
        raise CheckpointError(path, at, f"{short(key)}: dtype is missing or no string")
    for field, numbers in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
            raise CheckpointError(path, at, f"{short(key)}: {field} must be a list of whole numbers >= 0")
    assert isinstance(shape, list)
    assert isinstance(offsets, list)
    if len(offsets) != 2:
        raise CheckpointError(path, at, f"{short(key)}: data_offsets has {len(offsets)} numbers; it is [begin, end]")
    return dtype, tuple(shape), offsets[0], offsets[1], separator, after


def parse_index(content: bytes, path: str) -> tuple[dict[str, str], int | None]:
    """model.safetensors.index.json: (tensor name -> file name, metadata.total_size)."""
    if len(content) > MAX_HEADER:
        raise CheckpointError(path, None, f"{len(content):,} bytes is no index (at most {MAX_HEADER:,})")
    found = re.search(rb'"weight_map"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}\{', content)
    if found is None:
        raise CheckpointError(path, 0, "has no weight_map: not an index of a sharded checkpoint")
    brace = found.end() - 1
    files: dict[bytes, str] = {}
    weights: dict[str, str] = {}
    at = _open(content[brace : brace + 4200], path, brace) + brace
    empty = content[at : at + 1] == b"}"
    separator = b"}" if empty else b","
    at += empty
    while separator == b",":
        match = _PAIR.match(content, at)
        if match is None:
            raise _no_pair(content, at, path)
        raw_key, raw_file, separator = match.groups()
        key = _text(raw_key, path, at)
        file = files.get(raw_file)
        if file is None:
            file = files[raw_file] = _text(raw_file, path, match.start(2))
        if key in weights:
            raise CheckpointError(path, at, f"weight_map: {short(key)} stands twice")
        if len(weights) >= MAX_TENSORS:
            raise CheckpointError(path, at, f"weight_map: more than {MAX_TENSORS:,} tensors")
        weights[key] = file
        at = match.end()
    for raw_file, file in files.items():
        if "/" in file or "\\" in file or not file.endswith(".safetensors") or file.startswith("."):
            raise CheckpointError(path, content.find(raw_file), f"weight_map names {short(file)}, not a file beside it")
    return weights, _total_size(content[:brace], content[at:], path)


def _no_pair(content: bytes, at: int, path: str) -> CheckpointError:
    key = _KEY.match(content, at)
    if key is None:
        return CheckpointError(path, at, f"weight_map: expected a name in quotes, found {_excerpt(content, at)}")
    found = _excerpt(content, key.end())
    return CheckpointError(path, key.end(), f"weight_map: expected a file name and ',' or '}}', found {found}")


def _total_size(before: bytes, after: bytes, path: str) -> int | None:
    for part in (before, after):
        found = re.search(rb'"total_size"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}([0-9]{1,19})(\.0{1,8})?[ \t\r\n,}]', part)
        if found is not None:
            return int(found[1])
    if b'"total_size"' in before + after:
        raise CheckpointError(path, None, "metadata.total_size is no whole number of bytes")
    return None


def _text(raw: bytes, path: str, at: int) -> str:
    try:
        if b"\\" in raw:
            value: str = json.loads(b'"' + raw + b'"')
            value.encode()  # a lone surrogate is no text
            return value
        return raw.decode("utf-8")
    except ValueError as error:
        raise CheckpointError(path, at, f"a name is not text: {error}") from None


def _excerpt(content: bytes, at: int) -> str:
    piece = content[at : at + 32]
    return repr(piece.decode("utf-8", "replace")) if piece else "the end"
