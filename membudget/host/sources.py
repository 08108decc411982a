"""Where readings come from: /proc, NVML, the CUDA driver, torch where it is loaded.  `snap` reads everything once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from membudget.host import nvml, system
from membudget.host.readings import FIELDS, Reading, Snapshot, Unknown, number, pair


def snap(label: str, sources: Sources | None = None) -> Snapshot:
    """Read everything this machine gives, at this moment, in this process.

    torch is asked only where it is loaded and has touched the device already: a look
    must not create the CUDA context that it measures.
    """
    sources = sources or Sources()
    memory = sources.meminfo()
    absent = Unknown("no such line in /proc/meminfo" if memory else "this system has no /proc/meminfo")
    fields: dict[str, Reading] = {
        "mem_total": memory.get("MemTotal", absent),
        "mem_available": memory.get("MemAvailable", absent),
        "mem_free": memory.get("MemFree", absent),
        "cached": memory.get("Cached", absent),
        "swap_total": memory.get("SwapTotal", absent),
        "swap_free": memory.get("SwapFree", absent),
        "memory_pressure": sources.pressure(),
        "rss": sources.rss(),
        "cgroup_current": sources.cgroup(),
    }
    fields["cuda_free"], fields["cuda_total"] = pair(*sources.cuda_memory())
    fields["device_process"] = sources.device_process()
    fields["gpu_temperature"] = sources.temperature()
    fields.update(sources.torch())
    return Snapshot(label, sources.unified(), {name: fields[name] for name in FIELDS})


class Sources:
    """This machine's answers; tests put a Spark's in their place.

    uuid: of the GPU that is asked; without one torch's own where it holds a context, else the first.
    """

    def __init__(self, uuid: str | None = None) -> None:
        self.uuid = uuid

    def meminfo(self) -> dict[str, int]:
        """/proc/meminfo in bytes."""
        return system.meminfo()

    def pressure(self) -> Reading:
        """PSI: how much of the last 10 s some task waited for memory, in thousandths of a percent."""
        share = system.parse_pressure(_read(system.PRESSURE) or "")
        if share is None:
            return Unknown("no avg10 in /proc/pressure/memory: this kernel does not say, or not to a container")
        return share

    def rss(self) -> Reading:
        """Resident bytes of this process; CUDA memory is not in it."""
        for line in (_read("/proc/self/status") or "").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return Unknown("no /proc/self/status")

    def cgroup(self) -> Reading:
        """memory.current of this process's cgroup (v1: memory.usage_in_bytes); CUDA memory is not in it."""
        text = _read("/proc/self/cgroup")
        if text is None:
            return Unknown("no /proc/self/cgroup")
        tried: list[str] = []
        for line in text.splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" and not controllers:
                root, name = "/sys/fs/cgroup", "memory.current"
            elif "memory" in controllers.split(","):
                root, name = "/sys/fs/cgroup/memory", "memory.usage_in_bytes"
            else:
                continue
            # in a container the path is the host's, and the group itself is mounted as the root
            for folder in (os.path.join(root, path.strip().lstrip("/")), root):
                tried.append(os.path.join(folder, name))
                found = (_read(tried[-1]) or "").strip()
                if found.isdecimal():
                    return int(found)
        return Unknown(f"no {tried[0]}" if tried else "no cgroup of this process counts memory")

    def cuda_memory(self) -> tuple[Reading, Reading]:
        """(free, total) as the CUDA driver says; asked through torch where it holds a context, else through NVML."""
        cuda = _cuda()
        if cuda is not None:
            return _asked(lambda: tuple(int(size) for size in cuda.mem_get_info()))
        return self.card_memory()

    def card_memory(self) -> tuple[Reading, Reading]:
        """(free, total) by NVML, which makes no context of its own to ask."""
        return self._nvml(lambda library, device: _free_total(library.nvmlDeviceGetMemoryInfo(device)))

    def device_processes(self) -> dict[int, Reading] | Unknown:
        """Bytes on the device of each process, by pid (NVML usedGpuMemory: exact on GB10)."""
        found: dict[int, Reading] = {}

        def used(library: Any, device: Any) -> tuple[Reading, Reading]:
            for process in library.nvmlDeviceGetComputeRunningProcesses(device):
                found[int(process.pid)] = number(process.usedGpuMemory)
            return 0, 0

        answer = self._nvml(used)[0]
        return answer if isinstance(answer, Unknown) else found

    def device_process(self) -> Reading:
        """This process's bytes on the device."""
        found = self.device_processes()
        if isinstance(found, Unknown):
            return found
        why = "this process has no memory on the device, or a container hides its pid from the driver"
        return found.get(os.getpid(), Unknown(why, "hidden"))

    def temperature(self) -> Reading:
        """The GPU's temperature in degrees Celsius."""
        return self._nvml(lambda library, device: (number(library.nvmlDeviceGetTemperature(device, 0)), 0))[0]

    def unified(self) -> bool | None:
        """Whether CPU and GPU share the memory: the driver's integrated flag; without a GPU they do."""
        cuda = _cuda()
        if cuda is not None:
            try:
                return bool(cuda.get_device_properties(cuda.current_device()).is_integrated)
            except Exception:  # an old torch, or a driver in trouble: the flag itself is asked
                return self.integrated()
        if _mps() is not None:
            return True
        name, _ = self._nvml(lambda library, device: (_named(library.nvmlDeviceGetName(device)), 0))
        if not isinstance(name, Unknown):
            return self.integrated()
        return True if name.code in ("no_library", "no_driver") and not os.path.exists("/dev/nvidiactl") else None

    def integrated(self) -> bool | None:
        """CU_DEVICE_ATTRIBUTE_INTEGRATED of the first device, asked of the driver without making a context."""
        import ctypes

        try:
            driver = ctypes.CDLL("libcuda.so.1")
            device, flag = ctypes.c_int(), ctypes.c_int()
            asked = (
                driver.cuInit(0),
                driver.cuDeviceGet(ctypes.byref(device), 0),
                driver.cuDeviceGetAttribute(ctypes.byref(flag), 18, device),
            )
        except (OSError, AttributeError):
            return None
        return bool(flag.value) if not any(asked) else None

    def torch(self) -> dict[str, Reading]:
        """What torch's allocators hold in this process."""
        cuda, mps = _cuda(), _mps()
        no_cuda = Unknown("torch has no CUDA context in this process", "no_context")
        no_mps = Unknown("torch has no MPS device here")
        found = {name: _counter(cuda, call, no_cuda) for name, call in _CUDA_COUNTERS.items()}
        return found | {name: _counter(mps, call, no_mps) for name, call in _MPS_COUNTERS.items()}

    def _nvml(self, ask: Callable[[Any, Any], tuple[Reading, Reading]]) -> tuple[Reading, Reading]:
        try:
            with nvml.opened() as library:
                return ask(library, nvml.handle(library, self.uuid or _torchs_uuid()))
        except nvml.NoAnswer as error:
            why = Unknown(str(error), error.code)
            return why, why


