"""One look at a live machine: every field is a value or an explicit unknown with its reason.

On unified memory (DGX Spark) the driver's "free" is the kernel's MemFree and counts page
cache as used; what can still be used is MemAvailable, and the difference is shown as
reclaimable.  nvidia-smi's memory columns are "[N/A]" there, `nvmlDeviceGetMemoryInfo` is not
supported, and the per-process figure is exact.  RSS and cgroup figures do not see CUDA memory:
they stand beside the others and are never added to them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from membudget.probe import system

#: What drivers write for a figure they do not have; any case, with or without brackets.
_NOT_A_NUMBER = ("n/a", "not supported", "not_supported", "unknown error", "insufficient permissions", "unknown")


class Unknown(NamedTuple):
    """A figure that the machine does not give, and why."""

    reason: str


Reading = int | Unknown

#: Every figure of a `Snapshot`, in bytes but for `gpu_temperature` (degrees Celsius) and
#: `memory_pressure` (PSI some avg10, in thousandths of a percent).
FIELDS = (
    "mem_total",
    "mem_available",
    "mem_free",
    "cached",
    "swap_total",
    "swap_free",
    "memory_pressure",
    "rss",
    "cgroup_current",
    "cuda_total",
    "cuda_free",
    "device_process",
    "torch_allocated",
    "torch_reserved",
    "torch_peak_allocated",
    "torch_peak_reserved",
    "mps_allocated",
    "mps_driver",
    "gpu_temperature",
)


class Snapshot(NamedTuple):
    """All readings at one moment.  unified: CPU and GPU share the memory (None: not known)."""

    label: str
    unified: bool | None
    fields: dict[str, Reading]

    def value(self, name: str) -> int | None:
        """A figure, or None where it is unknown."""
        found = self.fields[name]
        return None if isinstance(found, Unknown) else found

    @property
    def usable(self) -> Reading:
        """Bytes that one more allocation on the device may use: MemAvailable where unified, else the driver's free."""
        return (
            self.fields["mem_available" if self.unified else "cuda_free"]
            if self.unified is not None
            else Unknown("whether the memory is unified is not known")
        )

    @property
    def reclaimable(self) -> Reading:
        """Where unified: page cache that the driver counts as used and the kernel gives back."""
        if not self.unified:
            return Unknown("only where CPU and GPU share the memory")
        available, free = self.value("mem_available"), self.value("cuda_free")
        if available is None or free is None:
            return Unknown("MemAvailable or the driver's free is unknown")
        return max(0, available - free)

    def as_json(self) -> dict[str, Any]:
        """Figures by name, unknown ones as {"unknown": reason}."""
        figures = {**self.fields, "usable": self.usable, "reclaimable": self.reclaimable}
        return {
            "label": self.label,
            "unified": self.unified,
            **{name: {"unknown": item.reason} if isinstance(item, Unknown) else item for name, item in figures.items()},
        }


def number(text: object, scale: int = 1) -> Reading:
    """A figure as a driver or tool writes it: ``"81559"``, ``"[N/A]"``, ``"Not Supported"``, ``0``."""
    if isinstance(text, bool) or text is None:
        return Unknown("not reported")
    if isinstance(text, int):
        return text * scale if text >= 0 else Unknown(f"{text} is no amount of memory")
    word = str(text).strip().strip("[]").strip().lower()
    if not word or word in _NOT_A_NUMBER:
        return Unknown(f"the driver says {str(text).strip() or 'nothing'}")
    digits = word.removesuffix("mib").strip()
    return int(digits) * scale if digits.isdecimal() else Unknown(f"{str(text).strip()!r} is no number")


def pair(free: Reading, total: Reading) -> tuple[Reading, Reading]:
    """(free, total) of one device; 0 of 0 and free > total are no measurements but drivers in trouble."""
    if isinstance(free, Unknown) or isinstance(total, Unknown):
        return free, total
    if total == 0:
        why = Unknown("the driver reports 0 bytes in total")
        return why, why
    if free > total:
        why = Unknown(f"the driver reports {free:,} bytes free of {total:,}")
        return why, why
    return free, total


