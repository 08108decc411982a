"""`this-machine`: what the operating system and the driver say about where we run.

Nothing is loaded for it: nvidia-smi, sysctl and /proc are asked.  What they do not
say is 0 or None, and the machine's `notes` say so: a bandwidth is taken from the
table where the device is in it, and is otherwise unknown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from membudget import machines
from membudget.errors import NotAvailableError
from membudget.host import asking
from membudget.machines import SPARK_GPU, THIS_MACHINE, Machine
from membudget.units import GIB, MIB

#: There where the kernel has NVIDIA's driver.
_DRIVER = "/proc/driver/nvidia/version"
#: Left to the operating system where CPU and GPU share the memory and no table entry says how
#: much: a tenth, and never less than 1 GiB.  An assumption, said in `notes`.
RESERVE_SHARE, RESERVE_LEAST = 10, GIB
#: What CUDA calls the generation of a DGX Spark's GPU.
SPARK_CAPABILITY = "12.1"


class DetectError(NotAvailableError):
    """This machine does not say how much memory it has; the message says what was tried."""


class System:
    """What is asked: commands and files.  Tests put their own answers in its place."""

    platform = sys.platform

    def run(self, command: Sequence[str]) -> str | None:
        """Standard output; None where the command is missing, fails or takes too long: then `trouble` says why.

        A program that hung or flooded once is not asked again.
        """
        program, troubles = command[0], self.troubles
        if not troubles.get(program, asking.FAILED).startswith(asking.FAILED):
            return None
        answer = asking.ask(command)
        if answer.why:
            troubles[program] = answer.why
        return answer.text

    @property
    def troubles(self) -> dict[str, str]:
        """By program, how it failed: it is there, and did not answer."""
        found: dict[str, str] = self.__dict__.setdefault("_troubles", {})
        return found

    def driver_trouble(self) -> str | None:
        """Why an NVIDIA driver that is here says nothing; None where there is none, or it has not been asked.

        Where nvidia-smi fails by itself and the kernel has no driver, there is no GPU to be used.
        """
        why = self.troubles.get("nvidia-smi")
        if why is None or (why.startswith(asking.FAILED) and self.read(_DRIVER) is None):
            return None
        return f"nvidia-smi is here and gives {why}"

    def read(self, path: str) -> str | None:
        """A file's text; None where it cannot be read."""
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except (OSError, UnicodeDecodeError):
            return None

    def folder(self, path: str) -> list[str]:
        """The names in a folder, sorted; empty where there is none."""
        try:
            return sorted(os.listdir(path))
        except OSError:
            return []


_found: Machine | None = None


def detect(system: System | None = None) -> Machine:
    """This machine.  Asked once and kept, unless `system` is given.

    Raises `DetectError` where nothing says how much memory there is.
    """
    global _found
    if system is not None:
        return _detect(system)
    if _found is None:
        _found = _detect(System())
    return _found


def _detect(system: System) -> Machine:
    if system.platform == "darwin":
        return _apple(system)
    found = _nvidia(system)
    if found is None and (trouble := system.driver_trouble()):
        raise DetectError(
            f"{trouble}: whether a GPU is here, and what it holds, cannot be known. Once `nvidia-smi` answers "
            "(a restart, or the driver installed again) it is; or name a machine with --machine"
        )
    return found or _amd(system) or _cpu(system)


def _nvidia(system: System) -> Machine | None:
    query = "--query-gpu=name,memory.total,mig.mode.current"
    text = system.run(["nvidia-smi", query, "--format=csv,noheader,nounits"])
    devices = [[cell.strip() for cell in line.split(",")] for line in (text or "").splitlines() if line.strip()]
    if not devices or "No devices were found" in (text or ""):
        return None
    if any(len(cells) != 3 for cells in devices):
        raise DetectError(
            f"nvidia-smi is here and its answer cannot be read: {text!r:.100}. Once "
            f"`nvidia-smi {query} --format=csv,noheader,nounits` gives a line for each GPU it is; or name a machine "
            "with --machine"
        )
    if any(cells[2] == "Enabled" for cells in devices):
        raise DetectError(
            f"{devices[0][0]} is cut into MIG slices, and nvidia-smi gives the whole card's memory: "
            "write the slice into a machine file (docs/machines.md) and name it with --machine"
        )
    notes = []
    if len(devices) > 1:
        notes.append(f"{len(devices)} GPUs here; this is the one with the least memory")
    unified = [name for name, memory, _ in devices if not memory.isdecimal()]
    if unified:
        # GB10 and its like: "[N/A]", CUDA's total is the kernel's MemTotal.
        memory = _meminfo(system, "MemTotal")
        if memory is None:
            raise DetectError(f"nvidia-smi gives no memory for {unified[0]}, and /proc/meminfo no MemTotal")
        title, capability = unified[0], _capability(system)
        if SPARK_GPU in title and capability not in (None, SPARK_CAPABILITY):
            notes.append(f"named {SPARK_GPU}, but its compute capability is {capability}, not {SPARK_CAPABILITY}")
        elif SPARK_GPU not in title and capability == SPARK_CAPABILITY:
            title = f"{SPARK_GPU} ({title}, compute capability {capability})"
        known = _known(SPARK_GPU if SPARK_GPU in title else title, memory)
        return _machine(title, memory, known, notes, unified=True, cuda_total=memory, source="/proc/meminfo MemTotal")
    name, mebibytes, _ = min(devices, key=lambda cells: int(cells[1]))
    memory = int(mebibytes) * MIB
    known = _known(name, memory)
    if known is not None and known.cuda_total:
        notes.append(f"what torch sees as total ({known.cuda_total:,} B) is the table's, not asked here")
    return _machine(
        name, memory, known, notes, cuda_total=known.cuda_total if known else None, source="nvidia-smi memory.total"
    )


