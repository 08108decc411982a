"""Blocks that keep a state of fixed size instead of keys and values: Mamba, delta nets, short convolutions.

What a layer keeps follows transformers' caches: the last inputs of its convolution
(`conv`, in the model's dtype) and a recurrent state (`ssm`, in fp32).
"""

from __future__ import annotations

from collections.abc import Iterator

from membudget.model.blocks import Block, Flag, Layer, Size, flag, linear, size
from membudget.model.caches import CacheSpec, State
from membudget.model.tensors import Tensor


def recurrent(layer: Layer, *states: State) -> CacheSpec:
    """A layer that keeps these states."""
    return CacheSpec(layer.index, "recurrent", states=states)


def conv_state(channels: int, kernel: int) -> State:
    """The last inputs of a convolution, as transformers keeps them: as many as its kernel is long."""
    return State("conv", channels * kernel, columns=kernel)


def conv(at: str, channels: int, kernel: int, bias: bool = False, role: str = "mixer") -> Iterator[Tensor]:
    """A depthwise convolution over tokens: (channels, 1, kernel)."""
    yield Tensor(at + ".weight", (channels, 1, kernel), role)
    if bias:
        yield Tensor(at + ".bias", (channels,), role)


def time_step_rank(key: str) -> Size:
    """Mamba's rank of the time step: a number, or "auto" for hidden_size / 16 rounded up."""

    def rank(layer: Layer) -> int:
        c = layer.config
        if c.get(key, "auto") == "auto":
            return -(-c.integer("hidden_size") // 16)
        return c.integer(key)

    return rank


def expanded(key: str = "expand") -> Size:
    """`key` times hidden_size, rounded down."""
    return lambda layer: int(layer.config.factor(key) * layer.config.integer("hidden_size"))


def mamba1(
    *,
    inner: Size,
    state: Size,
    rank: Size,
    kernel: Size,
    conv_bias: Flag = True,
    bias: Flag = False,
    inner_norms: bool = False,
    name: str = "mixer.",
) -> Block:
    """Mamba: in_proj (2 I, H), conv (I), x_proj (R + 2 N, I), dt_proj (I, R), A_log (I, N), D (I), out_proj (H, I).

    inner_norms: norms of the time step, B and C (Jamba).
    """

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        hidden, wide, n, r = c.integer("hidden_size"), size(layer, inner), size(layer, state), size(layer, rank)
        b = flag(layer, bias)
        yield Tensor(at + "A_log", (wide, n), "mixer")
        yield Tensor(at + "D", (wide,), "mixer")
        yield from conv(at + "conv1d", wide, size(layer, kernel), flag(layer, conv_bias))
        yield from linear(at + "in_proj", 2 * wide, hidden, "mixer", b)
        yield from linear(at + "x_proj", r + 2 * n, wide, "mixer")
        yield from linear(at + "dt_proj", wide, r, "mixer", True)
        yield from linear(at + "out_proj", hidden, wide, "mixer", b)
        if inner_norms:
            for part, width in (("dt", r), ("b", n), ("c", n)):
                yield Tensor(f"{at}{part}_layernorm.weight", (width,), "norms")

    def cache(layer: Layer) -> CacheSpec:
        wide = size(layer, inner)
        return recurrent(
            layer, conv_state(wide, size(layer, kernel)), State("ssm", wide * size(layer, state), fp32=True)
        )

    return Block(tensors, cache)


def mamba2(
    *,
    inner: Size,
    heads: Size,
    groups: Size,
    state: Size,
    kernel: Size,
    conv_bias: Flag = True,
    bias: Flag = False,
    out_bias: Flag | None = None,
    gated_norm: Flag = True,
    name: str = "mixer.",
) -> Block:
    """Mamba-2: one in_proj for gate, x, B, C and time steps; conv over x, B and C; one A, D and dt a head."""

    def convolved(layer: Layer) -> int:
        return size(layer, inner) + 2 * size(layer, groups) * size(layer, state)

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        hidden, wide, h = c.integer("hidden_size"), size(layer, inner), size(layer, heads)
        b, channels = flag(layer, bias), convolved(layer)
        for part in ("dt_bias", "A_log", "D"):
            yield Tensor(at + part, (h,), "mixer")
        yield from conv(at + "conv1d", channels, size(layer, kernel), flag(layer, conv_bias))
        yield from linear(at + "in_proj", wide + channels + h, hidden, "mixer", b)
        if flag(layer, gated_norm):
            yield Tensor(at + "norm.weight", (wide,), "norms")
        yield from linear(at + "out_proj", hidden, wide, "mixer", b if out_bias is None else flag(layer, out_bias))

    def cache(layer: Layer) -> CacheSpec:
        kept = size(layer, inner) * size(layer, state)
        return recurrent(layer, conv_state(convolved(layer), size(layer, kernel)), State("ssm", kept, fp32=True))

    return Block(tensors, cache)


#: Qwen3-Next keeps q, k, v, gate in one projection; Qwen3.5 in two; Lara in one with beta and decay.
DELTA_LAYOUTS = ("qkvz_ba", "qkv_z_b_a", "all", "split")


def delta_net(layout: str, name: str = "linear_attn.") -> Block:
    """Gated delta net: q and k (Kd each), v and gate (Vd each), two values a head, conv over q, k and v.

    layout: how the projections are stored, see `DELTA_LAYOUTS`; ``split`` has one each, and
    one convolution each.
    """

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        hidden, kernel = c.integer("hidden_size"), c.integer("linear_conv_kernel_dim")
        heads, dim = c.integer("linear_num_value_heads"), c.integer("linear_value_head_dim")
        k, v = c.integer("linear_num_key_heads") * c.integer("linear_key_head_dim"), heads * dim
        yield Tensor(at + "A_log", (heads,), "mixer")
        yield Tensor(at + "dt_bias", (heads,), "mixer")
        parts: tuple[tuple[str, int], ...]
        if layout == "split":
            for part, width in (("q", k), ("k", k), ("v", v)):
                yield from conv(f"{at}{part}_conv1d", width, kernel)
            parts = (("q_proj", k), ("k_proj", k), ("v_proj", v), ("g_proj", v), ("b_proj", heads), ("a_proj", heads))
        else:
            yield from conv(at + "conv1d", 2 * k + v, kernel)
            parts = {
                "qkvz_ba": (("in_proj_qkvz", 2 * k + 2 * v), ("in_proj_ba", 2 * heads)),
                "qkv_z_b_a": (
                    ("in_proj_qkv", 2 * k + v), ("in_proj_z", v), ("in_proj_b", heads), ("in_proj_a", heads),
                ),
                "all": (("in_proj", 2 * k + 2 * v + 2 * heads),),
            }[layout]  # fmt: skip
        for part, width in parts:
            yield from linear(at + part, width, hidden, "mixer")
        norm_name = {"split": "o_norm", "all": "out_norm"}.get(layout, "norm")
        yield Tensor(f"{at}{norm_name}.weight", (dim,), "norms")
        yield from linear(at + ("o_proj" if layout == "split" else "out_proj"), hidden, v, "mixer")

    def cache(layer: Layer) -> CacheSpec:
        c = layer.config
        key, value = c.integer("linear_key_head_dim"), c.integer("linear_value_head_dim")
        heads = c.integer("linear_num_value_heads")
        channels = 2 * c.integer("linear_num_key_heads") * key + heads * value
        return recurrent(
            layer,
            conv_state(channels, c.integer("linear_conv_kernel_dim")),
            State("ssm", heads * key * value, fp32=True),
        )

    return Block(tensors, cache)


def kda(*, low_rank: bool, name: str = "self_attn.", out: str = "o_proj") -> Block:
    """Kimi delta attention: q, k, v of one width with a convolution each, forget and output gates.

    low_rank: the gates go through head_dim (Kimi-Linear); else they are one projection each (Bailing).
    """

    def sizes(layer: Layer) -> tuple[int, int, int]:
        c = layer.config
        heads, dim = c.integer("linear_num_heads"), c.integer("linear_head_dim")
        return heads, dim, heads * dim

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        hidden, kernel = c.integer("hidden_size"), c.integer("linear_conv_kernel_dim")
        heads, dim, wide = sizes(layer)
        for part in ("q", "k", "v"):
            yield from linear(f"{at}{part}_proj", wide, hidden, "mixer")
            yield from conv(f"{at}{part}_conv1d", wide, kernel)
        yield Tensor(at + "A_log", (1, 1, heads, 1) if low_rank else (heads,), "mixer")
        yield Tensor(at + "dt_bias", (wide,), "mixer")
        yield from linear(at + "b_proj", heads, hidden, "mixer")
        for gate in ("f", "g"):
            if low_rank:
                yield from linear(f"{at}{gate}_a_proj", dim, hidden, "mixer")
                yield from linear(f"{at}{gate}_b_proj", wide, dim, "mixer")
            else:
                yield from linear(f"{at}{gate}_proj", wide, hidden, "mixer")
        yield Tensor(at + "o_norm.weight", (dim,), "norms")
        yield from linear(at + out, hidden, wide, "mixer")

    def cache(layer: Layer) -> CacheSpec:
        _, dim, wide = sizes(layer)
        kernel = layer.config.integer("linear_conv_kernel_dim")
        return recurrent(layer, conv_state(3 * wide, kernel), State("ssm", wide * dim, fp32=True))

    return Block(tensors, cache)


def short_conv(*, bias: Flag = "conv_bias", name: str = "conv.") -> Block:
    """LFM2's gated short convolution: in_proj (3 H, H), conv (H), out_proj (H, H)."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        hidden, b = c.integer("hidden_size"), flag(layer, bias)
        yield from conv(at + "conv", hidden, c.integer("conv_L_cache"), b)
        yield from linear(at + "in_proj", 3 * hidden, hidden, "mixer", b)
        yield from linear(at + "out_proj", hidden, hidden, "mixer", b)

    def cache(layer: Layer) -> CacheSpec:
        c = layer.config
        return recurrent(layer, conv_state(c.integer("hidden_size"), c.integer("conv_L_cache")))

    return Block(tensors, cache)


def lightning(name: str = "self_attn.") -> Block:
    """MiniMax's lightning attention: q, k, v in one, an output gate, a norm; decay tables are buffers."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        hidden, heads = c.integer("hidden_size"), c.heads
        wide, chunk = heads * c.head_dim, c.integer("block_size", 256)
        yield from linear(at + "qkv_proj", 3 * wide, hidden, "mixer")
        yield from linear(at + "out_proj", hidden, wide, "mixer")
        yield from linear(at + "output_gate", wide, hidden, "mixer")
        yield Tensor(at + "norm.weight", (wide,), "norms")
        for part, shape in (
            ("slope_rate", (heads, 1, 1)),
            ("query_decay", (heads, chunk, 1)),
            ("key_decay", (heads, chunk, 1)),
            ("diagonal_decay", (1, heads, chunk, chunk)),
        ):
            yield Tensor(at + part, shape, "mixer", part="checkpoint")

    def cache(layer: Layer) -> CacheSpec:
        c = layer.config
        return recurrent(layer, State("linear", c.heads * c.head_dim * c.head_dim))

    return Block(tensors, cache)
