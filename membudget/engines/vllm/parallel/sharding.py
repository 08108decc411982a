"""Tensor parallelism: which sizes divide a model, and what each of their devices holds.

As vLLM shards: attention heads and MLP widths must divide; KV heads are split while there are
enough and replicated beyond; a latent cache serves every head, so each device holds all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from membudget.engines.vllm.parallel.ranks import REPLICATED
from membudget.formats import Format, kv
from membudget.formats.base import is_layer_matrix
from membudget.model import CacheSpec, Model


class TensorParallel(NamedTuple):
    """One tensor-parallel size.  Sizes in bytes, of one device.

    divides: whether the model can be split so.  why: what divides it or does not.
    kv_copies: devices that hold the same KV head; 1 when heads are split, more when replicated.
    weights, kv_cache: of one device, None where it does not divide.
    """

    size: int
    divides: bool
    why: str
    kv_copies: int = 1
    weights: int | None = None
    kv_cache: int | None = None


def request_bytes(specs: Sequence[CacheSpec], dtype: str, ctx: int) -> int:
    """Bytes of one sequence's cache.  Raises `FormatError` for a dtype that does not apply."""
    kind = kv.get(dtype)
    return sum(kind.bytes_for(spec, ctx) for spec in specs)


def split(
    size: int, specs: Sequence[CacheSpec], dtype: str, ctx: int, users: int, weights: int, problem: str | None
) -> TensorParallel:
    """What one of `size` devices holds of `users` sequences of `ctx` tokens, beside `weights` bytes.

    problem: why the model cannot be split so, where that is known already.
    """
    held: list[CacheSpec] = []
    copies, notes = 1, []
    for spec in specs:
        kv_heads = spec.kv_heads
        if kv_heads and max(kv_heads, size) % min(kv_heads, size):
            reason = f"{kv_heads:,} KV heads are neither a multiple nor a divisor of {size}"
            return TensorParallel(size, False, problem or reason)
        if kv_heads and size > kv_heads:
            copies = max(copies, size // kv_heads)
            notes.append(f"each of {kv_heads:,} KV heads is held by {size // kv_heads} devices")
        elif kv_heads:
            notes.append(f"{kv_heads // size:,} of {kv_heads:,} KV heads a device")
        if spec.latent:
            # One latent vector serves every head, so every device keeps it.
            copies = size
            notes.append("every device holds the whole latent cache")
        states = tuple(state._replace(elements=-(-state.elements // size)) for state in spec.states)
        held.append(spec._replace(kv_heads=-(-kv_heads // size), states=states))
    if problem is not None:
        return TensorParallel(size, False, problem)
    cache = request_bytes(held, dtype, ctx) * users
    return TensorParallel(size, True, "; ".join(dict.fromkeys(notes)) or "no KV heads to split", copies, weights, cache)


def attention_heads(model: Model) -> list[int]:
    """Attention heads, one number or one a layer; empty where a model has none."""
    heads = model.config.get("num_attention_heads")
    found = heads if isinstance(heads, list) else [heads]
    return sorted({head for head in found if isinstance(head, int) and head > 0})


def head_problem(heads: Sequence[int], size: int) -> str | None:
    """Why `size` devices cannot share these attention heads, None if they can."""
    for head in heads:
        if head % size:
            return f"{head:,} attention heads are not divisible by {size}"
    return None


def width_problem(model: Model, size: int) -> str | None:
    """Why `size` devices cannot share the MLP or the experts, None if they can."""
    for key in ("intermediate_size", "moe_intermediate_size"):
        width = model.config.get(key)
        if isinstance(width, int) and width % size:
            return f"{key} {width:,} is not divisible by {size}"
    return None


def split_bytes(model: Model, format: Format) -> tuple[int, int]:
    """Bytes that are split over the devices (linear maps, embedding, head), and that each holds whole (the rest).

    MLA's down-projections are held whole: their latent serves every head.
    """
    split = whole = 0
    for tensor in model.tensors:
        if tensor.part != "params":
            continue
        size = format.layout(tensor, model).nbytes * tensor.copies
        whole_map = tensor.name.removesuffix(".weight").rpartition(".")[2] in REPLICATED
        if (is_layer_matrix(tensor) and not whole_map) or (
            tensor.role in ("embed", "lm_head") and len(tensor.shape) == 2
        ):
            split += size
        else:
            whole += size
    return split, whole


def repeated_projections(model: Model, format: Format, size: int) -> int:
    """Bytes that a device holds beyond its share because K and V projections go with replicated KV heads."""
    weights_bytes, weights = format.weigh(model).layer_bits
    hidden = model.config.get("hidden_size")
    if not weights or not isinstance(hidden, int):
        return 0
    # A device keeps one head of each; its even share, kv_heads / size of a head, is counted already.
    extra = sum(
        -(-hidden * (spec.k_dim + spec.v_dim) * (size - spec.kv_heads) // size)
        for spec in model.caches
        if 0 < spec.kv_heads < size
    )
    return -(-extra * weights_bytes // weights)