def _capability(system: System) -> str | None:
    """The first device's compute capability, ``"12.1"``; None where an older driver does not say."""
    text = system.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader,nounits"])
    first = (text or "").strip().partition("\n")[0].strip()
    return first if first.replace(".", "", 1).isdecimal() else None


def _amd(system: System) -> Machine | None:
    """Discrete AMD cards, by the amdgpu driver's own files."""
    found: list[tuple[int, str]] = []
    for card in system.folder("/sys/class/drm"):
        base = f"/sys/class/drm/{card}/device"
        size, name = system.read(f"{base}/mem_info_vram_total"), system.read(f"{base}/product_name")
        # An APU has a carve-out of the main memory and no product name: that is no device of its own.
        if "-" not in card and size and size.strip().isdecimal() and name and name.strip():
            found.append((int(size), name.strip()))
    if not found or not system.folder("/sys/class/kfd"):
        return None
    memory, name = min(found)
    notes = [f"{len(found)} GPUs here; this is the one with the least memory"] if len(found) > 1 else []
    return _machine(name, memory, _known(name, memory), notes, platform="rocm", source="amdgpu mem_info_vram_total")


def _apple(system: System) -> Machine:
    asked = {}
    for key in ("hw.memsize", "machdep.cpu.brand_string", "iogpu.wired_limit_mb"):
        asked[key] = (system.run(["sysctl", "-n", key]) or "").strip()
    if not asked["hw.memsize"].isdecimal():
        raise DetectError("sysctl hw.memsize gives no number: this Mac does not say how much memory it has")
    memory, chip = int(asked["hw.memsize"]), asked["machdep.cpu.brand_string"]
    if not chip.startswith("Apple"):
        return _machine(chip or "Mac", memory, None, [], unified=True, platform="cpu", source="sysctl hw.memsize")
    known = _known(f"{chip} {memory // GIB}GB", memory)
    wired = int(asked["iogpu.wired_limit_mb"]) * MIB if asked["iogpu.wired_limit_mb"].isdecimal() else 0
    if wired:
        limit, note = wired, f"iogpu.wired_limit_mb is set: the GPU may use {wired:,} B"
    elif known is not None:
        limit, note = memory - known.os_reserve, "Metal's limit for the GPU is the table's, not asked here"
    else:
        # The smaller of the shares macOS has been seen to choose (docs/machines.md).
        limit = memory * 2 // 3
        note = "Metal's limit for the GPU was not asked: 2/3 of the memory, the least macOS has chosen, is assumed"
    reserve = max(memory - limit, 0)
    return _machine(
        chip, memory, known, [note], unified=True, platform="metal", source="sysctl hw.memsize", os_reserve=reserve
    )


def _cpu(system: System) -> Machine:
    memory = _meminfo(system, "MemTotal")
    if memory is None:
        raise DetectError(
            f"no nvidia-smi, no amdgpu and no MemTotal in /proc/meminfo on {system.platform}: "
            "write this machine into a machine file (docs/machines.md)"
        )
    notes = ["no GPU was found: the model would run on the CPU"]
    source = "/proc/meminfo MemTotal"
    # A container's limit counts for memory the CPU uses, unlike for CUDA's.
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = (system.read(path) or "").strip()
        if limit.isdecimal() and 0 < int(limit) < memory:
            notes.append(f"{path} allows {int(limit):,} of {memory:,} B")
            memory, source = int(limit), path
    title = next(
        (
            line.partition(":")[2].strip()
            for line in (system.read("/proc/cpuinfo") or "").splitlines()
            if line.startswith("model name")
        ),
        "CPU",
    )
    return _machine(title, memory, None, notes, unified=True, platform="cpu", source=source)


def _machine(
    title: str,
    memory: int,
    known: Machine | None,
    notes: list[str],
    *,
    source: str,
    unified: bool = False,
    platform: str = "cuda",
    cuda_total: int | None = None,
    os_reserve: int | None = None,
) -> Machine:
    if os_reserve is None:
        os_reserve = 0
        if unified and known is not None:
            os_reserve = known.os_reserve
        elif unified:
            os_reserve = min(max(memory // RESERVE_SHARE, RESERVE_LEAST), memory)
            notes = [*notes, f"{os_reserve:,} B for the operating system are an assumption: a tenth, at least 1 GiB"]
    if known is None or not known.bandwidth:
        notes = [*notes, f"bandwidth is unknown ({title!r} is in no table): no time is estimated"]
    return Machine(
        name=THIS_MACHINE,
        memory=memory,
        nominal=known.nominal if known else memory,
        unified=unified,
        bandwidth=known.bandwidth if known else 0,
        os_reserve=os_reserve,
        cuda_total=cuda_total,
        platform=platform,
        title=title,
        source=source,
        notes=tuple(notes),
        compute_capability=known.compute_capability if known else None,
        sm_count=known.sm_count if known else 0,
        cuda_total_low=known.cuda_total_low if known and cuda_total else None,
        cuda_total_high=known.cuda_total_high if known and cuda_total else None,
    )


def _known(name: str, memory: int) -> Machine | None:
    """The table's entry for a device's full name, if its memory is that entry's within 5%."""
    try:
        known = machines.get(name)
    except machines.UnknownMachine:
        return None
    # DGX Spark: 119.6 to 121.7 GiB by software; the same name on a card of another size is another card.
    return known if abs(known.memory - memory) * 20 <= known.memory else None


def _meminfo(system: System, field: str) -> int | None:
    for line in (system.read("/proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        number = value.split()
        if name == field and number and number[0].isdecimal() and int(number[0]):
            return int(number[0]) * 1024
    return None
