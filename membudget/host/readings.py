"""One look at a live machine: every field is a value or an explicit unknown with its reason.

On unified memory (DGX Spark) the driver's "free" is the kernel's MemFree and counts page
cache as used; what can still be used is MemAvailable, and the difference is shown as
reclaimable.  nvidia-smi's memory columns are "[N/A]" there, `nvmlDeviceGetMemoryInfo` is not
supported, and the per-process figure is exact.  RSS and cgroup figures do not see CUDA memory:
they stand beside the others and are never added to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from membudget.units import both

#: What drivers write for a figure they do not have; any case, with or without brackets.
_NOT_A_NUMBER = ("n/a", "not supported", "not_supported", "unknown error", "insufficient permissions", "unknown")


#: NVML's "value not available": every bit set, as a 64-bit or a 32-bit driver writes it; no machine has as much.
_ALL_ONES = 2**63


@dataclass(frozen=True)
class Unknown:
    """A figure that the machine does not give, and why."""

    reason: str
    code: str = "not_reported"  # no_library, no_driver, refused, no_context, hidden, impossible, not_reported


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
    "mps_recommended",
    "gpu_temperature",
)


@dataclass(frozen=True)
class Snapshot:
    """All readings at one moment."""

    label: str
    unified: bool | None  # CPU and GPU share the memory; None: not known
    fields: dict[str, Reading]  # by `FIELDS`

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

    def __str__(self) -> str:
        """What a notebook shows: every figure that is known, a line each."""
        known = [(name, item) for name, item in self.fields.items() if not isinstance(item, Unknown)]
        unit: dict[str, Callable[[int], str]] = {
            "gpu_temperature": lambda item: f"{item} C",
            "memory_pressure": lambda item: f"{item / 1000:.2f} %",
        }
        return "\n".join([self.label, *(f"  {name:<21} {unit.get(name, both)(item)}" for name, item in known)])

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
        if text >= _ALL_ONES:
            return Unknown("the driver says that it is not available")
        return text * scale if text >= 0 else Unknown(f"{text} is not an amount of memory")
    word = str(text).strip().strip("[]").strip().lower()
    if not word or word in _NOT_A_NUMBER:
        return Unknown(f"the driver says {str(text).strip() or 'nothing'}")
    digits = word.removesuffix("mib").strip()
    return int(digits) * scale if digits.isdecimal() else Unknown(f"{str(text).strip()!r} is not a number")


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
