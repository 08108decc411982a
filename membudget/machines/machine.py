"""What a machine is: its memory as the driver reports it, and what else plans ask of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """One machine, or one device of it.  All sizes are in bytes."""

    #: As `membudget machines` lists it.
    name: str
    #: What the driver reports: nvidia-smi's memory.total; MemTotal where unified.
    memory: int
    #: What is printed on the box, read as GiB: 80 for an "80 GB" card.
    nominal: int
    #: Whether CPU and GPU share the memory, so that the operating system needs its part.
    unified: bool
    #: Bytes a second that memory is read with, as specified; 0 when unknown.
    bandwidth: int
    #: Left to the operating system and everything else on the machine.
    os_reserve: int = 0
    #: What CUDA (torch, vLLM) reports as total; None where that was not seen.
    cuda_total: int | None = None
    #: ``cuda``, ``rocm``, ``metal`` or ``cpu``.
    platform: str = "cuda"
    #: The device's name in words.
    title: str = ""
    #: Where the numbers come from.
    source: str = ""
    #: Other names.
    aliases: tuple[str, ...] = ()
    #: What is unknown or assumed, in words.
    notes: tuple[str, ...] = ()
    #: The lowest that was seen of `cuda_total`, which moves with the driver.
    cuda_total_low: int | None = None
    #: The highest that was seen of `cuda_total`.
    cuda_total_high: int | None = None
    #: Of a CUDA device: (9, 0) for Hopper; None when unknown.
    compute_capability: tuple[int, int] | None = None
    #: The streaming multiprocessors of a CUDA device; 0 when unknown.
    sm_count: int = 0

    def capacity(self, convention: str = "reported") -> int:
        """Bytes to plan with: ``reported`` by the driver, or ``nominal`` as sold."""
        return self.nominal if convention == "nominal" else self.memory

    @property
    def marketed(self) -> int:
        """The number on the box in decimal bytes: 80,000,000,000 for an "80 GB" card."""
        return self.nominal * 10**9 // 2**30
