"""Any vLLM log, 0.6 to 0.33, as figures: streaming, in constant memory, never a guessed number.

`parse` takes lines, `parse_stream` a binary stream (a pipe that is still being written
too).  One `EngineLog` comes back for every engine that started, or tried to, in the order
of the log; what they mean is in `verdict`, in words in `explain`.  A line that is not one of the
messages of `messages` is left alone, so an unknown version yields fewer figures, not wrong ones.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

from membudget.engines.vllm.logs.kinds import Event
from membudget.engines.vllm.logs.messages import Message, by_needle
from membudget.engines.vllm.logs.record import EngineLog, Figure, Refusal, Setting, read_figure
from membudget.engines.vllm.logs.router import Router, Speaker, speaker
from membudget.engines.vllm.logs.settings import read_args, read_config, redact, without_secrets
from membudget.engines.vllm.logs.stream import numbered, unwrapped

_RAW = 400
#: No message is longer; what stands further right in a line is not read.
_LONGEST = 1 << 15
#: Container, time and tags stand in so many characters before a message.
_HEAD = 300
#: Refusals kept an engine.
_REFUSALS = 64
#: Exceptions remembered an engine: the last that counts is among them.
_RECENT = 16
#: Text before a message that is not a logger's prefix: a prompt, a source line, a dict that quotes the message.
_MAX_PREFIX = 300

_ANSI = re.compile(r"(?:\x1b|\\u001b|\\x1b|\\033|#033|\^\[)(?:\[[0-9;?]*[A-Za-z]|\][^\x07]{0,200}\x07)")
_MARKS = ("\x1b", "\\u001b", "\\x1b", "\\033", "#033", "^[[")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
#: Tags at the end of a text: those of the record that follows.
_TAGS = re.compile(r"(?:\([A-Za-z_][^()\n]{0,80}? pid=\d+[^()\n]{0,40}\)[ \t]*)+$")
_HEADER = re.compile(
    r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)[ \t]+\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?[ \t]+"
    r"(?:\[[^\]\n]{1,120}:\d+\]|[\w./<>-]{1,120}:\d+\])[ \t]?"
)
_ERROR = re.compile(r"(?:^|[\s|])((?:[A-Za-z_]\w*\.){0,6}[A-Z]\w*(?:Error|Exception|Interrupt)): (.{1,2000})")
#: How a record of a collector may begin: an object, one in a sequence (RFC 7464), an event, a pretty-printed entry.
_WRAPPED = ("{", "\x1e", "d", "\t", " ")


def parse(lines: Iterable[str]) -> list[EngineLog]:
    """Every engine in a log, from its lines (with or without their newlines)."""
    reader = _Reader()
    number = 0
    held: str | None = None
    ended = False
    for number, line in enumerate(lines, 1):
        if held is not None:
            reader.feed(held, number - 1)
        ended = ended or line.endswith("\n")
        held = line
    if held is not None:
        # the last line of a log that is cut in the middle of a number must not give that number
        reader.feed(held, number, whole=not ended or held.endswith("\n"))
    return reader.finish(number)


def parse_stream(stream: BinaryIO) -> list[EngineLog]:
    """Every engine in a binary stream: any encoding errors, gzip and UTF-16 with a mark included."""
    reader = _Reader()
    number = 0
    for number, line, whole in numbered(stream):
        reader.feed(line, number, whole)
    return reader.finish(number)


def parse_file(path: str) -> list[EngineLog]:
    """Every engine in a log file; ``-`` reads the standard input."""
    if path == "-":
        import sys

        return parse_stream(sys.stdin.buffer)
    with open(path, "rb") as stream:
        if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode) and not stream.isatty():
            raise OSError(errno.EINVAL, "not a regular file", path)
        return parse_stream(stream)


class _Head(NamedTuple):
    """What stands before a record: its line's lead, its tags, its level ("" for no header), and the whole line."""

    lead: str
    tags: str
    level: str
    text: str


