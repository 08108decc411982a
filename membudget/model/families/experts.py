"""Mixtures of experts behind grouped-query attention."""

from __future__ import annotations

from membudget.model.attention import Gate, Heads, QkNorm, floor_dim, gqa
from membudget.model.blocks import Block, Layer, Size, buffer, dense_or, weight
from membudget.model.config import Config
from membudget.model.families.base import (
    PRE,
    SANDWICH,
    all_if_used,
    alternating,
    even_slide,
    first_dense,
    one_full_in,
    register,
    slide_from,
    sliding_if_set,
    sparse_step,
)
from membudget.model.families.heads import mtp_layers
from membudget.model.feedforward import Router, Shared, Stacked, glu, moe, times

PLAIN, HEAD = gqa(bias="attention_bias"), gqa(bias="attention_bias", norm=QkNorm("head"))
FULL = gqa(bias="attention_bias", norm=QkNorm("full"))
#: Mixtral's names of an expert's gate, up and down.
W132 = ("w1", "w3", "w2")
SCORE = "gate.e_score_correction_bias"
STACKED = ("experts.gate_up_proj", "experts.down_proj")
POST = ("post_attention_layernorm", "post_feedforward_layernorm")


def mixtral(**more: str) -> Block:
    """Mixtral's experts: block_sparse_moe, w1, w3 and w2."""
    return moe(
        width="intermediate_size", name="block_sparse_moe.", names=W132, router=Router(buffer=more.get("bias_buffer"))
    )


def shared_by(count: str, **more: str | None) -> Block:
    """Experts with shared ones, as many as the key `count` says, side by side in one."""
    return moe(
        shared=Shared(times("moe_intermediate_size", count)), router=Router(buffer=more.get("bias_buffer", SCORE))
    )


register("mixtral", gqa(), mixtral(), kinds=sliding_if_set)
register("minimax_m2", gqa(norm=QkNorm("full")), mixtral(bias_buffer="e_score_correction_bias"), mtp=mtp_layers())
register(
    "phimoe",
    PLAIN,
    mixtral(),
    norm_bias=True,
    head_bias="lm_head_bias",
    kinds=sliding_if_set,
)
QWEN_SHARED = moe(
    shared=Shared("shared_expert_intermediate_size", name="shared_expert.", gate="shared_expert_gate.weight")
)
register(
    "qwen2_moe",
    gqa(bias="qkv_bias", out_bias=False),
    dense_or(QWEN_SHARED, glu()),
    kinds=even_slide,
    ffn=sparse_step,
)
register("qwen3_moe qwen3_omni_moe_text", HEAD, dense_or(moe(), glu()), kinds=all_if_used, ffn=sparse_step)
register("qwen3_vl_moe_text", HEAD, dense_or(moe(stacked=Stacked(STACKED)), glu()), ffn=sparse_step)
register("mellum", HEAD, dense_or(moe(), glu()))
register("olmoe", FULL, moe(width="intermediate_size"))
register("flex_olmo", FULL, moe(width="intermediate_size"), norms=POST)
register(
    "gpt_oss",
    gqa(bias="attention_bias", sinks="sinks"),
    moe(
        width="intermediate_size",
        router=Router("router.weight", bias="router.bias"),
        stacked=Stacked(STACKED, bias=True, transposed=True),
    ),
    kinds=alternating,
)
register(
    "cohere2_moe",
    PLAIN,
    dense_or(
        moe(width="intermediate_size", shared=Shared(times("intermediate_size", "num_shared_experts"))),
        glu(
            width=lambda layer: (
                layer.config.size("prefix_dense_intermediate_size") or layer.config.integer("intermediate_size")
            )
        ),
    ),
    norms=("input_layernorm",),
    kinds=one_full_in(4),
    ffn=first_dense(),
)
register("dots1", HEAD, dense_or(shared_by("n_shared_experts"), glu()), kinds=slide_from, ffn=first_dense())
register(
    "glm4_moe glm4v_moe_text",
    gqa(bias="attention_bias", out_bias=False, norm=QkNorm("head", when="use_qk_norm"), sizes=Heads(dim=floor_dim)),
    dense_or(shared_by("n_shared_experts"), glu()),
    ffn=first_dense(),
    mtp=mtp_layers(own_embeddings=True),
)
register(
    "sarvam_moe",
    gqa(
        bias="attention_bias",
        out_bias=False,
        norm=QkNorm("head", when="use_qk_norm", names=("query_layernorm", "key_layernorm")),
        fused="query_key_value",
        name="attention.",
        names=("", "", "", "dense"),
    ),
    dense_or(shared_by("n_shared_experts", bias_buffer="gate.expert_bias"), glu()),
    embed="word_embeddings",
    ffn=first_dense(),
)
register(
    "solar_open",
    gqa(bias="attention_bias", out_bias=False),
    dense_or(shared_by("n_shared_experts"), glu()),
    ffn=lambda config: ["sparse"] * config.layers,
)
register(
    "exaone_moe",
    gqa(norm=QkNorm("head")),
    dense_or(shared_by("num_shared_experts", bias_buffer="e_score_correction_bias"), glu()),
    kinds=one_full_in(4),
    ffn=first_dense(default=1),
)
register(
    "hy_v3",
    HEAD,
    dense_or(
        moe(
            router=Router("router.gate.weight", buffer="expert_bias"),
            shared=Shared(times("moe_intermediate_size", "num_shared_experts"), name="shared_mlp.", bias="mlp_bias"),
        ),
        glu(bias="mlp_bias"),
    ),
    ffn=first_dense(default=1),
)


