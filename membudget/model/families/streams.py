"""Decoders with hyper-connections or attention to compressed keys: MiniMax-M3, DeepSeek-V4, ZAYA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from membudget.model.attention import QkNorm, gqa
from membudget.model.blocks import Block, Layer, dense_or, linear, norm, when
from membudget.model.caches import CacheSpec, State
from membudget.model.config import Config
from membudget.model.families.base import first_dense, register
from membudget.model.feedforward import GATE_UP_DOWN, Router, Shared, glu, moe
from membudget.model.tensors import Tensor

# ---- MiniMax-M3: attention to picked blocks of keys -----------------------------------------


def _m3(config: Config) -> dict[str, Any]:
    """The hub form's sparse_attention_config in today's keys."""
    sparse = config.section("sparse_attention_config")
    found: dict[str, Any] = {}
    for key, old in (("index_head_dim", "sparse_index_dim"), ("index_n_heads", "sparse_num_index_heads")):
        if sparse.get(old) is not None:
            found[key] = sparse.integer(old)
    freq = sparse.integers("sparse_attention_freq", config.layers)
    if freq is not None and config.get("layer_types") is None:
        found["layer_types"] = ["minimax_m3_sparse" if one else "full_attention" for one in freq]
    return found


def _m3_indexer(layer: Layer) -> Iterator[Tensor]:
    c, at = layer.config, layer.prefix + "self_attn.indexer."
    hidden, heads, dim = c.integer("hidden_size"), c.integer("index_n_heads"), c.integer("index_head_dim")
    yield from linear(at + "q_proj", heads * dim, hidden, "attn.indexer")
    yield from linear(at + "k_proj", dim, hidden, "attn.indexer")
    for name in ("q_norm", "k_norm"):
        yield Tensor(f"{at}{name}.weight", (dim,), "attn.indexer")


def _m3_ffn(config: Config) -> list[str]:
    return first_dense("")(config)


register(
    "minimax_m3_vl_text minimax_m3",
    gqa(norm=QkNorm("head")),
    when(lambda layer: layer.kind != "full_attention", Block(_m3_indexer)),
    dense_or(
        moe(
            width="intermediate_size",
            router=Router(buffer="e_score_correction_bias"),
            names=("w1", "w3", "w2"),
            shared=Shared("shared_intermediate_size", names=GATE_UP_DOWN),
            name="block_sparse_moe.",
        ),
        glu(width="dense_intermediate_size"),
    ),
    ffn=_m3_ffn,
    derive=_m3,
)

# ---- DeepSeek-V4 ------------------------------------------------------------------------------
RATIO_KINDS = {
    0: "sliding_attention",
    4: "compressed_sparse_attention",
    128: "heavily_compressed_attention",
}


def _v4(config: Config) -> dict[str, Any]:
    """layer_types from compress_ratios, mlp_layer_types from num_hash_layers, the compression rates."""
    count = config.layers
    rates = config.section("compress_rates")
    rate = {
        "compressed_sparse_attention": rates.integer(RATIO_KINDS[4], config.integer("compress_rate_csa", 4)),
        "heavily_compressed_attention": rates.integer(RATIO_KINDS[128], config.integer("compress_rate_hca", 128)),
    }
    found: dict[str, Any] = {"csa_rate": rate[RATIO_KINDS[4]], "hca_rate": rate[RATIO_KINDS[128]]}
    if config.get("layer_types") is None:
        ratios = config.integers("compress_ratios")
        if ratios is None:
            kinds = [RATIO_KINDS[128]] * min(count, 2)
            kinds += [RATIO_KINDS[4] if i % 2 else RATIO_KINDS[128] for i in range(max(count - 2, 0))]
        else:
            if len(ratios) < count or set(ratios) - set(RATIO_KINDS):
                raise config.error(
                    "compress_ratios",
                    f"has {len(ratios)} entries {sorted(set(ratios))[:5]}",
                    "one of 0, 4 and 128 a layer",
                )
            kinds = [RATIO_KINDS[ratio] for ratio in ratios[:count]]
        found["layer_types"] = kinds
    if config.get("mlp_layer_types") is None:
        first = min(config.integer("num_hash_layers", 3, minimum=0), count)
        found["mlp_layer_types"] = ["hash_moe"] * first + ["moe"] * (count - first)
    return found


def _rate(layer: Layer) -> int:
    return layer.config.integer("csa_rate" if layer.kind == RATIO_KINDS[4] else "hca_rate")


def _compressor(at: str, width: int, rate: int, hidden: int, twice: bool) -> Iterator[Tensor]:
    """Pools `rate` tokens to one entry of `width`; `twice` as wide where windows overlap."""
    wide = 2 * width if twice else width
    yield Tensor(at + "ape", (rate, wide), "attn")
    yield from linear(at + "wkv", wide, hidden, "attn")
    yield from linear(at + "wgate", wide, hidden, "attn")
    yield Tensor(at + "norm.weight", (width,), "norms")


def _v4_attention(layer: Layer) -> Iterator[Tensor]:
    """Low-rank queries, one key that is the value too, a grouped low-rank output, a compressor."""
    c, at = layer.config, layer.prefix + "attn."
    hidden, heads, d, rank = c.integer("hidden_size"), c.heads, c.integer("head_dim"), c.integer("q_lora_rank")
    groups, low = c.integer("o_groups"), c.integer("o_lora_rank")
    if heads * d % groups:
        raise c.error("o_groups", f"is {groups}", f"a divisor of heads x head_dim {heads * d}")
    yield from linear(at + "wq_a", rank, hidden, "attn")
    yield from norm(at + "q_norm", rank)
    yield from linear(at + "wq_b", heads * d, rank, "attn")
    yield from linear(at + "wkv", d, hidden, "attn")
    yield from norm(at + "norm", d)
    yield from linear(at + "wo_a", groups * low, heads * d // groups, "attn")
    yield from linear(at + "wo_b", hidden, groups * low, "attn")
    yield Tensor(at + "attn_sink", (heads,), "attn")
    if layer.kind == "sliding_attention":
        return
    sparse, rate = layer.kind == RATIO_KINDS[4], _rate(layer)
    yield from _compressor(at + "compressor.", d, rate, hidden, sparse)
    if sparse:
        width, count = c.integer("index_head_dim"), c.integer("index_n_heads")
        yield from _compressor(at + "indexer.compressor.", width, rate, hidden, True)
        yield from linear(at + "indexer.wq_b", count * width, rank, "attn.indexer")
        yield from linear(at + "indexer.weights_proj", count, hidden, "attn.indexer")


def _v4_streams(layer: Layer) -> Iterator[Tensor]:
    """Hyper-connections around the attention and the experts."""
    c, at = layer.config, layer.prefix
    hidden, streams = c.integer("hidden_size"), c.integer("hc_mult")
    mixes = (2 + streams) * streams
    for part in ("attn", "ffn"):
        yield Tensor(f"{at}hc_{part}_fn", (mixes, streams * hidden), "other")
        yield Tensor(f"{at}hc_{part}_base", (mixes,), "other")
        yield Tensor(f"{at}hc_{part}_scale", (3,), "other")


def _v4_head(layer: Layer) -> Iterator[Tensor]:
    c, at = layer.config, layer.prefix + "hc_head."
    streams = c.integer("hc_mult")
    yield Tensor(at + "hc_fn", (streams, streams * c.integer("hidden_size")), "other")
    yield Tensor(at + "hc_base", (streams,), "other")
    yield Tensor(at + "hc_scale", (1,), "other")


def _v4_routing(layer: Layer) -> Iterator[Tensor]:
    """Hash layers route by a table of token ids, the others by scores with a bias; both are buffers."""
    c, at = layer.config, layer.prefix + "ffn.gate."
    if layer.ffn == "hash_moe":
        shape = (c.integer("vocab_size"), c.integer("num_experts_per_tok"))
        yield Tensor(at + "tid2eid", shape, "mlp.router", part="checkpoint")
    else:
        yield Tensor(at + "bias", (c.integer("num_experts"),), "mlp.router", part="checkpoint")


def _v4_cache(layer: Layer) -> CacheSpec:
    """A window of keys (also the values, in compressed layers), and one entry every `rate` tokens."""
    c = layer.config
    d, window = c.integer("head_dim"), c.integer("sliding_window")
    if layer.kind == "sliding_attention":
        return CacheSpec(layer.index, "sliding", 1, d, d, window)
    sparse = layer.kind == RATIO_KINDS[4]
    entry = d + c.integer("index_head_dim") if sparse else d
    return CacheSpec(layer.index, "sliding", 1, d, 0, window, entry=entry, rate=_rate(layer), overlap=sparse)


register(
    "deepseek_v4 deepseek_ref",
    Block(_v4_attention, _v4_cache),
    moe(names=("w1", "w3", "w2"), shared=Shared("moe_intermediate_size", bias="mlp_bias"), name="ffn."),
    Block(_v4_routing),
    Block(_v4_streams),
    norms=("attn_norm", "ffn_norm"),
    head="head",
    after=Block(_v4_head),
    derive=_v4,
)

# ---- ZAYA -------------------------------------------------------------------------------------


def _zaya(layer: Layer) -> Iterator[Tensor]:
    """Compressed convolutional attention: q, k and half of v each from this and the last token."""
    c, at = layer.config, layer.prefix + "self_attn."
    hidden, q, kv = c.integer("hidden_size"), c.heads * c.head_dim, c.kv_heads * c.head_dim
    b, both = c.flag("attention_bias"), c.heads * c.head_dim + c.kv_heads * c.head_dim
    for name, width in (("q_proj", q), ("k_proj", kv), ("v_proj_current", kv // 2), ("v_proj_delayed", kv // 2)):
        yield from linear(f"{at}qkv_proj.{name}", width, hidden, "attn", b)
    yield from linear(at + "o_proj", hidden, q, "attn", b)
    yield Tensor(at + "qkv_proj.conv_qk_depthwise.weight", (both, 1, c.integer("cca_time0", 2)), "attn")
    yield Tensor(at + "qkv_proj.conv_qk_depthwise.bias", (both,), "attn")
    yield Tensor(at + "qkv_proj.conv_qk_grouped.weight", (both, c.head_dim, c.integer("cca_time1", 2)), "attn")
    yield Tensor(at + "qkv_proj.conv_qk_grouped.bias", (both,), "attn")
    yield Tensor(at + "qk_norm.temp", (c.kv_heads,), "attn")


def _zaya_experts(layer: Layer) -> Iterator[Tensor]:
    """Experts behind a small MLP that also sees the last layer's router state."""
    c, at = layer.config, layer.prefix + "mlp."
    hidden, low, count = c.integer("hidden_size"), c.integer("router_hidden_size"), c.integer("num_experts")
    inner, active = c.integer("moe_intermediate_size"), c.integer("num_experts_per_tok", 1, maximum=count)
    yield from linear(at + "gate.down_proj", low, hidden, "mlp.router", True)
    yield Tensor(at + "gate.router_mlp.norm.weight", (low,), "mlp.router")
    for name in ("fc1", "fc2"):
        yield from linear(f"{at}gate.router_mlp.{name}", low, low, "mlp.router", True)
    yield from linear(at + "gate.router_mlp.out_proj", count + 1, low, "mlp.router")
    yield Tensor(at + "gate.balancing_biases", (count + 1,), "mlp.router", part="checkpoint")
    if layer.index:
        yield Tensor(at + "gate.router_states_scale", (low,), "mlp.router")
    yield Tensor(at + "experts.gate_up_proj", (2 * inner, hidden), "mlp.experts", count, active)
    yield Tensor(at + "experts.down_proj", (hidden, inner), "mlp.experts", count, active)
    for part in ("post_attention_residual_scale", "post_mlp_residual_scale"):
        for name in ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias"):
            yield Tensor(f"{layer.prefix}{part}.{name}", (hidden,), "other")


def _zaya_cache(layer: Layer) -> CacheSpec:
    c = layer.config
    d, kv = c.head_dim, c.kv_heads
    reach = c.integer("cca_time0", 2) + c.integer("cca_time1", 2) - 2
    states = (State("conv", (c.heads * d + kv * d) * reach), State("last", kv * d // 2))
    return CacheSpec(layer.index, "full", kv, d, d, states=states)


def _zaya_scales(layer: Layer) -> Iterator[Tensor]:
    hidden = layer.config.integer("hidden_size")
    for name in ("input_hidden_states_scale", "input_hidden_states_bias"):
        yield Tensor(layer.prefix + name, (hidden,), "other")


register(
    "zaya",
    Block(_zaya, _zaya_cache),
    Block(_zaya_experts),
    before=Block(_zaya_scales),
    head_bias="lm_head_bias",
)
