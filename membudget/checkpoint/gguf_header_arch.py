"""What single architectures' loaders want in a GGUF file's metadata, beside the common keys.

Sources: llama.cpp conversion/*.py (set_gguf_parameters) and src/models/*.cpp (load_arch_hparams) at v0.4.0.
Values that change no size (scales, RoPE bases) are set to plain ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from membudget.checkpoint.gguf_header import Value
from membudget.model import Model

Metadata = dict[str, Value]


class Shapes:
    """The named tensors of a model, asked by what they say about the metadata."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], layers: int) -> None:
        self.shapes, self.layers = shapes, layers

    def each(self, part: str, axis: int) -> list[int]:
        """The extent of ``blk.N.<part>`` along `axis`, one number a layer, 0 where a layer has no such tensor."""
        found = []
        for layer in range(self.layers):
            shape = self.shapes.get(f"blk.{layer}.{part}")
            found.append(shape[axis] if shape and len(shape) > axis else 0)
        return found

    def any(self, part: str, axis: int) -> int:
        """The same of the first layer that has it, else 0."""
        return next((extent for extent in self.each(part, axis) if extent), 0)

    def has(self, part: str) -> bool:
        """Whether any layer has this tensor."""
        return any(self.each(part, 0))


def one(values: list[int]) -> Value:
    """A list whose entries are alike as one number."""
    return values[0] if len(set(values)) == 1 else values


def _mla(model: Model, own: Shapes) -> Metadata:
    c = model.config
    rank, rope = c.integer("kv_lora_rank"), c.integer("qk_rope_head_dim")
    keys: Metadata = {
        "attention.kv_lora_rank": rank,
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": c.integer("qk_nope_head_dim") + rope,
        "attention.value_length_mla": c.integer("v_head_dim"),
        "rope.dimension_count": rope,
    }
    if not own.has("ffn_gate_inp.weight"):
        # a dense model: every layer is a leading one, and the loader wants the experts' keys all the same
        keys |= {
            "leading_dense_block_count": own.layers,
            "expert_shared_count": 0,
            "expert_feed_forward_length": c.integer("intermediate_size"),
        }
    query = own.any("attn_q_a.weight", 0)
    if query:
        keys["attention.q_lora_rank"] = query
    return keys


def _scales(model: Model, own: Shapes) -> Metadata:
    return {"logit_scale": 1.0, "embedding_scale": 1.0, "residual_scale": 1.0, "attention.scale": 1.0}


def _sections(model: Model, own: Shapes) -> Metadata:
    c = model.config
    key = next((key for key in ("mrope_section", "xdrope_section") if c.rope.get(key)), "")
    found = c.rope.get(key, [11, 11, 10])
    if not isinstance(found, list) or not all(type(item) is int for item in found):
        raise c.error(key, "is of another kind", "a list of whole numbers")
    return {"rope.dimension_sections": [*found, 0, 0, 0, 0][:4]}


def _heads_of_states(model: Model, own: Shapes) -> Metadata:
    """Layers without attention have no heads."""
    kv = [0] * own.layers
    for spec in model.caches:
        if spec.kv_heads:
            kv[spec.layer] = spec.kv_heads
    return {"attention.head_count_kv": kv}


def _latent_layers(model: Model, own: Shapes) -> Metadata:
    """KDA and MLA layers side by side: one head where there is a latent."""
    latent = [0] * own.layers
    for spec in model.caches:
        if spec.latent:
            latent[spec.layer] = 1
    return {
        **_mla(model, own),
        "attention.head_count_kv": latent,
        "ssm.conv_kernel": own.any("ssm_conv1d_q.weight", 3),
        "kda.head_dim": own.any("ssm_norm.weight", 0),
        "kda.safe_gate": True,
        "kda.gate_lower_bound": -5.0,
    }


def _indexed(model: Model, own: Shapes) -> Metadata:
    c = model.config
    return {
        **_mla(model, own),
        "attention.indexer.head_count": own.any("indexer.proj.weight", 0),
        "attention.indexer.key_length": own.any("indexer.attn_k.weight", 0),
        "attention.indexer.top_k": c.integer("index_topk", 2048),
    }


