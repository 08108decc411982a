"""`this-machine`: what the operating system and the driver say about where we run.

Nothing is loaded for it: nvidia-smi, sysctl and /proc are asked.  What they do not say is 0 or None, and the machine's
`notes` say so: a bandwidth is the table's where the device is in it, and is unknown elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from membudget import machines
from membudget.data.defaults import SPARK_GPU
from membudget.errors import NotAvailableError
from membudget.host import amd, nvidia_smi
from membudget.host.system import System
from membudget.machines import THIS_MACHINE, Machine, normalize
from membudget.units import GIB, MIB

#: Left to the operating system where CPU and GPU share the memory and no table entry says how
#: much: a tenth, and never less than 1 GiB.  An assumption, said in `notes`.
RESERVE_SHARE, RESERVE_LEAST = 10, GIB
#: What CUDA calls the generation of a DGX Spark's GPU (facts: NVIDIA/dgx-spark-playbooks nvidia/cutile-kernels).
SPARK_CAPABILITY = "12.1"


class DetectError(NotAvailableError):
    """This machine does not say how much memory it has: says what was tried.

    code: ``driver_trouble`` or ``unreadable_driver`` (a GPU may be here), ``mig``, ``no_memory``.
    """

    def __init__(self, text: str, *, code: str, trouble: str = "") -> None:
        super().__init__(text, code=code)
        self.trouble = trouble  # what the NVIDIA driver's own tool did; "" where that is not the reason

    @property
    def hides_gpu(self) -> bool:
        """Whether an NVIDIA driver is here and does not answer, so that a GPU may have this memory too."""
        return self.code in ("driver_trouble", "unreadable_driver")


def find_machine(name: str, files: Sequence[str | os.PathLike[str]] = ()) -> Machine:
    """The machine of that name: this one, asked (`THIS_MACHINE`), else the table's (`membudget.machines.get`).

    Raises `DetectError` where this machine does not say, and what `membudget.machines.get` raises.
    """
    return detect() if normalize(name) == normalize(THIS_MACHINE) else machines.get(name, files)


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
            f"{trouble}: whether a GPU is here, and its memory, cannot be known. Make `nvidia-smi` answer (restart, or "
            "reinstall the driver), or name a machine with --machine",
            code="driver_trouble",
            trouble=trouble,
        )
    return found or _amd(system) or _cpu(system)


def _nvidia(system: System) -> Machine | None:
    try:
        devices = nvidia_smi.visible(nvidia_smi.devices(system), system.environment())
    except nvidia_smi.UnreadableAnswer as error:
        raise DetectError(
            f"{error}. Make `nvidia-smi {nvidia_smi.DEVICES} {nvidia_smi.CSV}` print a line for each GPU, or name a "
            "machine with --machine",
            code="unreadable_driver",
            trouble="nvidia-smi's answer cannot be read",
        ) from None
    if not devices:
        return None
    if any(device.mig for device in devices):
        raise DetectError(
            f"{devices[0].name} is cut into MIG slices, and nvidia-smi gives the whole card's memory: "
            "write the slice into a machine file (docs/machines.md) and name it with --machine",
            code="mig",
        )
    notes = []
    if len(devices) > 1:
        notes.append(f"{len(devices)} GPUs here; this is the one with the least memory")
    unified = [device for device in devices if device.memory is None]
    if unified:
        # GB10 and its like: "[N/A]", CUDA's total is the kernel's MemTotal.
        memory = system.meminfo().get("MemTotal")
        if not memory:
            raise DetectError(
                f"nvidia-smi gives no memory for {unified[0].name}, and /proc/meminfo no MemTotal", code="no_memory"
            )
        title, capability = unified[0].name, nvidia_smi.capability(system)
        if SPARK_GPU in title and capability not in (None, SPARK_CAPABILITY):
            notes.append(f"named {SPARK_GPU}, but its compute capability is {capability}, not {SPARK_CAPABILITY}")
        elif SPARK_GPU not in title and capability == SPARK_CAPABILITY:
            title = f"{SPARK_GPU} ({title}, compute capability {capability})"
        known = _known(SPARK_GPU if SPARK_GPU in title else title, memory)
        return _machine(title, memory, known, notes, unified=True, cuda_total=memory, source="/proc/meminfo MemTotal")
    memory, name = min((device.memory or 0, device.name) for device in devices)
    known = _known(name, memory)
    if known is not None and known.cuda_total:
        notes.append(f"what torch sees as total ({known.cuda_total:,} B) is the table's, not asked here")
    return _machine(
        name, memory, known, notes, cuda_total=known.cuda_total if known else None, source="nvidia-smi memory.total"
    )


def _amd(system: System) -> Machine | None:
    """An AMD GPU by the files of its driver: discrete cards, else one that shares the main memory (`amd`)."""
    cards = amd.cards(system)
    discrete = [card for card in cards if not card.shared]
    if discrete:
        card = min(discrete, key=lambda one: one.vram)
        notes = [f"{len(discrete)} GPUs here; this is the one with the least memory"] if len(discrete) > 1 else []
        known = _known(card.name, card.vram)
        return _machine(card.name, card.vram, known, notes, platform="rocm", source="amdgpu mem_info_vram_total")
    if not cards:
        return None
    card, total = cards[0], system.meminfo().get("MemTotal", 0)
    told = f"the GPU may use {card.limit:,} B: the larger of amdgpu's VRAM ({card.vram:,} B) and GTT ({card.gtt:,} B)"
    if card.vram >= card.gtt or not total:
        # firmware gave it that memory: Linux does not have it
        known = _known(card.name, total + card.vram)
        return _machine(
            card.name, card.vram, known, [told], unified=True, platform="rocm", source="amdgpu mem_info_vram_total",
            os_reserve=0,
        )  # fmt: skip
    return _machine(
        card.name, total, _known(card.name, total), [told], unified=True, platform="rocm",
        source="/proc/meminfo MemTotal and amdgpu mem_info_gtt_total", os_reserve=max(total - card.limit, 0),
    )  # fmt: skip


def _apple(system: System) -> Machine:
    asked = {}
    for key in ("hw.memsize", "machdep.cpu.brand_string", "iogpu.wired_limit_mb"):
        asked[key] = (system.run(["sysctl", "-n", key]) or "").strip()
    if not asked["hw.memsize"].isdecimal():
        raise DetectError("sysctl hw.memsize gives no number: this Mac's memory is unknown", code="no_memory")
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
    memory = system.meminfo().get("MemTotal")
    if not memory:
        raise DetectError(
            f"no nvidia-smi, no amdgpu and no MemTotal in /proc/meminfo on {system.platform}: "
            "write this machine into a machine file (docs/machines.md)",
            code="no_memory",
        )
    notes = ["no GPU was found: the model would run on the CPU"]
    source = "/proc/meminfo MemTotal"
    if found := system.cgroup_limit():  # it counts for memory the CPU uses, unlike for CUDA's
        limit, path = found
        notes.append(f"{path} allows {limit:,} of {memory:,} B")
        memory, source = limit, path
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
