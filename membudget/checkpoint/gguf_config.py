"""A model's config from a GGUF file's own key-values and tensors, where no config.json lies beside it.

Sources: llama.cpp's converters (conversion/*.py: which config key becomes which GGUF key) and
its loaders (src/models/*.cpp: defaults and the pattern of sliding layers).  What the file's
tensors say counts more than a key: the vocabulary, tied embeddings, biases.  An architecture
that is not in `ARCHITECTURES` is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from membudget.checkpoint.entries import Checkpoint
from membudget.checkpoint.gguf_keys import Keys
from membudget.model.config import Config, ConfigError

Raw = dict[str, Any]


def config_of(checkpoint: Checkpoint, source: str | None = None) -> Config:
    """The config that this GGUF file describes; raises `ConfigError` for what is not known."""
    raw = to_config(checkpoint)
    return Config(raw, source or checkpoint.source)


def to_config(checkpoint: Checkpoint) -> Raw:
    """The same as the content of a config.json."""
    kind = checkpoint.metadata.get("general.type", "model")
    if kind != "model" or checkpoint.metadata.get("general.architecture") == "clip":
        what = "a multimodal projector" if kind in ("mmproj", "model") else f"of type {kind!r}"
        raise ConfigError(f"{checkpoint.source}: is {what}, not a language model; pass the model's own file")
    keys = Keys(checkpoint)
    make = ARCHITECTURES.get(keys.arch)
    if make is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ConfigError(
            f"{keys.source}: architecture {keys.arch!r} is not read from GGUF metadata, so nothing is counted. "
            f"Known are: {known}. Pass the config.json of the original model instead"
        )
    keys.read_layers()
    return {**_common(keys), **make(keys)}


def _common(k: Keys) -> Raw:
    table = k.shape("token_embd.weight")
    hidden = k.integer("embedding_length")
    if table is None or len(table) != 2 or table[1] != hidden:
        found = "missing" if table is None else f"of shape {list(table)}"
        raise ConfigError(f"{k.source}: token_embd.weight is {found}, embedding_length {hidden}: a part of a model?")
    return {
        "hidden_size": hidden,
        "num_hidden_layers": k.layers,
        "vocab_size": table[0],
        "max_position_embeddings": k.integer("context_length"),
        "tie_word_embeddings": "output.weight" not in k.tensors,
    }


def _attention(k: Keys) -> Raw:
    heads = k.count("attention.head_count")
    hidden = k.integer("embedding_length")
    key = k.integer("attention.key_length", hidden // heads)
    value = k.integer("attention.value_length", hidden // heads)
    if key != value:
        raise k.error("attention.value_length", f"is {value}, key_length {key}: not planned for this architecture")
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": k.integer("attention.head_count_kv", heads),
        "head_dim": key,
        "attention_bias": k.shape("blk.*.attn_q.bias") is not None,
    }


def _dense(k: Keys) -> Raw:
    return {**_attention(k), "intermediate_size": k.integer("feed_forward_length")}


def _experts(k: Keys, count: str = "num_experts") -> Raw:
    experts = k.integer("expert_count")
    used = k.integer("expert_used_count")
    return {count: experts, "num_experts_per_tok": used}


def _expert_width(k: Keys) -> int:
    """expert_feed_forward_length; older files leave it to the tensors (experts, width, hidden)."""
    shape = k.shape("blk.*.ffn_up_exps.weight")
    width = shape[1] if shape is not None and len(shape) == 3 else None
    return k.integer("expert_feed_forward_length", width)


def _sliding(k: Keys, period: int, *, dense_first: bool = False) -> list[str]:
    """layer_types, as llama.cpp's set_swa_pattern has them: the file's own pattern where it has one."""
    pattern = k.value("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        slides = [bool(item) for item in k.each("attention.sliding_window_pattern")]
    else:
        period = k.integer("attention.sliding_window_pattern", period)
        if not period:
            slides = [True] * k.layers
        elif dense_first:
            slides = [layer % period != 0 for layer in range(k.layers)]
        else:
            slides = [layer % period < period - 1 for layer in range(k.layers)]
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def _windows(k: Keys, period: int) -> Raw:
    """sliding_window and layer_types; a file without a window has none."""
    window = k.integer("attention.sliding_window", 0)
    if not window:
        return {"sliding_window": None, "layer_types": ["full_attention"] * k.layers}
    return {"sliding_window": window, "layer_types": _sliding(k, period)}


def _llama(k: Keys) -> Raw:
    if not k.integer("expert_count", 0):
        return {"model_type": "llama", **_dense(k), "mlp_bias": k.shape("blk.*.ffn_up.bias") is not None}
    return {
        "model_type": "mixtral",
        **_dense(k),
        **_experts(k, "num_local_experts"),
        "sliding_window": None,
        "intermediate_size": _expert_width_or_dense(k),
    }


def _expert_width_or_dense(k: Keys) -> int:
    return k.integer("expert_feed_forward_length", k.integer("feed_forward_length"))


def _as(model_type: str, **more: Any) -> Callable[[Keys], Raw]:
    """A dense decoder whose config needs nothing else."""
    return lambda k: {"model_type": model_type, **_dense(k), **more}


def _qwen2_moe(k: Keys) -> Raw:
    return {
        "model_type": "qwen2_moe",
        **_dense(k),
        **_experts(k),
        "moe_intermediate_size": _expert_width(k),
        "shared_expert_intermediate_size": k.integer("expert_shared_feed_forward_length"),
    }


def _qwen3_moe(k: Keys) -> Raw:
    return {"model_type": "qwen3_moe", **_dense(k), **_experts(k), "moe_intermediate_size": _expert_width(k)}


def _gated_delta(model_type: str, *, moe: bool) -> Callable[[Keys], Raw]:
    """Qwen3-Next and Qwen3.5: of every full_attention_interval layers the last attends, the others are linear."""

    def make(k: Keys) -> Raw:
        listed = k.value("attention.recurrent_layers")
        period = k.count("full_attention_interval", 4)
        if listed is None:
            linear = [(layer + 1) % period != 0 for layer in range(k.layers)]
        else:
            linear = [bool(item) for item in k.each("attention.recurrent_layers")]
        value_heads = k.count("ssm.time_step_rank")
        heads = k.each("attention.head_count_kv")
        raw = {
            "model_type": model_type,
            "num_attention_heads": k.count("attention.head_count"),
            "num_key_value_heads": max(heads),
            "head_dim": k.integer("attention.key_length"),
            "attention_bias": False,
            "layer_types": ["linear_attention" if item else "full_attention" for item in linear],
            "full_attention_interval": period,
            "linear_conv_kernel_dim": k.integer("ssm.conv_kernel"),
            "linear_key_head_dim": k.integer("ssm.state_size"),
            "linear_num_key_heads": k.integer("ssm.group_count"),
            "linear_num_value_heads": value_heads,
            "linear_value_head_dim": k.integer("ssm.inner_size") // value_heads,
        }
        if not moe:
            return {**raw, "intermediate_size": k.integer("feed_forward_length")}
        return {
            **raw,
            **_experts(k),
            "decoder_sparse_step": 1,
            "moe_intermediate_size": _expert_width(k),
            "shared_expert_intermediate_size": k.integer("expert_shared_feed_forward_length"),
            "intermediate_size": k.integer("feed_forward_length", _expert_width(k)),
        }

    return make


def _gemma2(k: Keys) -> Raw:
    return {"model_type": "gemma2", **_dense(k), **_windows(k, 2)}


def _gemma3(k: Keys) -> Raw:
    return {"model_type": "gemma3_text", **_dense(k), **_windows(k, 6)}


def _gemma4(k: Keys) -> Raw:
    """Heads and their width differ between sliding and full layers; the last layers may share caches."""
    kinds = _sliding(k, 6)
    heads = k.each("attention.head_count_kv")
    local = {head for head, kind in zip(heads, kinds, strict=True) if kind == "sliding_attention"}
    wide = {head for head, kind in zip(heads, kinds, strict=True) if kind == "full_attention"}
    if len(local) > 1 or len(wide) > 1:
        raise k.error("attention.head_count_kv", f"is {heads}: more than one number for layers of one kind")
    widths = k.each("feed_forward_length")
    shared = k.integer("attention.shared_kv_layers", 0)
    full = next((layer for layer, kind in enumerate(kinds) if kind == "full_attention"), 0)
    per_layer = k.shape("per_layer_token_embd.weight")
    experts = k.integer("expert_count", 0)
    raw = {
        "model_type": "gemma4_text",
        "num_attention_heads": k.count("attention.head_count"),
        "num_key_value_heads": next(iter(local or wide)),
        "num_global_key_value_heads": next(iter(wide or local)),
        "head_dim": k.integer("attention.key_length_swa", k.integer("attention.key_length")),
        "global_head_dim": k.integer("attention.key_length"),
        "layer_types": kinds,
        "sliding_window": k.integer("attention.sliding_window"),
        "num_kv_shared_layers": shared,
        "attention_k_eq_v": f"blk.{full}.attn_v.weight" not in k.tensors,
        "intermediate_size": min(widths),
        "use_double_wide_mlp": bool(shared) and widths[-1] == 2 * widths[0],
        "hidden_size_per_layer_input": k.integer("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": per_layer[0] if per_layer else 0,
        "enable_moe_block": bool(experts),
    }
    if experts:
        raw |= {"num_experts": experts, "top_k_experts": k.integer("expert_used_count")}
        raw["moe_intermediate_size"] = k.integer("expert_feed_forward_length")
    return raw


def _phi3(k: Keys) -> Raw:
    # Written as 0 where config.json has null (conversion/phi.py).
    return {"model_type": "phi3", **_dense(k), "sliding_window": k.integer("attention.sliding_window", 0) or None}


def _gpt_oss(k: Keys) -> Raw:
    return {
        "model_type": "gpt_oss",
        **_attention(k),
        **_experts(k, "num_local_experts"),
        "intermediate_size": _expert_width(k),
        **_windows(k, 2),
    }


def _olmo2(k: Keys) -> Raw:
    """Olmo 3 is the same architecture with three sliding layers to one full."""
    raw = {**_dense(k), **_windows(k, 4)}
    if raw["sliding_window"]:
        return {"model_type": "olmo3", **raw}
    del raw["sliding_window"], raw["layer_types"]
    return {"model_type": "olmo2", **raw}


def _deepseek2(k: Keys) -> Raw:
    """MLA.  Files since 2025-04 give the latent's width as key_length, older ones the full head's."""
    heads = k.integer("attention.head_count")
    rank = k.integer("attention.kv_lora_rank")
    rope = k.integer("rope.dimension_count")
    key = k.integer("attention.key_length_mla", k.integer("attention.key_length"))
    value = k.integer("attention.value_length_mla", k.integer("attention.value_length"))
    if key <= rope:
        raise k.error("attention.key_length_mla", f"is {key}, of which {rope} are for RoPE")
    scored = any(name.endswith("exp_probs_b.bias") for name in k.tensors)
    raw = {
        # The score-correction bias is what tells V3 (and Kimi-K2) from V2.
        "model_type": "deepseek_v3" if scored else "deepseek_v2",
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": k.integer("attention.q_lora_rank", 0) or None,
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": key - rope,
        "v_head_dim": value,
        "attention_bias": False,
        "intermediate_size": k.integer("feed_forward_length"),
        "first_k_dense_replace": k.integer("leading_dense_block_count", 0),
    }
    if not k.integer("expert_count", 0):
        raise k.error("expert_count", "is missing: a dense model with latent attention is not planned from a GGUF file")
    shared = k.integer("expert_shared_count", 0)
    return {
        **raw,
        **_experts(k, "n_routed_experts"),
        "moe_intermediate_size": _expert_width(k),
        "n_shared_experts": shared,
        "moe_layer_freq": 1,
    }


def _glm4_moe(k: Keys) -> Raw:
    return {
        "model_type": "glm4_moe",
        **_dense(k),
        **_experts(k, "n_routed_experts"),
        "moe_intermediate_size": _expert_width(k),
        "n_shared_experts": k.integer("expert_shared_count", 0),
        "first_k_dense_replace": k.integer("leading_dense_block_count", 0),
        "use_qk_norm": k.shape("blk.*.attn_q_norm.weight") is not None,
        "num_nextn_predict_layers": k.nextn,
    }


def _lfm2(k: Keys) -> Raw:
    """Short convolutions where head_count_kv is 0; the width of the MLP is stored as it is."""
    heads = k.each("attention.head_count_kv")
    if not any(heads):
        raise k.error("attention.head_count_kv", "is 0 in every layer")
    hidden, queries = k.integer("embedding_length"), max(k.each("attention.head_count"))
    if not queries:
        raise k.error("attention.head_count", "is 0 in every layer")
    return {
        "model_type": "lfm2",
        "num_attention_heads": queries,
        "num_key_value_heads": max(heads),
        "head_dim": k.integer("attention.key_length", hidden // queries),
        "intermediate_size": k.integer("feed_forward_length"),
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["full_attention" if head else "conv" for head in heads],
        "conv_L_cache": k.integer("shortconv.l_cache"),
        "conv_bias": False,
    }


def _minimax_m2(k: Keys) -> Raw:
    return {
        "model_type": "minimax_m2",
        **_dense(k),
        **_experts(k, "num_local_experts"),
        "intermediate_size": _expert_width(k),
        "use_qk_norm": True,
    }


#: How a config is made, by general.architecture.
ARCHITECTURES: dict[str, Callable[[Keys], Raw]] = {
    "llama": _llama,
    "mistral3": _as("mistral", sliding_window=None),
    "smollm3": _as("smollm3"),
    "qwen2": _as("qwen2", use_sliding_window=False),
    "qwen2vl": _as("qwen2", use_sliding_window=False),
    "qwen2moe": _qwen2_moe,
    "qwen3": _as("qwen3", use_sliding_window=False),
    "qwen3vl": _as("qwen3", use_sliding_window=False),
    "qwen3moe": _qwen3_moe,
    "qwen3vlmoe": _qwen3_moe,
    "qwen3next": _gated_delta("qwen3_next", moe=True),
    "qwen35": _gated_delta("qwen3_5_text", moe=False),
    "qwen35moe": _gated_delta("qwen3_5_moe_text", moe=True),
    "gemma": _as("gemma"),
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "phi3": _phi3,
    "gpt-oss": _gpt_oss,
    "olmo2": _olmo2,
    "deepseek2": _deepseek2,
    "glm4": _as("glm4"),
    "glm4moe": _glm4_moe,
    "lfm2": _lfm2,
    "minimax-m2": _minimax_m2,
    "seed_oss": _as("seed_oss", attention_out_bias=False),
}
