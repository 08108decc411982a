"""The names and shapes that llama.cpp's converter gives a model's tensors.

Source: gguf-py tensor_mapping.py and the converters' modify_tensors: experts are
stacked, MLA's kv_b is split in two, gpt-oss's gate and up are separated.  Attention
weights are permuted for RoPE, which changes no size.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from membudget.formats.base import FormatError
from membudget.formats.gguf_names_by_type import DROPPED, HALVES, HEADED, OF_TYPE, TRANSPOSED
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
    "self_attn.W_pack": "attn_qkv",
    "pre_mlp_layernorm": "ffn_norm",
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
    "self_attn.attn_sub_norm": "attn_sub_norm",
    "mlp.ffn_sub_norm": "ffn_sub_norm",
    "self_attn.attention_sink_bias": "attn_sinks.weight",
    "mamba.dt_layernorm": "ssm_dt_norm",
    "mamba.b_layernorm": "ssm_b_norm",
    "mamba.c_layernorm": "ssm_c_norm",
    "self_attn.indexer.q_proj": "indexer.q_proj",
    "self_attn.indexer.k_proj": "indexer.k_proj",
    "self_attn.indexer.q_norm": "indexer.q_norm",
    # experts
    **{f"{at}.experts.{part}_proj": f"ffn_{part}_exps" for at in ("mlp", "feed_forward", "mixer", "moe")
       for part in _MLP},
    **{f"block_sparse_moe.experts.{hf}": f"ffn_{part}_exps" for hf, part in zip(("w1", "w3", "w2"), _MLP, strict=True)},
    **{f"{at}.{part}_proj": f"ffn_{part}_shexp" for at in (
        "mlp.shared_expert", "mlp.shared_experts", "feed_forward.shared_expert", "mixer.shared_experts",
        "mlp.shared_mlp", "block_sparse_moe.shared_experts") for part in _MLP},
    **{f"feed_forward.experts.{hf}": f"ffn_{part}_exps" for hf, part in zip(("w1", "w3", "w2"), _MLP, strict=True)},
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
         "mlp.router.gate", "router.proj", "mlp.gate.wg", "block_sparse_moe.router.layer", "block_sparse_moe.router"),
        "ffn_gate_inp",
    ),
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **dict.fromkeys(
        ("mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias", "mixer.gate.e_score_correction_bias",
         "block_sparse_moe.e_score_correction_bias", "mlp.expert_bias", "feed_forward.expert_bias",
         "mlp.moe_statics.e_score_correction_bias", "mlp.experts.e_score_correction_bias",
         "block_sparse_moe.gate.e_score_correction_bias", "mlp.gate.expert_bias"),
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


#: Model types whose stacked experts lie the other way round, gate and up in one.
_TURNED = ("gpt_oss", "llama4_text", "llama4")


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
    own = OF_TYPE.get(model.model_type, {})
    ours = own.get(f"{stem}.{kind}") or own.get(stem)
    if ours is None:
        ours = _OUTSIDE.get(stem.rpartition(".")[2]) if match is None else _INSIDE.get(stem)
    if ours is None:
        raise FormatError(
            f"gguf: {tensor.name} of model type {model.model_type!r} has no name in GGUF files that is known here; "
            "add it to membudget/formats/gguf_names.py, or use a safetensors format"
        )
    prefix = f"blk.{match[1]}." if match else ""
    stacked = tensor.copies > 1 or (len(tensor.shape) == 3 and tensor.role == "mlp.experts")
    shape = (tensor.copies, *tensor.shape) if tensor.copies > 1 else tensor.shape
    if ours == DROPPED:
        return []
    if ours == "attn_kv_b":
        return _split_kv_b(prefix, shape, match[1] if match else "0", model)
    if ours == "ssm_in" and model.model_type == "qwen3_next":  # converters before 2026 wrote ssm_in whole
        rows = model.config.integer("linear_num_value_heads") * model.config.integer("linear_value_head_dim")
        joined = (shape[0] - rows, *shape[1:])
        return [Named(prefix + "attn_qkv.weight", joined), Named(prefix + "attn_gate.weight", (rows, *shape[1:]))]
    if (
        ours == "ssm_g_a"
        and model.model_type == "bailing_hybrid"
        and model.caches[int(match[1] if match else 0)].latent
    ):
        ours = "attn_gate"  # a gate a head in layers that attend
    if ours in HALVES:
        gate, up = HALVES[ours]
        half = (*shape[:-2], shape[-2] // 2, shape[-1])
        return [Named(f"{prefix}{part}.{kind}", half) for part in (gate, up)]
    if stacked and len(shape) == 3 and model.model_type in _TURNED:
        shape = (shape[0], shape[2], shape[1])
    if ours == "ffn_gate_up_exps" and model.model_type in _TURNED:
        half = (shape[0], shape[1] // 2, *shape[2:])
        return [Named(f"{prefix}ffn_{part}_exps.{kind}", half) for part in ("gate", "up")]
    if ours == "ffn_gate_inp_shexp":
        shape = shape[-1:]
    shape = _reshaped(ours, shape, model)
    if ours.endswith("."):  # a name without an ending
        return [Named(prefix + ours[:-1], shape)]
    plain = "." in ours.removeprefix("indexer.").removeprefix("shortconv.") or not kind
    found = [Named(prefix + ours if plain else f"{prefix}{ours}.{kind}", shape)]
    if model.model_type == "gemma3n_text" and match and model.caches[int(match[1])].kind == "shared":
        found += _stored_all_the_same(ours, prefix, shape, model)
    return found


def _stored_all_the_same(ours: str, prefix: str, shape: tuple[int, ...], model: Model) -> list[Named]:
    """What Gemma 3n's layers that read others' caches have beside: published files keep it, and the loader wants it."""
    if ours == "attn_q":
        width = model.config.kv_heads * model.config.head_dim
        return [Named(f"{prefix}attn_{part}.weight", (width, shape[1])) for part in "kv"]
    return [Named(f"{prefix}attn_k_norm.weight", shape)] if ours == "attn_q_norm" else []


def _kind(name: str) -> tuple[str, str]:
    """Split a name into what it belongs to and ``weight``, ``bias`` or nothing."""
    for kind in ("weight", "bias"):
        if name.endswith("." + kind):
            return name[: -len(kind) - 1], kind
    if name.endswith("_proj_bias"):  # gpt-oss's stacked biases
        return name.removesuffix("_bias"), "bias"
    bare = name.endswith(("_proj", "sinks", ".w1", ".v1", ".w2"))
    return (name, "weight") if bare else (name, "")


def _reshaped(ours: str, shape: tuple[int, ...], model: Model) -> tuple[int, ...]:
    """The shape as the converter leaves it: squeezed convolutions, states as columns, grouped norms."""
    config = model.config
    if ours in ("altup_proj", "altup_unembd_proj"):
        return (config.integer("altup_num_inputs", 4) - 1, *shape)
    if ours in ("ssm_conv1d", "shortconv.conv") and len(shape) == 3:
        return (shape[0], shape[2])
    if ours in ("ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v") and len(shape) == 3:
        return (1, *shape)
    if ours in ("ssm_a", "ssm_d") and model.model_type in HEADED and len(shape) == 1:
        return (*shape, 1)
    if ours == "ssm_a" and len(shape) == 4:  # Kimi Linear
        return (shape[2], 1)
    if ours == "ssm_norm" and model.model_type in HEADED and model.model_type != "bailing_hybrid" and len(shape) == 1:
        groups = next((config.integer(key) for key in ("n_groups", "mamba_n_groups") if config.get(key)), 1)
        return (groups, shape[0] // groups)
    if ours.startswith("exp_probs_b") and len(shape) == 2:
        return shape[-1:]
    if model.model_type in TRANSPOSED and len(shape) > 1 and ours in TRANSPOSED[model.model_type]:
        return (*shape[:-2], shape[-1], shape[-2])
    if ours in ("token_embd", "per_layer_token_embd") and model.model_type == "gemma3n_text":
        return (max(shape[0], config.integer("vocab_size")), shape[1])  # padded for the towers' tokens
    return shape


def _split_kv_b(prefix: str, shape: tuple[int, ...], layer: str, model: Model) -> list[Named]:
    config = model.config
    rank, value = shape[1], config.integer("v_head_dim")
    nope = config.integer("qk_nope_head_dim")
    own = (config.get("per_layer_config") or {}).get(int(layer))
    if own:  # dots3_note's sliding layers have sizes of their own
        nope, value = own["qk_nope_head_dim"], own["v_head_dim"]
    heads = shape[0] // (nope + value)
    return [
        Named(prefix + "attn_k_b.weight", (heads, rank, nope)),
        Named(prefix + "attn_v_b.weight", (heads, value, rank)),
    ]
