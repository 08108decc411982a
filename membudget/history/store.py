"""Records on disk: one JSON line each, one file a machine, safe against concurrent writers and a kill at any moment.

A writer locks the file, writes the whole line at once and syncs it.  A line that was torn by
a crash is moved into a file of its own beside (``<machine>.torn-<digest>``) before the next
record is written; a reader names it and reads the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import NamedTuple

import filelock

from membudget.history.record import Record, RecordError, from_json
from membudget.text.sanitize import without_tokens

SUFFIX, LOCK = ".jsonl", ".lock"
#: Longer lines are no records: a damaged file must not fill the memory.
MAX_LINE = 64 * 2**20


class Problem(NamedTuple):
    """A line that is not a record.  torn: the last one, cut by a crash."""

    path: str
    line: int
    text: str
    torn: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Runs(NamedTuple):
    """Records in the order of their time, and what could not be read."""

    records: tuple[Record, ...]
    problems: tuple[Problem, ...]


def file_of(folder: str, machine: str) -> str:
    """The file of a machine's records."""
    named = without_tokens(machine)  # before its slashes go: what is left of an address is no longer one
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in named).strip(".-")
    return os.path.join(folder, (safe or "unknown") + SUFFIX)


def append(record: Record, folder: str) -> str:
    """Add a record to its machine's file, made where there is none; returns the file's path.

    Raises `OSError` where it cannot be written; the file is then as it was.
    """
    os.makedirs(folder, exist_ok=True)
    path = file_of(folder, record.machine_name)
    text = without_tokens(json.dumps(record.as_json(), separators=(",", ":"), ensure_ascii=True, allow_nan=False))
    from_json(json.loads(text))  # what cannot be read again is not written
    append_line(path, text.encode())
    return path


def append_line(path: str, line: bytes) -> None:
    """Write one line at the end of a file: locked, at once, synced."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
    try:
        with lock_of(path):
            lead = _mend(handle, path)
            size = os.fstat(handle).st_size
            left = lead + line + b"\n"
            try:
                while left:  # a single write, unless the disk takes it in parts
                    left = left[os.write(handle, left) :]
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, size)
                raise
    finally:
        os.close(handle)
    _sync_folder(os.path.dirname(path) or ".")


def read(path: str) -> Runs:
    """Every record of one file; what cannot be read is a `Problem`, and never stops the rest.

    Raises `OSError` where the file itself cannot be read; a pipe or a device is a `Problem`.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        return Runs((), (Problem(path, 0, "not a regular file: pipes and devices are not read"),))
    if _torn(path) and os.path.exists(path + LOCK):
        with lock_of(path):  # a writer may be in the middle of its line
            return _read(path)
    return _read(path)


def _read(path: str) -> Runs:
    """A line at a time: a file of years is larger than what is kept of it."""
    records: list[Record] = []
    problems: list[Problem] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        last = not line.endswith(b"\n")
        try:
            records.append(from_json(_parse(line)))
        except RecordError as error:
            problems.append(Problem(path, number, str(error)))
        except ValueError as error:
            why = "cut off by a crash" if last else "no JSON"
            problems.append(Problem(path, number, f"{why}: {error}", torn=last))
    return Runs(tuple(sorted(records, key=lambda record: (record.time, record.id))), tuple(problems))


def read_folder(folder: str) -> Runs:
    """Every record of every machine in a folder; no records where there is no folder.

    A file or folder that cannot be read is a `Problem`: one bad file never stops the rest.
    """
    records: list[Record] = []
    problems: list[Problem] = []
    try:
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    except OSError as error:
        return Runs((), (_unreadable(folder, error),))
    for name in names:
        path = os.path.join(folder, name)
        if name.endswith(SUFFIX):
            try:
                found = read(path)
            except OSError as error:
                problems.append(_unreadable(path, error))
                continue
            records += found.records
            problems += found.problems
        elif f"{SUFFIX}.torn-" in name:
            problems.append(Problem(path, 1, "the part of a record that a crash left; kept, not read", torn=True))
    unique = {record.id: record for record in records}
    return Runs(tuple(sorted(unique.values(), key=lambda record: (record.time, record.id))), tuple(problems))


def _unreadable(path: str, error: OSError) -> Problem:
    return Problem(path, 0, f"cannot be read: {error.strerror or type(error).__name__}")


def lock_of(path: str) -> filelock.BaseFileLock:
    """The lock of a file or folder that several processes write: a file of its own beside it."""
    return filelock.FileLock(path + LOCK)


def _torn(path: str) -> bool:
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
        return file.read() not in (b"", b"\n")


def _lines(path: str) -> Iterator[bytes]:
    """Lines with their ends; of one that is too long for a record only so much that this is seen."""
    with open(path, "rb") as file:
        while line := file.readline(MAX_LINE + 2):
            while len(line) > MAX_LINE and not line.endswith(b"\n") and (more := file.readline(MAX_LINE)):
                line = line[: MAX_LINE + 1] + more[-1:]
            yield line


def _parse(line: bytes) -> object:
    if len(line) > MAX_LINE:
        raise RecordError(f"a line of more than {MAX_LINE:,} bytes is not a record")
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _mend(handle: int, path: str) -> bytes:
    """Look at the end of the file: what must stand before the next line.  A torn line is put aside first."""
    size = os.fstat(handle).st_size
    if not size:
        return b""
    start, tail = size, b""
    while start > 0 and b"\n" not in tail:
        step = min(65536, start)
        start -= step
        os.lseek(handle, start, os.SEEK_SET)
        tail = _read_exactly(handle, step) + tail
    tail = tail.rpartition(b"\n")[2]
    if not tail:
        return b""
    try:
        if isinstance(json.loads(tail), dict):
            return b"\n"  # whole, only its end of line is missing
    except (ValueError, RecursionError):
        pass
    _put_aside(path, tail)
    os.ftruncate(handle, size - len(tail))
    return b""


def _put_aside(path: str, tail: bytes) -> None:
    """Keep a torn line in a file of its own, named after its content: doing it twice is doing it once."""
    import hashlib

    place = f"{path}.torn-{hashlib.sha256(tail).hexdigest()[:8]}"
    with open(place, "wb") as file:
        file.write(tail)
        file.flush()
        os.fsync(file.fileno())


def _read_exactly(handle: int, size: int) -> bytes:
    out = b""
    while len(out) < size:
        piece = os.read(handle, size - len(out))
        if not piece:
            break
        out += piece
    return out


def _sync_folder(folder: str) -> None:
    """The name of a new file survives a crash too; not every system lets a folder be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
