"""The names and shapes that llama.cpp's converter gives a model's tensors.

Source: gguf-py tensor_mapping.py and the converters' modify_tensors: experts are
stacked, MLA's kv_b is split in two, gpt-oss's gate and up are separated.  Attention
weights are permuted for RoPE, which changes no size.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from membudget.formats.base import FormatError
from membudget.model import Model
from membudget.model.tensors import Tensor


class Named(NamedTuple):
    """A tensor of a GGUF file, all copies of an expert in one: shape in PyTorch's order."""

    name: str
    shape: tuple[int, ...]


_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|layer)\.([0-9]+)\.(.+)$")

#: Tensors outside the layers, by the end of their name.
_OUTSIDE = {
    "embed_tokens": "token_embd",
    "embed_in": "token_embd",
    "word_embeddings": "token_embd",
    "embeddings": "token_embd",
    "tok_embeddings": "token_embd",
    "wte": "token_embd",
    "wpe": "position_embd",
    "position_embeddings": "position_embd",
    "token_type_embeddings": "token_types",
    "word_embeddings_layernorm": "token_embd_norm",
    "lm_head": "output",
    "output_layer": "output",
    "embed_out": "output",
    "output": "output",
    "norm": "output_norm",
    "norm_f": "output_norm",
    "ln_f": "output_norm",
    "final_layernorm": "output_norm",
    "final_layer_norm": "output_norm",
    "embedding_norm": "token_embd_norm",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}

#: Buffers that old checkpoints store and the converter leaves out.
_DROPPED = (".inv_freq", ".attn.bias", ".masked_bias", ".attention.bias")

_MLP = ("gate", "up", "down")
#: Tensors of a layer, by what follows the layer's number.
_INSIDE = {
    # attention
    **{f"self_attn.{p}_proj": f"attn_{p}" for p in "qkv"},
    **{f"attn.{p}_proj": f"attn_{p}" for p in "qkv"},
    **{f"attention.w{p}": f"attn_{p}" for p in "qkv"},
    **dict.fromkeys(
        ("self_attn.qkv_proj", "attention.query_key_value", "self_attention.query_key_value", "attn.c_attn",
         "attn.Wqkv", "self_attn.query_key_value", "linear_attn.in_proj_qkv", "attention.wqkv"),
        "attn_qkv",
    ),
    **dict.fromkeys(
        ("self_attn.o_proj", "self_attn.out_proj", "self_attn.dense", "attention.dense", "self_attention.dense",
         "attn.c_proj", "attn.out_proj", "attention.wo"),
        "attn_output",
    ),
    **dict.fromkeys(("self_attn.q_norm", "self_attn.q_layernorm"), "attn_q_norm"),
    **dict.fromkeys(("self_attn.k_norm", "self_attn.k_layernorm"), "attn_k_norm"),
    **dict.fromkeys(("self_attn.gate_proj", "linear_attn.in_proj_z", "self_attn.g_proj"), "attn_gate"),
    "self_attn.sinks": "attn_sinks",
    # MLA
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    # recurrent layers
    "linear_attn.in_proj_qkvz": "ssm_in",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    **{f"{at}.{hf}": f"ssm_{ours}" for at in ("mixer", "mamba") for hf, ours in (
        ("in_proj", "in"), ("conv1d", "conv1d"), ("x_proj", "x"), ("dt_proj", "dt"), ("A_log", "a"), ("D", "d"),
        ("norm", "norm"), ("out_proj", "out"), ("dt_bias", "dt.bias"))},
    **{f"mixer.{p}_proj": f"attn_{p}" for p in "qkv"},
    "mixer.o_proj": "attn_output",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    # MLP
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in _MLP},
    **{f"feed_forward.{part}_proj": f"ffn_{part}" for part in _MLP},
    **{f"feed_forward.{hf}": f"ffn_{part}" for hf, part in zip(("w1", "w3", "w2"), _MLP, strict=True)},
    **dict.fromkeys(("mlp.gate_up_proj", "mlp.dense_h_to_4h", "mlp.c_fc", "mlp.fc1", "mlp.fc_in"), "ffn_up"),
    **dict.fromkeys(("mlp.dense_4h_to_h", "mlp.c_proj", "mlp.fc2", "mlp.fc_out", "mixer.down_proj"), "ffn_down"),
    "mixer.up_proj": "ffn_up",
    # experts
    **{f"{at}.experts.{part}_proj": f"ffn_{part}_exps" for at in ("mlp", "feed_forward", "mixer", "moe")
       for part in _MLP},
    **{f"block_sparse_moe.experts.{hf}": f"ffn_{part}_exps" for hf, part in zip(("w1", "w3", "w2"), _MLP, strict=True)},
    **{f"{at}.{part}_proj": f"ffn_{part}_shexp" for at in (
        "mlp.shared_expert", "mlp.shared_experts", "feed_forward.shared_expert", "mixer.shared_experts",
        "mlp.shared_mlp") for part in _MLP},
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
    "feed_forward.experts.gate_up_proj": "ffn_gate_up_exps",
    "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up",
    # Qwen 1
    "mlp.w1": "ffn_up",
    "mlp.w2": "ffn_gate",
    # Step 3.7
    "moe.gate": "ffn_gate_inp",
    **{f"moe.{part}_proj": f"ffn_{part}_exps" for part in _MLP},
    **{f"share_expert.{part}_proj": f"ffn_{part}_shexp" for part in _MLP},
    "moe.router_bias": "exp_probs_b.bias",
    # DBRX
    "norm_attn_norm.attn.Wqkv": "attn_qkv",
    "norm_attn_norm.attn.out_proj": "attn_output",
    "norm_attn_norm.norm_1": "attn_norm",
    "norm_attn_norm.norm_2": "attn_output_norm",
    "ffn.router.layer": "ffn_gate_inp",
    "ffn.experts.mlp.w1": "ffn_gate_exps",
    "ffn.experts.mlp.v1": "ffn_up_exps",
    "ffn.experts.mlp.w2": "ffn_down_exps",
    "experts.gate_up_proj": "ffn_gate_up_exps",
    "experts.down_proj": "ffn_down_exps",
    **dict.fromkeys(
        ("mlp.gate", "mlp.router", "block_sparse_moe.gate", "feed_forward.router", "feed_forward.gate", "mixer.gate",
         "mlp.router.gate", "router.proj"),
        "ffn_gate_inp",
    ),
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **dict.fromkeys(
        ("mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias", "mixer.gate.e_score_correction_bias",
         "block_sparse_moe.e_score_correction_bias", "mlp.expert_bias", "feed_forward.expert_bias"),
        "exp_probs_b.bias",
    ),
    # norms
    **dict.fromkeys(("input_layernorm", "ln_1", "attention_norm", "operator_norm", "norm"), "attn_norm"),
    **dict.fromkeys(("post_attention_layernorm", "ln_2", "ffn_norm", "pre_ff_layernorm"), "ffn_norm"),
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    # Gemma 3n and 4
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}  # fmt: skip

