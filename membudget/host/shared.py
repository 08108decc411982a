"""What the host itself asks of whoever starts something on it, whatever a budget or a machine file says of it.

A machine file may be wrong about the memory, and a CPU budget may run on a DGX Spark: there the CPU's memory is the
GPU's too, and running out hangs the host.
"""

from __future__ import annotations

import functools

from membudget.host import system
from membudget.host.detect import DetectError, detect
from membudget.host.readings import Sources

#: PSI, thousandths of a percent: the share of the last 10 s in which some task waited for memory.
WAITING = 10_000


@functools.cache
def shares_memory() -> bool:
    """Whether an NVIDIA GPU has the host's own memory, or may have it: its driver is here and does not answer."""
    try:
        machine = detect()
    except DetectError as error:
        return str(error).startswith("nvidia-smi")
    return machine.unified and machine.platform == "cuda"


def thrashing() -> str | None:
    """Why nothing may start now where that would hang the host; None where tasks get their memory."""
    if not shares_memory():
        return None
    pressure = Sources().pressure()
    if not isinstance(pressure, int) or pressure < WAITING:
        return None
    return (
        f"in the last 10 s some task waited for memory {pressure / 1000:.0f}% of the time, and a host of one memory "
        "hangs: end what holds it first (`membudget doctor`)"
    )


def total() -> int | None:
    """The bytes of memory that there are; None where Linux does not say."""
    return system.meminfo().get("MemTotal")
