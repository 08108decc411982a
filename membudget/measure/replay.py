"""Thousands of decode steps of a full-size model in seconds: one step is recorded, then replayed on a device.

Sizes of a step's allocations are a + b x t in the number of cached tokens t: they are read off three neighbouring steps
on fake tensors, and the caching allocator's algorithm runs through as many steps as wanted.
Imports torch: only for a worker's own process.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from membudget.measure import models
from membudget.measure.allocator import Block, CachingAllocator, OutOfMemory
from membudget.measure.fakes import Fake, Target, fused, on_target

#: Cached tokens at the three steps that are recorded.
AT = (40, 41, 42)


@dataclass(frozen=True)
class Event:
    """One allocation of a step, or the end of one."""

    number: int  # of the allocation in its step
    size: int = 0  # bytes at 0 tokens; for a free 0
    slope: int = 0  # bytes more for each token
    age: int | None = None  # None for an allocation; for a free how many steps ago the allocation was


class _Recorder(TorchDispatchMode):
    """Notes every storage that is made, and when it is gone."""

    def __init__(self, ignore: list[Any]) -> None:
        super().__init__()
        self.step = self.number = 0
        self.log: list[tuple[int, int, int | None]] = []  # number, bytes, age
        self._known: dict[int, tuple[int, int]] = {}
        self._ignored = {tensor.untyped_storage()._cdata for tensor in ignore}

    def begin(self, step: int) -> list[tuple[int, int, int | None]]:
        """A new step's log."""
        self.step, self.number, self.log = step, 0, []
        return self.log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key in self._known or key in self._ignored or not storage.nbytes():
                    continue
                self._known[key] = (self.step, self.number)
                self.log.append((self.number, int(storage.nbytes()), None))
                self.number += 1
                weakref.finalize(storage, self._gone, key)
        return out

    def _gone(self, key: int) -> None:
        step, number = self._known.pop(key, (None, 0))
        if step is not None:
            self.log.append((number, 0, self.step - step))


def trace_steps(
    raw: dict[str, Any],
    *,
    batch: int,
    steps: int,
    every: int,
    cache: str = "dynamic",
    expandable: bool = False,
    ceiling: int | None = None,
    dtype: str = "bf16",
    target: Target | None = None,
) -> dict[str, Any]:
    """`steps` single-token steps of `batch` sequences from an empty cache, replayed on a simulated CUDA device.

    cache: dynamic or static.  Returns samples (step, allocated, requested, reserved, inactive_split: bytes), worst (the
    most reserved beside allocated), lost (the same after empty_cache, at the end), out_of_memory_at (a step), retries.
    Raises `CannotBuild` where steps differ in more than sizes (a window that fills, a state that is made).
    """
    target = target or Target("cuda")

    def run(device: str) -> dict[str, Any]:
        made = fused(raw, dtype, target, device)
        first, events = _record(made, batch, cache, steps)
        simulated = CachingAllocator(ceiling, expandable=expandable)
        made.load(simulated)
        return {**_replay(simulated, first, events, steps, every), "kernels": dict(made.kernels), "device": made.device}

    return on_target(target, run)


def _record(made: Fake, batch: int, cache: str, steps: int) -> tuple[list[int], list[Event]]:
    """What the first step leaves behind (sizes of a static cache), and the events of every later one."""
    logs: dict[int, list[tuple[int, int, int | None]]] = {}
    kept: list[int] = []
    with made.running():
        held: Any = None
        if cache == "static":
            from transformers import StaticCache

            from membudget.measure.trace import cache_tensors

            held = StaticCache(config=made.model.config.get_text_config(decoder=True), max_cache_len=steps + 1)
        held = models.cache_of(models.forward(made.model, made.tokens(batch, AT[0] - 3), "last", held))
        if cache == "static":
            kept = [int(tensor.untyped_storage().nbytes()) for tensor in cache_tensors(held)]
        recorder = _Recorder(made.tensors())
        with recorder:
            for step in range(AT[0] - 2, AT[-1] + 1):
                logs[step] = recorder.begin(step)
                held = models.cache_of(models.forward(made.model, made.tokens(batch, 1), "last", held))
    return kept, _events(made, [logs[step] for step in AT])


def _events(made: Fake, logs: list[list[tuple[int, int, int | None]]]) -> list[Event]:
    one, two, three = logs
    shapes = [[(number, age) for number, _, age in log] for log in logs]
    linear = all(b[1] - a[1] == c[1] - b[1] for a, b, c in zip(one, two, three, strict=False))
    if shapes[0] != shapes[1] or shapes[1] != shapes[2] or not linear:
        raise models.CannotBuild(
            f"{type(made.model).__name__}: neighbouring decode steps differ in more than the cache's length, so they "
            "are not replayed",
            code="steps_differ",
        )
    return [
        Event(number, size - (other[1] - size) * AT[0], other[1] - size, age)
        for (number, size, age), other in zip(one, two, strict=True)
    ]


def _replay(device: CachingAllocator, first: list[int], events: list[Event], steps: int, every: int) -> dict[str, Any]:
    kept = [device.malloc(size) for size in first if size]
    before: dict[int, Block] = {}
    samples = []
    worst = 0
    broke: int | None = None
    for step in range(1, steps + 1):
        now: dict[int, Block] = {}
        try:
            for event in events:
                if event.age is None:
                    now[event.number] = device.malloc(max(event.size + event.slope * step, 1))
                else:
                    block = (now if event.age == 0 else before).pop(event.number, None)
                    if block is not None:
                        device.free(block)
        except OutOfMemory:
            broke = step
            break
        before = now
        if step % every == 0:
            stats = device.stats
            samples.append(
                {
                    "step": step,
                    "allocated": stats.allocated,
                    "requested": stats.requested,
                    "reserved": stats.reserved,
                    "inactive_split": stats.inactive_split,
                }
            )
            worst = max(worst, stats.reserved - stats.allocated)
    device.empty_cache()
    del kept
    return {
        "samples": samples,
        "worst": worst,
        "out_of_memory_at": broke,
        "lost": device.reserved - device.allocated,
        "peak_reserved": device.stats.peak_reserved,
        "retries": device.stats.retries,
        "ooms": device.stats.ooms,
    }
