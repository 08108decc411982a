"""What an engine claims of a machine (gpu_memory_utilization), and what that leaves to the operating system.

Every figure is in bytes; a machine here is `Budget.device`: its memory by the budget's convention.
"""

from __future__ import annotations

from membudget.budgets.settings import Settings
from membudget.data.defaults import IDLE_SHARE, SPARK_GPU
from membudget.machines import Machine


def claim(machine: Machine, settings: Settings) -> int | None:
    """What the engine may claim, None where there is no such limit."""
    share = settings.gpu_memory_utilization
    return None if share is None else int(shared_memory(machine) * share)


def shared_memory(machine: Machine) -> int:
    """What a gpu_memory_utilization is a share of: the total that CUDA reports, where it was seen."""
    return machine.cuda_total or machine.memory


def room_beside(machine: Machine, settings: Settings) -> int | None:
    """What the claim leaves beside the operating system's part; None where nothing bounds it.

    The engine claims its share whatever the users, so less than 0 does not fit, whatever the users.
    """
    claimed = claim(machine, settings)
    return None if claimed is None or not machine.os_reserve else machine.memory - machine.os_reserve - claimed


def assumed(machine: Machine, own: float) -> float:
    """The share of a plan that names none: the engine's own, or less where that would not leave the system its part.

    A DGX Spark is given at most what an idle one was seen to give.
    """
    if not machine.os_reserve:
        return own
    most = min(own, largest(machine) or own)
    return min(most, IDLE_SHARE) if machine.unified and SPARK_GPU in machine.title else most


def takes_reserve(machine: Machine, settings: Settings) -> bool:
    """Whether the claim takes what the operating system needs."""
    room = room_beside(machine, settings)
    return room is not None and room < 0


def largest(machine: Machine) -> float | None:
    """The largest share, in hundredths, that leaves the operating system its part; None for none."""
    hundredths = (machine.memory - machine.os_reserve) * 100 // shared_memory(machine)
    return min(hundredths, 100) / 100 if hundredths > 0 else None


def headroom(machine: Machine, settings: Settings, total: int) -> int:
    """What is left of the memory, or of the claim, when `total` bytes are taken.

    Where the claim itself takes what the operating system is left, what is missing of that is missing here.
    """
    left = machine.memory - total
    limit = claim(machine, settings)
    if limit is None:
        return left
    left = min(left, limit - (total - machine.os_reserve))
    room = room_beside(machine, settings)
    # room beside the claim is not the engine's to use: it says nothing about what is left of the claim
    return left if room is None or room >= 0 else min(left, room)
