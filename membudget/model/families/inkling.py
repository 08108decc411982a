"""Inkling and Inkling 2: relative logits, short convolutions everywhere, attention over earlier layers, loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from membudget.model.blocks import Block, Layer, dense_or, linear, norm, norms
from membudget.model.caches import CacheSpec, State
from membudget.model.config import Config
from membudget.model.families.base import register
from membudget.model.feedforward import Router, Shared, Stacked, glu, moe
from membudget.model.tensors import Tensor


def _swa(layer: Layer) -> tuple[int, int, int]:
    """(heads, kv heads, head_dim) of this layer; sliding layers have their own."""
    c = layer.config
    if layer.kind == "hybrid_sliding" and c.get("swa_num_attention_heads") is not None:
        return c.integer("swa_num_attention_heads"), c.integer("swa_num_key_value_heads"), c.integer("swa_head_dim")
    return c.heads, c.kv_heads, c.head_dim


def _inkling(layer: Layer) -> Iterator[Tensor]:
    """Attention with relative logits and short convolutions on keys, values and both sub-layers."""
    c, at = layer.config, layer.prefix
    heads, kv, d = _swa(layer)
    hidden, kernel, rel = c.integer("hidden_size"), c.integer("conv_kernel_size"), c.integer("d_rel")
    extent = c.integer("sliding_window_size" if layer.kind == "hybrid_sliding" else "rel_extent")
    for part, width in (("q", heads * d), ("k", kv * d), ("v", kv * d), ("r", heads * rel)):
        yield from linear(f"{at}self_attn.{part}_proj", width, hidden, "attn")
    yield from linear(at + "self_attn.o_proj", hidden, heads * d, "attn")
    yield from norm(at + "self_attn.q_norm", d)
    yield from norm(at + "self_attn.k_norm", d)
    yield Tensor(at + "self_attn.rel_logits_proj.proj", (rel, extent), "attn")
    for part, width in (("self_attn.k", kv * d), ("self_attn.v", kv * d), ("attn", hidden), ("mlp", hidden)):
        yield Tensor(f"{at}{part}_sconv.conv1d.weight", (width, 1, kernel), "mixer")


def _inkling_cache(layer: Layer) -> CacheSpec:
    c = layer.config
    _, kv, d = _swa(layer)
    kept = (2 * kv * d + 2 * c.integer("hidden_size")) * c.integer("conv_kernel_size")
    sliding = layer.kind == "hybrid_sliding"
    window = c.integer("sliding_window_size") if sliding else 0
    states = (State("conv", kept, fp32=True),)
    return CacheSpec(layer.index, "sliding" if sliding else "full", kv, d, d, window, states=states)


def _inkling_experts(layer: Layer) -> Iterator[Tensor]:
    """The router scores the shared experts too; they are stacked like the others."""
    c, at = layer.config, layer.prefix + "mlp."
    hidden, inner, count = c.integer("hidden_size"), c.integer("moe_intermediate_size"), c.integer("num_experts")
    shared, active = c.integer("n_shared_experts"), c.integer("num_experts_per_tok", maximum=count)
    yield Tensor(at + "gate.weight", (count + shared, hidden), "mlp.router")
    yield Tensor(at + "gate.global_scale", (1,), "mlp.router")
    yield Tensor(at + "gate.e_score_correction_bias", (count,), "mlp.router", part="checkpoint")
    yield Tensor(at + "experts.gate_up_proj", (2 * inner, hidden), "mlp.experts", count, active)
    yield Tensor(at + "experts.down_proj", (hidden, inner), "mlp.experts", count, active)
    for part, shape in (("gate_proj", (inner, hidden)), ("up_proj", (inner, hidden)), ("down_proj", (hidden, inner))):
        yield Tensor(f"{at}shared_experts.{part}", (shared, *shape), "mlp.shared")


def _inkling_dense(layer: Layer) -> Iterator[Tensor]:
    yield Tensor(layer.prefix + "mlp.global_scale", (1,), "mlp")
    yield from glu().tensors(layer)


def _inkling_kinds(config: Config) -> list[str]:
    local = config.integers("local_layer_ids")
    return [
        "hybrid_sliding" if ((i + 1) % 6 if local is None else i in local) else "hybrid" for i in range(config.layers)
    ]


def _inkling_ffn(config: Config) -> list[str]:
    first = config.size("dense_mlp_idx")
    return ["dense" if i < first else "sparse" for i in range(config.layers)]


def _inkling_widths(config: Config) -> dict[str, int]:
    """With dense_intermediate_size, intermediate_size is the experts' width."""
    if config.get("dense_intermediate_size") is None:
        return {}
    return {
        "moe_intermediate_size": config.integer("intermediate_size"),
        "intermediate_size": config.integer("dense_intermediate_size"),
    }


register(
    "inkling_text",
    Block(_inkling, _inkling_cache),
    dense_or(Block(_inkling_experts), Block(_inkling_dense)),
    before=norms("embed_tokens.embed_norm"),
    kinds=_inkling_kinds,
    ffn=_inkling_ffn,
    derive=_inkling_widths,
    tied=False,
)


