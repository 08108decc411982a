"""The exact peak of one forward of the real transformers model, without a GPU and without its memory.

The model runs on fake tensors: shapes, dtypes and lifetimes are real, bytes are not there.
Imports torch: only for a worker's own process (`membudget.probe.measure` starts it).
"""

from __future__ import annotations

from typing import Any

import torch

from membudget.probe import models
from membudget.probe.tracker import Live, ModuleNames, Tracker

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
    from torch._subclasses.fake_tensor import FakeTensorMode

    config = models.read_config(raw)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model = models.fake_model(config, dtype, attention, mode)
    weights = storage_bytes(model.parameters())
    with mode, torch.no_grad(), models.masks_as_in_production():
        prompt = torch.zeros((batch, tokens), dtype=torch.long)
        held = [*model.parameters(), *model.buffers(), prompt]
        tracker = Tracker(held, round_to=round_to)
        with ModuleNames(model) as names, tracker:
            tracker.where = names.here
            out = models.forward(model, prompt, logits)
            left = tracker.live
        cache = cache_tensors(models.cache_of(out))
        kept = storage_bytes(cache)
        at = [item._asdict() for item in summarize(tracker.at_peak())]
    return {
        "weights": weights,
        "buffers": storage_bytes(model.buffers()),
        "peak": tracker.peak,
        "cache": kept,
        "left": left,
        "live": at,
        "model_class": type(model).__name__,
    }


def summarize(found: list[Live]) -> list[Live]:
    """Alike storages of alike modules together: ``model.layers.*.self_attn`` once, with their sum.  Largest first."""
    sums: dict[tuple[str, str, tuple[int, ...], str], int] = {}
    for item in found:
        module = ".".join("*" if part.isdigit() else part for part in item.module.split("."))
        key = (module, item.op, item.shape, item.dtype)
        sums[key] = sums.get(key, 0) + item.bytes
    return sorted((Live(*key, size) for key, size in sums.items()), key=lambda item: -item.bytes)[:SHOWN]


def cache_tensors(cache: Any) -> list[Any]:
    """Every tensor that a cache object holds, however the version keeps it."""
    found: list[Any] = []
    seen: set[int] = set()

    def walk(item: Any, depth: int) -> None:
        if item is None or isinstance(item, (str, bytes, int, float, bool)) or id(item) in seen or depth > 8:
            return
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, torch.nn.Module) or isinstance(item, type):
            return
        elif isinstance(item, dict):
            for value in item.values():
                walk(value, depth + 1)
        elif isinstance(item, (list, tuple, set)):
            for value in item:
                walk(value, depth + 1)
        elif hasattr(item, "__dict__") and not type(item).__name__.endswith("Config"):
            walk(vars(item), depth + 1)

    walk(cache, 0)
    return found


def storage_key(tensor: Any) -> int:
    """What tells storages apart while they live."""
    return int(tensor.untyped_storage()._cdata)


def storage_bytes(tensors: Any) -> int:
    """Bytes of all storages, each once."""
    sizes = {storage_key(tensor): int(tensor.untyped_storage().nbytes()) for tensor in tensors}
    return sum(sizes.values())
