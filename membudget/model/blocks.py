"""The blocks that models are built from; each yields its tensors and knows its cache.

A block is made once, with its options, when a family is declared, and called for
every layer.  An option that is a string names a key of the config; it is read when
the block is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from membudget.model.caches import CacheSpec
from membudget.model.config import Config
from membudget.model.tensors import Tensor

Flag = bool | str
Size = int | str


class Layer:
    """One layer of one model: the config, the index, and what kind of layer it is.

    kind: the attention of this layer, as in config.json's layer_types.
    prefix: the checkpoint name that its tensors start with (``model.layers.0.``).
    """

    __slots__ = ("config", "index", "kind", "prefix")

    def __init__(self, config: Config, index: int, kind: str, prefix: str) -> None:
        self.config, self.index, self.kind, self.prefix = config, index, kind, prefix


class Block:
    """tensors(layer) yields the layer's tensors; cache(layer) says what it keeps, or None."""

    __slots__ = ("cache", "tensors")

    def __init__(
        self,
        tensors: Callable[[Layer], Iterator[Tensor]],
        cache: Callable[[Layer], CacheSpec] | None = None,
    ) -> None:
        self.tensors, self.cache = tensors, cache


def linear(name: str, out: int, into: int, role: str, bias: bool = False, **more: int) -> Iterator[Tensor]:
    """A linear layer: weight (out, into) and, if asked, bias (out,)."""
    yield Tensor(name + ".weight", (out, into), role, **more)
    if bias:
        yield Tensor(name + ".bias", (out,), role, **more)


def norm(name: str, width: int, bias: bool = False) -> Iterator[Tensor]:
    """A norm's weight (width,) and, for LayerNorm, its bias."""
    yield Tensor(name + ".weight", (width,), "norms")
    if bias:
        yield Tensor(name + ".bias", (width,), "norms")


def _flag(config: Config, option: Flag) -> bool:
    return config.flag(option) if isinstance(option, str) else option


def _size(config: Config, option: Size, default: int | None = None) -> int:
    return config.integer(option, default, minimum=0) if isinstance(option, str) else option


def gqa(
    *,
    bias: Flag = False,
    out_bias: Flag | None = None,
    qk_norm: str | None = None,
    fused: bool = False,
    sinks: bool = False,
    name: str = "self_attn",
    out: str = "o_proj",
) -> Block:
    """Grouped-query attention: q, k, v and output projections (MHA and MQA are its ends).

    bias: on q, k and v.  out_bias: on the output, as bias unless given.
    qk_norm: ``head`` (weights of head_dim) or ``full`` (of all heads together).
    fused: one qkv_proj.  sinks: one learned scalar a head.
    """

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, f"{layer.prefix}{name}."
        hidden, d = c.integer("hidden_size"), c.head_dim
        q, kv = c.heads * d, c.kv_heads * d
        with_bias = _flag(c, bias)
        if fused:
            yield from linear(at + "qkv_proj", q + 2 * kv, hidden, "attn", with_bias)
        else:
            yield from linear(at + "q_proj", q, hidden, "attn", with_bias)
            yield from linear(at + "k_proj", kv, hidden, "attn", with_bias)
            yield from linear(at + "v_proj", kv, hidden, "attn", with_bias)
        yield from linear(at + out, hidden, q, "attn", with_bias if out_bias is None else _flag(c, out_bias))
        if qk_norm:
            yield from norm(at + "q_norm", d if qk_norm == "head" else q)
            yield from norm(at + "k_norm", d if qk_norm == "head" else kv)
        if sinks:
            yield Tensor(at + "sinks", (c.heads,), "attn")

    def cache(layer: Layer) -> CacheSpec:
        c = layer.config
        d = c.head_dim
        if layer.kind == "full_attention":
            return CacheSpec(layer.index, "full", c.kv_heads, d, d)
        if layer.kind == "chunked_attention":
            return CacheSpec(layer.index, "chunked", c.kv_heads, d, d, c.integer("attention_chunk_size"))
        return CacheSpec(layer.index, "sliding", c.kv_heads, d, d, c.integer("sliding_window"))

    return Block(tensors, cache)