def _inkling2(layer: Layer) -> Iterator[Tensor]:
    """Inkling 2: clipped queries, gates, sinks from the input; full layers mix keys with dynamic filters."""
    c, at = layer.config, layer.prefix
    hidden, (heads, kv, d) = c.integer("hidden_size"), _swa(layer)
    kernel, rel, sliding = c.integer("conv_kernel_size"), c.integer("d_rel"), layer.kind == "hybrid_sliding"
    extent = c.integer("sliding_window_size" if sliding else "rel_extent")
    for name, width in (
        ("wq_du", heads * d), ("wk_dv", kv * d), ("wv_dv", kv * d), ("wr_du", heads * rel),
        ("gate_attn", heads * d), ("attn_sink_proj", heads),
    ):  # fmt: skip
        yield from linear(f"{at}attn.{name}", width, hidden, "attn")
    yield from linear(at + "attn.wo_ud", hidden, heads * d, "attn")
    yield Tensor(at + "attn.q_l2_clip.scale", (heads, d), "attn")
    yield Tensor(at + "attn.rel_l2_clip.scale", (heads, rel), "attn")
    yield Tensor(at + "attn.rel_logits_proj.proj", (rel, extent), "attn")
    for part in ("k", "v"):
        if sliding:
            yield Tensor(f"{at}attn.{part}_sconv.weight", (kv * d, 1, kernel), "mixer")
        else:
            yield Tensor(f"{at}attn.{part}_sconv.static_w", (kernel, kv * d), "mixer")
            yield Tensor(f"{at}attn.{part}_sconv.weight_proj", (kernel * kv, hidden), "mixer")
    for part in ("attn", "mlp"):
        yield Tensor(f"{at}{part}_sconv.weight", (hidden, 1, kernel), "mixer")
    for name in ("mlp_norm", *(("attn_norm",) if sliding else ("q_input_norm", "k_input_norm", "v_input_norm"))):
        yield from norm(at + name, hidden)


def _inkling2_loop(layer: Layer) -> Iterator[Tensor]:
    """Layers of the loop have four controllers that gate what a pass hands to the next."""
    c = layer.config
    if not c.size("loop_layer_index_start") <= layer.index < c.size("loop_layer_index_end"):
        return
    hidden, rank = c.integer("hidden_size"), c.integer("loop_gate_rank")
    for part in ("k", "v", "attn", "mlp"):
        at = f"{layer.prefix}controllers.{part}."
        yield Tensor(at + "down_weight", (rank, 2 * hidden), "other")
        yield Tensor(at + "forget_weight", (hidden, rank), "other")
        yield Tensor(at + "gain_weight", (hidden, rank), "other")


def _residual_queries(layer: Layer) -> Iterator[Tensor]:
    """Attention over earlier layers' outputs: a query a sub-layer, three where q, k and v have their own."""
    c, at = layer.config, layer.prefix
    hidden, kinds = c.integer("hidden_size"), c.strings("layer_types", c.layers) or _inkling2_kinds(c)
    yield Tensor(at + "attn_res.output_query", (hidden,), "other")
    for index, kind in enumerate(kinds):
        yield Tensor(f"{at}attn_res.mlp_queries.{index}", (hidden,), "other")
        if index:
            shape = (hidden,) if kind == "hybrid_sliding" else (3, hidden)
            yield Tensor(f"{at}attn_res.attn_queries.{index - 1}", shape, "other")
    padding = c.integer("vocab_size") - c.integer("unpadded_vocab_size", c.integer("vocab_size"))
    if padding > 0:
        yield Tensor(at + "unembed.weight[padding]", (padding, hidden), "lm_head", part="checkpoint")
    if c.get("loop_gate_rank") is not None:
        looped = max(c.size("loop_layer_index_end") - c.size("loop_layer_index_start"), 0)
        yield Tensor(at + "middle_cycle_cross_pass_queries", (2 * looped, hidden), "other")
        yield Tensor(at + "middle_cycle_cross_pass_kv_queries", (2 * looped, hidden), "other")


def _inkling2_kinds(config: Config) -> list[str]:
    return ["hybrid_sliding" if (i + 1) % 6 else "hybrid" for i in range(config.layers)]


def _loops(config: Config) -> dict[str, Any]:
    loop = config.section("loop_config")
    names = {
        "loop_layer_index_start": "core_start", "loop_layer_index_end": "core_end", "loop_num_passes": "num_passes",
        "loop_gate_rank": "gate_rank",
    }  # fmt: skip
    return {key: loop.size(name) for key, name in names.items() if loop.get(name) is not None}


def _looped_caches(config: Config, layers: list[Layer]) -> Iterable[CacheSpec]:
    """Each pass through the loop keeps its own."""
    start, end = config.size("loop_layer_index_start"), config.size("loop_layer_index_end")
    passes = config.integer("loop_num_passes", 1, maximum=100)
    order = [*layers[:start], *layers[start:end] * passes, *layers[end:]]
    return [_inkling_cache(layer)._replace(layer=index) for index, layer in enumerate(order)]


INKLING2_EXPERTS = moe(
    router=Router(buffer="gate.bias"), stacked=Stacked(("experts.w13_weight", "experts.w2_weight")), shared=Shared(0)
)
for model_type, extra, declared in (
    ("inkling2_text", (), {}),
    ("inkling2_loop_text", (Block(_inkling2_loop),), {"derive": _loops, "caches": _looped_caches}),
):
    register(
        model_type,
        Block(_inkling2, _inkling_cache),
        INKLING2_EXPERTS,
        *extra,
        norms=(),
        root="model.llm.",
        embed="embed",
        head="model.llm.unembed",
        before=norms("embed_norm"),
        after=Block(_residual_queries),
        head_size=("unpadded_vocab_size", "hidden_size"),
        tied=False,
        kinds=_inkling2_kinds,
        **declared,
    )
