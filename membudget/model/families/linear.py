"""Hybrids of attention and linear attention: Qwen3-Next/3.5, Kimi-Linear, LFM2, MiniMax, OLMo-hybrid, Lara."""

from __future__ import annotations

from membudget.model.attention import Gate, QkNorm, gqa
from membudget.model.blocks import by_kind, dense_or, norms, project, when
from membudget.model.config import Config
from membudget.model.families.base import first_dense, one_full_linear, pattern, register, sparse_step
from membudget.model.families.experts import QWEN_SHARED, STACKED, mixtral
from membudget.model.families.heads import mtp_block
from membudget.model.feedforward import Router, Shared, Stacked, glu, moe, times
from membudget.model.latent import mla
from membudget.model.state import delta_net, kda, lightning, short_conv

GATED = gqa(bias="attention_bias", norm=QkNorm("head"), gate=Gate(in_q=True))
NEXT = by_kind({"linear_attention": delta_net("qkvz_ba"), "full_attention": GATED})
QWEN35 = by_kind({"linear_attention": delta_net("qkv_z_b_a"), "full_attention": GATED})

register(
    "qwen3_next",
    NEXT,
    dense_or(QWEN_SHARED, glu()),
    kinds=one_full_linear(),
    ffn=sparse_step,
    mtp=mtp_block(),
)
register("qwen3_5_text", QWEN35, glu(), kinds=one_full_linear(), mtp=mtp_block())
register("qwen3_5_moe_text", QWEN35, QWEN_SHARED, kinds=one_full_linear(), mtp=mtp_block())
register(
    "lara_mini",
    by_kind({"linear_attention": delta_net("all")}, gqa(bias="attention_bias", norm=QkNorm("head"))),
    moe(stacked=Stacked(STACKED), shared=Shared("shared_expert_intermediate_size", name="shared_expert.")),
    kinds=pattern("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention"),
)


def _olmo_kinds(config: Config) -> list[str]:
    """Every fourth layer is attention, and the last where there are fewer."""
    kinds = one_full_linear()(config)
    return kinds if "full_attention" in kinds else [*kinds[:-1], "full_attention"]


def _olmo(config: Config) -> dict[str, int]:
    """OLMo-hybrid: as many linear heads as attention heads, keys three quarters as wide, values twice that."""
    heads = config.integer("linear_num_key_heads", config.heads)
    key = config.integer("linear_key_head_dim", int(0.75 * config.integer("hidden_size") / heads))
    return {
        "linear_num_key_heads": heads,
        "linear_num_value_heads": config.integer("linear_num_value_heads", config.heads),
        "linear_key_head_dim": key,
        "linear_value_head_dim": config.integer("linear_value_head_dim", 2 * key),
    }


register(
    "olmo_hybrid",
    by_kind(
        {"linear_attention": delta_net("split"), "full_attention": gqa(bias="attention_bias", norm=QkNorm("full"))},
    ),
    glu(),
    when(
        lambda layer: layer.kind == "linear_attention",
        norms("attention_layer_norm", "feedforward_layer_norm"),
        norms("post_attention_layernorm", "post_feedforward_layernorm"),
    ),
    norms=(),
    kinds=_olmo_kinds,
    derive=_olmo,
)


