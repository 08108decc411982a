"""Machines: how much memory each really has, whether it is unified, how fast it is read.

The table is `membudget/data/machines.yaml`; every number there carries its source.

    get("dgx-spark")  get("RTX 4090")  get("this-machine")  get("my-box", ["my-machines.yaml"])
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import NamedTuple

from membudget.data import data_path
from membudget.errors import MembudgetError

#: The name that stands for whatever machine this is, see `membudget.host.detect`.
THIS_MACHINE = "this-machine"
#: The GPU of a DGX Spark, by its name.
SPARK_GPU = "GB10"
#: The share of its memory that an idle DGX Spark was seen to give an engine: 113.07 of 121.69 GiB were available
#: (fixtures/doctor/spark.json), and 12 of them must stay free.
IDLE_SHARE = 0.83
#: Users' own machine files, separated as PATH is.
ENVIRONMENT = "MEMBUDGET_MACHINES"
#: What people write before a device's name, longest first.
_VENDORS = ("nvidiageforce", "amdinstinct", "nvidia", "geforce", "apple", "tesla", "amd")


class Machine(NamedTuple):
    """One machine, or one device of it.  All sizes in bytes.

    memory: what the driver reports (nvidia-smi's memory.total; MemTotal where unified).
    nominal: what is printed on the box, read as GiB: 80 for an "80 GB" card.
    unified: CPU and GPU share the memory, so the operating system needs its part.
    bandwidth: bytes a second that memory is read with, as specified; 0 when unknown.
    os_reserve: left to the operating system and everything else on the machine.
    cuda_total: what CUDA (torch, vLLM) reports as total, where that was seen.
    cuda_total_low, cuda_total_high: the lowest and highest that was seen of it; it moves with the driver.
    compute_capability: of a CUDA device, (9, 0) for Hopper.  sm_count: its streaming multiprocessors, 0 when unknown.
    platform: cuda, rocm, metal or cpu.  source: where the numbers come from.
    aliases: other names.  notes: what is unknown or assumed, in words.
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
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cuda_total_low: int | None = None
    cuda_total_high: int | None = None
    compute_capability: tuple[int, int] | None = None
    sm_count: int = 0

    def capacity(self, convention: str = "reported") -> int:
        """Bytes to plan with: ``reported`` by the driver, or ``nominal`` as sold."""
        return self.nominal if convention == "nominal" else self.memory

    @property
    def marketed(self) -> int:
        """The number on the box in decimal bytes: 80,000,000,000 for an "80 GB" card."""
        return self.nominal * 10**9 // 2**30


class UnknownMachine(MembudgetError):
    """A machine that no table has: the message lists the nearest names."""


def get(name: str, files: Sequence[str | os.PathLike[str]] = ()) -> Machine:
    """The machine of that name or alias, however it is spelt ("RTX 4090", "rtx_4090").

    files: users' own machine files; the later one wins, and all win over the
    environment's (`MEMBUDGET_MACHINES`) and those over the shipped table.
    ``this-machine`` is detected.  Raises `UnknownMachine`, and
    `membudget.machines.file.MachineFileError` for a file that cannot be read.
    """
    key = normalize(name)
    if key == normalize(THIS_MACHINE):
        from membudget.host import detect

        return detect.detect()
    own = [machine for file in _own_files(files) for machine in _read(file)]
    # A later file wins, and a name wins over an alias within one.
    for machine in reversed(own):
        if normalize(machine.name) == key:
            return machine
    for machine in reversed(own):
        if key in map(normalize, machine.aliases):
            return machine
    table, aliases = _shipped()
    found = aliases.get(key)
    if found is None:
        raise UnknownMachine(_unknown(name, [*(machine.name for machine in own), *table]))
    # A shipped alias leads to the user's entry where one replaces the shipped machine.
    for machine in reversed(own):
        if machine.name == found:
            return machine
    return table[found]


#: Most machines that one budget may name.
MAX_MACHINES = 4096


def counted(name: str, most: int = MAX_MACHINES) -> tuple[int, str]:
    """``2x dgx-spark`` -> (2, ``dgx-spark``); a name without a number is one.  Raises `UnknownMachine`."""
    text = name.strip()
    digits = len(text) - len(text.lstrip("0123456789"))
    number, rest = text[:digits], text[digits:].lstrip()
    if not number or rest[:1] not in ("x", "X", "*", "×") or not rest[1:].strip():
        return 1, name
    if len(number) > len(str(most)) or not 1 <= int(number) <= most:
        raise UnknownMachine(f"{number[:20]} machines are refused; allowed is 1 to {most:,}, as `2x dgx-spark`")
    return int(number), rest[1:].strip()


def all_machines(files: Sequence[str | os.PathLike[str]] = ()) -> dict[str, Machine]:
    """Every known machine by name, the shipped ones first, users' own over them."""
    table, _ = _shipped()
    machines = dict(table)
    for file in _own_files(files):
        machines.update((machine.name, machine) for machine in _read(file))
    return machines


def normalize(name: str) -> str:
    """A name without case, vendor and separators, so that spellings meet: ``rtx4090``."""
    key = "".join(filter(str.isalnum, name.lower()))
    for vendor in _VENDORS:
        if key.startswith(vendor) and len(key) > len(vendor):
            return key[len(vendor) :]
    return key


def _own_files(files: Sequence[str | os.PathLike[str]]) -> list[str]:
    named = [part for part in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if part]
    return [*named, *(os.fspath(file) for file in files)]


def _read(path: str) -> list[Machine]:
    from membudget.machines import file as machine_file

    return machine_file.read(path)


@functools.cache
def _shipped() -> tuple[dict[str, Machine], dict[str, str]]:
    """The shipped table: machines by name, and names by normalized spelling."""
    machines = _read(data_path("machines.yaml"))
    names: dict[str, str] = {}
    for machine in machines:
        for spelling in (machine.name, *machine.aliases):
            names.setdefault(normalize(spelling), machine.name)
    return {machine.name: machine for machine in machines}, names


def _unknown(name: str, names: Sequence[str]) -> str:
    import difflib

    name = name if len(name) <= 120 else name[:117] + "..."
    near = difflib.get_close_matches(name.lower(), names, 3, 0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    if looks_counted(name):
        hint = f" Several are written as `2x dgx-spark`: a whole number from 1 to {MAX_MACHINES:,}, x, and the name."
    return (
        f"no machine is called {name!r}.{hint} Known are: {', '.join(dict.fromkeys(names))}, and {THIS_MACHINE}. "
        f"Add your own with --machines FILE or {ENVIRONMENT}, see docs/machines.md"
    )


def looks_counted(name: str) -> bool:
    """Whether somebody meant several machines: ``2 dgx-spark``, ``1.5x h100``, ``h100 x2``, ``2x``."""
    import re

    number = r"[+-]?\d[\d.,_]*"
    before, behind = rf"^\s*({number}\s*[x×*]|{number}\s|[x×*]\s)", r"[\s,][x×*]\s*\d+\s*$"
    return re.search(f"{before}|{behind}", name, re.IGNORECASE) is not None
