"""Attention blocks: grouped-query attention in all its variants, and cross attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from membudget.model.blocks import Block, Flag, Layer, Size, flag, linear, size
from membudget.model.caches import CacheSpec
from membudget.model.tensors import Tensor

QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")


#: Weights on q and k: none; of head_dim; of all heads; of head_dim with a bias; a row a head; a norm a head.
QK_NORMS = (None, "head", "full", "head_ln", "cohere", "each")


@dataclass(frozen=True)
class QkNorm:
    """Norms of queries and keys."""

    #: ``head`` (weights of head_dim), ``full`` (of all heads together), ``head_ln`` (LayerNorm of head_dim), ``each``
    #: (one norm a head), ``cohere`` (a row of weights a head); None for none.
    kind: str | None
    #: The layers that have them.
    when: Flag = True
    #: Of the queries' and the keys' module.
    names: tuple[str, str] = ("q_norm", "k_norm")

    def __post_init__(self) -> None:
        assert self.kind in QK_NORMS, self.kind


@dataclass(frozen=True)
class Gate:
    """An output gate."""

    #: Of its module; None where there is none of its own.
    name: str | None = None
    #: Its width; None: of all heads' values.
    size: Size | None = None
    #: Whether q_proj makes it, twice as wide.
    in_q: bool = False


@dataclass(frozen=True)
class Heads:
    """Numbers and widths of heads, where they are not what the config's usual keys say."""

    #: Query heads.
    heads: Size | None = None
    #: Key and value heads.
    kv_heads: Size | None = None
    #: Elements of a query's or key's head.
    dim: Size | None = None
    #: Elements of a value's head; None: as `dim`.
    v_dim: Size | None = None
    #: Columns of the output projection; None: all heads' values.
    out_in: Size | None = None


@dataclass(frozen=True)
class Owns:
    """What a layer computes itself."""

    #: False on layers that read another layer's keys and values.
    kv: Flag = True
    #: False where values are the keys.
    v: Flag = True


NO_NORM, NO_GATE, USUAL, ALL = QkNorm(None), Gate(), Heads(), Owns()


def gqa(
    *,
    bias: Flag = False,
    out_bias: Flag | None = None,
    norm: QkNorm = NO_NORM,
    fused: str | None = None,
    transposed: bool = False,
    sinks: str | None = None,
    gate: Gate = NO_GATE,
    sizes: Heads = USUAL,
    window: str = "sliding_window",
    owns: Owns = ALL,
    name: str = "self_attn.",
    names: tuple[str, str, str, str] = QKVO,
) -> Block:
    """Grouped-query attention: q, k, v and output projections (MHA and MQA are its ends).

    bias: on q, k and v.  out_bias: on the output, as bias unless given.
    fused: name of one projection for q, k and v.  transposed: GPT-2's Conv1D, weights
        are (in, out).  sinks: name of one learned scalar a head.
    window: the key that says how many tokens a sliding layer sees.
    """

    def counted(layer: Layer) -> tuple[int, int, int, int]:
        c = layer.config
        n = c.heads if sizes.heads is None else size(layer, sizes.heads)
        k = c.kv_heads if sizes.kv_heads is None else size(layer, sizes.kv_heads)
        d = c.head_dim if sizes.dim is None else size(layer, sizes.dim)
        return n, k, d, d if sizes.v_dim is None else size(layer, sizes.v_dim)

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        n, k, d, dv = counted(layer)
        hidden, b = c.integer("hidden_size"), flag(layer, bias)
        outer = b if out_bias is None else flag(layer, out_bias)
        q, o = n * d * (2 if gate.in_q else 1), n * dv if sizes.out_in is None else size(layer, sizes.out_in)
        own = owns.kv is True or flag(layer, owns.kv)
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
                    if owns.v is True or flag(layer, owns.v):
                        yield from linear(at + names[2], k * dv, hidden, "attn", b)
            yield from linear(at + names[3], hidden, o, "attn", outer)
        if norm.kind and flag(layer, norm.when):
            yield from _qk_norms(at, norm.kind, norm.names, n, k, d, own)
        if sinks:
            yield Tensor(at + sinks, (n,), "attn")
        if gate.name:
            width = n * dv if gate.size is None else size(layer, gate.size)
            yield Tensor(f"{at}{gate.name}.weight", (width, hidden), "attn")

    def cache(layer: Layer) -> CacheSpec:
        if not (owns.kv is True or flag(layer, owns.kv)):
            return CacheSpec(layer.index, "shared")
        _, k, d, dv = counted(layer)
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
        sizes=Heads(kv_heads=kv_heads, dim=mha_dim),
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
