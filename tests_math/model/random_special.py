"""What the random configs of single model_types need beside the common draw (random_configs.py)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

Overrides = dict[str, Any]


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


#: In an override: leave this key alone.
DROP = object()


def _kinds(d: Draw, *names: str) -> list[str]:
    return [d.some(*names) for _ in range(d.layers)]


def _mamba1(d: Draw, out: Overrides) -> Overrides:
    return {
        "state_size": d.some(8, 16, 24),
        "conv_kernel": d.some(3, 4),
        "expand": d.some(1, 2, 3),
        "time_step_rank": d.some("auto", 7, 12),
        "intermediate_size": DROP,
    }


def _mamba2(d: Draw, out: Overrides) -> Overrides:
    heads = d.some(4, 8)
    return {
        "state_size": d.some(8, 16, 24),
        "conv_kernel": d.some(3, 4),
        "expand": 2,
        "num_heads": heads,
        "head_dim": 16,
        "hidden_size": heads * 8,
        "n_groups": d.some(1, 2, 4),
        "time_step_rank": "auto",
    }


def _mamba_heads(d: Draw, out: Overrides) -> Overrides:
    heads = d.some(4, 8)
    hidden = heads * 16
    return {
        "hidden_size": hidden,
        "num_attention_heads": 4,
        "num_key_value_heads": d.some(1, 2, 4),
        "mamba_n_heads": heads,
        "mamba_d_head": 32,
        "mamba_n_groups": d.some(1, 2),
        "mamba_expand": 2,
    }


def _falcon_h1(d: Draw, out: Overrides) -> Overrides:
    heads = d.some(4, 8)
    return {"mamba_n_heads": heads, "mamba_d_head": 16, "mamba_d_ssm": heads * 16, "mamba_n_groups": d.some(1, 2)}


def _nemotron_h(d: Draw, out: Overrides) -> Overrides:
    kinds = [d.some("linear_attention", "moe", "full_attention", "mlp") for _ in range(d.rng.randint(4, 8))]
    return {
        "num_hidden_layers": DROP,
        "layers_block_type": kinds,
        "mamba_num_heads": d.some(4, 8),
        "mamba_head_dim": d.some(16, 24),
        "n_groups": d.some(1, 2),
        "ssm_state_size": d.some(8, 16),
        "conv_kernel": d.some(3, 4),
        "n_shared_experts": 1,
        "moe_latent_size": d.some(None, 32),
    }


def _zamba(d: Draw, out: Overrides) -> Overrides:
    for key in list(out):
        out[key] = DROP
    return {
        "hidden_size": d.heads * 16,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.heads,
        "intermediate_size": d.width,
        "vocab_size": d.vocab,
        "num_hidden_layers": d.rng.randint(5, 12),
        "mamba_d_state": d.some(8, 16),
        "mamba_dt_rank": d.some("auto", 5),
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "tie_word_embeddings": d.coin(),
    }


def _zamba2(d: Draw, out: Overrides) -> Overrides:
    for key in list(out):
        out[key] = DROP
    heads, layers, hybrid = d.some(4, 8), d.rng.randint(8, 13), [2, 4, 6]
    return {
        "hidden_size": heads * 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": d.width,
        "vocab_size": d.vocab,
        "num_hidden_layers": layers,
        "mamba_d_state": d.some(8, 16),
        "mamba_ngroups": d.some(1, 2),
        "n_mamba_heads": heads,
        "adapter_rank": d.some(8, 12),
        "num_mem_blocks": d.some(1, 2),
        "use_shared_attention_adapter": d.coin(),
        "use_shared_mlp_adapter": True,
        "hybrid_layer_ids": hybrid,
        "layers_block_type": ["hybrid" if i in hybrid else "linear_attention" for i in range(layers)],
        "tie_word_embeddings": d.coin(),
    }


def _lfm2(d: Draw, out: Overrides) -> Overrides:
    more: Overrides = {"conv_L_cache": d.some(3, 4), "layer_types": _kinds(d, "conv", "full_attention")}
    if "block_auto_adjust_ff_dim" in d.defaults:
        more.update(block_auto_adjust_ff_dim=d.coin(), block_multiple_of=d.some(16, 32))
    return more


def _gemma3n(d: Draw, out: Overrides) -> Overrides:
    layers = d.some(6, 8)
    return {
        "num_hidden_layers": layers,
        "num_kv_shared_layers": d.some(0, 2),
        "hidden_size_per_layer_input": 24,
        "laurel_rank": 12,
        "altup_num_inputs": d.some(2, 3),
        "vocab_size_per_layer_input": d.vocab - 100,
        "layer_types": ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(layers)],
        "intermediate_size": d.some(d.width, [16 * (i + 3) for i in range(layers)]),
        "activation_sparsity_pattern": [0.0] * layers,
    }


def _gemma4(d: Draw, out: Overrides) -> Overrides:
    more: Overrides = {
        "num_hidden_layers": d.some(6, 7, 8),
        "num_kv_shared_layers": d.some(0, 2),
        "global_head_dim": d.some(64, 96),
        "num_global_key_value_heads": d.some(None, d.kv),
        "moe_intermediate_size": 24,
        "top_k_experts": 2,
        "num_experts": 8,
    }
    if "hidden_size_per_layer_input" in d.defaults:
        more.update(hidden_size_per_layer_input=d.some(0, 24), vocab_size_per_layer_input=d.vocab - 100)
    return more


def _deepseek_v4(d: Draw, out: Overrides) -> Overrides:
    kinds = ("heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention")
    return {
        "q_lora_rank": 24,
        "o_groups": 2,
        "o_lora_rank": d.some(16, 24),
        "hc_mult": d.some(2, 4),
        "head_dim": d.head_dim,
        "num_key_value_heads": 1,
        "num_hash_layers": 1,
        "layer_types": _kinds(d, *kinds),
        "mlp_layer_types": ["hash_moe"] + ["moe"] * (d.layers - 1),
    }


def _dots3(d: Draw, out: Overrides) -> Overrides:
    narrow = {
        "kv_lora_rank": 40,
        "num_attention_heads": 2 * d.heads,
        "num_key_value_heads": 2 * d.heads,
        "qk_nope_head_dim": 24,
    }
    return {
        "layer_types": ["indexed_attention" if i % 2 == 0 else "sliding_attention" for i in range(d.layers)],
        "mlp_layer_types": ["dense"] + ["sparse"] * (d.layers - 1),
        "head_dim": 24 + out["qk_rope_head_dim"],
        "per_layer_config": {i: dict(narrow) for i in range(d.layers) if i % 2},
    }


def _inkling(d: Draw, out: Overrides) -> Overrides:
    return {
        "conv_kernel_size": d.some(3, 4),
        "d_rel": d.some(4, 8),
        "rel_extent": d.some(32, 64),
        "sliding_window_size": 16,
        "swa_num_attention_heads": 2 * d.heads,
        "swa_num_key_value_heads": 2 * d.kv,
        "swa_head_dim": out.get("head_dim", d.head_dim),
        "layer_types": ["hybrid" if i % 3 == 2 else "hybrid_sliding" for i in range(d.layers)],
        "mlp_layer_types": ["dense"] + ["sparse"] * (d.layers - 1),
        "tie_word_embeddings": False,
    }


def _inkling2(d: Draw, out: Overrides) -> Overrides:
    more: Overrides = {
        "conv_kernel_size": d.some(3, 4),
        "d_rel": d.some(4, 8),
        "rel_extent": d.some(32, 64),
        "sliding_window_size": 16,
        "layer_types": ["hybrid" if i % 3 == 2 else "hybrid_sliding" for i in range(d.layers)],
        "tie_word_embeddings": False,
        "unpadded_vocab_size": d.vocab - 20,
        "n_layers_per_attn_res_block": 3,
    }
    if "loop_gate_rank" in d.defaults:
        layers = d.some(6, 8)
        more.update(
            loop_gate_rank=8,
            num_hidden_layers=layers,
            loop_layer_index_start=2,
            loop_layer_index_end=4,
            layer_types=["hybrid" if i % 2 else "hybrid_sliding" for i in range(layers)],
            n_layers_per_attn_res_block=2,
        )
    return more


def _zaya(d: Draw, out: Overrides) -> Overrides:
    return {
        "num_key_value_heads": 2,
        "num_attention_heads": d.some(4, 8),
        "hidden_size": 64 * d.some(1, 2, 3),
        "router_hidden_size": d.some(16, 24),
        "head_dim": d.some(16, 32),
        "num_experts_per_tok": 1,
    }


def _dory(d: Draw, out: Overrides) -> Overrides:
    layers = d.some(6, 8)
    return {"num_hidden_layers": layers, "n_input_layers": 2, "n_output_layers": 2, "n_recurrent_layers": layers - 4}


def _dbrx(d: Draw, out: Overrides) -> Overrides:
    return {
        "num_key_value_heads": DROP,
        "attn_config": {"kv_n_heads": d.kv, "rope_theta": 10000.0, "clip_qkv": None},
        "ffn_config": {"ffn_hidden_size": d.width, "moe_num_experts": 8, "moe_top_k": 2},
    }


def _ernie_moe(d: Draw, out: Overrides) -> Overrides:
    return {
        "moe_layer_start_index": d.some(0, 1),
        "moe_layer_end_index": d.layers - d.some(1, 2),
        "moe_layer_interval": d.some(1, 2),
    }


def _kda(d: Draw, out: Overrides) -> Overrides:
    return {
        "layer_types": _kinds(d, "linear_attention", "full_attention"),
        "mlp_layer_types": ["dense"] + ["sparse"] * (d.layers - 1),
    }


Special = Callable[[Draw, Overrides], Overrides]
SPECIAL: dict[str, Special] = {
    "mamba": _mamba1,
    "falcon_mamba": _mamba1,
    "mamba2": _mamba2,
    "jamba": lambda d, out: {
        "mamba_dt_rank": d.some("auto", 9),
        "attn_layer_period": d.some(2, 3),
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": d.some(0, 1),
    },
    "bamba": lambda d, out: {**_mamba_heads(d, out), "attn_layer_indices": d.some(None, [1], [0, 2])},
    "granitemoehybrid": lambda d, out: {**_mamba_heads(d, out), "layer_types": _kinds(d, "mamba", "attention")},
    "falcon_h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
    "zamba": _zamba,
    "zamba2": _zamba2,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "lfm3": _lfm2,
    "laguna": lambda d, out: {"num_attention_heads_per_layer": [d.heads * d.some(1, 2) for _ in range(d.layers)]},
    "mllama": lambda d, out: {"num_hidden_layers": 6, "cross_attention_layers": [1, 4]},
    "hrm_text": lambda d, out: {"num_hidden_layers": DROP, "num_layers_per_stack": d.layers},
    "longcat_flash": lambda d, out: {
        "num_layers": d.layers,
        "num_hidden_layers": DROP,
        "zero_expert_num": d.some(4, 8),
    },
    "gemma3n_text": _gemma3n,
    "gemma4": _gemma4,
    "gemma4_text": _gemma4,
    "gemma4_unified": _gemma4,
    "gemma4_unified_text": _gemma4,
    "recurrent_gemma": lambda d, out: {
        "lru_width": d.heads * d.some(8, 16),
        "head_dim": DROP,
        "intermediate_size": 2 * d.width,
    },
    "rwkv": lambda d, out: {"attention_hidden_size": d.hidden},
    "xlstm": lambda d, out: {
        "embedding_dim": DROP,
        "num_blocks": DROP,
        "num_heads": 4,
        "hidden_size": 32 * d.rng.randint(2, 6),
    },
    "dory": _dory,
    "dbrx": _dbrx,
    "falcon": lambda d, out: {"num_kv_heads": d.kv, "num_ln_in_parallel_attn": d.some(None, 1, 2)},
    "opt": lambda d, out: {"word_embed_proj_dim": d.some(d.hidden, d.hidden // 2)},
    "gpt_bigcode": lambda d, out: {"num_key_value_heads": DROP},
    "cpmant": lambda d, out: {"dim_head": d.head_dim},
    "jetmoe": lambda d, out: {
        "kv_channels": d.some(16, 24),
        "num_key_value_heads": d.kv,
        "num_attention_heads": 2 * d.kv,
        "head_dim": DROP,
    },
    "gptj": lambda d, out: {"rotary_dim": 8},
    "codegen": lambda d, out: {"rotary_dim": 8, "n_head": d.some(4, 8), "n_embd": 8 * d.some(24, 32, 48)},
    "gpt_neo": lambda d, out: {
        "attention_types": [[["global", "local"], d.layers // 2 + 1]],
        "num_layers": 2 * (d.layers // 2 + 1),
    },
    "ernie4_5_moe": _ernie_moe,
    "moshi": lambda d, out: {"ffn_dim": 2 * d.width, "head_dim": d.derived_dim},
    "cohere2_moe": lambda d, out: {
        "prefix_dense_intermediate_size": d.width,
        "first_k_dense_replace": d.some(0, 1),
        "num_shared_experts": d.some(0, 2),
    },
    "doge": lambda d, out: {"is_moe": False},
    "hunyuan_v1_dense": lambda d, out: {"head_dim": d.head_dim},
    "hunyuan_v1_moe": lambda d, out: {"head_dim": d.head_dim},
    "ministral": lambda d, out: {"head_dim": d.head_dim},
    "nemotron": lambda d, out: {"head_dim": d.head_dim},
    "dots1": lambda d, out: {"n_routed_experts": 16, "n_shared_experts": d.some(1, 2), "first_k_dense_replace": 1},
    "kimi_linear": _kda,
    "bailing_hybrid": _kda,
    "axk2": lambda d, out: {"gated_norm_rank": d.some(8, 12)},
    "hy_v4": lambda d, out: {"hc_mult": d.some(2, 3, 4)},
    "deepseek_v4": _deepseek_v4,
    "dots3_note": _dots3,
    "dots3_note_text": _dots3,
    "inkling_text": _inkling,
    "inkling2_text": _inkling2,
    "inkling2_loop_text": _inkling2,
    "zaya": _zaya,
    "electra": lambda d, out: {"embedding_size": d.some(d.hidden, 32, 48)},
    "rembert": lambda d, out: {"input_embedding_size": d.some(32, 48), "output_embedding_size": d.some(40, 56)},
    "roc_bert": lambda d, out: {
        "pronunciation_embed_dim": 24,
        "shape_embed_dim": 32,
        "pronunciation_vocab_size": 50,
        "shape_vocab_size": 60,
        "enable_pronunciation": d.coin(),
        "enable_shape": True,
    },
    "roformer": lambda d, out: {"embedding_size": d.some(d.hidden, 32)},
    "marian": lambda d, out: {"decoder_vocab_size": d.vocab, "pad_token_id": 0},
    "xlnet": lambda d, out: {"d_head": DROP},
    "xmod": lambda d, out: {"languages": d.some(["en_XX"], ["en_XX", "de_DE"])},
    "prophetnet": lambda d, out: {"ngram": 2},
}
#: What draws leave to the class, and why; each of these keys is changed alone in test_one_key_transformers.py.
DROPPED = {
    "mamba": "intermediate_size: it wins over expand, which is drawn",
    "falcon_mamba": "intermediate_size: it wins over expand, which is drawn",
    "nemotron_h": "num_hidden_layers: layers_block_type says how many",
    "zamba": "all that is common: sizes depend on each other",
    "zamba2": "all that is common: sizes depend on each other",
    "hrm_text": "num_hidden_layers: num_layers_per_stack says how many",
    "longcat_flash": "num_hidden_layers: num_layers says how many",
    "recurrent_gemma": "head_dim: hidden_size / heads",
    "xlstm": "embedding_dim, num_blocks: second names of hidden_size and num_hidden_layers",
    "dbrx": "num_key_value_heads: attn_config has them",
    "gpt_bigcode": "num_key_value_heads: multi_query says them",
    "jetmoe": "head_dim: kv_channels is it",
    "xlnet": "d_head: d_model / n_head",
}
