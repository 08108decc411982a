"""Machines: how much memory each really has, whether it is unified, how fast it is read.

The table is `membudget/data/machines.yaml`; every number there carries its source.

    get("dgx-spark")  get("RTX 4090")  get("my-box", ["my-machines.yaml"])
"""

from __future__ import annotations

from membudget.machines.machine import Machine
from membudget.machines.names import (
    MAX_MACHINES,
    THIS_MACHINE,
    MachineFileError,
    UnknownMachine,
    counted,
    looks_counted,
    normalize,
)
from membudget.machines.table import ENVIRONMENT, all_machines, get

__all__ = [
    "ENVIRONMENT",
    "MAX_MACHINES",
    "THIS_MACHINE",
    "Machine",
    "MachineFileError",
    "UnknownMachine",
    "all_machines",
    "counted",
    "get",
    "looks_counted",
    "normalize",
]