class _Reader:
    """Turns lines into engines."""

    __slots__ = ("_recent", "_router", "_rows")

    def __init__(self) -> None:
        self._rows = by_needle()
        self._router = Router()
        self._recent: dict[EngineLog, list[tuple[int, str]]] = {}

    def feed(self, line: str, number: int, whole: bool = True) -> None:
        """One line; whole: its end was seen."""
        if "HTTP/1." in line or " throughput: " in line:
            # what a server prints for the rest of its life: nine lines of ten of a long log
            return
        if line[:1] in _WRAPPED:
            line = unwrapped(line)
        hit = [found for needle, found in self._rows if needle in line]
        if not hit:
            if "Error: " in line or "Exception: " in line:
                self._errors(line, number)
            return
        rows = [row for found in hit for row in found]
        text = _plain(line)
        for part in text.rstrip("\r\n").split("\r"):
            if part:
                self._part(part[:_LONGEST], rows, number, whole or len(part) > _LONGEST)

    def finish(self, last: int) -> list[EngineLog]:
        """The engines; last: number of the last line."""
        after: dict[str, int] = {}
        for engine in reversed(self._router.engines):
            # where this engine's part ends: an exception far above it was survived
            engine.events[Event.END] = after.get(engine.source, last + 1) - 1
            after[engine.source] = engine.first_line
            engine.error = _reason(self._recent.get(engine, []))
        return [engine for engine in self._router.engines if engine.figures or engine.refusals or engine.settings]

    def _part(self, text: str, rows: list[Message], number: int, whole: bool) -> None:
        """One line of a terminal: usually one record, several where processes wrote without a newline between."""
        headers = list(_HEADER.finditer(text))
        if not headers:
            self._record(text, rows, _Head("", "", "", text), number, whole)
            return
        lead = text[: headers[0].start()]
        if len(lead) > 8:
            self._record(lead, rows, _Head("", "", "", text), number, True)
        tags = lead[-_HEAD:]
        for index, header in enumerate(headers):
            last = index + 1 == len(headers)
            body = text[header.end() : len(text) if last else headers[index + 1].start()]
            self._record(body, rows, _Head(lead, tags, header[1], text), number, whole or not last)
            following = _TAGS.search(body[-_HEAD:])
            tags = following[0] if following else ""

    def _record(self, body: str, rows: list[Message], head: _Head, number: int, whole: bool) -> None:
        """The messages of one record."""
        found = False
        for row in rows:
            if row.anchor not in body:
                continue
            match = row.pattern.search(body)
            if match is None or not _is_prefix(body[: match.start()], row):
                continue
            if not whole and match.end() >= len(body) and match.re.groups:
                continue
            # without a header the tags are in the body itself, before the message
            before = body[: match.start()][:_HEAD]
            who = speaker((head.lead or before)[:_HEAD], head.tags if head.level else before)
            self._found(row, match, who, head.text, number)
            found = True
        if not found and head.level in ("", "ERROR", "CRITICAL"):
            self._errors(head.text, number)

    def _found(self, row: Message, match: re.Match[str], who: Speaker, text: str, number: int) -> None:
        first = row.holes[0].name if row.holes else ""
        engine = self._router.route(who, row.event, first, number)
        if engine.full(first) if not row.refusal else len(engine.refusals) >= _REFUSALS:
            engine.dropped += 1
            return
        # the settings are kept apart; the two lines that dump them are long and may name a key
        shown = row.key if row.event in (Event.ARGS, Event.INIT) else _shown(text)
        found: list[Figure] = []
        for hole, printed in zip(row.holes, match.groups(), strict=True):
            if printed is None:
                continue
            if row.event in (Event.ARGS, Event.INIT) and hole.name in ("args", "config"):
                source = "args" if row.event is Event.ARGS else "config"
                _settle(engine, printed, source, number)
                continue
            figure = read_figure(hole, printed, number, shown, who.rank, row.key)
            if figure is not None:
                found.append(figure)
        if row.refusal:
            _refuse(engine, Refusal(row.refusal, number, shown, who.rank, tuple(found)))
            found = [figure for figure in found if figure.name not in _NOT_MEASURED.get(row.key, ())]
        for figure in found:
            engine.add(figure)
        if row.event:
            engine.events.setdefault(row.event, number)

    def _errors(self, line: str, number: int) -> None:
        """Keep what may be the exception that ended the start-up; `_reason` looks at it at the end."""
        engine = self._router.only() or self._router.current(speaker(line[:200], "").source)
        if engine is not None:
            recent = self._recent.setdefault(engine, [])
            recent.append((number, line[:4000]))
            if len(recent) > _RECENT:
                del recent[0]


def _reason(recent: list[tuple[int, str]]) -> tuple[int, str] | None:
    """The last exception that is one: not a warning's, not a quoted one."""
    for number, line in reversed(recent):
        text = _plain(line)
        found = list(_ERROR.finditer(text))
        if not found:
            continue
        match = found[-1]
        if "'" in text[: match.start()] or '"' in text[: match.start()]:
            continue
        header = _HEADER.search(text)
        if header is None or header[1] in ("ERROR", "CRITICAL"):
            return number, redact(_CONTROL.sub(" ", f"{match[1]}: {match[2]}"))[:_RAW]
    return None


#: Figures of a refusal that are not what the engine has: what it was asked for, or a limit of another rule.
_NOT_MEASURED: dict[str, tuple[str, ...]] = {"cpu_kv": ("available_kv",)}


def _refuse(engine: EngineLog, refusal: Refusal) -> None:
    """The same refusal is printed by the engine, by its traceback and by the server: keep one of each."""
    same = [(kept.kind, [f.printed for f in kept.figures]) for kept in engine.refusals]
    if (refusal.kind, [f.printed for f in refusal.figures]) not in same:
        engine.refusals.append(refusal)


def _settle(engine: EngineLog, text: str, source: str, line: int) -> None:
    read = read_args(text) if source == "args" else read_config(text)
    for name, value in read.items():
        value = without_secrets(value)
        known = engine.settings.get(name)
        if known is not None and isinstance(known.value, dict) and isinstance(value, dict):
            # an argument has entries that the engine does not print, and the other way round
            value = {**known.value, **value}
        # what the engine was built with beats what it was asked for
        if source == "config" or known is None or known.source == "args":
            engine.settings[name] = Setting(value, line, source)


def _is_prefix(text: str, row: Message) -> bool:
    """Whether what stands before a message can be a logger's prefix, and not a text that quotes the message."""
    if row.event is Event.BANNER or row.key == "logo_model":
        return len(text) <= _MAX_PREFIX
    return len(text) <= _MAX_PREFIX * 4 and "'" not in text and '"' not in text


def _plain(line: str) -> str:
    """The line without colours."""
    return _ANSI.sub("", line) if "[" in line and any(mark in line for mark in _MARKS) else line


def _shown(raw: str) -> str:
    """A line as it may be kept and printed: no control characters, no secrets, cut."""
    cut = raw[: 4 * _RAW].strip()
    return redact(cut if cut.isprintable() else _CONTROL.sub(" ", cut))[:_RAW]