#: What torch calls its counters.
_CUDA_COUNTERS = {
    "torch_allocated": "memory_allocated",
    "torch_reserved": "memory_reserved",
    "torch_peak_allocated": "max_memory_allocated",
    "torch_peak_reserved": "max_memory_reserved",
}
_MPS_COUNTERS = {
    "mps_allocated": "current_allocated_memory",
    "mps_driver": "driver_allocated_memory",
    "mps_recommended": "recommended_max_memory",
}


def _counter(device: Any, call: str, absent: Unknown) -> Reading:
    """One counter of torch.cuda or torch.mps; older versions do not have each."""
    if device is None:
        return absent
    try:
        return number(int(getattr(device, call)()))
    except Exception as error:
        return Unknown(f"torch's {call} says {error}")


def _named(name: object) -> Reading:
    """A GPU that has a name is there; the figure is not of interest."""
    return 0 if name else Unknown("the GPU has no name")


def _free_total(info: Any) -> tuple[Reading, Reading]:
    return number(info.free), number(info.total)


def _asked(ask: Callable[[], Any]) -> tuple[Reading, Reading]:
    try:
        free, total = ask()
    except Exception as error:  # cudaMemGetInfo fails on some drivers of unified machines
        why = Unknown(f"the driver says {error}")
        return why, why
    return number(free), number(total)


def _torchs_uuid() -> str | None:
    """The UUID of the GPU that torch uses in this process, as NVML spells it; None without a context."""
    cuda = _cuda()
    if cuda is None:
        return None
    try:
        return f"GPU-{cuda.get_device_properties(cuda.current_device()).uuid}"
    except Exception:  # torch before 2.4 has no uuid
        return None


def _cuda() -> Any:
    import sys

    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_available() and cuda.is_initialized() else None


def _mps() -> Any:
    import sys

    torch = sys.modules.get("torch")
    backends = getattr(torch, "backends", None)
    mps = getattr(backends, "mps", None)
    return torch.mps if torch is not None and mps is not None and mps.is_available() else None


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return None
