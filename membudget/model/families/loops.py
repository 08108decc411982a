"""Decoders that cross-attend, loop or mix their own way: Llama 3.2 Vision's text, ModernBERT, HRM, Dory, Doge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isqrt
from typing import Any

from membudget.model.attention import Gate, Heads, QkNorm, gqa
from membudget.model.blocks import Block, Layer, linear, norms, project, together, weight, when
from membudget.model.caches import CacheSpec
from membudget.model.config import Config
from membudget.model.families.base import register, sliding_if_set
from membudget.model.feedforward import glu
from membudget.model.tensors import Tensor


def _all_heads(layer: Layer) -> int:
    return layer.config.heads


def _crosses(layer: Layer) -> bool:
    """Every fifth layer from the fourth on attends to the image, unless the config lists others."""
    listed = layer.config.integers("cross_attention_layers")
    return layer.index in (range(3, 40, 5) if listed is None else listed)


CROSS = gqa(norm=QkNorm("head"), name="cross_attn.")
register(
    "mllama_text_model",
    when(
        _crosses,
        Block(
            together(CROSS, weight("cross_attn_attn_gate", 1, role="attn"), weight("cross_attn_mlp_gate", 1)).tensors,
            lambda layer: _cross_cache(layer),
        ),
        gqa(),
    ),
    glu(),
    tied=False,
    embed_size=(lambda layer: layer.config.integer("vocab_size") + 8, "hidden_size"),
    head_size=("vocab_size", "hidden_size"),
)


def _cross_cache(layer: Layer) -> CacheSpec:
    """Keys and values of the image's tokens."""
    c = layer.config
    return CacheSpec(layer.index, "cross", c.kv_heads, c.head_dim, c.head_dim)


def _modern_kinds(config: Config) -> list[str]:
    every = config.integer("global_attn_every_n_layers", 3)
    return ["sliding_attention" if i % every else "full_attention" for i in range(config.layers)]