def snap(label: str, sources: Sources | None = None) -> Snapshot:
    """Read everything this machine gives, at this moment, in this process.

    torch is asked only where it is loaded and has touched the device already: a look
    must not create the CUDA context that it measures.
    """
    sources = sources or Sources()
    memory = sources.meminfo()
    absent = Unknown("no such line in /proc/meminfo")
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
    """Where readings come from; tests put a Spark's answers in its place."""

    def meminfo(self) -> dict[str, int]:
        """/proc/meminfo in bytes."""
        return system.meminfo()

    def pressure(self) -> Reading:
        """PSI: how much of the last 10 s some task waited for memory, in thousandths of a percent."""
        text = _read("/proc/pressure/memory")
        for word in (text or "").split():
            if word.startswith("avg10="):
                whole, _, part = word.removeprefix("avg10=").partition(".")
                return int(whole) * 1000 + int((part + "000")[:3])
        return Unknown("no /proc/pressure/memory")

    def rss(self) -> Reading:
        """Resident bytes of this process; CUDA memory is not in it."""
        for line in (_read("/proc/self/status") or "").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return Unknown("no /proc/self/status")

    def cgroup(self) -> Reading:
        """memory.current of this process's cgroup; CUDA memory is not in it."""
        for line in (_read("/proc/self/cgroup") or "").splitlines():
            if line.startswith("0::"):
                path = os.path.join("/sys/fs/cgroup", line[3:].strip().lstrip("/"), "memory.current")
                text = _read(path)
                return int(text) if text and text.strip().isdecimal() else Unknown(f"no {path}")
        return Unknown("no cgroup v2 here")

    def cuda_memory(self) -> tuple[Reading, Reading]:
        """(free, total) as the CUDA driver says; asked through torch where it holds a context, else through NVML."""
        cuda = _cuda()
        if cuda is not None:
            return _asked(lambda: tuple(int(size) for size in cuda.mem_get_info()))
        return self._nvml(lambda nvml, device: _free_total(nvml.nvmlDeviceGetMemoryInfo(device)))

    def device_process(self) -> Reading:
        """This process's bytes on the device (NVML usedGpuMemory)."""

        def used(nvml: Any, device: Any) -> tuple[Reading, Reading]:
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(device):
                if process.pid == os.getpid():
                    return number(process.usedGpuMemory), 0
            return Unknown("this process holds nothing on the device"), 0

        return self._nvml(used)[0]

    def temperature(self) -> Reading:
        """The GPU's temperature in degrees Celsius."""
        return self._nvml(lambda nvml, device: (number(nvml.nvmlDeviceGetTemperature(device, 0)), 0))[0]

    def unified(self) -> bool | None:
        """Whether CPU and GPU share the memory: the driver's integrated flag; without a GPU they do."""
        cuda = _cuda()
        if cuda is not None:
            return bool(getattr(cuda.get_device_properties(0), "is_integrated", False))
        free, _ = self._nvml(lambda nvml, device: (number(nvml.nvmlDeviceGetName(device)), 0))
        no_gpu = isinstance(free, Unknown) and "pynvml" in free.reason
        return True if no_gpu else None

    def torch(self) -> dict[str, Reading]:
        """What torch's allocators hold in this process."""
        names = {
            "torch_allocated": "memory_allocated",
            "torch_reserved": "memory_reserved",
            "torch_peak_allocated": "max_memory_allocated",
            "torch_peak_reserved": "max_memory_reserved",
        }
        cuda = _cuda()
        why = Unknown("torch holds no CUDA context in this process")
        found: dict[str, Reading] = {
            name: why if cuda is None else int(getattr(cuda, call)()) for name, call in names.items()
        }
        mps = _mps()
        no_mps = Unknown("torch has no MPS device here")
        found["mps_allocated"] = no_mps if mps is None else int(mps.current_allocated_memory())
        found["mps_driver"] = no_mps if mps is None else int(mps.driver_allocated_memory())
        return found

    def _nvml(self, ask: Callable[[Any, Any], tuple[Reading, Reading]]) -> tuple[Reading, Reading]:
        try:
            import pynvml
        except ImportError:
            why = Unknown("pynvml is not installed")
            return why, why
        try:
            pynvml.nvmlInit()
        except Exception as error:  # its exceptions are made at run time
            why = Unknown(f"pynvml finds no driver: {error}")
            return why, why
        try:
            return ask(pynvml, pynvml.nvmlDeviceGetHandleByIndex(0))
        except Exception as error:
            why = Unknown(f"the driver says {error}")
            return why, why
        finally:
            pynvml.nvmlShutdown()


def _free_total(info: Any) -> tuple[Reading, Reading]:
    return number(info.free), number(info.total)


def _asked(ask: Callable[[], Any]) -> tuple[Reading, Reading]:
    try:
        free, total = ask()
    except Exception as error:  # cudaMemGetInfo fails on some drivers of unified machines
        why = Unknown(f"the driver says {error}")
        return why, why
    return number(free), number(total)


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
