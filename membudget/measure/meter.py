"""How much a device holds, whichever it is: the CPU exactly by tracking, CUDA and MPS by their allocators' counters.

Imports torch: only for a worker's own process.
"""

from __future__ import annotations

import gc
from typing import Any

import torch

from membudget.measure.tracker import CeilingExceeded, Tracker

OUT_OF_MEMORY: tuple[type[BaseException], ...] = (torch.OutOfMemoryError, CeilingExceeded, MemoryError)


class Meter:
    """What all devices answer, in bytes.  name: the device, as torch spells it."""

    name = ""

    def allocated(self) -> int:
        """Bytes of live tensors."""
        raise NotImplementedError

    def reserved(self) -> int | None:
        """Bytes that the allocator holds; None where there is no caching allocator."""
        return None

    def peak(self) -> int:
        """The most `allocated` was since `reset_peak`."""
        raise NotImplementedError

    def peak_reserved(self) -> int | None:
        """The most `reserved` was since `reset_peak`."""
        return None

    def blocks(self) -> int:
        """What `allocated` takes in the allocator's blocks: rounded, with what is not split off."""
        return self.allocated()

    def inactive_split(self) -> int | None:
        """Free parts of the allocator's segments, which it cannot give back; None where there is none."""
        return None

    def set_ceiling(self, ceiling: int) -> None:
        """Another ceiling from now on."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop counting."""

    def reset_peak(self) -> None:
        """Let the peak start again."""

    def synchronize(self) -> None:
        """Wait until everything that was started is done."""

    def settle(self) -> int:
        """Let go of everything that is not referenced; what is allocated then."""
        gc.collect()
        self.synchronize()
        self.empty()
        return self.allocated()

    def empty(self) -> None:
        """Give cached blocks back."""

    def adopt(self, tensors: Any) -> None:
        """Count tensors that the meter may have missed."""


class CpuMeter(Meter):
    """Every tensor of this process since it was made; a ceiling holds for live tensors."""

    name = "cpu"

    def __init__(self, ceiling: int | None) -> None:
        self.tracker = Tracker(device="cpu", ceiling=ceiling)
        self.tracker.__enter__()

    def allocated(self) -> int:
        """Bytes of live storages."""
        return self.tracker.live

    def peak(self) -> int:
        """The most there were."""
        return self.tracker.peak

    def set_ceiling(self, ceiling: int) -> None:
        """For live tensors."""
        self.tracker.ceiling = ceiling

    def close(self) -> None:
        """Leave the dispatch mode."""
        self.tracker.__exit__(None, None, None)

    def reset_peak(self) -> None:
        """From what is alive now."""
        self.tracker.reset_peak()

    def adopt(self, tensors: Any) -> None:
        """Weights that are mapped from a file are made by no operation."""
        for tensor in tensors:
            self.tracker.adopt(tensor)


class CudaMeter(Meter):
    """torch's caching allocator; a ceiling is a share of the device's total, and holds for what is reserved.

    What tensors asked for is counted (requested_bytes): memory_allocated counts remainders that are not split off too,
    up to 1 MiB a tensor.
    """

    name = "cuda"

    def __init__(self, ceiling: int | None) -> None:
        if ceiling is not None:
            self.set_ceiling(ceiling)

    def set_ceiling(self, ceiling: int) -> None:
        """set_per_process_memory_fraction."""
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, ceiling / total))

    def allocated(self) -> int:
        """requested_bytes."""
        return int(torch.cuda.memory_stats().get("requested_bytes.all.current", 0))

    def blocks(self) -> int:
        """memory_allocated."""
        return int(torch.cuda.memory_allocated())

    def inactive_split(self) -> int | None:
        """inactive_split_bytes."""
        return int(torch.cuda.memory_stats().get("inactive_split_bytes.all.current", 0))

    def reserved(self) -> int | None:
        """memory_reserved."""
        return int(torch.cuda.memory_reserved())

    def peak(self) -> int:
        """requested_bytes' peak."""
        return int(torch.cuda.memory_stats().get("requested_bytes.all.peak", 0))

    def peak_reserved(self) -> int | None:
        """max_memory_reserved."""
        return int(torch.cuda.max_memory_reserved())

    def reset_peak(self) -> None:
        """reset_peak_memory_stats."""
        torch.cuda.reset_peak_memory_stats()

    def synchronize(self) -> None:
        """Kernels run behind Python's back."""
        torch.cuda.synchronize()

    def empty(self) -> None:
        """empty_cache."""
        torch.cuda.empty_cache()


class MpsMeter(Meter):
    """Metal's counters.  There is no peak counter: the peak is the most that was seen when asked."""

    name = "mps"

    def __init__(self, ceiling: int | None) -> None:
        self._most = 0
        if ceiling is not None:
            self.set_ceiling(ceiling)

    def set_ceiling(self, ceiling: int) -> None:
        """set_per_process_memory_fraction, of what Metal recommends."""
        torch.mps.set_per_process_memory_fraction(min(2.0, ceiling / torch.mps.recommended_max_memory()))

    def allocated(self) -> int:
        """current_allocated_memory."""
        now = int(torch.mps.current_allocated_memory())
        self._most = max(self._most, now)
        return now

    def reserved(self) -> int | None:
        """driver_allocated_memory."""
        return int(torch.mps.driver_allocated_memory())

    def peak(self) -> int:
        """The most that `allocated` returned: a lower bound."""
        self.allocated()
        return self._most

    def reset_peak(self) -> None:
        """From now on."""
        self._most = 0

    def synchronize(self) -> None:
        """Kernels run behind Python's back."""
        torch.mps.synchronize()

    def empty(self) -> None:
        """empty_cache."""
        torch.mps.empty_cache()


def meter(device: str, ceiling: int | None) -> Meter:
    """The meter of a device (cpu, cuda or mps), its ceiling set before anything is allocated."""
    kinds: dict[str, type[Any]] = {"cpu": CpuMeter, "cuda": CudaMeter, "mps": MpsMeter}
    made: Meter = kinds[device](ceiling)
    return made