def mla(*, bias: Flag = False) -> Block:
    """Multi-head latent attention (DeepSeek-V2): one compressed vector a token is cached."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + "self_attn."
        hidden, heads, b = c.integer("hidden_size"), c.heads, _flag(c, bias)
        nope, rope = c.integer("qk_nope_head_dim"), c.integer("qk_rope_head_dim")
        value, rank = c.integer("v_head_dim"), c.integer("kv_lora_rank")
        if c.get("q_lora_rank") is None:
            yield from linear(at + "q_proj", heads * (nope + rope), hidden, "attn")
        else:
            q_rank = c.integer("q_lora_rank")
            yield from linear(at + "q_a_proj", q_rank, hidden, "attn", b)
            yield from norm(at + "q_a_layernorm", q_rank)
            yield from linear(at + "q_b_proj", heads * (nope + rope), q_rank, "attn")
        yield from linear(at + "kv_a_proj_with_mqa", rank + rope, hidden, "attn", b)
        yield from norm(at + "kv_a_layernorm", rank)
        yield from linear(at + "kv_b_proj", heads * (nope + value), rank, "attn")
        yield from linear(at + "o_proj", hidden, heads * value, "attn", b)

    def cache(layer: Layer) -> CacheSpec:
        c = layer.config
        return CacheSpec(layer.index, "latent", latent=c.integer("kv_lora_rank"), rope=c.integer("qk_rope_head_dim"))

    return Block(tensors, cache)


def glu(
    *,
    width: Size = "intermediate_size",
    bias: Flag = False,
    fused: bool = False,
    name: str = "mlp",
    role: str = "mlp",
) -> Block:
    """Gated MLP: gate and up (width, hidden), down (hidden, width)."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, f"{layer.prefix}{name}."
        hidden, inner, b = c.integer("hidden_size"), _size(c, width), _flag(c, bias)
        if fused:
            yield from linear(at + "gate_up_proj", 2 * inner, hidden, role, b)
        else:
            yield from linear(at + "gate_proj", inner, hidden, role, b)
            yield from linear(at + "up_proj", inner, hidden, role, b)
        yield from linear(at + "down_proj", hidden, inner, role, b)

    return Block(tensors)


def moe(
    *,
    width: Size = "moe_intermediate_size",
    shared: Callable[[Config], int] | None = None,
    shared_name: str = "shared_experts",
    shared_gate: bool = False,
    router: str = "gate",
    router_bias: str | None = None,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    name: str = "mlp",
    dense: Block | None = None,
    dense_layer: Callable[[Layer], bool] | None = None,
) -> Block:
    """A mixture of gated experts behind a router; `dense` on the layers `dense_layer` picks.

    shared: width of the always-active shared expert (0: none), from the config.
    router_bias: name of a bias that is stored with the checkpoint but is a buffer, not a parameter.
    """

    def tensors(layer: Layer) -> Iterator[Tensor]:
        if dense is not None and dense_layer is not None and dense_layer(layer):
            yield from dense.tensors(layer)
            return
        c, at = layer.config, f"{layer.prefix}{name}."
        hidden, inner, experts = c.integer("hidden_size"), _size(c, width), c.integer("num_experts")
        active = c.integer("num_experts_per_tok", maximum=experts)
        yield Tensor(f"{at}{router}.weight", (experts, hidden), "mlp.router")
        if router_bias:
            yield Tensor(f"{at}{router_bias}", (experts,), "mlp.router", part="checkpoint")
        gate, up, down = (f"{at}experts.*.{part}.weight" for part in names)
        yield Tensor(gate, (inner, hidden), "mlp.experts", experts, active)
        yield Tensor(up, (inner, hidden), "mlp.experts", experts, active)
        yield Tensor(down, (hidden, inner), "mlp.experts", experts, active)
        if shared is not None and (shared_width := shared(c)):
            yield from glu(width=shared_width, name=f"{name}.{shared_name}", role="mlp.shared").tensors(layer)
            if shared_gate:
                yield Tensor(f"{at}{shared_name}_gate.weight", (1, hidden), "mlp.shared")

    return Block(tensors)


def packed_experts() -> Block:
    """gpt-oss: experts stored as two stacked tensors with biases, a router with a bias."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + "mlp."
        hidden, inner, experts = c.integer("hidden_size"), c.integer("intermediate_size"), c.integer("num_experts")
        active = c.integer("num_experts_per_tok", maximum=experts)
        yield from linear(at + "router", experts, hidden, "mlp.router", bias=True)
        for name, out, into in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            yield Tensor(f"{at}experts.{name}", (into, out), "mlp.experts", experts, active)
            yield Tensor(f"{at}experts.{name}_bias", (out,), "mlp.experts", experts, active)

    return Block(tensors)
