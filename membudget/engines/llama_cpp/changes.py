"""What would fit with a part of the model in RAM: ``-ngl N``, ``--n-cpu-moe N``, found on the lines of a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from membudget.engines.base import Change, Load
from membudget.engines.llama_cpp.asked import Asked
from membudget.engines.llama_cpp.offload import HOST
from membudget.engines.llama_cpp.plan import Plan, Server
from membudget.engines.llama_cpp.settings import Settings
from membudget.units import short


class Asking(Protocol):
    """A plan whose settings may be changed: `membudget.engines.llama_cpp.engine.LlamaPlan`."""

    asked: Asked
    server: Server
    devices: int

    @property
    def shared(self) -> bool:
        """Whether host and device have one memory."""

    def left(self, plan: Plan, device: int, *, worst: bool = False) -> int:
        """Bytes of one device that are left."""

    def left_on_host(self, plan: Plan) -> int | None:
        """Bytes of RAM that are left where it is bounded."""


def changes(plan: Asking, load: Load) -> tuple[Change, ...]:
    """Experts in RAM, else layers; nothing where RAM is the device's own memory, or where options say it already."""
    asked = plan.asked
    if plan.shared or asked.slots(load.users) < load.users:
        return ()
    plain = asked.of(load.ctx, load.users)
    before = plan.server.ask(plain)
    found = []
    count = len(plan.server.header.layers)
    given = {*asked.given} & {"n_cpu_moe", "cpu_moe", "override_tensor"}
    if plan.server.header.experts and not given:
        least = _first(plan, [replace(plain, n_cpu_moe=n) for n in range(1, count + 1)])
        if least:
            found.append(_change(plan, before, least, "n_cpu_moe", least.n_cpu_moe, "--n-cpu-moe"))
    now = count + 1 if plain.n_gpu_layers is None else min(plain.n_gpu_layers, count + 1)
    layers = _first(plan, [replace(plain, n_gpu_layers=n) for n in range(now - 1, 0, -1)])
    if layers:
        found.append(_change(plan, before, layers, "n_gpu_layers", layers.n_gpu_layers or 0, "-ngl"))
    return tuple(found)


def _first(plan: Asking, ways: list[Settings]) -> Settings | None:
    """The first that fits, of ways each of which takes less of the devices than the one before."""
    low, high = 0, len(ways)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(plan, plan.server.ask(ways[middle])) else (middle + 1, high)
    return ways[low] if low < len(ways) else None


def _fits(plan: Asking, asked: Plan) -> bool:
    host = plan.left_on_host(asked)
    return all(plan.left(asked, device) >= 0 for device in range(plan.devices)) and (host is None or host >= 0)


def _change(plan: Asking, before: Plan, settings: Settings, name: str, value: int, typed: str) -> Change:
    after = plan.server.ask(settings)
    text = f"{typed} {value}, which puts {short(after.total(HOST))} into RAM"
    return Change(text, max(before.total("0") - after.total("0"), 0), ((name, value),))


__all__ = ["changes"]
