"""The caching allocator from outside: what is kept when tensors are gone, and what a growing cache holds twice.

    4 x `piece` are made, let go, and the cache is emptied; then a tensor grows by one row with torch.cat.

`run` measures on a device; `expected` says the same stages by the allocator's algorithm; `differences` compares.
No torch at import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from membudget.measure.allocator import CachingAllocator
from membudget.units import KIB, MIB, short

#: Bytes of one of the four tensors, and of the row that the growing one gets: on a device, and on the CPU.
PIECE, PIECE_CPU, ROW = 256 * MIB, 4 * MIB, 64 * KIB
#: The stages in order; what is compared of each.
STAGES = ("empty", "four", "deleted", "emptied", "grown")
FIGURES = ("requested", "reserved", "peak")


def run(device: str, piece: int) -> list[dict[str, Any]]:
    """The stages on a device: {stage, requested, reserved, peak, usable}; bytes over what was there, None unknown.

    usable: what can still be used on the device, by the driver or by Linux.
    """
    import torch

    from membudget.host.readings import Unknown
    from membudget.host.sources import snap
    from membudget.measure.meter import meter

    made = meter(device, None)
    found: list[dict[str, Any]] = []

    def look(stage: str) -> None:
        made.synchronize()
        usable = snap(stage).usable
        reserved = made.reserved()
        found.append({
            "stage": stage, "requested": made.allocated() - base, "peak": made.peak() - base,
            "reserved": None if reserved is None else reserved - (base_reserved or 0),
            "usable": None if isinstance(usable, Unknown) else usable,
        })  # fmt: skip

    try:
        torch.zeros(1, device=device)  # the context
        base, base_reserved = made.settle(), made.reserved()
        made.reset_peak()
        look("empty")
        held = [torch.zeros(piece, dtype=torch.uint8, device=device) for _ in range(4)]
        look("four")
        held.clear()
        look("deleted")
        made.settle()
        made.reset_peak()
        look("emptied")
        cache = torch.zeros(piece, dtype=torch.uint8, device=device)
        row = torch.zeros(ROW, dtype=torch.uint8, device=device)
        cache = torch.cat([cache, row])
        look("grown")
        del cache, row
    finally:
        made.close()
    return found


def expected(piece: int, allocator: Callable[[], CachingAllocator] = CachingAllocator) -> list[dict[str, Any]]:
    """The same stages by the algorithm of torch's allocator."""
    device = allocator()
    found: list[dict[str, Any]] = []

    def look(stage: str) -> None:
        peak = device.stats.peak_requested
        found.append({"stage": stage, "requested": device.requested, "reserved": device.reserved, "peak": peak})

    look("empty")
    held = [device.malloc(piece) for _ in range(4)]
    look("four")
    for block in held:
        device.free(block)
    look("deleted")
    device.empty_cache()
    device.reset_peaks()
    look("emptied")
    cache, row = device.malloc(piece), device.malloc(ROW)
    device.malloc(piece + ROW)
    device.free(cache)
    look("grown")
    device.free(row)
    return found


def differences(seen: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]], piece: int) -> list[str]:
    """Where a device's stages are not the algorithm's, in words; a figure that the device does not have is left out.

    What is reserved is compared where the device has a caching allocator; what becomes usable again, to half of it.
    """
    found = []
    for one, other in zip(seen, wanted, strict=True):
        for name in FIGURES:
            if one[name] is not None and one[name] != other[name]:
                found.append(f"{one['stage']}: {name} {short(one[name])}, by the algorithm {short(other[name])}")
    usable = {item["stage"]: item["usable"] for item in seen}
    if seen[1]["reserved"] is not None and None not in usable.values():
        if usable["empty"] - usable["deleted"] < 2 * piece:
            found.append("deleted: the driver has it back already, although it is reserved")
        if usable["emptied"] - usable["deleted"] < 2 * piece:
            found.append("emptied: the driver did not get back what empty_cache released")
    return found
