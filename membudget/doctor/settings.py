"""Traps in limits, environment variables, versions and disks."""

from __future__ import annotations

import re
from collections.abc import Callable

from membudget.doctor.machine import Look, value
from membudget.doctor.trap import State, Trap
from membudget.engines.vllm.versions import NEWEST, OLDEST, VersionError, rules
from membudget.host.readings import Unknown
from membudget.sources.cache import cache_folder
from membudget.units import GIB, gib

#: The versions of transformers between which the numbers were proven (docs/versions.md).
TRANSFORMERS = ((4, 57, 6), (5, 24, 0))
#: Nothing can be fetched below this.
DISK = 5 * GIB
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def container(look: Look) -> Trap:
    """A container's memory limit does not see what CUDA holds."""
    inside = look.source.exists("/.dockerenv") or look.source.exists("/run/.containerenv")
    found = look.source.cgroup_limit()
    if found is None:
        return Trap("container", State.CLEAR, "in a container without a memory limit" if inside else "no memory limit")
    limit, where = found
    text = f"{where} allows {gib(limit, 2)}"
    if look.machine is None or look.machine.platform != "cuda":
        return Trap("container", State.NOTE, f"{text}: that is what counts here, and it is what is planned with")
    text += (
        "; it does not see CUDA memory: nothing is ended when the device's memory goes over it "
        "(on a Spark: Blackwellboy/model-serving-minefield/issues/57)"
    )
    fix = "limit the engine itself: --gpu-memory-utilization or --kv-cache-memory-bytes"
    return Trap("container", State.NOTE, text, fix)


def overcommit(look: Look) -> Trap:
    """CUDA reserves far more addresses than memory."""
    mode = (look.source.read("/proc/sys/vm/overcommit_memory") or "").strip()
    if not mode.isdecimal():
        return Trap("overcommit", State.UNKNOWN, "no /proc/sys/vm/overcommit_memory")
    if mode != "2":
        return Trap("overcommit", State.CLEAR, f"vm.overcommit_memory is {mode}")
    text = "vm.overcommit_memory is 2: CUDA and torch reserve more addresses than there is memory, and are refused"
    return Trap("overcommit", State.DANGER, text, "sudo sysctl vm.overcommit_memory=0")


def hugepages(look: Look) -> Trap:
    """Huge pages that were set aside are lost to everything else."""
    count, size = value(look.line("HugePages_Total")), value(look.line("Hugepagesize"))
    if count is None or size is None:
        return Trap("hugepages", State.UNKNOWN, "no HugePages lines in /proc/meminfo")
    if not count:
        return Trap("hugepages", State.CLEAR, "none are set aside")
    text = f"{count:,} huge pages of {gib(size, 3)} set {gib(count * size, 2)} aside; MemAvailable does not count them"
    reserve = look.machine.os_reserve if look.machine else 0
    state = State.DANGER if look.unified_gpu and count * size > reserve else State.NOTE
    return Trap("hugepages", state, text, "sudo sysctl vm.nr_hugepages=0")


def disk(look: Look) -> Trap:
    """Room for a model where the hub's cache is."""
    folder = cache_folder()
    free = look.source.disk_free(folder)
    if isinstance(free, Unknown):
        return Trap("disk", State.UNKNOWN, free.reason)
    text = f"{gib(free, 2)} free where models are kept ({folder})"
    fix = "hf cache prune, or HF_HOME on a larger disk"
    if free < DISK:
        return Trap("disk", State.DANGER, text, fix)
    total = value(look.total)
    if total is not None and free < total:
        return Trap("disk", State.NOTE, f"{text}: less than a model that fills this machine", fix)
    return Trap("disk", State.CLEAR, text)


def nvml(look: Look) -> Trap:
    """NVML for Python: the bytes of each process, where nvidia-smi says N/A."""
    if not look.gpus:
        return Trap("nvml", State.CLEAR, "no NVIDIA GPU")
    version = look.source.version("nvidia-ml-py")
    if version:
        return Trap("nvml", State.CLEAR, f"nvidia-ml-py {version}")
    text = "NVML's Python is not installed: a process's own device bytes (cuda_context, context_of_two) stay unknown"
    return Trap("nvml", State.NOTE, text, "pip install nvidia-ml-py")


def offline(look: Look) -> Trap:
    """Whether the hub is asked."""
    names = [name for name in _OFFLINE if look.source.environment().get(name, "").upper() in ("1", "ON", "YES", "TRUE")]
    if not names:
        return Trap("offline", State.CLEAR, "the hub may be asked")
    return Trap(
        "offline", State.NOTE, f"{' and '.join(names)} set: nothing is fetched from the hub", f"unset {names[0]}"
    )


def allocator(look: Look) -> Trap:
    """Allocator settings that move what a process reserves."""
    given = [(name, look.source.environment()[name]) for name in _ALLOCATOR if look.source.environment().get(name)]
    if not given:
        return Trap("allocator", State.CLEAR, "torch's allocator has its defaults")
    settings = re.findall(r"([A-Za-z_]+)\s*:\s*([A-Za-z0-9_.]+)", ",".join(text for _, text in given))
    known = ", ".join(f"{key}:{setting}" for key, setting in settings[:8]) or "nothing that can be read"
    text = f"{' and '.join(name for name, _ in given)}: {known}"
    if look.unified_gpu and ("expandable_segments", "true") in [(key, item.lower()) for key, item in settings]:
        text += "; on a Spark a 128K prefill ran out of memory with it (NVIDIA/dgx-spark-playbooks/issues/97)"
        return Trap("allocator", State.DANGER, text, f"export {given[0][0]}=expandable_segments:False")
    return Trap("allocator", State.NOTE, f"{text}; what a process reserves beyond what it uses follows it")


def transformers(look: Look) -> Trap:
    """Whether this version's numbers were proven."""
    text = value(look.transformers)
    if text is None:
        return Trap("transformers", State.CLEAR, "not installed")
    first, last = (".".join(map(str, version)) for version in TRANSFORMERS)
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        return Trap("transformers", State.UNKNOWN, "its version cannot be read")
    version = tuple(int(part or 0) for part in match.groups())
    if TRANSFORMERS[0] <= version <= TRANSFORMERS[1]:
        return Trap("transformers", State.CLEAR, f"{text} is within what was proven, {first} to {last}")
    fix = f"pip install transformers=={last}"
    if version < TRANSFORMERS[0]:
        return Trap("transformers", State.NOTE, f"{text} is older than what was proven, {first} to {last}", fix)
    return Trap(
        "transformers", State.NOTE, f"{text} is newer than what was proven, {first} to {last}: a diff may be news"
    )


def vllm(look: Look) -> Trap:
    """Whether this version's pool arithmetic was read."""
    text = None if isinstance(look.vllm, Unknown) else value(look.vllm.version)
    if text is None:
        return Trap("vllm", State.CLEAR, "not installed")
    first, last = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
    try:
        note = rules(text).note
    except VersionError as error:
        return Trap("vllm", State.NOTE, str(error), f"vLLM {last}, or any from {first}")
    return Trap(
        "vllm", State.NOTE if note else State.CLEAR, note or f"{text} was read, as others from {first} to {last}"
    )


#: The most urgent first.
SETTINGS: tuple[Callable[[Look], Trap], ...] = (
    overcommit,
    hugepages,
    allocator,
    disk,
    container,
    vllm,
    transformers,
    nvml,
    offline,
)