#: Model types whose post_attention_layernorm is called post_attention_norm, not ffn_norm.
_NORM_AFTER = (
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "olmo2",
    "olmo3",
    "exaone4",
)


def named(tensor: Tensor, model: Model) -> list[Named]:
    """The tensors of a GGUF file that this tensor of the model becomes; `FormatError` where no name is known.

    Layers that predict further tokens are dropped.  Vision and audio towers go to a file of their
    own (``mmproj``) under the names they have.
    """
    bucket = tensor.role.partition(".")[0]
    if bucket == "mtp" or tensor.name.endswith(_DROPPED):
        return []
    if bucket in ("vision", "audio"):
        return [Named("mmproj:" + name, shape) for name, shape in tensor.expand()]
    match = _LAYER.search(tensor.name)
    stem, kind = _kind(match[2] if match else tensor.name)
    stem = stem.replace(".*", "")
    if match is None:
        ours = _OUTSIDE.get(stem.rpartition(".")[2])
    else:
        ours = _INSIDE.get(stem)
        if stem == "post_attention_layernorm" and model.model_type in _NORM_AFTER:
            ours = "post_attention_norm"
    if ours is None:
        raise FormatError(
            f"gguf: {tensor.name} of model type {model.model_type!r} has no name in GGUF files that is known here; "
            "add it to membudget/formats/gguf_names.py, or use a safetensors format"
        )
    prefix = f"blk.{match[1]}." if match else ""
    stacked = tensor.copies > 1 or (len(tensor.shape) == 3 and tensor.role == "mlp.experts")
    shape = (tensor.copies, *tensor.shape) if tensor.copies > 1 else tensor.shape
    if ours == "attn_kv_b":
        return _split_kv_b(prefix, model)
    if stacked and len(shape) == 3 and model.model_type in ("gpt_oss", "llama4_text", "llama4"):
        shape = (shape[0], shape[2], shape[1])
    if ours == "ffn_gate_up_exps" and model.model_type in ("gpt_oss", "llama4_text", "llama4"):
        half = (shape[0], shape[1] // 2, *shape[2:])
        return [Named(f"{prefix}ffn_{part}_exps.{kind}", half) for part in ("gate", "up")]
    if ours == "ssm_conv1d" and len(shape) == 3:
        shape = (shape[0], shape[2])
    if ours == "ffn_gate_inp_shexp":
        shape = shape[-1:]
    plain = "." in ours.removeprefix("indexer.").removeprefix("shortconv.") or not kind
    return [Named(prefix + ours if plain else f"{prefix}{ours}.{kind}", shape)]


def _kind(name: str) -> tuple[str, str]:
    """Split a name into what it belongs to and ``weight``, ``bias`` or nothing."""
    for kind in ("weight", "bias"):
        if name.endswith("." + kind):
            return name[: -len(kind) - 1], kind
    if name.endswith("_proj_bias"):  # gpt-oss's stacked biases
        return name.removesuffix("_bias"), "bias"
    bare = name.endswith(("_proj", "sinks", ".w1", ".v1", ".w2"))
    return (name, "weight") if bare else (name, "")


def _split_kv_b(prefix: str, model: Model) -> list[Named]:
    config = model.config
    heads, rank = config.heads, config.integer("kv_lora_rank")
    nope, value = config.integer("qk_nope_head_dim"), config.integer("v_head_dim")
    return [
        Named(prefix + "attn_k_b.weight", (heads, rank, nope)),
        Named(prefix + "attn_v_b.weight", (heads, value, rank)),
    ]
