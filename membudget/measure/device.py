"""The device that is measured on: which one, what can be used of it, and whether a plan has room there."""

from __future__ import annotations

from collections.abc import Callable

from membudget.host import nvidia_smi, system
from membudget.machines import Machine
from membudget.measure.plan import PROCESS
from membudget.measure.planned import Plan
from membudget.units import short


def device_of(machine: Machine) -> str:
    """The torch device that a machine's budgets are measured on."""
    return {"cuda": "cuda", "rocm": "cuda", "metal": "mps", "cpu": "cpu"}[machine.platform]


def available_on(machine: Machine) -> Callable[[], int | None]:
    """What can still be used on a machine's device: MemAvailable where it shares the memory, else the card's free."""
    return system.available if machine.unified or machine.platform != "cuda" else free_on_card


def free_on_card() -> int | None:
    """Bytes that are free on the card that is measured on, by nvidia-smi; None where it does not say."""
    return nvidia_smi.card_free()


def device_environment(device: str) -> dict[str, str]:
    """What a worker on a device is started with: one card, by its UUID, and the kernels that the trace assumes."""
    if device != "cuda":
        return {}
    card = nvidia_smi.card(system.System())
    chosen = {"CUDA_VISIBLE_DEVICES": card.uuid} if card is not None else {}
    # cuDNN's attention builds a graph for each length of the cache, which takes memory that no tensor shows
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1", **chosen}


def refused_on_card(plan: Plan) -> str | None:
    """Whether a card with memory of its own has room, by what its driver says is free."""
    free = free_on_card()
    if free is None:
        return "nvidia-smi does not say how much memory is free, so nothing is loaded"
    return None if plan.peak + PROCESS <= free else because(needs_on_card(plan, free), plan.peak_why)


def needs_on_card(plan: Plan, free: int) -> str:
    """Both numbers, whether it may start or not."""
    need = plan.peak + PROCESS
    return f"needs {short(need)} ({short(plan.peak)} predicted peak + {short(PROCESS)} context), {short(free)} is free"


def because(reason: str | None, why: str) -> str | None:
    """A refusal with what its peak is of."""
    return f"{reason}; the peak is of {why}" if reason and why else reason
