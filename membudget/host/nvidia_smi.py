"""nvidia-smi's answers, each question in one place.

On unified memory (DGX Spark) its memory columns are "[N/A]": total and free are the kernel's there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from membudget.errors import MembudgetError
from membudget.host.system import System
from membudget.units import MIB

#: What every question ends with.
CSV = "--format=csv,noheader,nounits"
DEVICES = "--query-gpu=uuid,name,memory.total,mig.mode.current"
FREE = "--query-gpu=uuid,memory.free"
CAPABILITY = "--query-gpu=compute_cap"
PROCESSES = "--query-compute-apps=pid,process_name,used_gpu_memory"


class UnreadableAnswer(MembudgetError):
    """nvidia-smi answered, and not in the form that it was asked for: shows the answer."""


@dataclass(frozen=True)
class Device:
    """One GPU."""

    uuid: str  # "GPU-7c3f...": what CUDA_VISIBLE_DEVICES and NVML know it by
    name: str
    memory: int | None  # bytes; None where the driver has no figure of its own: unified memory
    mig: bool  # cut into slices, and `memory` is the whole card's


@dataclass(frozen=True)
class Driver:
    """Versions, as nvidia-smi's headline has them; None where it does not say."""

    version: str | None
    cuda: str | None


def names(system: System) -> tuple[str, ...]:
    """The names of all GPUs, in the driver's order."""
    listed = system.run(["nvidia-smi", "-L"]) or ""
    return tuple(re.findall(r"^GPU \d+: (.+?)(?: \(UUID.*)?$", listed, re.MULTILINE))


def devices(system: System) -> tuple[Device, ...]:
    """All GPUs, in the driver's order; empty where there is none, or no driver.  Raises `UnreadableAnswer`."""
    text = system.run(["nvidia-smi", DEVICES, CSV]) or ""
    rows = _rows(text)
    if not rows or "No devices were found" in text:
        return ()
    if any(len(cells) != 4 for cells in rows):
        raise UnreadableAnswer(f"nvidia-smi's answer to {DEVICES} cannot be read: {text!r:.100}")
    return tuple(
        Device(uuid, name, int(memory) * MIB if memory.isdecimal() else None, mig == "Enabled")
        for uuid, name, memory, mig in rows
    )


def visible(found: Sequence[Device], environment: Mapping[str, str] | None = None) -> tuple[Device, ...]:
    """The devices that a CUDA process sees, in its order: CUDA_VISIBLE_DEVICES by UUID or number, else all.

    CUDA stops at the first entry that names no device.  Numbers are nvidia-smi's: CUDA's own order differs on
    machines with unlike cards unless CUDA_DEVICE_ORDER=PCI_BUS_ID, which every worker is started with.
    """
    named = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return tuple(found)
    chosen: list[Device] = []
    for word in named.split(","):
        text = word.strip()
        number = int(text) if text.isascii() and text.isdecimal() else -1
        match = [device for place, device in enumerate(found) if place == number or (
            text.startswith("GPU-") and device.uuid.startswith(text))]  # fmt: skip
        if len(match) != 1:
            break
        chosen += match
    return tuple(chosen)


def card(system: System, environment: Mapping[str, str] | None = None) -> Device | None:
    """The GPU that this project plans for and measures on: of those visible the one with the least memory.

    None where there is none, or nvidia-smi does not answer.
    """
    try:
        found = visible(devices(system), environment)
    except UnreadableAnswer:
        return None
    return min(found, key=lambda device: device.memory or 0, default=None)


def free(system: System, uuid: str | None = None) -> int | None:
    """Bytes free on one GPU, by its UUID, else on the fullest; None where the driver has no figure (unified memory)."""
    found = {
        cells[0]: int(cells[1]) * MIB
        for cells in _rows(system.run(["nvidia-smi", FREE, CSV]) or "")
        if len(cells) == 2 and cells[1].isdecimal()
    }
    return found.get(uuid) if uuid is not None else min(found.values(), default=None)


def card_free() -> int | None:
    """Bytes free on the GPU that is measured on (`card`); None where nvidia-smi does not say."""
    here = System()
    found = card(here)
    return free(here, found.uuid) if found is not None else None


def capability(system: System) -> str | None:
    """The first GPU's compute capability, ``"12.1"``; None where an older driver does not say."""
    text = system.run(["nvidia-smi", CAPABILITY, CSV])
    first = (text or "").strip().partition("\n")[0].strip()
    return first if first.replace(".", "", 1).isdecimal() else None


def driver(system: System) -> Driver:
    """The driver's version, and the CUDA version that it brings."""
    text = system.run(["nvidia-smi"]) or ""
    version = re.search(r"Driver Version:\s*([\d.]+)", text)
    cuda = re.search(r"CUDA (?:UMD )?Version:\s*([\d.]+)", text)
    return Driver(version[1] if version else None, cuda[1] if cuda else None)


def processes(system: System) -> list[tuple[int, str, str]] | None:
    """(pid, program, MiB as printed) of every process on a GPU; None where nvidia-smi does not answer.

    Raises `UnreadableAnswer`.
    """
    text = system.run(["nvidia-smi", PROCESSES, CSV])
    if text is None:
        return None
    found = []
    for line in filter(str.strip, text.split("\n")):
        pid, _, rest = line.partition(",")
        name, comma, size = rest.rpartition(",")  # a program's path may hold commas
        if not comma or not re.fullmatch(r"[0-9]{1,10}", pid.strip()):
            raise UnreadableAnswer(f"nvidia-smi's list of processes cannot be read: {line!r:.60}")
        found.append((int(pid.strip()), name.strip(), size.strip()))
    return found


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
