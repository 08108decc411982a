"""What a second process costs on a device: its own context, as large as the first one's.

The comparison takes readings and two actions, so that it runs without a device too.  No torch at import.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from membudget.errors import MembudgetError
from membudget.host.readings import Reading, Unknown, pair
from membudget.host.sources import Sources

#: Seconds that the second process may take to load torch and to touch the device.
SECONDS = 180.0
_TOUCH = (
    "import sys, torch\n"
    "held = torch.zeros(1, device='cuda'); torch.cuda.synchronize()\n"
    "print('held', flush=True); sys.stdin.read()"
)


def compare(
    sources: Sources, touch: Callable[[], None], second: Callable[[], AbstractContextManager[int]]
) -> dict[str, Any]:
    """Bytes on the device of this process alone, and of both: {alone, first, second, source}, or {unknown}.

    touch: makes this process's context.  second: holds another process's, yields its pid.
    By NVML's figure of each process where it has one; else by what is free on the whole device,
    which other processes may disturb.
    """
    own, unified = os.getpid(), sources.unified()
    known_free = [free(sources, unified)]
    touch()
    alone = _of(sources, own)
    known_free.append(free(sources, unified))
    with second() as pid:
        first, other = _of(sources, own), _of(sources, pid)
        known_free.append(free(sources, unified))
    if isinstance(alone, int) and isinstance(first, int) and isinstance(other, int):
        return {"alone": alone, "first": first, "second": other, "source": "NVML's figure of each process"}
    known = [item for item in known_free if isinstance(item, int)]
    reason = next(item.reason for item in (alone, first, other) if isinstance(item, Unknown))
    # Each step must take something: a figure that others move is not a measurement.
    if len(known) < len(known_free) or not known[0] > known[1] > known[2]:
        return {"unknown": f"NVML does not say what each process holds ({reason}), and neither does what is free"}
    source = f"what is free on the device before and after ({reason})"
    return {"alone": known[0] - known[1], "first": known[0] - known[1], "second": known[1] - known[2], "source": source}


@contextlib.contextmanager
def another() -> Iterator[int]:
    """A second process that touched the device and holds it; ends with the block, and with this process."""
    with subprocess.Popen([sys.executable, "-c", _TOUCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            import select

            ready, _, _ = select.select([child.stdout], [], [], SECONDS)
            if not ready or child.stdout.readline().strip() != b"held":
                raise MembudgetError(f"the second process did not reach the device in {SECONDS:g} s")
            yield child.pid
        finally:
            child.kill()


def _of(sources: Sources, pid: int) -> Reading:
    found = sources.device_processes()
    if isinstance(found, Unknown):
        return found
    return found.get(pid, Unknown(f"process {pid} is not in the driver's list"))


def free(sources: Sources, unified: bool | None = None) -> Reading:
    """What is free for all: MemAvailable where the memory is shared, else the driver's free."""
    if sources.unified() if unified is None else unified:
        return sources.meminfo().get("MemAvailable", Unknown("no MemAvailable"))
    # not through torch: its question makes the context that is to be measured
    return pair(*sources.card_memory())[0]
