"""The layouts of a node that vLLM has: tensor x pipeline parallel sizes, and which of them hold a budget.

Each is planned by `membudget.planning.ledger.predict`, so it says what `membudget plan` says: devices have what
their driver reports, in GiB.  One copy of the model is laid out: data and expert parallel are not tried.

    every(budget, 8)         the layouts of up to 8 devices
    fewest(budget, 8)        the one on the fewest devices that fits, or None; whether any was not known
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from membudget.budgets.budget import Budget
from membudget.engines.base import LayoutError
from membudget.formats import kv
from membudget.planning.capacity import prepared

#: No layout of more devices is tried, nor more ranks that share every layer: no model here has more heads.
MOST_DEVICES, MOST = 128, 256


class Layout(NamedTuple):
    """One layout: `tensor_parallel` x `pipeline_parallel` devices.

    refused: why vLLM has no such layout or it is not supported, None where it is planned.
    unknown: whether it is not vLLM that refuses: what a device would hold is unknown.
    headroom: bytes that the tightest device has left, negative where it does not fit; None where refused.
    max_users: the most that fit at the budget's context.  fits: whether the budget's users do.
    """

    tensor_parallel: int
    pipeline_parallel: int
    refused: str | None = None
    headroom: int | None = None
    max_users: int = 0
    fits: bool = False
    unknown: bool = False

    @property
    def devices(self) -> int:
        """Devices that it takes."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def title(self) -> str:
        """``tensor 2 x pipeline 4``."""
        return f"tensor {self.tensor_parallel} x pipeline {self.pipeline_parallel}"


def every(budget: Budget, devices: int) -> list[Layout]:
    """All layouts of up to `devices` of the budget's machine, at most `MOST_DEVICES`: by tensor, then pipeline size.

    A refusal stands once: what refuses sizes refuses more pipeline stages of them too.
    """
    most = min(devices, MOST_DEVICES)
    found = []
    for tp in range(1, min(most, MOST) + 1):
        for pp in range(1, _stages(budget, most // tp) + 1):
            found.append(tried(budget, tp, pp))
            if found[-1].refused is not None:
                break
    return found


def fewest(budget: Budget, devices: int) -> tuple[Layout | None, bool]:
    """The layout on the fewest devices that fits, of up to `devices`, and whether one that was tried is not known.

    Of several on as many devices it is the one that the most users fit.
    """
    cache = kv.cache(budget.model, budget.kv_cache_dtype).bytes(budget.ctx)
    held = budget.format.weigh(budget.model).total + cache * budget.users
    refused: dict[int, Layout] = {}
    for many in range(1, min(devices, MOST_DEVICES) + 1):
        if many * (budget.capacity - budget.os_bytes) < held:
            continue  # all devices together hold every byte at least once
        found = []
        for tp in range(1, min(many, MOST) + 1):
            pp = many // tp
            if many % tp or tp in refused or pp > _stages(budget, pp):
                continue
            found.append(tried(budget, tp, pp))
            if found[-1].refused is not None:
                refused[tp] = found[-1]
        best = smallest(found)
        if best is not None:
            return best, False
    return None, any(layout.unknown for layout in refused.values())


def smallest(layouts: list[Layout]) -> Layout | None:
    """Of these the one on the fewest devices that fits; of several the one that the most users fit, None if none."""
    fit = [layout for layout in layouts if layout.fits]
    return min(fit, key=lambda one: (one.devices, -one.max_users, one.pipeline_parallel)) if fit else None


def nearest(layouts: list[Layout]) -> Layout | None:
    """Of these the one that lacks the fewest bytes, None where all are refused."""
    planned = [layout for layout in layouts if layout.headroom is not None]
    return max(planned, key=lambda one: (one.headroom or 0, -one.devices)) if planned else None


def tried(budget: Budget, tp: int, pp: int) -> Layout:
    """One layout as `membudget.planning.ledger.predict` has it, without the advice for one that is refused."""
    budget = replace(budget, machines=tp * pp, tensor_parallel=tp, pipeline_parallel=pp)
    try:
        plan = prepared(budget)
    except LayoutError as error:
        return Layout(tp, pp, refused=error.reason, unknown=not error.known)
    headroom = plan.headroom(budget.ctx, budget.users)
    users = plan.users(budget.ctx, budget.users)
    return Layout(tp, pp, None, headroom, users, plan.fits(budget.ctx, budget.users))


def _stages(budget: Budget, most: int) -> int:
    """Pipeline stages that the model has layers for, up to `most`."""
    return min(most, len(budget.model.caches) or 1)


__all__ = ["MOST_DEVICES", "Layout", "every", "fewest", "nearest", "smallest", "tried"]
