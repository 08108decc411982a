"""Recurrent nets: RecurrentGemma, RWKV, xLSTM."""

from __future__ import annotations

from collections.abc import Iterator

from membudget.model.attention import gqa
from membudget.model.blocks import Block, Layer, linear, norm, when
from membudget.model.caches import CacheSpec, State
from membudget.model.config import Config
from membudget.model.families.base import register
from membudget.model.feedforward import glu
from membudget.model.state import conv, recurrent
from membudget.model.tensors import Tensor


def _rg_kinds(config: Config) -> list[str]:
    block = config.get("block_types", config.get("_block_types")) or ["recurrent", "recurrent", "attention"]
    if not isinstance(block, list) or not all(isinstance(kind, str) for kind in block):
        raise config.error("block_types", "is not a list of strings", '"recurrent" and "attention"')
    kinds = [block[i % len(block)] for i in range(config.layers)]
    return ["sliding_attention" if kind == "attention" else kind for kind in kinds]


def _rg_lru(layer: Layer) -> Iterator[Tensor]:
    """RecurrentGemma: two branches, a convolution, a gated linear recurrence with block-diagonal gates."""
    c, at = layer.config, layer.prefix + "temporal_block."
    hidden, heads = c.integer("hidden_size"), c.heads
    wide = c.integer("lru_width", hidden)
    if wide % heads:
        raise c.error("lru_width", f"is {wide}", f"a multiple of num_attention_heads {heads}")
    block = wide // heads
    for name in ("linear_y", "linear_x"):
        yield from linear(at + name, wide, hidden, "mixer", True)
    yield from linear(at + "linear_out", hidden, wide, "mixer", True)
    yield from conv(at + "conv_1d", wide, c.integer("conv1d_width"), True)
    yield Tensor(at + "rg_lru.recurrent_param", (wide,), "mixer")
    for gate in ("input", "recurrent"):
        yield Tensor(f"{at}rg_lru.{gate}_gate_weight", (heads, block, block), "mixer")
        yield Tensor(f"{at}rg_lru.{gate}_gate_bias", (heads, block), "mixer")


def _rg_cache(layer: Layer) -> CacheSpec:
    c = layer.config
    wide = c.integer("lru_width", c.integer("hidden_size"))
    columns = c.integer("conv1d_width") - 1
    return recurrent(layer, State("conv1d", wide * columns, columns=columns), State("rg_lru", wide, fp32=True))


def _half(layer: Layer) -> int:
    return layer.config.integer("intermediate_size") // 2


register(
    "recurrent_gemma",
    when(
        lambda layer: layer.kind == "sliding_attention",
        gqa(bias="attention_bias", out_bias=True, name="temporal_block.", window="attention_window_size"),
        Block(_rg_lru, _rg_cache),
    ),
    glu(width=_half, bias=True, name="mlp_block."),
    norms=("temporal_pre_norm", "channel_pre_norm"),
    final="final_norm",
    kinds=_rg_kinds,
)


def _rwkv(layer: Layer) -> Iterator[Tensor]:
    """RWKV-4: time mixing and channel mixing."""
    c, at = layer.config, layer.prefix
    hidden = c.integer("hidden_size")
    wide, inner = c.integer("attention_hidden_size", hidden), c.integer("intermediate_size", 4 * hidden)
    for name in (*(("pre_ln",) if layer.index == 0 else ()), "ln1", "ln2"):
        yield from norm(at + name, hidden, True)
    for name in ("time_decay", "time_first"):
        yield Tensor(f"{at}attention.{name}", (wide,), "mixer")
    for name in ("key", "value", "receptance"):
        yield Tensor(f"{at}attention.time_mix_{name}", (1, 1, hidden), "mixer")
        yield from linear(f"{at}attention.{name}", wide, hidden, "mixer")
    yield from linear(at + "attention.output", hidden, wide, "mixer")
    for name in ("key", "receptance"):
        yield Tensor(f"{at}feed_forward.time_mix_{name}", (1, 1, hidden), "mlp")
    yield from linear(at + "feed_forward.key", inner, hidden, "mlp")
    yield from linear(at + "feed_forward.receptance", hidden, hidden, "mlp")
    yield from linear(at + "feed_forward.value", hidden, inner, "mlp")


def _rwkv_cache(layer: Layer) -> CacheSpec:
    c = layer.config
    hidden = c.integer("hidden_size")
    wide = c.integer("attention_hidden_size", hidden)
    return recurrent(layer, State("shift", 2 * hidden), State("wkv", 3 * wide, fp32=True))


register(
    "rwkv",
    Block(_rwkv, _rwkv_cache),
    norms=(),
    root="rwkv.",
    embed="embeddings",
    layers="blocks",
    final="ln_out",
    final_bias=True,
    head="head",
)


def _xlstm_sizes(c: Config) -> tuple[int, int, int]:
    """(query and key width, value width, feed-forward width)."""
    hidden, multiple = c.integer("hidden_size"), c.integer("ffn_round_up_to_multiple_of", 64)
    inner = int(hidden * c.factor("ffn_proj_factor", 2.667))
    return (
        int(hidden * c.factor("qk_dim_factor", 0.5)),
        int(hidden * c.factor("v_dim_factor", 1.0)),
        -(-inner // multiple) * multiple,
    )


def _xlstm(layer: Layer) -> Iterator[Tensor]:
    """An mLSTM layer: matrix memory with input and forget gates, and a gated MLP."""
    c, at = layer.config, layer.prefix
    hidden, heads, b = c.integer("hidden_size"), c.heads, c.flag("use_bias")
    q, v, inner = _xlstm_sizes(c)
    yield from norm(at + "norm_mlstm", hidden, b)
    for name, width in (("q", q), ("k", q), ("v", v), ("ogate_preact", v)):
        yield from linear(f"{at}mlstm_layer.{name}", width, hidden, "mixer", b)
    for name in ("igate_preact", "fgate_preact"):
        yield from linear(f"{at}mlstm_layer.{name}", heads, hidden, "mixer", True)
    yield from norm(at + "mlstm_layer.multihead_norm", v, b)
    yield from linear(at + "mlstm_layer.out_proj", hidden, v, "mixer", b)
    yield from norm(at + "norm_ffn", hidden, b)
    for name in ("proj_up_gate", "proj_up"):
        yield from linear(f"{at}ffn.{name}", inner, hidden, "mlp", b)
    yield from linear(at + "ffn.proj_down", hidden, inner, "mlp", b)


def _xlstm_cache(layer: Layer) -> CacheSpec:
    c = layer.config
    q, v, _ = _xlstm_sizes(c)
    heads = c.heads
    return recurrent(layer, State("mlstm", heads * ((q // heads) * (v // heads) + q // heads + 1)))


register(
    "xlstm",
    Block(_xlstm, _xlstm_cache),
    norms=(),
    root="backbone.",
    embed="embeddings",
    layers="blocks",
    final="out_norm",
    tied=False,
)
