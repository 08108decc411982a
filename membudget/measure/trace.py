"""The exact peak of one forward of the real transformers model, without a GPU and without its memory.

The model runs on fake tensors: shapes, dtypes and lifetimes are real, bytes are not there.
Imports torch: only for a worker's own process (`membudget.measure.run` starts it).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from membudget.measure import models
from membudget.measure.edge import Looking, find_edge
from membudget.measure.tracker import Live, ModuleNames, Tracker

#: Storages of one kind at the peak that a report shows.
SHOWN = 24


def trace(
    raw: dict[str, Any],
    *,
    tokens: int,
    batch: int = 1,
    attention: str = "sdpa",
    logits: str = "last",
    dtype: str = "bf16",
    round_to: int = 1,
) -> dict[str, Any]:
    """Trace one prefill of `batch` prompts of `tokens` tokens.  Sizes in bytes.

    Returns weights and buffers (not in the peak), peak (of everything else, the KV cache
    included), cache (what the cache object holds), left (alive after the forward),
    live (what was alive at the peak), operations (how many ran).
    """
    mode, model = _fake(raw, dtype, attention)
    with _without_data(model, mode):
        prompt = torch.zeros((batch, tokens), dtype=torch.long)
        tracker = Tracker([*model.parameters(), *model.buffers(), prompt], round_to=round_to)
        with ModuleNames(model) as names, tracker:
            tracker.where = names.here
            out = models.forward(model, prompt, logits)
            left = tracker.live
        kept = storage_bytes(cache_tensors(models.cache_of(out)))
        at = [item._asdict() for item in summarize(tracker.at_peak())]
    return {
        "weights": storage_bytes(model.parameters()),
        "buffers": storage_bytes(model.buffers()),
        "peak": tracker.peak,
        "cache": kept,
        "left": left,
        "live": at,
        "model_class": type(model).__name__,
    }


def trace_served(
    raw: dict[str, Any],
    *,
    tokens: int,
    decode: int,
    batch: int = 1,
    chunk: int = 0,
    dtype: str = "bf16",
    round_to: int = 1,
) -> dict[str, Any]:
    """The peak over the weights of `batch` prompts, in chunks, and `decode` steps; `tokens` are all of them.

    Returns weights, buffers (not in the peak) and peak, in bytes.
    """
    mode, model = _served_fake(raw, dtype)
    with _without_data(model, mode):
        served = _served(model, batch, tokens, decode, round_to, chunk)
    return {
        "weights": storage_bytes(model.parameters()),
        "buffers": storage_bytes(model.buffers()),
        "peak": served["peak"],
    }


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
    tell: Callable[[Looking], None] | None = None,
) -> dict[str, Any]:
    """The most prompts at once whose prefill (`chunk` tokens at a time) and `decode` steps stay under `ceiling`.

    The ceiling holds for weights too.  Returns users, tried, the peaks over the weights by number of users,
    and the cache after the prompt, by number of users.
    """
    mode, model = _served_fake(raw, dtype)
    base = storage_bytes(model.parameters()) + storage_bytes(model.buffers())
    peaks: dict[int, int] = {}
    caches: dict[int, int] = {}

    def peak(users: int) -> int:
        if users not in peaks:
            with _without_data(model, mode):
                served = _served(model, users, tokens, decode, round_to, chunk)
            peaks[users], caches[users] = served["peak"], served["cache"]
        return peaks[users]

    room = ceiling - base
    if most > 1 and peak(1) <= room:
        # a user more takes what the second one took: exact where nothing is shared, near enough elsewhere
        near = 1 + (room - peak(1)) // max(peak(2) - peak(1), 1)
    found = find_edge(lambda users: peak(users) <= room, near, most, tell)
    return {"users": found.most, "tried": found.tried, "peaks": peaks, "caches": caches, "weights": base}


@contextlib.contextmanager
def _without_data(model: Any, mode: Any) -> Iterator[None]:
    """Run a model on tensors without data; `CannotBuild` where its class looks into them."""
    from torch._subclasses import fake_tensor as fake

    looks = (fake.DataDependentOutputException, fake.DynamicOutputShapeException, fake.UnsupportedOperatorException)
    try:
        with mode, torch.no_grad(), models.masks_as_in_production():
            yield
    except looks as error:
        raise models.CannotBuild(
            f"{type(model).__name__} cannot be traced: what it does depends on the data of a tensor "
            f"({getattr(error, 'func', error)}), and fake tensors have none. Measure it instead: `membudget probe`"
        ) from None


def _served_fake(raw: dict[str, Any], dtype: str) -> tuple[Any, Any]:
    """The fake model with fused attention, or without where the class has none."""
    try:
        return _fake(raw, dtype, "sdpa")
    except models.CannotBuild:
        return _fake(raw, dtype, "eager")


def _served(model: Any, users: int, tokens: int, decode: int, round_to: int, chunk: int = 0) -> dict[str, int]:
    """The peak of one prefill and `decode` steps of `users` prompts, and what the cache holds after the prompt."""
    prompt = tokens - decode
    chunk = chunk if 0 < chunk < prompt else prompt
    # What is in the cache before the last chunks costs nothing here, so it comes in one forward; one chunk
    # more lets go of what windows kept of that forward.
    ahead = max(prompt // chunk - 2, 0) * chunk if prompt > 3 * chunk else 0
    cache: Any = None
    highest = at = 0
    with Tracker([*model.parameters(), *model.buffers()], round_to=round_to) as tracker:
        for size in [ahead] * bool(ahead) + [chunk] * ((prompt - ahead) // chunk) + [(prompt - ahead) % chunk]:
            if size:
                tracker.reset_peak()
                piece = torch.zeros((users, size), dtype=torch.long)
                cache = models.cache_of(models.forward(model, piece, "last", cache))
                del piece
                at += size
                if not ahead or at > ahead + chunk:
                    highest = max(highest, tracker.peak)
        kept = storage_bytes(cache_tensors(cache))
        for number in range(decode):
            tracker.reset_peak()
            step = torch.zeros((users, 1), dtype=torch.long)
            cache = models.cache_of(models.forward(model, step, "last", cache))
            highest = max(highest, tracker.peak)
            # Later steps differ by a few tokens of cache, in it and in one layer's copy of it.
            if number and tracker.peak + 2 * decode * storage_bytes(cache_tensors(cache)) // tokens < highest:
                break
    return {"peak": int(highest), "cache": kept}


#: Fake models of this process by what they were made from; they hold no bytes.
_FAKES: dict[tuple[str, str, str], tuple[Any, Any]] = {}


def _fake(raw: dict[str, Any], dtype: str, attention: str) -> tuple[Any, Any]:
    """A fake mode and the model in it."""
    import json

    from torch._subclasses.fake_tensor import FakeTensorMode

    key = (json.dumps(raw, sort_keys=True), dtype, attention)
    if key not in _FAKES:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        _FAKES[key] = mode, models.fake_model(models.read_config(raw), dtype, attention, mode)
    return _FAKES[key]


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