def _modern_window(config: Config) -> dict[str, int]:
    """A token sees half of local_attention."""
    local = config.size("local_attention")
    return {"sliding_window": local // 2} if local else {}


register(
    "modernbert-decoder",
    gqa(
        bias="attention_bias",
        name="attn.",
        names=("q_proj", "k_proj", "v_proj", "Wo"),
        sizes=Heads(kv_heads=_all_heads),
        window="sliding_window",
    ),
    glu(bias="mlp_bias", fused="Wi", names=("", "", "Wo")),
    norms("mlp_norm", bias="norm_bias"),
    when(lambda layer: layer.index > 0, norms("attn_norm", bias="norm_bias")),
    norms=(),
    embed="embeddings.tok_embeddings",
    before=norms("embeddings.norm", bias="norm_bias"),
    final="final_norm",
    final_bias="norm_bias",
    after=Block(
        lambda layer: together(
            project("dense", "hidden_size", role="lm_head", bias="classifier_bias"), norms("norm", bias="norm_bias")
        ).tensors(layer.at("lm_head."))
    ),
    head="decoder",
    head_bias="decoder_bias",
    kinds=_modern_kinds,
    derive=_modern_window,
)


# ---- loops ------------------------------------------------------------------------------------


def _hrm(layer: Layer) -> Iterator[Tensor]:
    """Two stacks of layers that run in turn; one projection for gate, q, k and v."""
    c, at = layer.config, layer.prefix
    hidden, d = c.integer("hidden_size"), c.head_dim
    q, kv, inner = c.heads * d, c.kv_heads * d, c.integer("intermediate_size")
    yield from linear(at + "attn.gqkv_proj", 2 * q + 2 * kv, hidden, "attn", c.flag("attention_bias"))
    yield from linear(at + "attn.o_proj", hidden, q, "attn", c.flag("attention_bias"))
    yield from linear(at + "mlp.gate_up_proj", 2 * inner, hidden, "mlp", c.flag("mlp_bias"))
    yield from linear(at + "mlp.down_proj", hidden, inner, "mlp", c.flag("mlp_bias"))


def _both_stacks(layer: Layer) -> Iterator[Tensor]:
    for stack in ("H", "L"):
        yield from _hrm(layer.at(f"model.{stack}_module.layers.{layer.index}."))


def _stack(config: Config) -> int:
    return config.integer("num_layers_per_stack", config.size("num_hidden_layers") or None, maximum=10_000)


def _hrm_caches(config: Config, layers: list[Layer]) -> Iterable[CacheSpec]:
    """Every pass of every cycle keeps its own keys and values."""
    d, kv = config.head_dim, config.kv_heads
    high, low = config.integer("H_cycles", 2, maximum=30), config.integer("L_cycles", 3, maximum=30)
    return [CacheSpec(i, "full", kv, d, d) for i in range(high * (low + 1) * len(layers))]


register(
    "hrm_text",
    Block(_both_stacks),
    norms=(),
    final="",
    count=_stack,
    kinds=lambda config: ["full_attention"] * _stack(config),
    after=weight("z_L_init", "hidden_size"),
    caches=_hrm_caches,
)


def _dory_wide(layer: Layer) -> int:
    return layer.config.heads * layer.config.head_dim


def _dory(config: Config) -> dict[str, Any]:
    """A layer is an attention and an MLP; some configs list the MLPs as layers of their own."""
    listed = config.get("layer_types")
    sizes = {
        "num_hidden_layers": config.layers,
        "n_input_layers": config.size("n_input_layers"),
        "n_output_layers": config.size("n_output_layers"),
    }
    middle = config.size("n_recurrent_layers")
    if isinstance(listed, list) and "mlp" in listed:
        sizes, middle, listed = {key: value // 2 for key, value in sizes.items()}, middle // 2, listed[::2]
    count = sizes["num_hidden_layers"]
    middle = middle or count - sizes["n_input_layers"] - sizes["n_output_layers"]
    if middle < 1 or sizes["n_input_layers"] + middle + sizes["n_output_layers"] != count:
        raise config.error(
            "n_recurrent_layers", f"is {middle}", f"what makes num_hidden_layers {count} with the others"
        )
    kinds = listed or ["sliding_attention" if (i + 1) % 4 else "full_attention" for i in range(count)]
    return {**sizes, "n_recurrent_layers": middle, "layer_types": kinds}


def _dory_caches(config: Config, layers: list[Layer]) -> Iterable[CacheSpec]:
    """The recurrent block's layers keep their own in every loop."""
    start, middle = config.integer("n_input_layers"), config.integer("n_recurrent_layers")
    loops = config.integer("n_recurrent_loops", 1, maximum=100)
    order = [*layers[:start], *layers[start : start + middle] * loops, *layers[start + middle :]]
    cache = DORY_ATTENTION.cache
    assert cache is not None
    return [cache(layer)._replace(layer=index) for index, layer in enumerate(order)]


DORY_ATTENTION = gqa(bias="attention_bias", gate=Gate("g_proj"))
register(
    "dory",
    DORY_ATTENTION,
    weight("self_attn.s_gate", _dory_wide, role="attn"),
    weight("self_attn.sqk", _dory_wide, role="attn"),
    glu(bias="mlp_bias"),
    weight("mlp.suv_gate", "intermediate_size", role="mlp"),
    weight("mlp.suv_up", "intermediate_size", role="mlp"),
    weight("lambda_1", "hidden_size"),
    weight("lambda_2", "hidden_size"),
    norms=(),
    root="backbone.",
    embed="embeddings",
    final="",
    derive=_dory,
    after=Block(lambda layer: iter([Tensor("lm_head.logit_scale", (layer.config.integer("vocab_size"),), "lm_head")])),
    caches=_dory_caches,
)


def _doge_kv(layer: Layer) -> int:
    return layer.config.kv_heads


def _doge_wide(layer: Layer) -> int:
    return layer.config.kv_heads * layer.config.head_dim


def _cdmoe(layer: Layer) -> Iterator[Tensor]:
    """Doge's cross-domain mixture: an MLP for all tokens, and experts of one row each, found by two sets of keys."""
    c, at = layer.config, layer.prefix + "mlp."
    hidden, count = c.integer("hidden_size"), c.integer("num_experts")
    yield from glu(bias="mlp_bias").tensors(layer)
    yield from linear(at + "router_gate", 2 * isqrt(count), hidden, "mlp.router")
    active = c.integer("num_experts_per_tok", maximum=count)
    for name in ("down_embed", "up_embed"):
        yield Tensor(f"{at}{name}.weight", (hidden,), "mlp.experts", count, active)


register(
    "doge",
    gqa(bias="attention_bias", norm=QkNorm("head")),
    weight("self_attn.A", _doge_kv, role="attn"),
    project("self_attn.dt_proj", _doge_kv, _doge_wide, "attn", "attention_bias"),
    when(lambda layer: layer.config.flag("is_moe"), Block(_cdmoe), glu(bias="mlp_bias")),
    weight("input_residual", "hidden_size"),
    weight("post_attention_residual", "hidden_size"),
    kinds=sliding_if_set,
)
