"""Names of tensors in GGUF files that one model type has for itself, and what its converter does to their shapes.

Source: llama.cpp's converters (conversion/*.py, modify_tensors) and loaders (src/models/*.cpp, load_arch_tensors).
"""

from __future__ import annotations

#: A tensor that the converter leaves out: computed at load, or its values lie in the metadata.
DROPPED = "-"

#: Gate and up in one tensor of the checkpoint, two of the file: the name given here, and the two.
HALVES = {
    "ffn_gate_up_exps/2": ("ffn_gate_exps", "ffn_up_exps"),
    "ffn_gate_up_shexp/2": ("ffn_gate_shexp", "ffn_up_shexp"),
    "ffn_gate_up/2": ("ffn_gate", "ffn_up"),
}

#: Model types whose states are one number a head (Mamba 2): columns in the file, their norm by groups.
HEADED = ("bailing_hybrid", "mamba2", "bamba", "granitemoehybrid", "nemotron_h", "falcon_h1")

#: Conv1D layers of GPT-2 lie the other way round in the checkpoint.
TRANSPOSED = {"gpt2": ("attn_qkv", "attn_output", "ffn_up", "ffn_down"), "dbrx": ("ffn_down_exps",)}

_NORM_AFTER = {"post_attention_layernorm": "post_attention_norm"}
_ATTENTION = {
    **{f"attention.{p}_proj": f"attn_{p}" for p in "qkv"},
    "attention.query_layernorm": "attn_q_norm",
    "attention.key_layernorm": "attn_k_norm",
}
_KDA = {
    **{f"{at}.{p}_conv1d": f"ssm_conv1d_{p}" for at in ("self_attn", "attention") for p in "qkv"},
    **{f"{at}.{hf}": f"ssm_{ours}" for at in ("self_attn", "attention") for hf, ours in (
        ("A_log", "a"), ("dt_bias", "dt.bias"), ("b_proj", "beta"), ("f_a_proj", "f_a"), ("f_b_proj", "f_b"),
        ("g_a_proj", "g_a"), ("g_b_proj", "g_b"), ("o_norm", "norm"), ("f_proj", "f_a"))},
}  # fmt: skip
_GRANITE = {
    "block_sparse_moe.input_linear": "ffn_gate_up_exps/2",
    "block_sparse_moe.output_linear": "ffn_down_exps",
    "block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps/2",
    "block_sparse_moe.experts.down_proj": "ffn_down_exps",
    "shared_mlp.input_linear": "ffn_gate_up_shexp/2",
    "shared_mlp.output_linear": "ffn_down_shexp",
}

