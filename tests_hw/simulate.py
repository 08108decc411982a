"""A whole CUDA plan at full size without a GPU: the product's own steps on fake tensors over a simulated card.

    python -m tests_hw.simulate budgets/llama-3.1-8b-bf16.dgx-spark.yaml [GROUPS] [INDEX]

Prints the worksheet; the exit code is 1 where a line does not hold.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from membudget.budgets.budget import Budget
from membudget.budgets.file import Sources, load
from membudget.measure import early, fakes, models, steps
from membudget.measure.comparison import Row
from membudget.measure.edge import informed
from membudget.measure.kernels import CudaKernels
from membudget.measure.meter import Meter
from membudget.measure.plan import plan
from membudget.measure.results import rows
from membudget.measure.run import _group, _name, config_of
from membudget.report.worksheet import lines
from membudget.units import GIB
from tests_hw.cudasim import Card, On

ROOT = Path(__file__).parents[1]
#: What is broken on purpose once the model is there (`tests_hw.faults`).
Fault = Callable[[Any], None] | None


class CardMeter(Meter):
    """The meter of the simulated card."""

    name = "cuda"

    def __init__(self, card: Card) -> None:
        self.card = card

    def allocated(self) -> int:
        """requested_bytes."""
        return self.card.requested

    def blocks(self) -> int:
        """memory_allocated."""
        return self.card.allocated

    def reserved(self) -> int | None:
        """memory_reserved."""
        return self.card.reserved

    def inactive_split(self) -> int | None:
        """inactive_split_bytes."""
        return self.card.inactive_split

    def peak(self) -> int:
        """requested_bytes' peak."""
        return self.card.peak_requested

    def peak_reserved(self) -> int | None:
        """max_memory_reserved."""
        return self.card.peak_reserved

    def reset_peak(self) -> None:
        """reset_peak_memory_stats."""
        self.card.reset()

    def set_ceiling(self, ceiling: int) -> None:
        """set_per_process_memory_fraction."""
        self.card.limit = ceiling

    def empty(self) -> None:
        """empty_cache."""
        self.card.empty()


class SimulatedBench(steps.Bench):
    """A bench whose model is on the card already."""

    def __init__(self, request: dict[str, Any], meter: CardMeter, mode: On, workspace: int, fault: Fault) -> None:
        gc.unfreeze()
        gc.collect()
        super().__init__(request, meter, lambda *_: None)
        # tensors of the CPU with CUDA's kernels: a torch without CUDA cannot make some of the others
        self.made = fakes.fused(request["config"], request["dtype"], fakes.Target("cuda"), "cpu")
        self.model, self.attention = self.made.model, "sdpa"
        base = meter.card.requested
        if fault is not None:
            with self.made.mode, mode:
                fault(self)
        for module in self.model.modules():
            for tensor in [*module._parameters.values(), *module._buffers.values()]:
                if tensor is not None:
                    mode.own(tensor)
        self.weights = meter.card.requested - base
        self.workspace = meter.card.malloc(workspace)

    def prompt(self, batch: int, tokens: int) -> Any:
        """As a bench's, where its tensors are."""
        return torch.ones((batch, tokens), dtype=torch.long)


def simulate(
    budget: Budget,
    only: Iterable[str] | None = None,
    workspace: int = fakes.WORKSPACE,
    tell: Any = None,
    *,
    fault: Fault = None,
    runs: Mapping[str, Any] | None = None,
    card: type[Card] = Card,
) -> tuple[Row, ...]:
    """The worksheet of a CUDA budget on the simulated card.  workspace: cuBLAS's, 8.125 MiB or 32 MiB on Hopper.

    fault: commits a fault in what is measured.  runs: keys of the config.json that runs, where it is another model than
    the one that was predicted.  card: the card's class, for cards with faults of their own.
    """
    made = plan(budget, "cuda")
    wanted = None if only is None else set(only)
    made = made if wanted is None else made.only(wanted)
    todo = [step for step in made.steps if wanted is None or _group(step) in wanted]
    found: dict[str, dict[str, Any]] = {"preflight": {"outcome": "held", "said": "simulated", "fell": None}}
    request = {"config": config_of(budget), "dtype": made.dtype, "device": "cuda"}
    for step in sorted(todo, key=lambda item: not item["do"].startswith("trace")):
        name, began = _name(step), time.monotonic()
        if step["do"] in ("preflight", "context", "second_context") or "environment" in step:
            continue
        try:
            if step["do"].startswith("trace"):
                found[name] = early.run_early(request, step, lambda *_: None)
            else:
                measured = {**request, "config": {**request["config"], **(runs or {})}}
                found[name] = _measured(measured, informed(step, found), made.traced(found), workspace, fault, card)
        except models.CannotBuild as error:
            found[name] = {"unknown": str(error)}
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        if tell is not None:
            tell(f"{name}: {time.monotonic() - began:.0f} s {found[name].get('error', '')}")
    return rows(made, found)


def _measured(
    request: dict[str, Any], step: dict[str, Any], made: Any, workspace: int, fault: Fault, card: type[Card]
) -> dict[str, Any]:
    own = _group(step) in ("break", "edge")
    ceiling = made.ceiling if own else made.peak * 5 // 4 + GIB
    meter = CardMeter(card(ceiling))
    mode = On(meter.card)
    kept = dict(fakes._FAKES)
    if fault is not None:  # it changes the model: one of its own
        fakes._FAKES.clear()
    try:
        bench = SimulatedBench({**request, "ceiling": ceiling}, meter, mode, workspace, fault)
        if step["do"] == "weights":  # outside the mode: the class is built once more to see what it keeps wide
            return _weights(bench, request["dtype"])
        with bench.made.mode, torch.no_grad(), models.masks_as_in_production(), CudaKernels(), mode:
            bench._warm_up()
            return steps.STEPS[step["do"]](bench, step)
    finally:
        if fault is not None:
            fakes._FAKES.clear()
            fakes._FAKES.update(kept)


def _weights(bench: SimulatedBench, dtype: str) -> dict[str, Any]:
    buffers = sum(int(t.untyped_storage().nbytes()) for t in bench.model.buffers())
    return {
        "bytes": bench.weights, "peak": bench.weights, "buffers": buffers, "named_buffers": {}, "wide": [],
        "kept_wide": models.kept_wide(bench.model.config, dtype), "parameters": 0, "strays": [],
    }  # fmt: skip


def main(path: str, groups: str = "", index: str = "0") -> int:
    """One budget of a file."""
    (file,) = load([path], Sources(), str(ROOT))
    budget = file.budgets[int(index)]
    found = simulate(budget, groups.split(",") if groups else None, tell=lambda text: print("  " + text, flush=True))
    judged = [row for row in found if row.note != "it did not run" or row.holds is False]
    print("\n".join([budget.id, *lines(judged)]))
    broken = [row for row in judged if row.holds is False]
    for row in broken:
        print(f"  {row.name}: {row.note}")
    return 1 if broken else 0


if __name__ == "__main__":
    os.environ.setdefault("TORCH_LOGS", "-all")
    sys.exit(main(*sys.argv[1:]))
