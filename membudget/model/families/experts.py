"""Mixtures of experts."""

from __future__ import annotations

from membudget.model.blocks import Layer, glu, gqa, mla, moe, packed_experts
from membudget.model.families.base import qwen_window, register, sliding_if_set


def first_k_dense(layer: Layer) -> bool:
    """The first first_k_dense_replace layers have a plain MLP."""
    return layer.index < layer.config.integer("first_k_dense_replace", 0, minimum=0)


def sparse_step(layer: Layer) -> bool:
    """Dense where mlp_only_layers says so or decoder_sparse_step skips (Qwen)."""
    c = layer.config
    step = c.integer("decoder_sparse_step", 1)
    return layer.index in (c.integers("mlp_only_layers") or ()) or (layer.index + 1) % step != 0


register(
    "mixtral",
    attention=gqa(),
    mlp=moe(width="intermediate_size", name="block_sparse_moe", names=("w1", "w3", "w2")),
    kinds=sliding_if_set,
)
register(
    "qwen2_moe",
    attention=gqa(bias=True, out_bias=False),
    mlp=moe(
        shared=lambda c: c.integer("shared_expert_intermediate_size"),
        shared_name="shared_expert",
        shared_gate=True,
        dense=glu(),
        dense_layer=sparse_step,
    ),
    kinds=qwen_window,
)
register(
    "qwen3_moe",
    attention=gqa(bias="attention_bias", qk_norm="head"),
    mlp=moe(dense=glu(), dense_layer=sparse_step),
    kinds=qwen_window,
)
register(
    "deepseek_v3",
    "kimi_k2",
    attention=mla(bias="attention_bias"),
    mlp=moe(
        shared=lambda c: c.integer("moe_intermediate_size") * c.integer("n_shared_experts", 0, minimum=0),
        router_bias="gate.e_score_correction_bias",
        dense=glu(),
        dense_layer=first_k_dense,
    ),
)
register(
    "gpt_oss",
    attention=gqa(bias="attention_bias", sinks=True),
    mlp=packed_experts(),
    kinds=lambda c: ["full_attention" if i % 2 else "sliding_attention" for i in range(c.layers)],
    defaults={"head_dim": 64, "attention_bias": True},
)
