"""The measurements themselves, in a worker's own process: each takes a `Bench` and returns figures as JSON.

Every size is in bytes.  Nothing is judged here: predictions and tolerances are the parent's.
Imports torch.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from typing import Any

import torch

from membudget.host.readings import Unknown
from membudget.host.sources import snap
from membudget.measure import models
from membudget.measure.early import Figures, Report, teller
from membudget.measure.edge import find_edge
from membudget.measure.meter import OUT_OF_MEMORY, Meter
from membudget.measure.trace import (
    cache_tensors,
    counter_bytes,
    storage_bytes,
    storage_key,
)


class Bench:
    """One model on one device, and the meter beside it.  Made by the first step that needs it."""

    def __init__(self, request: dict[str, Any], meter: Meter, report: Report) -> None:
        self.request, self.meter, self.report = request, meter, report
        self.device = meter.name
        self.model: Any = None
        self.kept: Any = None
        self.attention = "sdpa"
        self.weights = 0  # allocated with nothing but the model
        meter.settle()
        gc.freeze()

    def load(self) -> Any:
        """The model, with fused attention where it has that; loaded once."""
        if self.model is None:
            try:
                self.model = self._load("sdpa")
            except models.CannotBuild:
                self.attention = "eager"
                self.model = self._load("eager")
            if self.request.get("hook"):  # tests break things on purpose here
                module, _, name = self.request["hook"].partition(":")
                getattr(importlib.import_module(module), name)(self)
            self.meter.adopt([*self.model.parameters(), *self.model.buffers()])
            self.weights = self.meter.settle()
            if self.device != "cpu":
                self._warm_up()
            gc.freeze()  # half a second a collection otherwise: torch's and transformers' own objects
        return self.model

    def _warm_up(self) -> None:
        """Let libraries take the workspaces that they keep (cuBLAS: some MiB, counted as allocated)."""
        with torch.no_grad():
            self.decode(1, 2, self.prefill(1, 8))
        self.meter.settle()

    def _load(self, attention: str) -> Any:
        asked = self.request
        if asked.get("checkpoint"):
            return models.checkpoint_model(asked["checkpoint"], asked["dtype"], self.device, attention)
        return models.random_model(models.read_config(asked["config"]), asked["dtype"], self.device, attention)

    def prompt(self, batch: int, tokens: int) -> Any:
        """Token 1, `batch` x `tokens` times: memory does not depend on what is said."""
        return torch.ones((batch, tokens), dtype=torch.long, device=self.device)

    def prefill(self, batch: int, tokens: int, logits: str = "last", cache: Any = None, chunk: int = 0) -> Any:
        """The cache after a prompt, in one forward or in chunks."""
        for start in range(0, tokens, chunk or tokens):
            piece = self.prompt(batch, min(chunk or tokens, tokens - start))
            cache = models.cache_of(models.forward(self.load(), piece, logits, cache))
        return cache

    def decode(self, batch: int, steps: int, cache: Any) -> Any:
        """The cache after `steps` more single tokens."""
        for _ in range(steps):
            cache = models.cache_of(models.forward(self.load(), self.prompt(batch, 1), "last", cache))
        return cache


def weights(bench: Bench, step: dict[str, Any]) -> Figures:
    """Load the model: what stays, the most there was, and every tensor that is wider or more than asked."""
    base = bench.meter.settle()
    bench.meter.reset_peak()
    model = bench.load()
    highest = bench.meter.peak() - base
    kept = models.kept_wide(model.config, bench.request["dtype"])
    width = torch.empty(0, dtype=models.DTYPES[bench.request["dtype"]]).element_size()
    named = {storage_key(tensor): name for name, tensor in model.named_parameters()}
    buffers = {name: int(t.untyped_storage().nbytes()) for name, t in model.named_buffers()}
    return {
        "bytes": bench.weights - base,
        "peak": highest,
        "kept_wide": kept,
        "parameters": storage_bytes(model.parameters()),
        "buffers": storage_bytes(model.buffers()),
        "named_buffers": dict(sorted(buffers.items(), key=lambda item: -item[1])[:8]),
        "wide": [
            {"name": name, "dtype": str(t.dtype).removeprefix("torch."), "bytes": int(t.untyped_storage().nbytes())}
            for name, t in model.named_parameters()
            if t.element_size() > width and name not in kept
        ][:8],
        "strays": _strays(model, named, bench.device),
    }


def growth(bench: Bench, step: dict[str, Any]) -> Figures:
    """Prefill and decode at several lengths, keeping the cache: what it holds, and what is left without it.

    step: points as [batch, prompt tokens], decode as tokens after the prompt.
    """
    points = []
    bench.load()
    before = bench.meter.settle()
    for batch, length in step["points"]:
        base = bench.meter.settle()
        with torch.no_grad():
            cache = bench.decode(batch, step["decode"], bench.prefill(batch, length, chunk=step.get("chunk", 0)))
        held = bench.meter.settle() - base
        tensors = cache_tensors(cache)
        point = {
            "batch": batch,
            "tokens": length + step["decode"],
            "held": held,
            "storages": storage_bytes(tensors),
            "counters": counter_bytes(tensors),
            "tensors": sum(int(t.nbytes) for t in tensors),
        }
        del cache, tensors
        point["left"] = bench.meter.settle() - base
        points.append(point)
        bench.report("growth", point)
    return {"points": points, "weights": before, "left": bench.meter.settle()}


def static(bench: Bench, step: dict[str, Any]) -> Figures:
    """A StaticCache: its whole length at once, and nothing more however many tokens come."""
    from transformers import StaticCache

    model = bench.load()
    base = bench.meter.settle()
    cache = StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=step["length"])
    sizes = []
    try:
        with torch.no_grad():
            cache = bench.prefill(step["batch"], min(4, step["length"] - step["decode"]), cache=cache)
            for _ in range(step["decode"]):
                sizes.append(bench.meter.settle() - base)
                cache = bench.decode(step["batch"], 1, cache)
    except (TypeError, ValueError, AttributeError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, OUT_OF_MEMORY):
            raise
        return {"unknown": f"{type(model).__name__} does not run with a StaticCache: {error}"[:300]}
    sizes.append(bench.meter.settle() - base)
    tensors = cache_tensors(cache)
    return {
        "first": sizes[0],
        "last": sizes[-1],
        "storages": storage_bytes(tensors),
        "counters": counter_bytes(tensors),
    }


def peak(bench: Bench, step: dict[str, Any]) -> Figures:
    """One prefill: the peak over the weights, cache included; or out of memory, and what is left after it.

    step: batch, tokens, attention, logits.
    """
    models.set_attention(bench.load(), step["attention"])
    base = bench.meter.settle()
    bench.meter.reset_peak()
    found: Figures = {"outcome": "fits"}
    prompt = bench.prompt(step["batch"], step["tokens"])
    given = bench.meter.allocated() - base
    try:
        with torch.no_grad():
            out = models.forward(bench.model, prompt, step["logits"])
        bench.meter.synchronize()
        logits = getattr(out, "logits", None)
        found["logits"] = 0 if logits is None else int(logits.untyped_storage().nbytes())
        found["cache"] = storage_bytes(cache_tensors(models.cache_of(out)))
        del logits
        out = None
    except OUT_OF_MEMORY as error:
        found.update(outcome="out_of_memory", said=str(error).splitlines()[0][:300])
        del error
    # the prompt is the caller's, not the step's
    found["peak"] = bench.meter.peak() - base - given
    found["peak_reserved"] = bench.meter.peak_reserved()
    del prompt
    gc.collect()
    found["left"] = bench.meter.settle() - base
    models.set_attention(bench.model, bench.attention)
    return found


def sandwich(bench: Bench, step: dict[str, Any]) -> Figures:
    """The same prefill under two ceilings, a little above and a little below what it is predicted to need.

    step: batch, tokens, need (bytes in all: reserved on CUDA, live tensors on the CPU), percent.
    """
    if "need" not in step:
        return {"unknown": "no trace says what it needs"}
    bench.load()
    found: Figures = {"need": step["need"]}
    for name, percent in (("above", 100 + step["percent"]), ("below", 100 - step["percent"])):
        bench.meter.settle()
        bench.meter.set_ceiling(step["need"] * percent // 100)
        try:
            with torch.no_grad():
                kept = bench.prefill(step["batch"], step["tokens"])
                bench.meter.synchronize()
            found[name] = "fits"
            del kept
        except OUT_OF_MEMORY as error:
            found[name], found[f"{name}_said"] = "out_of_memory", str(error).splitlines()[0][:300]
            del error
        gc.collect()
    if bench.request.get("ceiling"):
        bench.meter.set_ceiling(bench.request["ceiling"])
    return found


def total(bench: Bench, step: dict[str, Any]) -> Figures:
    """The budget itself: all its users' prompts and some steps.  Bytes at their peak by three ledgers.

    allocator: what tensors asked for, weights included.  reserved: segments.  process: NVML's figure of this process
    while the cache is there.  fell: by how much what is usable on the device fell since before the model was loaded.
    """
    before = snap("before").usable
    bench.load()
    base = bench.meter.settle()  # with the workspaces of libraries, which are no tensors of the model
    bench.meter.reset_peak()
    prompt = step["tokens"] - step["decode"]
    with torch.no_grad():
        cache = bench.prefill(step["batch"], prompt, chunk=step.get("chunk", 0))
        cache = bench.decode(step["batch"], step["decode"], cache)
        bench.meter.synchronize()
    live = bench.weights + bench.meter.peak() - base
    found: Figures = {
        "allocator": live,
        "reserved": bench.meter.peak_reserved(),
        "ceiling": bench.request.get("ceiling"),
    }
    at = snap("loaded")
    process, usable = at.fields["device_process"], at.usable
    found["process"] = None if isinstance(process, Unknown) else process
    known = not isinstance(before, Unknown) and not isinstance(usable, Unknown)
    found["fell"] = before - usable if known else None  # type: ignore[operator]
    found["cache"] = storage_bytes(cache_tensors(cache))
    del cache
    return found


def fragmentation(bench: Bench, step: dict[str, Any]) -> Figures:
    """Many single-token steps: allocated and reserved every so often.

    step: batch, steps, every, cache (dynamic or static).
    """
    from transformers import StaticCache

    model = bench.load()
    base = bench.meter.settle()
    bench.meter.reset_peak()
    cache = None
    if step["cache"] == "static":
        length = step["steps"] + 1
        cache = StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=length)
    samples = []
    with torch.no_grad():
        for number in range(1, step["steps"] + 1):
            cache = bench.decode(step["batch"], 1, cache)
            if number % step["every"] == 0:
                total = bench.meter.allocated()
                sample = {
                    "step": number,
                    "total": total,
                    "allocated": total - base,
                    "blocks": bench.meter.blocks(),
                    "reserved": bench.meter.reserved(),
                    "inactive_split": bench.meter.inactive_split(),
                }
                samples.append(sample)
                bench.report("fragmentation", sample)
    tensors = cache_tensors(cache)
    held = {"held": storage_bytes(tensors), "counters": counter_bytes(tensors)}
    highest = bench.meter.peak() - base
    bench.meter.settle()  # what is reserved now beside what is allocated is lost for good
    reserved = bench.meter.reserved()
    lost = None if reserved is None else reserved - bench.meter.blocks()
    del cache, tensors
    return {"samples": samples, **held, "peak": highest, "lost": lost, "left": bench.meter.settle() - base}


def edge(bench: Bench, step: dict[str, Any]) -> Figures:
    """The most prompts at once that run under the ceiling: prefill and 8 decode steps, found by trying.

    step: tokens, near (where to begin), most, chunk (0: in one forward).
    """
    bench.load()
    base = bench.meter.settle()
    seen: dict[int, Figures] = {}

    def fits(batch: int) -> bool:
        bench.meter.reset_peak()
        cache = None
        kept = 0
        try:
            with torch.no_grad():
                prompt = step["tokens"] - step["decode"]
                cache = bench.prefill(batch, prompt, chunk=step.get("chunk", 0))
                kept = storage_bytes(cache_tensors(cache))
                bench.decode(batch, step["decode"], cache)
                bench.meter.synchronize()
            ran = True
        except OUT_OF_MEMORY:
            ran = False
        cache = None
        if ran:
            seen[batch] = {"peak": bench.meter.peak(), "reserved": bench.meter.peak_reserved(), "cache": kept}
        left = bench.meter.settle()
        bench.report("edge", {"batch": batch, "fits": ran, "left": left - base})
        if left > base:
            raise RuntimeError(f"after {batch} prompts {left - base:,} bytes stayed allocated")
        return ran

    found = find_edge(fits, step["near"], step["most"], teller("edge", bench.report))
    at = seen.get(found.most, {})
    return {
        "users": found.most,
        "tried": found.tried,
        "capped": found.capped,
        "peak": at.get("peak"),
        "peak_reserved": at.get("reserved"),
        "cache": at.get("cache"),
        "weights": base,
    }


def claim(bench: Bench, step: dict[str, Any]) -> Figures:
    """Hold memory, touched, as a second engine or a notebook would, until the parent ends us or the time is over.

    step: bytes, seconds, piece (as a notebook: so much at a time, until it is all there or memory runs out).
    """
    import time

    held: list[Any] = []
    piece = step.get("piece") or step["bytes"]
    total = 0
    try:
        while total < step["bytes"]:
            size = min(piece, step["bytes"] - total)
            held.append(torch.zeros(size, dtype=torch.uint8, device=bench.device).fill_(1))
            bench.meter.synchronize()
            total += size
            bench.report("claimed", {"bytes": total})
    except OUT_OF_MEMORY as error:
        return {"bytes": total, "outcome": "out_of_memory", "said": str(error).splitlines()[0][:300]}
    time.sleep(step["seconds"])
    return {"bytes": total, "outcome": "fits"}


STEPS: dict[str, Callable[[Bench, dict[str, Any]], Figures]] = {
    "weights": weights,
    "growth": growth,
    "static": static,
    "peak": peak,
    "fragmentation": fragmentation,
    "sandwich": sandwich,
    "total": total,
    "edge": edge,
    "claim": claim,
}


def _strays(model: Any, named: dict[int, str], device: str) -> list[dict[str, Any]]:
    """Tensors on the device that are not the model's and shaped like one of its parameters: loaded twice."""
    own = {storage_key(t) for t in [*model.parameters(), *model.buffers()]}
    shapes = {tuple(t.shape): name for name, t in model.named_parameters()}
    found = {}
    gc.unfreeze()  # frozen objects are not listed
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor) and item.device.type == device and tuple(item.shape) in shapes:
            key = storage_key(item)
            if key not in own and item.numel():
                size = int(item.untyped_storage().nbytes())
                found[key] = {"like": shapes[tuple(item.shape)], "dtype": str(item.dtype)[6:], "bytes": size}
    return sorted(found.values(), key=lambda item: -int(item["bytes"]))[:8]
