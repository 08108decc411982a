"""The exact peak of one forward of the real transformers model, without a GPU and without its memory.

The model runs on fake tensors: shapes, dtypes and lifetimes are real, bytes are not there.  For a CUDA device the
attention kernel is the one that torch chooses there, and torch's caching allocator runs beside (`allocator`).
Imports torch: only for a worker's own process (`membudget.measure.run` starts it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from membudget.measure import models
from membudget.measure.allocator import CachingAllocator, OutOfMemory
from membudget.measure.edge import Looking, find_edge
from membudget.measure.fakes import Fake, Target, fake, fused, on_target
from membudget.measure.tracker import Live, ModuleNames, Tracker

#: Storages of one kind at the peak that a report shows.
SHOWN = 24
CPU = Target()


def trace(
    raw: dict[str, Any],
    *,
    tokens: int,
    batch: int = 1,
    attention: str = "sdpa",
    logits: str = "last",
    dtype: str = "bf16",
    round_to: int = 1,
    target: Target = CPU,
) -> dict[str, Any]:
    """Trace one prefill of `batch` prompts of `tokens` tokens.  Sizes in bytes.

    Returns weights and buffers (not in the peak), peak (of everything else, the KV cache
    included), cache (what the cache object holds), left (alive after the forward),
    live (what was alive at the peak), kernels (attention kernels by how often), device (of the fake tensors), and
    for CUDA reserved (of torch's allocator at its peak, weights included).
    """

    def run(device: str) -> dict[str, Any]:
        made = fake(raw, dtype, attention, target, device)
        allocator = _allocator(made)
        with made.running():
            prompt = made.tokens(batch, tokens)
            tracker = Tracker([*made.tensors(), prompt], round_to=round_to, allocator=allocator)
            with ModuleNames(made.model) as names, tracker:
                tracker.where = names.here
                out = models.forward(made.model, prompt, logits)
                left = tracker.live
            kept = storage_bytes(cache_tensors(models.cache_of(out)))
            at = [item._asdict() for item in summarize(tracker.at_peak())]
        return {
            **_about(made, allocator),
            "peak": tracker.peak,
            "cache": kept,
            "left": left,
            "live": at,
            "model_class": type(made.model).__name__,
        }

    return on_target(target, run)


def trace_served(
    raw: dict[str, Any],
    *,
    tokens: int,
    decode: int,
    batch: int = 1,
    chunk: int = 0,
    dtype: str = "bf16",
    round_to: int = 1,
    reserve: bool = False,
    target: Target = CPU,
) -> dict[str, Any]:
    """The peak over the weights of `batch` prompts, in chunks, and `decode` steps; `tokens` are all of them.

    Returns weights, buffers (not in the peak), peak and cache, in bytes; with `reserve` reserved for CUDA, as `trace`
    does, which takes every chunk.
    """

    def run(device: str) -> dict[str, Any]:
        made = fused(raw, dtype, target, device)
        allocator = _allocator(made) if reserve else None
        served = _served(made, batch, tokens, decode, round_to, chunk, allocator)
        return {**_about(made, allocator), "peak": served.peak, "cache": served.cache}

    return on_target(target, run)


def trace_edge(
    raw: dict[str, Any],
    *,
    tokens: int,
    decode: int,
    ceiling: int,
    near: int,
    most: int,
    chunk: int = 0,
    dtype: str = "bf16",
    round_to: int = 1,
    target: Target = CPU,
    tell: Callable[[Looking], None] | None = None,
) -> dict[str, Any]:
    """The most prompts at once whose prefill (`chunk` tokens at a time) and `decode` steps stay under `ceiling`.

    The ceiling holds for weights too.  On the CPU it holds for live tensors, on CUDA for what torch's allocator
    reserves.  Returns users, tried, weights, and by number of users the peaks over the weights, the peaks of what is
    reserved (None on the CPU) and the cache after the prompt.
    """

    def run(device: str) -> dict[str, Any]:
        made = fused(raw, dtype, target, device)
        base = storage_bytes(made.tensors())
        seen: dict[int, Served] = {}
        reserved: dict[int, int | None] = {}

        def peak(users: int) -> int:
            if users not in seen:
                allocator = _allocator(made)
                seen[users] = _served(made, users, tokens, decode, round_to, chunk, allocator)
                reserved[users] = allocator.stats.peak_reserved if allocator is not None else None
            return seen[users].peak

        def fits(users: int) -> bool:
            if target.device != "cuda":
                return peak(users) <= ceiling - base
            if users in seen and (reserved[users] or 0) <= ceiling:
                return True
            allocator = CachingAllocator(ceiling)
            try:
                kept = made.load(allocator)
                seen[users] = _served(made, users, tokens, decode, round_to, chunk, allocator)
            except OutOfMemory:
                return False
            reserved[users] = allocator.stats.peak_reserved
            del kept
            return True

        start = near
        room = ceiling - base
        if most > 1 and peak(1) <= room:
            # a user more takes what the second one took: exact where nothing is shared, near enough elsewhere
            start = 1 + (room - peak(1)) // max(peak(2) - peak(1), 1)
        found = find_edge(fits, start, most, tell)
        return {
            **_about(made, None),
            "users": found.most,
            "tried": found.tried,
            "peaks": {users: served.peak for users, served in seen.items()},
            "caches": {users: served.cache for users, served in seen.items()},
            "reserved": reserved,
            "weights": base,
        }

    return on_target(target, run)


def _about(made: Fake, allocator: CachingAllocator | None) -> dict[str, Any]:
    """What was traced, and on what."""
    return {
        "weights": storage_bytes(made.model.parameters()),
        "buffers": storage_bytes(made.model.buffers()),
        "kernels": dict(made.kernels),
        "device": made.device,
        **({} if allocator is None else {"reserved": allocator.stats.peak_reserved}),
    }


def _allocator(made: Fake) -> CachingAllocator | None:
    """A simulated CUDA device with the weights on it; None for the CPU, which has no caching allocator."""
    if made.target.device != "cuda":
        return None
    allocator = CachingAllocator()
    made.load(allocator)
    return allocator


@dataclass(frozen=True)
class Served:
    """A prompt and some steps, in bytes."""

    peak: int  # of live tensors over the weights
    cache: int  # what the cache object holds after the prompt


def _served(
    made: Fake,
    users: int,
    tokens: int,
    decode: int,
    round_to: int,
    chunk: int = 0,
    allocator: CachingAllocator | None = None,
) -> Served:
    """The peak of one prefill and `decode` steps of `users` prompts, and what the cache holds after the prompt."""
    prompt = tokens - decode
    chunk = chunk if 0 < chunk < prompt else prompt
    # What is in the cache before the last chunks costs nothing here, so it comes in one forward; one chunk
    # more lets go of what windows kept of that forward.  Not where a device is simulated: it would not be as large.
    ahead = max(prompt // chunk - 2, 0) * chunk if prompt > 3 * chunk and allocator is None else 0
    cache: Any = None
    highest = at = 0
    with made.running(), Tracker(made.tensors(), round_to=round_to, allocator=allocator) as tracker:
        for size in [ahead] * bool(ahead) + [chunk] * ((prompt - ahead) // chunk) + [(prompt - ahead) % chunk]:
            if size:
                tracker.reset_peak()
                piece = made.tokens(users, size)
                cache = models.cache_of(models.forward(made.model, piece, "last", cache))
                del piece
                at += size
                if not ahead or at > ahead + chunk:
                    highest = max(highest, tracker.peak)
        kept = storage_bytes(cache_tensors(cache))
        for number in range(decode):
            tracker.reset_peak()
            step = made.tokens(users, 1)
            cache = models.cache_of(models.forward(made.model, step, "last", cache))
            highest = max(highest, tracker.peak)
            # Later steps differ by a few tokens of cache, in it and in one layer's copy of it.
            if number and tracker.peak + 2 * decode * storage_bytes(cache_tensors(cache)) // tokens < highest:
                break
    return Served(int(highest), kept)


def summarize(found: list[Live]) -> list[Live]:
    """Alike storages of alike modules together: ``model.layers.*.self_attn`` once, with their sum.  Largest first."""
    sums: dict[tuple[str, str, tuple[int, ...], str], int] = {}
    for item in found:
        module = ".".join("*" if part.isdigit() else part for part in item.module.split("."))
        key = (module, item.op, item.shape, item.dtype)
        sums[key] = sums.get(key, 0) + item.bytes
    return sorted((Live(*key, size) for key, size in sums.items()), key=lambda item: -item.bytes)[:SHOWN]


def cache_tensors(cache: Any) -> list[Any]:
    """Every tensor that a cache object holds, however the version keeps it.

    No function in here refers to itself: such a cycle would keep the tensors alive until the garbage collector
    comes, and a peak that is measured meanwhile would count them twice.
    """
    found: list[Any] = []
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = [(cache, 0)]
    while waiting:
        item, depth = waiting.pop()
        if item is None or isinstance(item, (str, bytes, int, float, bool)) or id(item) in seen or depth > 8:
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, (torch.nn.Module, type)):
            continue
        elif isinstance(item, dict):
            waiting += [(value, depth + 1) for value in item.values()]
        elif isinstance(item, (list, tuple, set)):
            waiting += [(value, depth + 1) for value in item]
        elif hasattr(item, "__dict__") and not type(item).__name__.endswith("Config"):
            waiting.append((vars(item), depth + 1))
    return found


def storage_key(tensor: Any) -> int:
    """What tells storages apart while they live."""
    return int(tensor.untyped_storage()._cdata)


def counter_bytes(tensors: Any) -> int:
    """Bytes of single whole numbers: cache layers count their tokens in tensors, and those hold no keys."""
    return storage_bytes(t for t in tensors if t.numel() <= 1 and not t.is_floating_point())


def storage_bytes(tensors: Any) -> int:
    """Bytes of all storages, each once."""
    sizes = {storage_key(tensor): int(tensor.untyped_storage().nbytes()) for tensor in tensors}
    return sum(sizes.values())
