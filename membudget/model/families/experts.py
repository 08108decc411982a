"""Mixtures of experts behind grouped-query attention."""

from __future__ import annotations

from membudget.model.attention import gqa
from membudget.model.families.base import qwen_window, register, sliding_if_set, sparse_step, first_dense, alternating
from membudget.model.blocks import dense_or
from membudget.model.feedforward import glu, moe, times
from membudget.model.latent import mla

MIXTRAL = moe(width="intermediate_size", name="block_sparse_moe.", names=("w1", "w3", "w2"))
QK_HEAD = gqa(bias="attention_bias", qk_norm="head")
register("mixtral", gqa(), MIXTRAL, kinds=sliding_if_set)
register(
    "qwen2_moe",
    gqa(bias="qkv_bias", out_bias=False),
    dense_or(
        moe(
            shared="shared_expert_intermediate_size",
            shared_name="shared_expert.",
            shared_gate="shared_expert_gate.weight",
        ),
        glu(),
    ),
    kinds=qwen_window,
    ffn=sparse_step,
)
register("qwen3_moe", QK_HEAD, dense_or(moe(), glu()), kinds=qwen_window, ffn=sparse_step)
register(
    "deepseek_v3 kimi_k2",
    mla(bias="attention_bias"),
    dense_or(
        moe(shared=times("moe_intermediate_size", "n_shared_experts"), bias_buffer="gate.e_score_correction_bias"),
        glu(),
    ),
    ffn=first_dense(),
)
register(
    "gpt_oss",
    gqa(bias="attention_bias", sinks="sinks"),
    moe(
        width="intermediate_size",
        router="router.weight",
        router_bias="router.bias",
        stacked=("experts.gate_up_proj", "experts.down_proj"),
        stacked_bias=True,
        transposed=True,
    ),
    kinds=alternating,
)
