"""A DGX Spark that answers the steps of a measurement with GB10's real numbers, without a device.

Numbers: MemAvailable of unslothai/unsloth/pull/10704; a torch process's device bytes of vllm-project/vllm/pull/55828.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from membudget.measure import guard
from membudget.measure.status import Status
from membudget.units import GIB, MIB

#: MemAvailable of an idle DGX Spark.
IDLE = 121_267_814 * 1024
#: Llama-3.1-8B: weights in bf16, cache a token.
WEIGHTS, TOKEN = 16_060_522_496, 131_072
CONTEXT = 707 * MIB


def edge(users: int, peak: int, **more: Any) -> dict[str, Any]:
    """What a worker finds at the edge; 200 MiB are reserved beside what is allocated at the peak."""
    found = {"users": users, "tried": [], "capped": False, "peak": peak, "weights": WEIGHTS + 512}
    return {**found, "peak_reserved": peak + 200 * MIB, "cache": users * 8184 * TOKEN, **more}


class Spark:
    """Stands for `guard.run` on a Spark: answers each step as GB10 and transformers 5.24 would."""

    def __init__(self, **changes: Any) -> None:
        self.requests: list[Mapping[str, Any]] = []
        self.limits: list[guard.Limits] = []
        self.changes = changes

    def __call__(
        self, command: Sequence[str], request: Mapping[str, Any], allowed: guard.Limits, **more: Any
    ) -> guard.Outcome:
        self.requests.append(request)
        self.limits.append(allowed)
        stages: list[dict[str, Any]] = [{"stage": "ready", "versions": {"torch": "2.13.0+cu130"}}]
        for step in request["steps"]:
            name = step.get("name", step["do"])
            figures = self.changes.get(name) or self._answer(name, step)
            stages.append({"stage": name, "found": figures, "readings": {"mem_available": IDLE}})
        return guard.Outcome(Status.DONE, "done", {}, tuple(stages), "", IDLE - 30 * GIB, 60.0, 0)

    def _answer(self, name: str, step: Mapping[str, Any]) -> dict[str, Any]:
        kept = WEIGHTS + 512
        if name == "preflight":
            return {"outcome": "held", "said": "CUDA out of memory", "fell": step["fits"]}
        if name == "sandwich":
            return {"need": step["need"], "above": "fits", "below": "out_of_memory"}
        if name == "total":
            live = kept + 2_051_080_192
            return {"allocator": live, "reserved": live, "process": live + CONTEXT, "fell": live + CONTEXT, "cache": 0}
        if name == "context":
            return {"bytes": CONTEXT}
        if name == "second_context":
            return {"alone": CONTEXT, "first": CONTEXT, "second": CONTEXT + MIB, "source": "NVML"}
        if name == "weights":
            sizes = {"bytes": kept, "peak": kept + 5 * MIB, "parameters": WEIGHTS, "buffers": 512}
            return {**sizes, "named_buffers": {"inv_freq": 256}, "wide": [], "strays": [], "kept_wide": {}}
        if name == "growth":
            points = []
            for batch, prompt in step["points"]:
                tokens = prompt + step["decode"]
                size = batch * tokens * TOKEN
                held = {"held": size + 4 * MIB, "storages": size, "tensors": size, "counters": 0, "left": 0}
                points.append({"batch": batch, "tokens": tokens, **held})
            return {"points": points, "weights": kept, "left": kept}
        if name == "static":
            size = step["batch"] * step["length"] * TOKEN
            return {"first": size, "last": size, "storages": size, "counters": 0}
        if name == "edge":
            return edge(step["near"], 39 * GIB)
        if name == "trace_edge":
            return {"users": step["near"], "peaks": {}, "caches": {}, "tried": [], "weights": kept, "reserved": {}}
        if step["do"] == "trace_steps":
            return {"worst": 300 * MIB, "lost": 200 * MIB, "samples": []}
        if name.startswith("trace"):
            needs = {"weights": WEIGHTS, "buffers": 512, "peak": 2_051_080_192}
            if step.get("attention") == "eager":
                needs["peak"] = 89_397_526_528
            if "users" in step:
                return {**needs, "users": step["near"]}
            return {**needs, "cache": 2**30, "live": []}
        if name.startswith("steps"):
            size = step["batch"] * step["steps"] * TOKEN
            sample = {
                "step": step["steps"],
                "total": kept + size,
                "allocated": size,
                "blocks": kept + size,
                "reserved": kept + size + 300 * MIB,
                "inactive_split": 0,
            }
            return {"samples": [sample], "held": size, "counters": 0, "peak": size, "left": 0, "lost": 200 * MIB}
        tokens = step["tokens"]
        logits = tokens * 128_256 * 2
        outcome = "out_of_memory" if step["attention"] == "eager" else "fits"
        return {"outcome": outcome, "peak": 2_060_000_000, "left": 0, "logits": logits, "cache": 2**30}