def _kimi_kinds(config: Config) -> list[str]:
    """Kimi-Linear: linear_attn_config lists the layers of either kind, counted from 1."""
    listed = config.section("linear_attn_config").integers("full_attn_layers")
    if listed is None:
        return ["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(config.layers)]
    return ["full_attention" if i + 1 in listed else "linear_attention" for i in range(config.layers)]


def _kimi(config: Config) -> dict[str, int]:
    """Sizes from linear_attn_config; what Kimi-K3 adds to Kimi-Linear has no recipe and is refused."""
    for key in ("attn_res_block_size", "latent_moe_use_norm", "mla_use_output_gate", "routed_expert_hidden_size"):
        if config.get(key):
            raise config.error(key, "is set, which kimi_linear does not have", "its absence: there is no recipe for it")
    linear = config.section("linear_attn_config")
    names = {
        "linear_num_heads": "num_heads",
        "linear_head_dim": "head_dim",
        "linear_conv_kernel_dim": "short_conv_kernel_size",
    }
    return {key: linear.integer(name) for key, name in names.items() if linear.get(name) is not None}


register(
    "kimi_linear",
    by_kind({"linear_attention": kda(low_rank=True), "full_attention": mla(bias="attention_bias")}),
    dense_or(
        moe(
            names=("w1", "w3", "w2"),
            router=Router(top_k="num_experts_per_tok", buffer="gate.e_score_correction_bias"),
            shared=Shared(
                times("moe_intermediate_size", "num_shared_experts"), names=("gate_proj", "up_proj", "down_proj")
            ),
            name="block_sparse_moe.",
        ),
        glu(),
    ),
    tied=False,
    kinds=_kimi_kinds,
    ffn=first_dense(default=1),
    derive=_kimi,
)


def _bailing(config: Config) -> dict[str, int]:
    """The linear layers have the attention's heads, and head_dim as the file has it."""
    found = {}
    for key, other in (
        ("linear_head_dim", "head_dim"),
        ("linear_num_heads", "num_attention_heads"),
        ("linear_conv_kernel_dim", "short_conv_kernel_size"),
    ):
        if config.get(key) is None:
            found[key] = config.integer(other)
    return found


def _bailing_kinds(config: Config) -> list[str]:
    """Every layer_group_size-th layer is attention."""
    group = config.integer("layer_group_size", 4)
    return ["linear_attention" if (i + 1) % group else "full_attention" for i in range(config.layers)]


register(
    "bailing_hybrid",
    by_kind(
        {
            "linear_attention": kda(low_rank=False, name="attention.", out="dense"),
            "full_attention": mla(bias="attention_bias", name="attention.", out="dense", gate="g_proj"),
        }
    ),
    dense_or(
        moe(
            router=Router(buffer="gate.expert_bias"),
            shared=Shared(times("moe_intermediate_size", "num_shared_experts")),
        ),
        glu(),
    ),
    embed="word_embeddings",
    tied=False,
    kinds=_bailing_kinds,
    derive=_bailing,
    ffn=first_dense(default=1),
)


def _lfm2_width(layer: object) -> int:
    """LFM2: two thirds of intermediate_size, times a factor, rounded up to a multiple."""
    c: Config = layer.config  # type: ignore[attr-defined]
    # the name that LFM2 was published with wins in its class
    width = c.integer("block_ff_dim", c.integer("intermediate_size"))
    if not c.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    width = int(c.factor("block_ffn_dim_multiplier", 1.0) * width)
    multiple = c.integer("block_multiple_of", 256)
    return -(-width // multiple) * multiple


def _lfm2_kinds(config: Config) -> list[str]:
    listed = config.integers("full_attn_idxs")
    return ["full_attention" if listed is None or i in listed else "conv" for i in range(config.layers)]


W132 = ("w1", "w3", "w2")
LFM2_ATTENTION = gqa(
    norm=QkNorm("head", names=("q_layernorm", "k_layernorm")), names=("q_proj", "k_proj", "v_proj", "out_proj")
)
LFM2 = {"norms": ("operator_norm", "ffn_norm"), "final": "embedding_norm", "kinds": _lfm2_kinds}
register(
    "lfm2",
    by_kind({"full_attention": LFM2_ATTENTION, "conv": short_conv()}),
    glu(width=_lfm2_width, name="feed_forward.", names=W132),
    **LFM2,
)
register(
    "lfm2_moe",
    by_kind({"full_attention": LFM2_ATTENTION, "conv": short_conv()}),
    dense_or(
        moe(names=W132, router=Router(buffer="expert_bias"), name="feed_forward."),
        glu(name="feed_forward.", names=W132),
    ),
    ffn=first_dense("num_dense_layers"),
    **LFM2,
)


def _lfm3_kinds(config: Config) -> list[str]:
    """Of four layers the third attends to everything and the first slides, but not the very first."""
    kinds = {2: "full_attention", 0: "sliding_attention"}
    return ["conv" if i == 0 else kinds.get(i % 4, "conv") for i in range(config.layers)]


LFM3_GATE = project("self_attn.gate_proj", "num_attention_heads", role="attn")
register(
    "lfm3",
    by_kind(
        {"conv": short_conv()},
        gqa(bias="attention_bias", norm=QkNorm("head")),
    ),
    when(lambda layer: layer.kind != "conv" and layer.config.flag("use_attention_gate"), LFM3_GATE),
    when("use_sandwich_norm", norms("post_operator_norm", "post_ffn_norm")),
    glu(name="feed_forward.", names=W132),
    **{**LFM2, "kinds": _lfm3_kinds},
)


def _minimax_kinds(config: Config) -> list[str]:
    """attn_type_list: 1 is attention, 0 lightning; else every other layer is."""
    listed = config.integers("attn_type_list", config.layers)
    picked = listed or [(i + 1) % 2 for i in range(config.layers)]
    return ["full_attention" if one else "linear_attention" for one in picked]


register(
    "minimax",
    by_kind({"full_attention": gqa(), "linear_attention": lightning()}),
    mixtral(),
    kinds=_minimax_kinds,
)
