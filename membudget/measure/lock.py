"""One measurement at a time on a machine: a lock file that dies with the process that has it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator

from membudget.errors import NotAvailableError

#: Bytes of the note that are shown.
_SHOWN = 200


class Busy(NotAvailableError):
    """Another process measures on this machine: says which, since when, and what to do.

    code: ``busy``; ``lock_is_link`` where the lock file is a symbolic link.
    """


@contextlib.contextmanager
def machine_lock(path: str | None = None, wait_seconds: float = 0.0) -> Iterator[str]:
    """Lock this machine for measuring; yields the path of the lock file.

    The kernel frees it when the process ends, however it ends.  Raises `Busy` when another process still has it after
    `wait_seconds`, or where the lock file is a link.
    """
    from filelock import FileLock, Timeout

    path = path or os.path.join(tempfile.gettempdir(), "membudget.measuring.lock")
    # It lies where anyone may write: a link there could lead to a file of ours (filelock opens with O_NOFOLLOW too).
    if os.path.islink(path):
        raise Busy(
            f"the lock {path} is a symbolic link and is not followed: delete it, and find out who made it",
            code="lock_is_link",
        )
    lock = FileLock(path, mode=0o666)
    try:
        lock.acquire(timeout=wait_seconds, poll_interval=0.05)
    except Timeout:
        raise Busy(
            f"{_note(path)} is measuring on this machine (lock {path}): two at once would measure each other. "
            "Wait for it to end, or end it",
            code="busy",
        ) from None
    try:
        with contextlib.suppress(OSError):
            os.chmod(path, 0o666)  # another user's file is that user's to open
        _write(path, f"process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')},\n")
        yield path
    finally:
        _write(path, "")
        lock.release()


def _write(path: str, text: str) -> None:
    flags = os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    with contextlib.suppress(OSError), os.fdopen(os.open(path, flags), "w", encoding="utf-8") as file:
        file.write(text)


def _note(path: str) -> str:
    """Who has the lock, by the note in it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_SHOWN).strip() or "another process"
    except OSError:
        return "another process"
