"""Gemma 3n and Gemma 4: per-layer embeddings, layers that share keys and values, wide full-attention heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from membudget.model.attention import Owns, QkNorm, gqa
from membudget.model.blocks import Block, Flag, Layer, buffer, linear, norm, when
from membudget.model.config import Config
from membudget.model.families.base import SANDWICH, register
from membudget.model.feedforward import Router, Stacked, glu, moe
from membudget.model.tensors import Tensor


def _own_kv(layer: Layer) -> bool:
    """The last num_kv_shared_layers layers read an earlier layer's keys and values."""
    c = layer.config
    return layer.index < c.layers - c.size("num_kv_shared_layers")


def _width(layer: Layer) -> int:
    """intermediate_size, which Gemma 3n may list one a layer."""
    c = layer.config
    if isinstance(c.get("intermediate_size"), list):
        listed = c.integers("intermediate_size", c.layers) or []
        return listed[layer.index]
    return c.integer("intermediate_size")


def _per_layer_width(layer: Layer) -> int:
    return layer.config.size("hidden_size_per_layer_input")


def _per_layer_input(layer: Layer) -> Iterator[Tensor]:
    """What a layer makes of its own embedding of the token."""
    hidden, own = layer.config.integer("hidden_size"), _per_layer_width(layer)
    yield from linear(layer.prefix + "per_layer_input_gate", own, hidden, "other")
    yield from linear(layer.prefix + "per_layer_projection", hidden, own, "other")
    yield from norm(layer.prefix + "post_per_layer_input_norm", hidden)


def _per_layer_embeddings(layer: Layer) -> Iterator[Tensor]:
    """One small embedding a layer, all in one table."""
    c, own = layer.config, _per_layer_width(layer)
    vocab = c.integer("vocab_size_per_layer_input", c.integer("vocab_size"))
    yield Tensor(layer.prefix + "embed_tokens_per_layer.weight", (vocab, c.layers * own), "embed.per_layer")
    yield from linear(layer.prefix + "per_layer_model_projection", c.layers * own, c.integer("hidden_size"), "other")
    yield from norm(layer.prefix + "per_layer_projection_norm", own)


def _altup(layer: Layer) -> Iterator[Tensor]:
    """AltUp (several parallel residual streams) and LAuReL (a low-rank bypass)."""
    c, at = layer.config, layer.prefix
    hidden, streams, rank = c.integer("hidden_size"), c.integer("altup_num_inputs"), c.integer("laurel_rank")
    yield Tensor(at + "altup.correct_output_scale", (hidden,), "other")
    yield from linear(at + "altup.correction_coefs", streams, streams, "other")
    yield from linear(at + "altup.prediction_coefs", streams * streams, streams, "other")
    yield from linear(at + "altup.modality_router", streams, hidden, "other")
    yield from norm(at + "altup.router_norm", hidden)
    yield from linear(at + "laurel.linear_left", rank, hidden, "other")
    yield from linear(at + "laurel.linear_right", hidden, rank, "other")
    yield from norm(at + "laurel.post_laurel_norm", hidden)


def _altup_projections(layer: Layer) -> Iterator[Tensor]:
    c = layer.config
    hidden = c.integer("hidden_size")
    for index in range(c.integer("altup_num_inputs", maximum=1000) - 1):
        yield Tensor(f"{layer.prefix}altup_projections.{index}.weight", (hidden, hidden), "other")
        yield Tensor(f"{layer.prefix}altup_unembed_projections.{index}.weight", (hidden, hidden), "other")


def _five_of_six(config: Config) -> list[str]:
    """Gemma 3n: of every five layers the last attends to everything."""
    return ["sliding_attention" if (i + 1) % 5 else "full_attention" for i in range(config.layers)]


def _attention(own_v: Flag = True) -> Block:
    return gqa(bias="attention_bias", norm=QkNorm("head"), owns=Owns(kv=_own_kv, v=own_v))


register(
    "gemma3n_text",
    _attention(),
    glu(width=_width),
    Block(_altup),
    Block(_per_layer_input),
    norms=SANDWICH,
    kinds=_five_of_six,
    before=Block(_per_layer_embeddings),
    after=Block(_altup_projections),
)


def _gemma4(config: Config) -> dict[str, Any]:
    """layer_types with a full last layer, and the full layers' own head_dim and kv heads."""
    count = config.layers
    kinds = list(
        config.strings("layer_types", count)
        or ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(count)]
    )
    kinds[-1] = "full_attention"
    found: dict[str, Any] = {"layer_types": kinds}
    if config.get("per_layer_config") is None:
        own: dict[str, int] = {"head_dim": config.integer("global_head_dim", 512)}
        global_kv = config.size("num_global_key_value_heads")
        if global_kv and config.flag("attention_k_eq_v", True):
            own["num_key_value_heads"] = global_kv
        found["per_layer_config"] = {i: own for i, kind in enumerate(kinds) if kind == "full_attention"}
    return found


def _own_v(layer: Layer) -> bool:
    """With attention_k_eq_v, full layers have no v_proj: values are the keys."""
    return not (layer.config.flag("attention_k_eq_v") and layer.kind == "full_attention")


def _gemma4_width(layer: Layer) -> int:
    """Layers that share keys and values may have twice as wide an MLP."""
    c = layer.config
    return c.integer("intermediate_size") * (2 if c.flag("use_double_wide_mlp") and not _own_kv(layer) else 1)


def _gemma4_router(layer: Layer) -> Iterator[Tensor]:
    c, at = layer.config, layer.prefix
    hidden = c.integer("hidden_size")
    yield Tensor(at + "router.scale", (hidden,), "mlp.router")
    yield Tensor(at + "router.per_expert_scale", (c.integer("num_experts"),), "mlp.router")
    for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
        yield from norm(at + name, hidden)


GEMMA4_EXPERTS = when(
    "enable_moe_block",
    moe(
        router=Router("router.proj.weight", top_k="top_k_experts"),
        stacked=Stacked(("experts.gate_up_proj", "experts.down_proj")),
        name="",
    ),
)
GEMMA4 = (
    _attention(_own_v),
    glu(width=_gemma4_width),
    GEMMA4_EXPERTS,
    when("enable_moe_block", Block(_gemma4_router)),
    when(lambda layer: _per_layer_width(layer) > 0, Block(_per_layer_input)),
    buffer("layer_scalar", 1),
)
register(
    "gemma4_text gemma4_unified_text",
    *GEMMA4,
    norms=SANDWICH,
    before=when(lambda layer: _per_layer_width(layer) > 0, Block(_per_layer_embeddings)),
    derive=_gemma4,
)