#: By model type: what follows the layer's number in the checkpoint (or the whole name outside layers), and the name
#: in the file.
OF_TYPE: dict[str, dict[str, str]] = {
    **dict.fromkeys(
        (
            "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "gemma2", "gemma3_text", "gemma4_text",
            "gemma4_unified_text", "olmo2", "olmo3", "exaone4", "afmoe", "gpt_oss", "glm4_moe", "glm4v_moe_text",
            "seed_oss", "solar_open",
        ),
        _NORM_AFTER,
    ),
    "apertus": {
        **{f"mlp.act_fn.{name}": DROPPED for name in ("alpha_p", "alpha_n", "beta", "eps")},
        "attention_layernorm": "attn_norm",
        "feedforward_layernorm": "ffn_norm",
    },
    "bailing_hybrid": {
        **_ATTENTION,
        **_KDA,
        "attention.g_proj": "ssm_g_a",
        "attention.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "attention.kv_a_layernorm": "attn_kv_a_norm",
        "attention.kv_b_proj": "attn_kv_b",
        "attention.q_a_proj": "attn_q_a",
        "attention.q_a_layernorm": "attn_q_a_norm",
        "attention.q_b_proj": "attn_q_b",
    },
    "deepseek_v4": {
        "attn.wq_a": "attn_q_a",
        "attn.q_norm": "attn_q_a_norm",
        "attn.wq_b": "attn_q_b",
        "attn.wkv": "attn_kv",
        "attn.norm": "attn_kv_a_norm",
        "attn.wo_a": "attn_output_a",
        "attn.wo_b": "attn_output_b",
        "attn.attn_sink": "attn_sinks.weight",
        "attn_norm": "attn_norm",
        "ffn.gate": "ffn_gate_inp",
        "ffn.gate.tid2eid": "ffn_gate_tid2eid.weight",
        **{f"ffn.experts.{hf}": f"ffn_{part}_exps" for hf, part in (("w1", "gate"), ("w3", "up"), ("w2", "down"))},
        **{
            f"ffn.shared_experts.{hf}": f"ffn_{part}_shexp"
            for hf, part in (("w1", "gate"), ("w3", "up"), ("w2", "down"))
        },
        **{f"hc_{at}_{part}": f"hc_{at}_{part}.weight" for at in ("attn", "ffn") for part in ("fn", "base", "scale")},
        "attn.compressor.ape": "attn_compressor_ape.weight",
        "attn.compressor.wkv": "attn_compressor_kv",
        "attn.compressor.wgate": "attn_compressor_gate",
        "attn.compressor.norm": "attn_compressor_norm",
        "attn.indexer.compressor.ape": "indexer_compressor_ape.weight",
        "attn.indexer.compressor.wkv": "indexer_compressor_kv",
        "attn.indexer.compressor.wgate": "indexer_compressor_gate",
        "attn.indexer.compressor.norm": "indexer_compressor_norm",
        "attn.indexer.wq_b": "indexer.attn_q_b",
        "attn.indexer.weights_proj": "indexer.proj",
        "model.hc_head.hc_fn": "output_hc_fn.weight",
        "model.hc_head.hc_base": "output_hc_base.weight",
        "model.hc_head.hc_scale": "output_hc_scale.weight",
        "head": "output",
        "ffn.gate.bias": "exp_probs_b.bias",
    },
    "dots3_note_text": {"self_attn.k_rope_only_layernorm": "attn_k_norm"},
    "falcon_h1": {"pre_ff_layernorm": "ffn_norm."},
    "hy_v3": {"mlp.e_score_correction_bias": "exp_probs_b.", "mlp.expert_bias": "exp_probs_b.",
              "mlp.gate.e_score_correction_bias": "exp_probs_b."},
    "minicpm3": {"self_attn.kv_b_proj": "attn_kv_b.weight"},
    "exaone": {
        **{f"attn.attention.{p}_proj": f"attn_{p}" for p in "qkv"},
        "attn.attention.out_proj": "attn_output",
        "mlp.c_fc_0": "ffn_gate",
        "mlp.c_fc_1": "ffn_up",
    },
    "gemma3n_text": {
        **_NORM_AFTER,
        "altup.correct_output_scale": "altup_correct_scale.weight",
        "altup.correction_coefs": "altup_correct_coef",
        "altup.prediction_coefs": "altup_predict_coef",
        "altup.modality_router": "altup_router",
        "altup.router_norm": "altup_router_norm",
        "model.altup_projections.0": "altup_proj",
        "model.altup_unembed_projections.0": "altup_unembd_proj",
        **{f"model.altup_{at}projections.{n}": DROPPED for at in ("", "unembed_") for n in (1, 2)},
        "laurel.linear_left": "laurel_l",
        "laurel.linear_right": "laurel_r",
        "laurel.post_laurel_norm": "laurel_post_norm",
    },
    **dict.fromkeys(("granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared"), _GRANITE),
    "kimi_linear": _KDA,
    "minimax": {
        "self_attn.output_gate": "attn_gate",
        "self_attn.norm": "attn_norm_2",
        **{f"self_attn.{name}": DROPPED for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")},
    },
    "mpt": {
        "ffn.up_proj": "ffn_up",
        "ffn.down_proj": "ffn_down",
        "norm_1": "attn_norm",
        "norm_2": "ffn_norm",
        "attn.Wqkv": "attn_qkv",
    },
    "phi-msft": {
        "mixer.Wqkv": "attn_qkv",
        "mixer.out_proj": "attn_output",
        "ln": "attn_norm",
        "lm_head.ln": "output_norm",
        "lm_head.linear": "output",
    },
    "qwen3_vl_moe_text": {"mlp.experts.gate_up_proj": "ffn_gate_up_exps/2"},
    "sarvam_moe": {**_ATTENTION, "attention.query_key_value": "attn_qkv"},
}  # fmt: skip
