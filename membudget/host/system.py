"""What Linux says of memory and processes: each a value, or None where it does not say."""

from __future__ import annotations

import os
from collections.abc import Iterable


def meminfo(path: str = "/proc/meminfo") -> dict[str, int]:
    """/proc/meminfo in bytes; empty where there is none.

    MemAvailable is left out where it exceeds MemTotal: what cannot be is not to be relied on.
    """
    found: dict[str, int] = {}
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, rest = line.partition(":")
                words = rest.split()
                if words and words[0].isdigit():
                    found[name.strip()] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    except OSError:
        return {}
    if found.get("MemAvailable", 0) > found.get("MemTotal", 0):
        del found["MemAvailable"]
    return found


def available() -> int | None:
    """Bytes that can still be used without swapping (MemAvailable); None where it is unknown."""
    if os.path.exists("/proc/meminfo"):
        return meminfo().get("MemAvailable")
    try:  # macOS and Windows, where psutil is installed
        import psutil
    except ImportError:
        return None
    return int(psutil.virtual_memory().available)


def descendants(roots: Iterable[int]) -> dict[int, int]:
    """All processes that `roots` started, and those they started, even in sessions of their own.

    Each pid with its start time in clock ticks, so that a number used again is told apart.
    """
    children: dict[int, list[int]] = {}
    started: dict[int, int] = {}
    try:
        entries = os.listdir("/proc")
    except OSError:
        return {}
    for entry in entries:
        stat = _stat(entry) if entry.isdigit() else None
        if stat is not None:
            children.setdefault(stat[0], []).append(int(entry))
            started[int(entry)] = stat[1]
    found: dict[int, int] = {}
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found[child] = started[child]
                waiting.append(child)
    return found


def is_running(pid: int, started: int) -> bool:
    """Whether this very process is still there."""
    stat = _stat(str(pid))
    return stat is not None and stat[1] == started


def _stat(entry: str) -> tuple[int, int] | None:
    """The parent's pid and the start time of a process."""
    try:
        with open(f"/proc/{entry}/stat", "rb") as file:
            # pid (comm) state ppid ...; comm may hold spaces and parentheses
            fields = file.read().rpartition(b")")[2].split()
            return None if fields[0] == b"Z" else (int(fields[1]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None
