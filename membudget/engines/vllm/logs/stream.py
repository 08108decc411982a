"""A log as lines: any encoding, gzip, and the records that collectors wrap lines in (docker, journald, Kubernetes)."""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

#: A longer line is read in pieces: memory stays bounded whatever the stream holds.
MAX_LINE = 1 << 20
_CHUNK = 1 << 16
#: Where a collector keeps the line, in the order in which they are tried.
_TEXT_KEYS = ("log", "message", "msg", "MESSAGE", "text", "body", "line")
#: Who wrote a record of journald, the most telling first.
_SOURCE_KEYS = ("CONTAINER_NAME", "_SYSTEMD_UNIT", "_SYSTEMD_USER_UNIT", "SYSLOG_IDENTIFIER")
_NOT_IN_NAMES = re.compile(r"[^\w.@-]")
#: One field of `journalctl -o json-pretty`.
_PRETTY = re.compile(r'\s*"(?:MESSAGE|log|message)" ?: (.*?),?\s*$')


def unwrapped(line: str) -> str:
    """The message of a line that a collector wrapped in JSON; the line itself where it is not one.

    `journalctl -o json` writes one object a line (json-seq and json-sse with a mark before it), and a message with
    colours in it as a list of bytes; json-pretty writes a field a line.
    """
    text = line.removeprefix("\x1e").removeprefix("data: ").strip()
    if not text.startswith("{"):
        pretty = _PRETTY.match(line)
        inner = None if pretty is None else _text(_loaded(pretty[1]))
        return line if inner is None else inner
    record = _loaded(text)
    if not isinstance(record, dict):
        return line
    for key in _TEXT_KEYS:
        inner = _text(record.get(key))
        if inner is not None:
            name, pid = record.get("processName"), record.get("process")
            tag = f"({name} pid={pid}) " if isinstance(name, str) and isinstance(pid, int) else ""
            return _source(record) + tag + inner.replace("\n", "\r")
    return line


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(value: object) -> str | None:
    """A field as text: journald gives what is not printable as a list of bytes."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(each, int) and 0 <= each < 256 for each in value):
        return bytes(value).decode("utf-8", "replace")
    return None


def _source(record: dict[str, Any]) -> str:
    """The container or unit of a record of journald, as docker compose writes it; "" for none."""
    if "MESSAGE" not in record:
        return ""
    name = next((record[key] for key in _SOURCE_KEYS if isinstance(record.get(key), str)), "")
    return _NOT_IN_NAMES.sub("_", name[:100]) + " | " if name else ""


def numbered(stream: BinaryIO) -> Iterator[tuple[int, str, bool]]:
    """Lines with their number; whole is False for a last line without its end.

    Only a newline counts as a line, so that the numbers are those of an editor; a line
    longer than `MAX_LINE` comes in pieces with one number.
    """
    number = 1
    rest = ""
    for chunk in _decoded(stream):
        lines = (rest + chunk).split("\n")
        rest = lines.pop()
        for line in lines:
            yield number, line, True
            number += 1
        if len(rest) > MAX_LINE:
            # a progress bar that never ends its line: cut where it starts again
            cut = rest.rfind("\r") + 1 or len(rest)
            yield number, rest[:cut], True
            rest = rest[cut:]
    if rest:
        yield number, rest, False


def _decoded(stream: BinaryIO) -> Iterator[str]:
    """Text in chunks; what is not UTF-8 is replaced, never an error."""
    # read1 hands on what a pipe has; read would wait for a full chunk
    read = getattr(stream, "read1", stream.read)
    first = read(_CHUNK)
    if first[:2] == b"\x1f\x8b":
        yield from _gunzipped(first, stream)
        return
    encoding = "utf-16" if first[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    while first:
        yield decoder.decode(first)
        first = read(_CHUNK)
    yield decoder.decode(b"", True)


def _gunzipped(first: bytes, stream: BinaryIO) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    inflate = zlib.decompressobj(31)
    while first:
        try:
            data = inflate.decompress(first, _CHUNK * 16)
            while data:
                yield decoder.decode(data)
                data = inflate.decompress(inflate.unconsumed_tail, _CHUNK * 16)
            if inflate.eof and inflate.unused_data:
                # rotated logs are often several members in one file
                first, inflate = inflate.unused_data, zlib.decompressobj(31)
                continue
        except zlib.error:
            return
        first = stream.read(_CHUNK)
    yield decoder.decode(b"", True)
