"""The metadata that llama.cpp's converters write for a model: the inverse of `gguf_config`.

Sources: llama.cpp conversion/*.py (which key a config's value goes to) and src/models/*.cpp
(`load_arch_hparams`: which keys a loader wants) at v0.4.0.  What can be read off the inventory
(widths, heads of each layer, experts, windows, states) is read off the inventory.
"""

from __future__ import annotations

from collections.abc import Mapping

from membudget.checkpoint.gguf_header_arch import OF_ARCHITECTURE, Metadata, Shapes, one
from membudget.formats.base import FormatError
from membudget.model import Config, Model

#: llama.cpp's architecture, by model_type; a model_type that is not here llama.cpp does not know.
ARCHITECTURES: dict[str, str] = {
    "afmoe": "afmoe", "apertus": "apertus", "arcee": "arcee", "baichuan": "baichuan", "bailing_hybrid": "bailingmoe3",
    "bamba": "granitehybrid", "bitnet": "bitnet", "bloom": "bloom", "chatglm": "chatglm", "cohere": "command-r",
    "cohere2": "cohere2", "cohere2_moe": "cohere2moe", "dbrx": "dbrx", "deepseek": "deepseek",
    "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "deepseek_v32": "deepseek32", "deepseek_v4": "deepseek4",
    "dots1": "dots1", "dots3_note_text": "dots3note", "ernie4_5": "ernie4_5", "ernie4_5_moe": "ernie4_5-moe",
    "exaone": "exaone", "exaone4": "exaone4", "exaone_moe": "exaone-moe", "falcon": "falcon",
    "RefinedWeb": "falcon", "RefinedWebModel": "falcon", "falcon_h1": "falcon-h1", "falcon_mamba": "mamba",
    "gemma": "gemma", "gemma2": "gemma2", "gemma3_text": "gemma3", "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4", "gemma4_unified_text": "gemma4", "glm": "chatglm", "glm4": "glm4", "glm4_moe": "glm4moe",
    "glm4_moe_lite": "deepseek2", "glm4v_text": "glm4", "glm4v_moe_text": "glm4moe", "glm_moe_dsa": "glm-dsa",
    "glm_ocr_text": "glm4", "gpt2": "gpt2", "gpt_bigcode": "starcoder", "gpt_neox": "gptneox", "gpt_oss": "gpt-oss",
    "granite": "granite", "granite_swa": "granite_swa", "granitemoe": "granitemoe", "granitemoe_swa": "granite_swa",
    "granitemoehybrid": "granitehybrid", "granitemoeshared": "granitemoe", "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe", "hy_v3": "hy_v3", "internlm2": "internlm2", "internlm3": "llama",
    "iquestcoder": "llama", "jais2": "jais2", "jamba": "jamba", "kimi_k2": "deepseek2", "kimi_linear": "kimi-linear",
    "laguna": "laguna", "lfm2": "lfm2", "lfm2_moe": "lfm2moe", "llama": "llama", "llama4_text": "llama4",
    "llava_llama": "llama", "mamba": "mamba", "mamba2": "mamba2", "mellum": "mellum",
    "mimo_v2_flash": "mimo2", "minicpm": "minicpm", "minicpm3": "minicpm3", "minimax": "minimax-01",
    "minimax_m2": "minimax-m2", "minimax_m3": "minimax-m3", "minimax_m3_vl_text": "minimax-m3", "ministral": "llama",
    "ministral3": "mistral3", "mistral": "llama", "mistral4": "mistral4", "mixtral": "llama", "mpt": "mpt",
    "nemotron": "nemotron", "nemotron-nas": "deci", "nemotron_h": "nemotron_h", "olmo": "olmo", "olmo2": "olmo2",
    "olmo3": "olmo2", "olmoe": "olmoe", "orion": "orion", "paddleocr_vl_text": "paddleocr", "phi": "phi2",
    "phi-msft": "phi2", "phi3": "phi3", "phi3_v": "phi3", "phimoe": "phimoe", "qwen": "qwen", "qwen2": "qwen2",
    "qwen2_5_omni_text": "qwen2vl", "qwen2_5_vl": "qwen2vl", "qwen2_5_vl_text": "qwen2vl", "qwen2_moe": "qwen2moe",
    "qwen2_vl": "qwen2vl", "qwen2_vl_text": "qwen2vl", "qwen3": "qwen3", "qwen3_5_moe_text": "qwen35moe",
    "qwen3_5_text": "qwen35", "qwen3_moe": "qwen3moe", "qwen3_next": "qwen3next",
    "qwen3_omni_moe_text": "qwen3vlmoe", "qwen3_vl_moe_text": "qwen3vlmoe", "qwen3_vl_text": "qwen3vl",
    "sarvam_moe": "bailingmoe2", "seed_oss": "seed_oss", "smollm3": "smollm3", "solar_open": "glm4moe",
    "stablelm": "stablelm", "starcoder2": "starcoder2", "step3p5": "step35", "step3p7": "step35",
    "unlimited_ocr_text": "deepseek2-ocr", "xverse": "xverse", "youtu": "deepseek2",
}  # fmt: skip


