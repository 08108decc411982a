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

Overrides = dict[str, Any]

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


class Draw:
    """What one draw has chosen so far, for the special cases below."""

    def __init__(self, rng: Random, defaults: dict[str, Any]) -> None:
        self.rng, self.defaults = rng, defaults
        self.heads = rng.choice([2, 4, 6, 8, 12])
        self.kv = rng.choice([k for k in range(1, self.heads + 1) if self.heads % k == 0])
        self.derived_dim = rng.choice([16, 24, 32, 48])
        self.hidden = self.heads * self.derived_dim
        self.head_dim = rng.choice([16, 32, 48, 64])
        self.layers = rng.randint(3, 7)
        self.width = 16 * rng.randint(5, 40)
        self.vocab = rng.randint(900, 2000)

    def some(self, *values: Any) -> Any:
        return self.rng.choice(values)

    def coin(self) -> bool:
        return self.rng.random() < 0.5


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


#: In an override: leave this key alone.
DROP = object()


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
            linear_num_key_heads=keys, linear_num_value_heads=keys * d.some(1, 2), linear_key_head_dim=d.some(16, 24, 32),
            linear_value_head_dim=d.some(16, 24, 40), linear_conv_kernel_dim=d.some(3, 4),
        )  # fmt: skip
    if "linear_num_heads" in have:
        out.update(linear_num_heads=d.some(2, 4, 6), linear_head_dim=d.some(16, 24, 32))
    if "mamba_d_state" in have:
        out.update(mamba_d_state=d.some(8, 16, 24), mamba_d_conv=d.some(3, 4))
    return out


def _kinds(d: Draw, *names: str) -> list[str]:
    return [d.some(*names) for _ in range(d.layers)]


def _mamba1(d: Draw, out: Overrides) -> Overrides:
    return dict(
        state_size=d.some(8, 16, 24), conv_kernel=d.some(3, 4), expand=d.some(1, 2, 3), time_step_rank=d.some("auto", 7, 12),
        intermediate_size=DROP,
    )  # fmt: skip


def _mamba2(d: Draw, out: Overrides) -> Overrides:
    heads = d.some(4, 8)
    return dict(
        state_size=d.some(8, 16, 24), conv_kernel=d.some(3, 4), expand=2, num_heads=heads, head_dim=16,
        hidden_size=heads * 8, n_groups=d.some(1, 2, 4), time_step_rank="auto",
    )  # fmt: skip


def _mamba_heads(d: Draw, out: Overrides) -> Overrides:
    heads = d.some(4, 8)
    hidden = heads * 16
    return dict(
        hidden_size=hidden, num_attention_heads=4, num_key_value_heads=d.some(1, 2, 4), mamba_n_heads=heads,
        mamba_d_head=32, mamba_n_groups=d.some(1, 2), mamba_expand=2,
    )  # fmt: skip


def _falcon_h1(d: Draw, out: Overrides) -> Overrides:
    heads = d.some(4, 8)
    return dict(mamba_n_heads=heads, mamba_d_head=16, mamba_d_ssm=heads * 16, mamba_n_groups=d.some(1, 2))


def _nemotron_h(d: Draw, out: Overrides) -> Overrides:
    kinds = [d.some("linear_attention", "moe", "full_attention", "mlp") for _ in range(d.rng.randint(4, 8))]
    return dict(
        num_hidden_layers=DROP, layers_block_type=kinds, mamba_num_heads=d.some(4, 8), mamba_head_dim=d.some(16, 24),
        n_groups=d.some(1, 2), ssm_state_size=d.some(8, 16), conv_kernel=d.some(3, 4), n_shared_experts=1,
        moe_latent_size=d.some(None, 32),
    )  # fmt: skip


def _zamba(d: Draw, out: Overrides) -> Overrides:
    for key in list(out):
        out[key] = DROP
    return dict(
        hidden_size=d.heads * 16, num_attention_heads=d.heads, num_key_value_heads=d.heads, intermediate_size=d.width,
        vocab_size=d.vocab, num_hidden_layers=d.rng.randint(5, 12), mamba_d_state=d.some(8, 16),
        mamba_dt_rank=d.some("auto", 5), attn_layer_period=3, attn_layer_offset=1, tie_word_embeddings=d.coin(),
    )  # fmt: skip


