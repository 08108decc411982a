"""One measurement at a time on a machine: a lock file that dies with its holder."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator

from membudget.errors import NotAvailableError


class Busy(NotAvailableError):
    """Another process measures on this machine: the message says which, since when, and what to do."""


@contextlib.contextmanager
def machine_lock(path: str | None = None, wait_seconds: float = 0.0) -> Iterator[str]:
    """Hold this machine for measuring; raises `Busy` when someone else does after `wait_seconds`.

    Yields the path of the lock file.  The kernel frees it when the holder ends, however it ends.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no Spark and no such lock; measuring there is the user's care
        yield ""
        return
    path = path or os.path.join(tempfile.gettempdir(), "membudget.measuring.lock")
    with os.fdopen(_open(path), "r+", encoding="utf-8") as file:
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    holder = file.read(200).strip() or "another process"
                    raise Busy(
                        f"{holder} is measuring on this machine (lock {path}): two at once would measure each other. "
                        "Wait for it to end, or end it"
                    ) from None
                time.sleep(0.05)
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')},\n")
        file.flush()
        try:
            yield path
        finally:
            file.seek(0)
            file.truncate()
            file.flush()
            fcntl.flock(file, fcntl.LOCK_UN)


def _open(path: str) -> int:
    """The lock file, made where it is not there, open to every user of the machine.

    It lies where anyone may write, so a link there could lead to a file of ours: none is followed.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    except OSError as error:
        if os.path.islink(path):
            raise Busy(f"the lock {path} is a link, and none is followed: delete it, and ask who made it") from None
        raise error
    descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    with contextlib.suppress(OSError):  # another user's: theirs to open
        os.fchmod(descriptor, 0o666)
    return descriptor