#: Model types with layers that have no MLP at all: their width is 0.
_SPARSE_WIDTHS = ("nemotron_h", "nemotron-nas")
#: Model types whose feed_forward_length is that of the experts.
_NO_DENSE = (
    "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "mixtral", "jamba", "olmoe", "phimoe",
    "dbrx", "minimax",
)  # fmt: skip
#: Model types whose layers differ in query heads.
_PER_LAYER_HEADS = ("laguna", "step3p5", "step3p7", "mimo_v2_flash", "nemotron-nas")


def metadata(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> Metadata:
    """Key-values of a GGUF file of this model; `shapes` are the file's tensors by name.

    Raises `FormatError` for a model_type that llama.cpp does not know.
    """
    arch = ARCHITECTURES.get(model.model_type)
    if arch is None:
        raise FormatError(f"{model.name}: llama.cpp has no architecture for model_type {model.model_type!r}")
    if arch == "nemotron_h" and any(".ffn_up_exps." in name for name in shapes):
        arch = "nemotron_h_moe"
    own = Shapes(shapes, _layers(model))
    keys = _common(model, own)
    extra = OF_ARCHITECTURE.get(arch)
    if extra is not None:
        keys |= extra(model, own)
    vocabulary = shapes.get("token_embd.weight", (1,))[0]
    return {
        "general.architecture": arch,
        "general.name": model.name,
        **{key if key.startswith("xielu.") else f"{arch}.{key}": value for key, value in keys.items()},
        f"{arch}.vocab_size": vocabulary,
        "tokenizer.ggml.model": "none",
    }


def _layers(model: Model) -> int:
    """block_count; a config may name its layers one by one and give no number."""
    if model.config.get("num_hidden_layers") is None and model.config.get("layers_block_type"):
        return len(model.config.get("layers_block_type"))
    return model.config.layers


def _common(model: Model, own: Shapes) -> Metadata:
    c = model.config
    heads = c.integer("num_attention_heads", 0, minimum=0)
    hidden = own.shapes["token_embd.weight"][1] if "token_embd.weight" in own.shapes else c.integer("hidden_size")
    keys: Metadata = {
        "context_length": c.integer("max_position_embeddings", 4096),
        "embedding_length": hidden,
        "block_count": own.layers,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.layer_norm_epsilon": 1e-5,
        "feed_forward_length": one(_widths(c, own)),
    }
    if heads:
        keys["attention.head_count"] = one(_query_heads(model, own, heads))
        kv = [0] * own.layers
        for spec in model.caches:
            if spec.layer < own.layers and spec.kv_heads and spec.kind not in ("cross",):
                kv[spec.layer] = spec.kv_heads
        for spec in model.caches:  # layers that read another's cache have its heads
            if spec.kind == "shared" and spec.layer < own.layers and not kv[spec.layer]:
                kv[spec.layer] = next((kv[i] for i in reversed(range(spec.layer)) if kv[i]), 0)
        keys["attention.head_count_kv"] = one(kv)
        specs = [spec for spec in model.caches if spec.kv_heads and spec.k_dim]
        if specs:
            full = next((spec for spec in specs if not spec.window), specs[0])
            keys["attention.key_length"], keys["attention.value_length"] = full.k_dim, full.v_dim
            keys["rope.dimension_count"] = _rotated(c, full.k_dim)
    windows = {spec.window for spec in model.caches if spec.window}
    if windows:
        keys["attention.sliding_window"] = max(windows)
        by_layer = {spec.layer: bool(spec.window) for spec in model.caches}
        keys["attention.sliding_window_pattern"] = [by_layer.get(layer, False) for layer in range(own.layers)]
    return keys | _mixture(model, own) | _states(model, own)


def _query_heads(model: Model, own: Shapes, heads: int) -> list[int]:
    """Query heads of each layer: what attn_output reads, in heads of the values' width."""
    widths = {spec.layer: spec.v_dim for spec in model.caches if spec.kv_heads and spec.v_dim}
    found = own.each("attn_output.weight", 1)
    counts = [found[layer] // widths[layer] if found[layer] and widths.get(layer) else 0 for layer in range(own.layers)]
    if model.model_type in _PER_LAYER_HEADS:
        return [count or heads for count in counts]
    return [heads] * own.layers


def _rotated(c: Config, width: int) -> int:
    scaling = c.rope
    if isinstance(scaling.get("full_attention"), Mapping):
        scaling = scaling["full_attention"]
    names = ("partial_rotary_factor", "rotary_pct", "rope_pct")
    share = next((c.get(name) for name in names if c.get(name)), scaling.get("partial_rotary_factor", 1.0))
    if isinstance(share, list) and share:
        share = share[0]
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise c.error("partial_rotary_factor", "is of another kind", "a number from 0 to 1")
    if c.get("rotary_dim"):
        return c.integer("rotary_dim")
    return int(width * share)


def _widths(c: Config, own: Shapes) -> list[int]:
    down, experts = own.each("ffn_down.weight", 1), own.each("ffn_down_exps.weight", 2)
    widths = [dense or expert for dense, expert in zip(down, experts, strict=True)]
    if c.model_type in _SPARSE_WIDTHS:
        return widths
    if any(down):
        common = max(down)
        return [width or common for width in down]
    if any(experts) and c.model_type in _NO_DENSE:
        return [max(experts)] * own.layers
    width = c.get("intermediate_size") or c.get("moe_intermediate_size") or 0
    return [max(width) if isinstance(width, list) else width] * own.layers


def _mixture(model: Model, own: Shapes) -> Metadata:
    c = model.config
    gate = own.any("ffn_gate_inp.weight", 0)
    if not gate:
        return {}
    experts = gate
    names = ("num_experts_per_tok", "top_k_experts", "moe_top_k")
    used = next((c.get(name) for name in names if c.get(name)), None)
    if used is None and isinstance(c.get("ffn_config"), Mapping):
        used = c.get("ffn_config").get("moe_top_k")
    if isinstance(used, list):
        used = used[0]
    down = own.each("ffn_down_exps.weight", 2)
    width = next((item for item in down if item), 0)
    shared = own.any("ffn_down_shexp.weight", 1)
    dense = next((i for i, item in enumerate(down) if item), 0)
    keys: Metadata = {
        "expert_count": experts,
        "expert_used_count": used or 1,
        "expert_feed_forward_length": width,
        "expert_shared_feed_forward_length": shared,
        "expert_shared_count": max(1, shared // width) if shared and width else 0,
        "leading_dense_block_count": dense,
        "expert_gating_func": 2 if own.has("exp_probs_b.bias") else 1,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
    }
    if not shared:
        del keys["expert_shared_feed_forward_length"]
    groups, group_used = c.get("n_group"), c.get("topk_group")
    if isinstance(groups, int) and isinstance(group_used, int) and group_used < groups and experts % groups == 0:
        keys |= {"expert_group_count": groups, "expert_group_used_count": group_used}
    return keys


def _states(model: Model, own: Shapes) -> Metadata:
    c = model.config
    conv = own.any("ssm_conv1d.weight", 1)
    if not conv:
        return {}
    if own.has("ssm_x.weight"):  # Mamba 1
        inner = own.any("ssm_a", 0)
        state = own.any("ssm_a", 1)
        rank = own.any("ssm_dt.weight", 1)
        return {"ssm.conv_kernel": conv, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": rank}
    if c.get("linear_num_value_heads"):
        values = c.integer("linear_num_value_heads")
        return {
            "ssm.conv_kernel": conv,
            "ssm.state_size": c.integer("linear_key_head_dim"),
            "ssm.group_count": c.integer("linear_num_key_heads"),
            "ssm.time_step_rank": values,
            "ssm.inner_size": values * c.integer("linear_value_head_dim"),
            "full_attention_interval": c.integer("full_attention_interval", 4),
        }
    heads = own.any("ssm_a", 0)
    inner = own.any("ssm_out.weight", 1)
    groups = next((c.integer(key) for key in ("n_groups", "mamba_n_groups") if c.get(key)), 1)
    channels = own.any("ssm_conv1d.weight", 0)
    return {
        "ssm.conv_kernel": conv,
        "ssm.inner_size": inner,
        "ssm.state_size": (channels - inner) // (2 * groups) if groups else 0,
        "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
    }
