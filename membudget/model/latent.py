"""Multi-head latent attention (DeepSeek's MLA) and the lightning indexer of sparse attention."""

from __future__ import annotations

from collections.abc import Iterator

from membudget.model.blocks import Block, Flag, Layer, flag, linear, norm
from membudget.model.caches import CacheSpec
from membudget.model.tensors import Tensor


def mla(
    *,
    bias: Flag = False,
    indexer: Flag = False,
    gate: str | None = None,
    rope_norm: str | None = None,
    twin_q: bool = False,
    index_fp32: bool = False,
    name: str = "self_attn.",
    out: str = "o_proj",
) -> Block:
    """Latent attention: low-rank q (or q_proj where q_lora_rank is null), one compressed key/value.

    bias: on q_a, kv_a and the output.  indexer: on layers that pick their own keys.
    gate: name of a gate of one value a head, or ``gate:wide`` for one a channel.
    rope_norm: name of a norm over the rotary part of the key.
    index_fp32: the indexer's keys are cached in fp32 (dots3).
    twin_q: q_b reads two low ranks and makes a gate too, value-sized a head (A.X-K2).
    """

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        hidden, heads = c.integer("hidden_size"), c.heads
        rank, rope = c.integer("kv_lora_rank"), c.integer("qk_rope_head_dim")
        nope, value = c.integer("qk_nope_head_dim"), c.integer("v_head_dim")
        b, wide = flag(layer, bias), nope + rope + (value if twin_q else 0)
        q_rank = c.integer("q_lora_rank", 0, minimum=0)
        if q_rank:
            yield from linear(at + "q_a_proj", q_rank, hidden, "attn", b)
            yield from norm(at + "q_a_layernorm", q_rank)
            yield from linear(at + "q_b_proj", heads * wide, q_rank * (2 if twin_q else 1), "attn")
        else:
            yield from linear(at + "q_proj", heads * wide, hidden, "attn")
        yield from linear(at + "kv_a_proj_with_mqa", rank + rope, hidden, "attn", b)
        yield from norm(at + "kv_a_layernorm", rank)
        yield from linear(at + "kv_b_proj", heads * (nope + value), rank, "attn")
        yield from linear(at + out, hidden, heads * value, "attn", b)
        if rope_norm:
            yield from norm(at + rope_norm, rope)
        if gate:
            gate_name, _, extent = gate.partition(":")
            yield from linear(at + gate_name, heads * value if extent else heads, hidden, "attn")
        if flag(layer, indexer):
            yield from _indexer(layer, at + "indexer.")

    def cache(layer: Layer) -> CacheSpec:
        c = layer.config
        rank, rope = c.integer("kv_lora_rank"), c.integer("qk_rope_head_dim")
        if "sliding" in layer.kind:
            return CacheSpec(layer.index, "sliding", latent=rank, rope=rope, window=c.integer("sliding_window"))
        index = c.integer("index_head_dim") if flag(layer, indexer) else 0
        fp32 = index_fp32 and index > 0
        return CacheSpec(layer.index, "latent", latent=rank, rope=rope, index=index, index_fp32=fp32)

    return Block(tensors, cache)


def _indexer(layer: Layer, at: str) -> Iterator[Tensor]:
    """The lightning indexer: its queries from q's low rank, one key head, a weight a head."""
    c = layer.config
    hidden, heads, dim = c.integer("hidden_size"), c.integer("index_n_heads"), c.integer("index_head_dim")
    yield from linear(at + "wq_b", heads * dim, c.integer("q_lora_rank"), "attn.indexer")
    yield from linear(at + "wk", dim, hidden, "attn.indexer")
    yield Tensor(at + "k_norm.weight", (dim,), "attn.indexer")
    yield Tensor(at + "k_norm.bias", (dim,), "attn.indexer")
    yield from linear(at + "weights_proj", heads, hidden, "attn.indexer")


def own_indexer(layer: Layer) -> bool:
    """Whether indexer_types gives this layer an indexer; all layers have one where it is absent."""
    c = layer.config
    types = c.strings("indexer_types", c.layers)
    # the layers of MTP heads, behind the last, have their own
    return types is None or layer.index >= len(types) or types[layer.index] == "full"
