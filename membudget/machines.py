"""Machines: how much memory each really has, whether it is unified, how fast it is read.

The table is `machines.yaml`; every number there carries its source.  Reading YAML
costs more than a whole plan, so `machines.json` beside it holds the same content,
stamped with the checksum of the YAML it was made from; a stale or missing copy is
ignored (`python -m membudget.machines` writes it anew).
"""

from __future__ import annotations

from typing import NamedTuple


class Machine(NamedTuple):
    """One machine, or one device of it.  All sizes in bytes.

    memory: what the driver reports (nvidia-smi's memory.total; MemTotal where unified).
    nominal: what is printed on the box, read as GiB: 80 for an "80 GB" card.
    unified: CPU and GPU share the memory, so the operating system needs its part.
    bandwidth: bytes a second that memory is read with, as specified.
    os_reserve: left to the operating system and everything else on the machine.
    cuda_total: what CUDA (torch, vLLM) reports as total, where that was seen.
    platform: cuda, rocm, metal or cpu.  source: where the numbers come from.
    """

    name: str
    memory: int
    nominal: int
    unified: bool
    bandwidth: int
    os_reserve: int = 0
    cuda_total: int | None = None
    platform: str = "cuda"
    title: str = ""
    source: str = ""

    def capacity(self, convention: str = "reported") -> int:
        """Bytes to plan with: ``reported`` by the driver, or ``nominal`` as sold."""
        return self.nominal if convention == "nominal" else self.memory


class UnknownMachine(ValueError):
    """A machine that no table has: the message lists the nearest names."""