def _zamba2(d: Draw, out: Overrides) -> Overrides:
    for key in list(out):
        out[key] = DROP
    heads, layers, hybrid = d.some(4, 8), d.rng.randint(8, 13), [2, 4, 6]
    return dict(
        hidden_size=heads * 16, num_attention_heads=4, num_key_value_heads=4, intermediate_size=d.width,
        vocab_size=d.vocab, num_hidden_layers=layers, mamba_d_state=d.some(8, 16), mamba_ngroups=d.some(1, 2),
        n_mamba_heads=heads, adapter_rank=d.some(8, 12), num_mem_blocks=d.some(1, 2),
        use_shared_attention_adapter=d.coin(), use_shared_mlp_adapter=True, hybrid_layer_ids=hybrid,
        layers_block_type=["hybrid" if i in hybrid else "linear_attention" for i in range(layers)],
        tie_word_embeddings=d.coin(),
    )  # fmt: skip


def _lfm2(d: Draw, out: Overrides) -> Overrides:
    more: Overrides = dict(conv_L_cache=d.some(3, 4), layer_types=_kinds(d, "conv", "full_attention"))
    if "block_auto_adjust_ff_dim" in d.defaults:
        more.update(block_auto_adjust_ff_dim=d.coin(), block_multiple_of=d.some(16, 32))
    return more


