"""Processes of this machine: who started whom, and who is still there.

Where the kernel lists a process's children (CONFIG_PROC_CHILDREN) only the tree itself is read, however many other
processes there are; elsewhere psutil looks at all of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable


def descendants(roots: Iterable[int]) -> dict[int, float]:
    """All processes that `roots` started, and those they started, also in sessions of their own: pid to start time.

    A process whose parent ended is the child of init, or of the nearest subreaper, from then on.
    """
    found: dict[int, float] = {}
    waiting = list(roots)
    while waiting:
        root = waiting.pop()
        listed = _listed(root)
        for pid in _all_by_psutil(root) if listed is None else listed:
            if pid not in found and (since := started(pid)) is not None:
                found[pid] = since
                if listed is not None:
                    waiting.append(pid)
    return found


def is_running(pid: int, since: float) -> bool:
    """Whether this very process is still there: neither a zombie, nor a later one with the same number."""
    return since == started(pid)


def started(pid: int) -> float | None:
    """When a process started, in a unit of the system's own; None for one that is gone, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # pid (comm) state ppid ...; comm may hold spaces and parentheses
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] == b"Z" else float(fields[19])
    except (OSError, IndexError, ValueError):
        if os.path.isdir("/proc/self"):
            return None
    with contextlib.suppress(ImportError):  # macOS and Windows
        import psutil

        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    return None


def _listed(pid: int) -> list[int] | None:
    """A process's children as the kernel lists them, empty for one that is gone; None where it keeps no lists."""
    if not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
        return None
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def _all_by_psutil(pid: int) -> list[int]:
    """Everything below one process; empty where psutil is not installed (it comes with the extra `transformers`)."""
    try:
        import psutil
    except ImportError:
        return []
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