def _gemma4(model: Model, own: Shapes) -> Metadata:
    c = model.config
    sliding = next((s for s in model.caches if s.window and s.kv_heads), None)
    keys: Metadata = {
        "embedding_length_per_layer_input": own.any("inp_gate.weight", 0),
        "attention.shared_kv_layers": c.size("num_kv_shared_layers"),
    }
    if sliding is not None:
        keys |= {
            "attention.key_length_swa": sliding.k_dim,
            "attention.value_length_swa": sliding.v_dim,
            "rope.dimension_count_swa": sliding.k_dim,
        }
    return keys


def _kv(model: Model, own: Shapes) -> list[int]:
    value = _heads_of_states(model, own)["attention.head_count_kv"]
    assert isinstance(value, list)
    return [int(item) for item in value]


def _delta(model: Model, own: Shapes) -> Metadata:
    return {"attention.head_count_kv": max(_kv(model, own))}


def _minicpm3(model: Model, own: Shapes) -> Metadata:
    c = model.config
    width = c.integer("qk_nope_head_dim") + c.integer("qk_rope_head_dim")
    return {
        "attention.q_lora_rank": c.integer("q_lora_rank"),
        "attention.kv_lora_rank": c.integer("kv_lora_rank"),
        "attention.head_count_kv": c.heads,
        "attention.key_length": width,
        "rope.dimension_count": c.integer("qk_rope_head_dim"),
    }


def _minimax_m3(model: Model, own: Shapes) -> Metadata:
    c = model.config
    sparse = c.get("sparse_attention_config") or {}
    return {
        "attention.indexer.head_count": sparse.get("sparse_num_index_heads") or c.integer("index_n_heads", 4),
        "attention.indexer.key_length": sparse.get("sparse_index_dim") or c.integer("index_head_dim", 128),
        "attention.indexer.top_k": sparse.get("sparse_topk_blocks") or c.integer("index_topk_blocks", 16),
        "attention.indexer.block_size": sparse.get("sparse_block_size") or c.integer("index_block_size", 128),
        "attention.indexer.local_blocks": sparse.get("sparse_local_block") or c.integer("index_local_blocks", 1),
    }


def _deepseek4(model: Model, own: Shapes) -> Metadata:
    c = model.config
    layers = own.layers
    ratios = c.integers("compress_ratios") or [0] * layers
    return {
        "attention.q_lora_rank": c.integer("q_lora_rank"),
        "rope.dimension_count": c.integer("qk_rope_head_dim"),
        "attention.head_count_kv": 1,
        "attention.key_length": c.integer("head_dim"),
        "attention.value_length": c.integer("head_dim"),
        "attention.sliding_window": c.integer("sliding_window"),
        "swiglu_clamp_exp": [float(c.get("swiglu_limit", 10.0))] * layers,
        "swiglu_clamp_shexp": [float(c.get("swiglu_limit", 10.0))] * layers,
        "attention.indexer.head_count": c.integer("index_n_heads"),
        "attention.indexer.key_length": c.integer("index_head_dim"),
        "attention.indexer.top_k": c.integer("index_topk"),
        "attention.output_group_count": c.integer("o_groups"),
        "attention.output_lora_rank": c.integer("o_lora_rank"),
        "attention.compress_ratios": ratios,
        "attention.compress_rope_freq_base": 160000.0,
        "hyper_connection.count": c.integer("hc_mult"),
        "hyper_connection.sinkhorn_iterations": c.integer("hc_sinkhorn_iters", 20),
        "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": sum(1 for width in own.each("ffn_gate_tid2eid.weight", 0) if width),
        "expert_gating_func": 4,
        "embedding_length_out": c.integer("hidden_size") * c.integer("hc_mult"),
    }


def _dots3(model: Model, own: Shapes) -> Metadata:
    c = model.config
    slides = [bool(spec.window) for spec in model.caches][: own.layers]
    sliding: dict[str, int] = next(iter((c.get("per_layer_config") or {}).values()), {})
    rank, rope = sliding["kv_lora_rank"], sliding["qk_rope_head_dim"]
    return {
        **_indexed(model, own),
        "attention.head_count": [sliding["num_attention_heads"] if slide else c.heads for slide in slides],
        "attention.sliding_window": next(spec.window for spec in model.caches if spec.window),
        "attention.sliding_window_pattern": slides,
        "attention.kv_lora_rank_swa": rank,
        "attention.key_length_swa": rank + rope,
        "attention.value_length_swa": rank,
        "attention.key_length_mla_swa": sliding["qk_nope_head_dim"] + rope,
        "attention.value_length_mla_swa": sliding["v_head_dim"],
        "attention.indexer.types": [not slide for slide in slides],
        "rope.freq_base_swa": 10000.0,
    }