def of_layer(key: str, default: int | None = None) -> Size:
    """A number, or a list of one a layer."""

    def read(layer: Layer) -> int:
        config = layer.config
        if not isinstance(config.get(key), list):
            return config.integer(key, default)
        listed = config.integers(key) or []
        if layer.index >= len(listed):
            raise config.error(key, f"has {len(listed)} entries", "a number, or one a layer")
        return listed[layer.index]

    return read


register(
    "hunyuan_v1_moe",
    gqa(bias="attention_bias", norm=QkNorm("head", names=("query_layernorm", "key_layernorm"))),
    moe(
        width="intermediate_size",
        router=Router("gate.wg.weight", top_k=of_layer("moe_topk", 1)),
        experts=of_layer("num_experts"),
        shared=Shared("intermediate_size", name="shared_mlp."),
    ),
)
register(
    "afmoe",
    gqa(bias="attention_bias", norm=QkNorm("head"), gate=Gate("gate_proj")),
    dense_or(
        moe(
            router=Router("router.gate.weight", bias="expert_bias"),
            shared=Shared(times("moe_intermediate_size", "num_shared_experts")),
        ),
        glu(),
    ),
    norms=(*PRE, "pre_mlp_layernorm", "post_mlp_layernorm"),
    kinds=one_full_in(4, "global_attn_every_n_layers"),
    ffn=first_dense("num_dense_layers"),
)


def _last_full(config: Config) -> list[str]:
    """Every sixth layer and the last attend to everything."""
    return [*one_full_in(6, "")(config)[:-1], "full_attention"]


register(
    "beam",
    gqa(bias="attention_bias", norm=QkNorm("head"), gate=Gate("gate_proj")),
    weight("self_attn.gate_bias", "num_attention_heads", role="attn"),
    dense_or(moe(router=Router(buffer=SCORE)), glu()),
    norms=SANDWICH,
    kinds=_last_full,
    ffn=first_dense(default=3),
)
register(
    "kolibri1",
    gqa(norm=QkNorm("head")),
    moe(shared=Shared("shared_expert_intermediate_size")),
    buffer("moe.router.expert_bias", "num_experts", role="mlp.router"),
    kinds=one_full_in(5),
    norms=(*PRE, "post_ffn_norm", "post_attn_norm"),
)


def _flint_kinds(config: Config) -> list[str]:
    """The first two, the last, and every fourth layer attend to everything."""
    last = config.layers - 1
    return ["full_attention" if i < 2 or i % 4 == 1 or i == last else "sliding_attention" for i in range(last + 1)]


def _flint_ffn(config: Config) -> list[str]:
    """Without mlp_only_layers, the first two layers are dense."""
    return sparse_step(
        config if config.get("mlp_only_layers") is not None else config.overlay({"mlp_only_layers": [0, 1]})
    )


register(
    "flint",
    gqa(bias="attention_bias", norm=QkNorm("head"), sinks="softmax_offset"),
    dense_or(moe(shared=Shared("shared_expert_intermediate_size", name="shared_expert.")), glu()),
    kinds=_flint_kinds,
    ffn=_flint_ffn,
)
