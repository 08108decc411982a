"""Steps that run before the meter is on: the ceiling's proof, traces on fake tensors, contexts of a device.

Every size is in bytes.  Imports torch: only for a worker's own process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from membudget.host.readings import Unknown
from membudget.host.sources import Sources, snap
from membudget.measure import contexts, experiment
from membudget.measure.edge import Looking
from membudget.measure.fakes import Target
from membudget.measure.meter import OUT_OF_MEMORY, meter
from membudget.measure.replay import trace_steps
from membudget.measure.trace import trace, trace_edge, trace_served
from membudget.units import GIB

Report = Callable[[str, dict[str, Any]], None]
Figures = dict[str, Any]
#: Steps that run before the meter is on and before a model is loaded: on fake tensors, or on a device that nobody of
#: this process has touched.
EARLY = ("preflight", "experiment", "trace", "trace_served", "trace_edge", "trace_steps", "context", "second_context")
#: Bytes of the device that a proof may take beside what it asks for: a context that is made late.
BESIDE = GIB


def run_early(request: dict[str, Any], step: dict[str, Any], report: Report) -> Figures:
    """A step without a bench."""
    device = request["device"]
    if step["do"] == "preflight":
        return preflight(device, step)
    if step["do"] == "experiment":
        return {"stages": experiment.run(device, step["piece"])}
    if step["do"] in ("context", "second_context"):
        return (context if step["do"] == "context" else second_context)(device)
    return run_trace(request, step, report)


def preflight(device: str, step: dict[str, Any]) -> Figures:
    """Whether a ceiling is held: under a cap of `cap` bytes `fits` is allocated, and `over` more is out of memory.

    fell: by how much what is usable on the device fell, with the refused allocation too; None where it is unknown.
    """
    made = meter(device, step["cap"])
    try:
        first = torch.zeros(1, device=device)  # the context
        made.synchronize()
        before = snap("before").usable
        held = [torch.zeros(step["fits"] - first.untyped_storage().nbytes(), dtype=torch.uint8, device=device)]
        made.synchronize()
        try:
            held.append(torch.zeros(step["over"], dtype=torch.uint8, device=device))
            outcome, said = "not held", f"{step['fits'] + step['over']:,} bytes were allocated under {step['cap']:,}"
        except OUT_OF_MEMORY as error:
            outcome, said = "held", str(error).splitlines()[0][:300]
        made.synchronize()
        after = snap("after").usable
    finally:
        made.close()
    fell = None if isinstance(before, Unknown) or isinstance(after, Unknown) else before - after
    if outcome == "held" and device == "cuda" and fell is not None and fell > step["cap"] + BESIDE:
        outcome, said = "not held", f"what is usable fell by {fell:,} bytes under a cap of {step['cap']:,}"
    return {"outcome": outcome, "said": said, "fell": fell}


def run_trace(request: dict[str, Any], step: dict[str, Any], report: Report) -> Figures:
    """What is traced on fake tensors: a forward, a prompt in chunks, the edge, many steps."""
    options = {key: value for key, value in step.items() if key not in ("do", "name", "target")}
    config, dtype = request["config"], request["dtype"]
    given = step.get("target", {})
    options["target"] = Target(given.get("device", "cpu"), tuple(given.get("capability", (9, 0))))
    if step["do"] == "trace_edge":
        return trace_edge(config, dtype=dtype, tell=teller("trace_edge", report), **options)
    asked: dict[str, Callable[..., Figures]] = {
        "trace": trace, "trace_served": trace_served, "trace_steps": trace_steps,
    }  # fmt: skip
    return asked[step["do"]](config, dtype=dtype, **options)


def teller(name: str, report: Report) -> Callable[[Looking], None]:
    """Reports each try of a search before it is made."""
    return lambda looking: report(name, {"looking": asdict(looking)})


def context(device: str) -> Figures:
    """What the first touch of the device takes beside any tensor, as the driver sees it.  Bytes.

    Unknown where something touched it before, or no reading names this process: {"unknown", "at_least"}.
    """
    if device != "cuda":
        return {"unknown": "only CUDA has a context"}
    if torch.cuda.is_initialized():
        return {"unknown": "this process touched the device before it was measured"}
    sources = Sources()
    unified = sources.unified()
    before = contexts.free(sources)
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    reserved = int(torch.cuda.memory_reserved())
    process = sources.device_process()
    after = contexts.free(sources, unified)
    if not isinstance(process, Unknown) and process > reserved:
        return {"bytes": process - reserved, "source": "NVML's figure of this process"}
    if isinstance(before, int) and isinstance(after, int) and before - after > reserved:
        where = "MemAvailable" if unified else "the device's free memory"
        return {"bytes": before - after - reserved, "source": f"{where} before and after"}
    why = process.reason if isinstance(process, Unknown) else "NVML counts no more than the allocator reserves"
    return {"unknown": f"{why}, and what is free did not fall by more than was reserved", "at_least": 0}


def second_context(device: str) -> Figures:
    """What two processes that touched the device have there, beside what one had (`membudget.measure.contexts`)."""
    if device != "cuda":
        return {"unknown": "only CUDA has a context"}
    if torch.cuda.is_initialized():
        return {"unknown": "this process touched the device before it was measured"}
    kept: list[Any] = []

    def touch() -> None:
        kept.append(torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()

    return contexts.compare(Sources(), touch, contexts.another)