def _nemotron_moe(model: Model, own: Shapes) -> Metadata:
    latent = own.any("ffn_latent_down.weight", 0)
    return {**_heads_of_states(model, own), **({"moe_latent_size": latent} if latent else {})}


def _deci(model: Model, own: Shapes) -> Metadata:
    kv = _kv(model, own)
    heads = model.config.heads
    linear = own.each("attn_output.weight", 0)
    return {
        "attention.head_count": [heads if k or linear[i] else 0 for i, k in enumerate(kv)],
        "attention.head_count_kv": kv,
        "rope.dimension_count": model.config.head_dim,
    }


def _step35(model: Model, own: Shapes) -> Metadata:
    c = model.config
    keys: Metadata = {"attention.sliding_window": c.integer("sliding_window", 512)}
    if not any(spec.window for spec in model.caches):
        keys["attention.sliding_window_pattern"] = [False] * own.layers
    return keys


#: What an architecture's loader wants beside the common keys, and where it wants them otherwise.
OF_ARCHITECTURE: dict[str, Callable[[Model, Shapes], Metadata]] = {
    **dict.fromkeys(("deepseek2", "minicpm3", "mistral4"), _mla),
    **dict.fromkeys(("deepseek32", "glm-dsa"), _indexed),
    **dict.fromkeys(("cohere2", "cohere2moe", "command-r"), lambda m, o: {"logit_scale": 0.25}),
    **dict.fromkeys(("granite", "granite_swa", "granitemoe"), _scales),
    **dict.fromkeys(("qwen2vl", "qwen3vl", "qwen3vlmoe"), _sections),
    **dict.fromkeys(("qwen35", "qwen35moe"), lambda m, o: {**_sections(m, o), **_delta(m, o)}),
    "qwen3next": lambda m, o: _delta(m, o),
    "paddleocr": _sections,
    **dict.fromkeys(("kimi-linear", "bailingmoe3"), _latent_layers),
    "granitehybrid": lambda m, o: {**_scales(m, o), **_heads_of_states(m, o)},
    "jamba": _heads_of_states,
    "lfm2": lambda m, o: {**_heads_of_states(m, o), "shortconv.l_cache": o.any("shortconv.conv.weight", 1)},
    "lfm2moe": lambda m, o: {**_heads_of_states(m, o), "shortconv.l_cache": o.any("shortconv.conv.weight", 1)},
    "nemotron_h": _heads_of_states,
    "nemotron_h_moe": lambda m, o: _nemotron_moe(m, o),
    "dbrx": lambda m, o: {"attention.clamp_kqv": 8.0},
    "gptneox": lambda m, o: {"use_parallel_residual": True},
    "llama4": lambda m, o: {"interleave_moe_layer_step": m.config.integer("interleave_moe_layer_step", 1)},
    "gemma4": lambda m, o: _gemma4(m, o),
    "apertus": lambda m, o: {f"xielu.{k}": [1.0] * o.layers for k in ("alpha_n", "alpha_p", "beta", "eps")},
    "minimax-01": lambda m, o: {"residual_scale": 1.0, "attention.recurrent_layers": [not k for k in _kv(m, o)]},
    "ernie4_5-moe": lambda m, o: {"interleave_moe_layer_step": m.config.integer("moe_layer_interval", 1)},
    "minicpm3": lambda m, o: _minicpm3(m, o),
    "minimax-m3": lambda m, o: _minimax_m3(m, o),
    "qwen": lambda m, o: {"feed_forward_length": 2 * o.any("ffn_down.weight", 1)},
    "deepseek4": lambda m, o: _deepseek4(m, o),
    "dots3note": lambda m, o: _dots3(m, o),
    "deci": lambda m, o: _deci(m, o),
    "step35": lambda m, o: _step35(m, o),
    "laguna": lambda m, o: {"rope.dimension_count_swa": m.config.head_dim},
}