def _gemma3n(d: Draw, out: Overrides) -> Overrides:
    layers = d.some(6, 8)
    return dict(
        num_hidden_layers=layers, num_kv_shared_layers=d.some(0, 2), hidden_size_per_layer_input=24, laurel_rank=12,
        altup_num_inputs=d.some(2, 3), vocab_size_per_layer_input=d.vocab - 100,
        layer_types=["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(layers)],
        intermediate_size=d.some(d.width, [16 * (i + 3) for i in range(layers)]),
        activation_sparsity_pattern=[0.0] * layers,
    )  # fmt: skip


def _gemma4(d: Draw, out: Overrides) -> Overrides:
    more: Overrides = dict(
        num_hidden_layers=d.some(6, 7, 8), num_kv_shared_layers=d.some(0, 2), global_head_dim=d.some(64, 96),
        num_global_key_value_heads=d.some(None, d.kv), moe_intermediate_size=24, top_k_experts=2, num_experts=8,
    )  # fmt: skip
    if "hidden_size_per_layer_input" in d.defaults:
        more.update(hidden_size_per_layer_input=d.some(0, 24), vocab_size_per_layer_input=d.vocab - 100)
    return more


def _deepseek_v4(d: Draw, out: Overrides) -> Overrides:
    kinds = ("heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention")
    return dict(
        q_lora_rank=24, o_groups=2, o_lora_rank=d.some(16, 24), hc_mult=d.some(2, 4), head_dim=d.head_dim,
        num_key_value_heads=1, num_hash_layers=1, layer_types=_kinds(d, *kinds),
        mlp_layer_types=["hash_moe"] + ["moe"] * (d.layers - 1),
    )  # fmt: skip


def _dots3(d: Draw, out: Overrides) -> Overrides:
    narrow = dict(
        kv_lora_rank=40, num_attention_heads=2 * d.heads, num_key_value_heads=2 * d.heads, qk_nope_head_dim=24
    )
    return dict(
        layer_types=["indexed_attention" if i % 2 == 0 else "sliding_attention" for i in range(d.layers)],
        mlp_layer_types=["dense"] + ["sparse"] * (d.layers - 1), head_dim=24 + out["qk_rope_head_dim"],
        per_layer_config={i: dict(narrow) for i in range(d.layers) if i % 2},
    )  # fmt: skip


def _inkling(d: Draw, out: Overrides) -> Overrides:
    return dict(
        conv_kernel_size=d.some(3, 4), d_rel=d.some(4, 8), rel_extent=d.some(32, 64), sliding_window_size=16,
        swa_num_attention_heads=2 * d.heads, swa_num_key_value_heads=2 * d.kv, swa_head_dim=out.get("head_dim", d.head_dim),
        layer_types=["hybrid" if i % 3 == 2 else "hybrid_sliding" for i in range(d.layers)],
        mlp_layer_types=["dense"] + ["sparse"] * (d.layers - 1), tie_word_embeddings=False,
    )  # fmt: skip


def _inkling2(d: Draw, out: Overrides) -> Overrides:
    more: Overrides = dict(
        conv_kernel_size=d.some(3, 4), d_rel=d.some(4, 8), rel_extent=d.some(32, 64), sliding_window_size=16,
        layer_types=["hybrid" if i % 3 == 2 else "hybrid_sliding" for i in range(d.layers)], tie_word_embeddings=False,
        unpadded_vocab_size=d.vocab - 20, n_layers_per_attn_res_block=3,
    )  # fmt: skip
    if "loop_gate_rank" in d.defaults:
        layers = d.some(6, 8)
        more.update(
            loop_gate_rank=8, num_hidden_layers=layers, loop_layer_index_start=2, loop_layer_index_end=4,
            layer_types=["hybrid" if i % 2 else "hybrid_sliding" for i in range(layers)], n_layers_per_attn_res_block=2,
        )  # fmt: skip
    return more


def _zaya(d: Draw, out: Overrides) -> Overrides:
    return dict(
        num_key_value_heads=2, num_attention_heads=d.some(4, 8), hidden_size=64 * d.some(1, 2, 3),
        router_hidden_size=d.some(16, 24), head_dim=d.some(16, 32), num_experts_per_tok=1,
    )  # fmt: skip


def _dory(d: Draw, out: Overrides) -> Overrides:
    layers = d.some(6, 8)
    return dict(num_hidden_layers=layers, n_input_layers=2, n_output_layers=2, n_recurrent_layers=layers - 4)


def _dbrx(d: Draw, out: Overrides) -> Overrides:
    return dict(
        num_key_value_heads=DROP, attn_config={"kv_n_heads": d.kv, "rope_theta": 10000.0, "clip_qkv": None},
        ffn_config={"ffn_hidden_size": d.width, "moe_num_experts": 8, "moe_top_k": 2},
    )  # fmt: skip


def _ernie_moe(d: Draw, out: Overrides) -> Overrides:
    return dict(
        moe_layer_start_index=d.some(0, 1), moe_layer_end_index=d.layers - d.some(1, 2), moe_layer_interval=d.some(1, 2)
    )


def _kda(d: Draw, out: Overrides) -> Overrides:
    return dict(
        layer_types=_kinds(d, "linear_attention", "full_attention"),
        mlp_layer_types=["dense"] + ["sparse"] * (d.layers - 1),
    )


Special = Callable[[Draw, Overrides], Overrides]
SPECIAL: dict[str, Special] = {
    "mamba": _mamba1,
    "falcon_mamba": _mamba1,
    "mamba2": _mamba2,
    "jamba": lambda d, out: dict(
        mamba_dt_rank=d.some("auto", 9),
        attn_layer_period=d.some(2, 3),
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=d.some(0, 1),
    ),
    "bamba": lambda d, out: {**_mamba_heads(d, out), "attn_layer_indices": d.some(None, [1], [0, 2])},
    "granitemoehybrid": lambda d, out: {**_mamba_heads(d, out), "layer_types": _kinds(d, "mamba", "attention")},
    "falcon_h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
    "zamba": _zamba,
    "zamba2": _zamba2,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "lfm3": _lfm2,
    "laguna": lambda d, out: dict(num_attention_heads_per_layer=[d.heads * d.some(1, 2) for _ in range(d.layers)]),
    "mllama": lambda d, out: dict(num_hidden_layers=6, cross_attention_layers=[1, 4]),
    "hrm_text": lambda d, out: dict(num_hidden_layers=DROP, num_layers_per_stack=d.layers),
    "longcat_flash": lambda d, out: dict(num_layers=d.layers, num_hidden_layers=DROP, zero_expert_num=d.some(4, 8)),
    "gemma3n_text": _gemma3n,
    "gemma4": _gemma4,
    "gemma4_text": _gemma4,
    "gemma4_unified": _gemma4,
    "gemma4_unified_text": _gemma4,
    "recurrent_gemma": lambda d, out: dict(
        lru_width=d.heads * d.some(8, 16),
        head_dim=DROP,
        intermediate_size=2 * d.width,
    ),
    "rwkv": lambda d, out: dict(attention_hidden_size=d.hidden),
    "xlstm": lambda d, out: dict(
        embedding_dim=DROP, num_blocks=DROP, num_heads=4, hidden_size=32 * d.rng.randint(2, 6)
    ),
    "dory": _dory,
    "dbrx": _dbrx,
    "falcon": lambda d, out: dict(num_kv_heads=d.kv, num_ln_in_parallel_attn=d.some(None, 1, 2)),
    "opt": lambda d, out: dict(word_embed_proj_dim=d.some(d.hidden, d.hidden // 2)),
    "gpt_bigcode": lambda d, out: dict(num_key_value_heads=DROP),
    "cpmant": lambda d, out: dict(dim_head=d.head_dim),
    "jetmoe": lambda d, out: dict(
        kv_channels=d.some(16, 24), num_key_value_heads=d.kv, num_attention_heads=2 * d.kv, head_dim=DROP
    ),
    "gptj": lambda d, out: dict(rotary_dim=8),
    "codegen": lambda d, out: dict(rotary_dim=8, n_head=d.some(4, 8), n_embd=8 * d.some(24, 32, 48)),
    "gpt_neo": lambda d, out: dict(
        attention_types=[[["global", "local"], d.layers // 2 + 1]], num_layers=2 * (d.layers // 2 + 1)
    ),
    "ernie4_5_moe": _ernie_moe,
    "moshi": lambda d, out: dict(ffn_dim=2 * d.width, head_dim=d.derived_dim),
    "cohere2_moe": lambda d, out: dict(
        prefix_dense_intermediate_size=d.width, first_k_dense_replace=d.some(0, 1), num_shared_experts=d.some(0, 2)
    ),
    "doge": lambda d, out: dict(is_moe=False),
    "hunyuan_v1_dense": lambda d, out: dict(head_dim=d.head_dim),
    "hunyuan_v1_moe": lambda d, out: dict(head_dim=d.head_dim),
    "ministral": lambda d, out: dict(head_dim=d.head_dim),
    "nemotron": lambda d, out: dict(head_dim=d.head_dim),
    "dots1": lambda d, out: dict(n_routed_experts=16, n_shared_experts=d.some(1, 2), first_k_dense_replace=1),
    "kimi_linear": _kda,
    "bailing_hybrid": _kda,
    "axk2": lambda d, out: dict(gated_norm_rank=d.some(8, 12)),
    "hy_v4": lambda d, out: dict(hc_mult=d.some(2, 3, 4)),
    "deepseek_v4": _deepseek_v4,
    "dots3_note": _dots3,
    "dots3_note_text": _dots3,
    "inkling_text": _inkling,
    "inkling2_text": _inkling2,
    "inkling2_loop_text": _inkling2,
    "zaya": _zaya,
    "electra": lambda d, out: dict(embedding_size=d.some(d.hidden, 32, 48)),
    "rembert": lambda d, out: dict(input_embedding_size=d.some(32, 48), output_embedding_size=d.some(40, 56)),
    "roc_bert": lambda d, out: dict(
        pronunciation_embed_dim=24,
        shape_embed_dim=32,
        pronunciation_vocab_size=50,
        shape_vocab_size=60,
        enable_pronunciation=d.coin(),
        enable_shape=True,
    ),
    "roformer": lambda d, out: dict(embedding_size=d.some(d.hidden, 32)),
    "marian": lambda d, out: dict(decoder_vocab_size=d.vocab, pad_token_id=0),
    "xlnet": lambda d, out: dict(d_head=DROP),
    "xmod": lambda d, out: dict(languages=d.some(["en_XX"], ["en_XX", "de_DE"])),
    "prophetnet": lambda d, out: dict(ngram=2),
}
