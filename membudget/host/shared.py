"""What this host requires of every start, whatever a budget or a machine file says of it.

A machine file may be wrong about the memory, and a CPU budget may run on a DGX Spark: there the CPU's memory is the
GPU's too, and running out hangs the host.
"""

from __future__ import annotations

import functools

from membudget.host import system
from membudget.host.detect import DetectError, detect
from membudget.host.sources import Sources


@functools.cache
def shares_memory() -> bool:
    """Whether an NVIDIA GPU has the host's own memory, or may have it: its driver is here and does not answer."""
    try:
        machine = detect()
    except DetectError as error:
        return error.hides_gpu
    return machine.unified and machine.platform == "cuda"


def thrashing() -> str | None:
    """Why nothing may start now where that would hang the host; None where tasks get their memory."""
    if not shares_memory():
        return None
    pressure = Sources().pressure()
    if not isinstance(pressure, int) or pressure < system.WAITING:
        return None
    return (
        f"some task waited for memory {pressure / 1000:.0f}% of the last 10 s (PSI), and a host with unified memory "
        "hangs when it runs out: free memory first (`membudget doctor`)"
    )


def total() -> int | None:
    """The bytes of memory that there are; None where Linux does not say."""
    return system.meminfo().get("MemTotal")
