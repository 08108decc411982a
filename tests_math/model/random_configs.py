"""Small random configs for every causal-LM model_type: each key that changes a shape varies.

A recipe that is right on a class's default config is often wrong on the next one (a
bias flag, an ignored tie flag), so every draw moves widths, heads, ranks, layer
patterns and flags independently.  `draw` takes the class's own defaults and a random
source (``random.Random``, or hypothesis' ``st.randoms()``), and returns overrides for
the text config.  It needs no transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests_math.model.random_special import DROP, SPECIAL, Draw, Overrides

HIDDEN = ("hidden_size", "n_embd", "d_model", "embedding_dim", "emb_dim")
HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "decoder_attention_heads",
    "encoder_attention_heads", "num_decoder_attention_heads", "num_encoder_attention_heads",
)  # fmt: skip
LAYERS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers",
    "num_decoder_layers", "num_encoder_layers", "num_blocks",
)  # fmt: skip
WIDTHS = (
    "intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "d_inner", "dim_ff", "dff",
    "ffn_hidden_size", "intermediate_size_mlp", "dense_intermediate_size",
)  # fmt: skip
EXPERT_WIDTHS = (
    "moe_intermediate_size", "expert_ffn_hidden_size", "shared_expert_intermediate_size",
    "shared_intermediate_size", "moe_shared_expert_intermediate_size", "shared_experts_intermediate_size",
)  # fmt: skip
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
FLAGS = (
    "attention_bias", "mlp_bias", "use_bias", "qkv_bias", "use_qk_norm", "qk_layernorm", "use_qkv_bias",
    "use_conv_bias", "mamba_conv_bias", "mamba_proj_bias", "attention_out_bias", "lm_head_bias",
    "use_parallel_residual", "parallel_attn", "multi_query", "new_decoder_architecture", "bias",
    "mamba_rms_norm", "projectors_bias", "use_post_norm", "gating", "use_sandwich_norm", "use_attention_gate",
    "conv_bias", "enable_bias", "enable_moe_block", "use_double_wide_mlp", "attention_k_eq_v", "decoder_bias",
    "norm_bias",
)  # fmt: skip
#: Types whose class insists on a q_lora_rank.
NEEDS_Q_RANK = {
    "longcat_flash", "minicpm3", "glm4_moe_lite", "axk1", "axk2", "hy_v4", "deepseek_v4", "deepseek_v32",
    "glm_moe_dsa", "dots3_note", "dots3_note_text",
}  # fmt: skip
#: Types with one key/value head a query head.
MHA_ONLY = {
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "minicpm3", "youtu", "axk1", "axk2",
    "glm4_moe_lite", "sarvam_mla", "kimi_linear", "bailing_hybrid", "hy_v4", "longcat_flash", "dots3_note",
    "dots3_note_text",
}  # fmt: skip


def draw(model_type: str, defaults: dict[str, Any], rng: Random) -> Overrides:
    """Overrides for the text config of `model_type`, whose class defaults are `defaults`."""
    d = Draw(rng, defaults)
    out = _common(model_type, d)
    special = SPECIAL.get(model_type)
    if special is not None:
        out.update(special(d, out))
    out = {key: value for key, value in out.items() if value is not DROP}
    for key in FLAGS:
        if isinstance(defaults.get(key), bool) and key not in out:
            out[key] = d.coin()
    pad = defaults.get("pad_token_id")
    if isinstance(pad, int) and not 0 <= pad < out.get("vocab_size", d.vocab):
        out["pad_token_id"] = 0
    return out


def _common(model_type: str, d: Draw) -> Overrides:
    out: Overrides = {}
    have = d.defaults

    def put(keys: tuple[str, ...], value: Callable[[], Any], *, ints: bool = False) -> None:
        for key in keys:
            if key in have and (not ints or (isinstance(have[key], int) and have[key])):
                out[key] = value()

    put(HIDDEN, lambda: d.hidden)
    put(HEADS, lambda: d.heads)
    put(LAYERS, lambda: d.layers)
    put(("num_key_value_heads",), lambda: d.heads if model_type in MHA_ONLY else d.kv)
    if have.get("head_dim") is not None and "qk_nope_head_dim" not in have:
        out["head_dim"] = d.head_dim
    put(tuple(k for k in WIDTHS if not isinstance(have.get(k), list)), lambda: 16 * d.rng.randint(5, 40))
    put(("n_inner",), lambda: d.some(None, d.width))
    put(("vocab_size",), lambda: d.vocab)
    put(("tie_word_embeddings",), d.coin)
    put(EXPERT_WIDTHS, lambda: 8 * d.rng.randint(3, 20), ints=True)
    experts = 8 * d.rng.randint(1, 3)
    put(EXPERTS, lambda: experts)
    put(SHARED, lambda: d.rng.randint(1, 3), ints=True)
    put(("num_experts_per_tok", "moe_topk", "moe_k"), lambda: 2)
    put(("n_group", "topk_group", "num_expert_group"), lambda: 1)
    put(("first_k_dense_replace", "num_dense_layers"), lambda: d.rng.randint(0, 2))
    put(("decoder_sparse_step", "interleave_moe_layer_step"), lambda: d.rng.randint(1, 2))
    put(("mlp_only_layers",), lambda: d.some([], [0], [1]))
    put(("q_lora_rank",), lambda: d.some(24, 40, 48) if model_type in NEEDS_Q_RANK else d.some(None, 24, 48))
    put(("kv_lora_rank",), lambda: 8 * d.rng.randint(2, 9))
    put(("qk_nope_head_dim", "v_head_dim"), lambda: 8 * d.rng.randint(1, 6))
    if "qk_nope_head_dim" in have:
        out["qk_rope_head_dim"] = 8 * d.rng.randint(1, 4)
    elif "v_head_dim" in out and model_type != "mimo_v2_flash":
        out.pop("v_head_dim")
    if "index_n_heads" in have:
        out.update(index_n_heads=d.some(2, 4), index_head_dim=d.some(32, 48))
    if "linear_num_key_heads" in have:
        keys = d.some(2, 4)
        out.update(
            linear_num_key_heads=keys,
            linear_num_value_heads=keys * d.some(1, 2),
            linear_key_head_dim=d.some(16, 24, 32),
            linear_value_head_dim=d.some(16, 24, 40),
            linear_conv_kernel_dim=d.some(3, 4),
        )
    if "linear_num_heads" in have:
        out.update(linear_num_heads=d.some(2, 4, 6), linear_head_dim=d.some(16, 24, 32))
    if "mamba_d_state" in have:
        out.update(mamba_d_state=d.some(8, 16, 24), mamba_d_conv=d.some(3, 4))
    return out
