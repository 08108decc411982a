"""Attention blocks: grouped-query attention in all its variants, and cross attention."""

from __future__ import annotations

from collections.abc import Iterator

from membudget.model.blocks import Block, Flag, Layer, Size, flag, linear, size
from membudget.model.caches import CacheSpec
from membudget.model.tensors import Tensor

QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")


#: Weights on q and k: none; of head_dim; of all heads; of head_dim with a bias; a row a head; a norm a head.
QK_NORMS = (None, "head", "full", "head_ln", "cohere", "each")


def gqa(
    *,
    bias: Flag = False,
    out_bias: Flag | None = None,
    qk_norm: str | None = None,
    norm_if: Flag = True,
    norm_names: tuple[str, str] = ("q_norm", "k_norm"),
    fused: str | None = None,
    transposed: bool = False,
    sinks: str | None = None,
    gate: str | None = None,
    gate_size: Size | None = None,
    gate_in_q: bool = False,
    heads: Size | None = None,
    kv_heads: Size | None = None,
    dim: Size | None = None,
    v_dim: Size | None = None,
    out_in: Size | None = None,
    window: str = "sliding_window",
    owns_kv: Flag = True,
    owns_v: Flag = True,
    name: str = "self_attn.",
    names: tuple[str, str, str, str] = QKVO,
) -> Block:
    """Grouped-query attention: q, k, v and output projections (MHA and MQA are its ends).

    bias: on q, k and v.  out_bias: on the output, as bias unless given.
    qk_norm: ``head`` (weights of head_dim), ``full`` (of all heads together), ``head_ln``
        (LayerNorm of head_dim), ``each`` (one norm a head), ``cohere`` (a row of weights a
        head); only where norm_if holds.
    fused: name of one projection for q, k and v.  transposed: GPT-2's Conv1D, weights
        are (in, out).  sinks: name of one learned scalar a head.
    gate: name of an output gate of gate_size; gate_in_q: q_proj makes it, twice as wide.
    heads, kv_heads, dim, v_dim, out_in: where they are not what the config's usual keys say.
    owns_kv: false on layers that read another layer's keys and values.
    owns_v: false where values are the keys.
    window: the key that says how many tokens a sliding layer sees.
    """

    def sizes(layer: Layer) -> tuple[int, int, int, int]:
        c = layer.config
        n = c.heads if heads is None else size(layer, heads)
        k = c.kv_heads if kv_heads is None else size(layer, kv_heads)
        d = c.head_dim if dim is None else size(layer, dim)
        return n, k, d, d if v_dim is None else size(layer, v_dim)

    if qk_norm not in QK_NORMS:
        raise ValueError(f"qk_norm={qk_norm!r}: allowed is one of {QK_NORMS}")

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        n, k, d, dv = sizes(layer)
        hidden, b = c.integer("hidden_size"), flag(layer, bias)
        outer = b if out_bias is None else flag(layer, out_bias)
        q, o = n * d * (2 if gate_in_q else 1), n * dv if out_in is None else size(layer, out_in)
        own = owns_kv is True or flag(layer, owns_kv)
        if transposed:
            assert fused is not None
            yield Tensor(f"{at}{fused}.weight", (hidden, q + k * (d + dv)), "attn")
            if b:
                yield Tensor(f"{at}{fused}.bias", (q + k * (d + dv),), "attn")
            yield Tensor(f"{at}{names[3]}.weight", (o, hidden), "attn")
            if outer:
                yield Tensor(f"{at}{names[3]}.bias", (hidden,), "attn")
        else:
            if fused:
                yield from linear(at + fused, q + k * (d + dv), hidden, "attn", b)
            else:
                yield from linear(at + names[0], q, hidden, "attn", b)
                if own:
                    yield from linear(at + names[1], k * d, hidden, "attn", b)
                    if owns_v is True or flag(layer, owns_v):
                        yield from linear(at + names[2], k * dv, hidden, "attn", b)
            yield from linear(at + names[3], hidden, o, "attn", outer)
        if qk_norm and flag(layer, norm_if):
            yield from _qk_norms(at, qk_norm, norm_names, n, k, d, own)
        if sinks:
            yield Tensor(at + sinks, (n,), "attn")
        if gate:
            width = n * dv if gate_size is None else size(layer, gate_size)
            yield Tensor(f"{at}{gate}.weight", (width, hidden), "attn")

    def cache(layer: Layer) -> CacheSpec:
        if not (owns_kv is True or flag(layer, owns_kv)):
            return CacheSpec(layer.index, "shared")
        _, k, d, dv = sizes(layer)
        return kv_spec(layer, k, d, dv, window)

    return Block(tensors, cache)


def _qk_norms(
    at: str, kind: str, names: tuple[str, str], heads: int, kv_heads: int, dim: int, own: bool
) -> Iterator[Tensor]:
    for name, count in zip(names, (heads, kv_heads if own else 0), strict=True):
        if not count:
            continue
        if kind == "each":
            yield Tensor(f"{at}{name}.norms.*.weight", (dim,), "norms", count)
            continue
        shape = {"full": (count * dim,), "cohere": (count, dim)}.get(kind, (dim,))
        yield Tensor(f"{at}{name}.weight", shape, "norms")
        if kind == "head_ln":
            yield Tensor(f"{at}{name}.bias", (dim,), "norms")


def kv_spec(layer: Layer, kv_heads: int, k_dim: int, v_dim: int, window: str = "sliding_window") -> CacheSpec:
    """Keys and values of this layer: full, sliding or chunked, as its kind says."""
    if "sliding" in layer.kind:
        return CacheSpec(layer.index, "sliding", kv_heads, k_dim, v_dim, layer.config.integer(window))
    if "chunked" in layer.kind:
        return CacheSpec(layer.index, "chunked", kv_heads, k_dim, v_dim, layer.config.integer("attention_chunk_size"))
    return CacheSpec(layer.index, "full", kv_heads, k_dim, v_dim)


def fused_mha(
    name: str,
    qkv: str = "query_key_value",
    out: str = "dense",
    bias: Flag = True,
    out_bias: Flag | None = None,
    transposed: bool = False,
    kv_heads: Size | None = lambda layer: layer.config.heads,
) -> Block:
    """Multi-head attention of the GPT-2 generation: one q, k, v projection, biases."""
    return gqa(
        bias=bias,
        out_bias=out_bias,
        fused=qkv,
        transposed=transposed,
        name=name,
        names=("", "", "", out),
        kv_heads=kv_heads,
        dim=mha_dim,
    )


def mha_dim(layer: Layer) -> int:
    """hidden_size / num_attention_heads, whatever head_dim says."""
    c = layer.config
    hidden, heads = c.integer("hidden_size"), c.heads
    if hidden % heads:
        raise c.error("hidden_size", f"is {hidden}", f"a multiple of num_attention_heads {heads}")
    return hidden // heads


def floor_dim(layer: Layer) -> int:
    """head_dim, or hidden_size // num_attention_heads rounded down, as some classes do."""
    c = layer.config
    return c.integer("head_dim", c.integer("hidden_size") // c.heads)
