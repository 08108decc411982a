"""State-space models and their hybrids with attention: Mamba, Jamba, Bamba, Falcon-H1, Nemotron-H, Zamba."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from membudget.model.attention import gqa
from membudget.model.blocks import Block, Layer, by_kind, dense_or, linear, size, together, when
from membudget.model.caches import CacheSpec, State
from membudget.model.config import MAX_LAYERS, Config
from membudget.model.families.base import all_of, register
from membudget.model.families.heads import mtp_pattern
from membudget.model.families.mixtures import GRANITE, GRANITE_SHARED
from membudget.model.feedforward import Latent, Router, Shared, glu, mlp, moe, optional
from membudget.model.state import conv, conv_state, expanded, mamba1, mamba2, recurrent, time_step_rank
from membudget.model.tensors import Tensor

BACKBONE = {"root": "backbone.", "embed": "embeddings", "final": "norm_f", "norms": ("norm",)}
MAMBA = {**BACKBONE, "kinds": all_of("linear_attention")}


def _inner(layer: Layer) -> int:
    """intermediate_size where the file has it, else expand times hidden_size: so the class sets it."""
    config = layer.config
    return config.integer("intermediate_size") if config.has("intermediate_size") else size(layer, expanded())


register(
    "mamba falcon_mamba",
    mamba1(
        inner=_inner,
        state="state_size",
        rank=time_step_rank("time_step_rank"),
        kernel="conv_kernel",
        conv_bias="use_conv_bias",
        bias="use_bias",
    ),
    **MAMBA,
)
register(
    "mamba2",
    mamba2(
        inner=expanded(),
        heads="num_attention_heads",
        groups="n_groups",
        state="state_size",
        kernel="conv_kernel",
        conv_bias="use_conv_bias",
        bias="use_bias",
    ),
    **MAMBA,
)


def _attention_at(config: Config) -> list[str]:
    """Jamba: every attn_layer_period-th layer from attn_layer_offset on is attention."""
    period, offset = config.integer("attn_layer_period", 8), config.size("attn_layer_offset", 4)
    return ["full_attention" if i % period == offset else "linear_attention" for i in range(config.layers)]


def _experts_at(config: Config) -> list[str]:
    period, offset = config.integer("expert_layer_period", 2), config.size("expert_layer_offset", 1)
    many = config.integer("num_experts", 16) > 1
    return ["sparse" if many and i % period == offset else "dense" for i in range(config.layers)]


HYBRID_NORMS = ("input_layernorm", "pre_ff_layernorm")
register(
    "jamba",
    by_kind(
        {
            "full_attention": gqa(),
            "linear_attention": mamba1(
                inner=expanded("mamba_expand"),
                state="mamba_d_state",
                rank=time_step_rank("mamba_dt_rank"),
                kernel="mamba_d_conv",
                conv_bias="mamba_conv_bias",
                bias="mamba_proj_bias",
                inner_norms=True,
                name="mamba.",
            ),
        }
    ),
    dense_or(
        moe(width="intermediate_size", router=Router("router.weight"), name="feed_forward."), glu(name="feed_forward.")
    ),
    norms=HYBRID_NORMS,
    final="final_layernorm",
    kinds=_attention_at,
    ffn=_experts_at,
)


def _listed_attention(config: Config) -> list[str]:
    """Bamba: attn_layer_indices are attention, the others Mamba-2."""
    listed = config.integers("attn_layer_indices") or ()
    return ["full_attention" if i in listed else "linear_attention" for i in range(config.layers)]


MAMBA2 = mamba2(
    inner=expanded("mamba_expand"),
    heads="mamba_n_heads",
    groups="mamba_n_groups",
    state="mamba_d_state",
    kernel="mamba_d_conv",
    conv_bias="mamba_conv_bias",
    bias="mamba_proj_bias",
    name="mamba.",
)
ATTENTION = gqa(bias="attention_bias")
register(
    "bamba",
    by_kind({"full_attention": ATTENTION}, MAMBA2),
    glu(bias="mlp_bias", name="feed_forward."),
    norms=HYBRID_NORMS,
    final="final_layernorm",
    kinds=_listed_attention,
)
register(
    "granitemoehybrid",
    by_kind({"attention": ATTENTION, "full_attention": ATTENTION}, MAMBA2),
    when(lambda layer: layer.config.size("num_experts") > 0, GRANITE),
    GRANITE_SHARED,
    kinds=lambda config: ["mamba"] * config.layers,
)
register(
    "falcon_h1",
    together(
        ATTENTION,
        mamba2(
            inner=lambda layer: layer.config.size("mamba_d_ssm") or size_of_expand(layer),
            heads="mamba_n_heads",
            groups="mamba_n_groups",
            state="mamba_d_state",
            kernel="mamba_d_conv",
            conv_bias="mamba_conv_bias",
            bias="mamba_proj_bias",
            out_bias="projectors_bias",
            gated_norm="mamba_rms_norm",
            name="mamba.",
        ),
    ),
    glu(bias="mlp_bias", name="feed_forward."),
    norms=HYBRID_NORMS,
    final="final_layernorm",
)


def size_of_expand(layer: Layer) -> int:
    """mamba_expand times hidden_size."""
    return int(layer.config.factor("mamba_expand") * layer.config.integer("hidden_size"))


# ---- Nemotron-H: one sub-layer a layer ---------------------------------------------------
PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_kinds(config: Config) -> list[str]:
    listed = config.get("layers_block_type")
    if isinstance(listed, list) and 0 < len(listed) <= MAX_LAYERS:
        return config.strings("layers_block_type", len(listed)) or []
    if listed is not None:
        raise config.error("layers_block_type", "is not a list of layers", f"a list of 1 to {MAX_LAYERS:,} kinds")
    pattern = config.get("hybrid_override_pattern")
    if pattern is None and not config.has("num_hidden_layers"):
        return ["linear_attention", "moe", "full_attention", "mlp"]
    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_LAYERS or set(pattern) - set(PATTERN):
        raise config.error("hybrid_override_pattern", "is missing or not a pattern", "a string of M, *, - and E")
    return [PATTERN[letter] for letter in pattern]


def _nemotron_count(config: Config) -> int:
    return len(_nemotron_kinds(config))


NEMOTRON_MAMBA = mamba2(
    inner=lambda layer: layer.config.integer("mamba_num_heads") * layer.config.integer("mamba_head_dim"),
    heads="mamba_num_heads",
    groups="n_groups",
    state="ssm_state_size",
    kernel="conv_kernel",
    conv_bias="use_conv_bias",
    bias="use_bias",
)
NEMOTRON_ATTENTION = gqa(name="mixer.")
NEMOTRON = by_kind(
    {
        "mamba": NEMOTRON_MAMBA,
        "linear_attention": NEMOTRON_MAMBA,
        "attention": NEMOTRON_ATTENTION,
        "full_attention": NEMOTRON_ATTENTION,
        "mlp": mlp(bias="mlp_bias", name="mixer."),
        "moe": moe(
            names=("up_proj", "down_proj"),
            router=Router(buffer="gate.e_score_correction_bias"),
            shared=Shared(optional("moe_shared_expert_intermediate_size"), bias="mlp_bias"),
            latent=Latent(optional("moe_latent_size"), bias="mlp_bias"),
            name="mixer.",
        ),
    }
)


def _nemotron(config: Config) -> dict[str, Any]:
    """Older names of the Mamba sizes."""
    old = {"n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv", "use_conv_bias": "mamba_conv_bias"}
    return {key: config.get(name) for key, name in old.items() if config.get(name) is not None}


register(
    "nemotron_h",
    NEMOTRON,
    kinds=_nemotron_kinds,
    count=_nemotron_count,
    derive=_nemotron,
    mtp=mtp_pattern,
    tied=False,
    **BACKBONE,
)


# ---- Zamba: Mamba layers, and one or two transformer blocks that several layers share -----


def _zamba_mamba(layer: Layer) -> Iterator[Tensor]:
    """Zamba's Mamba splits its channels into n_mamba_heads, each with its own x_proj and dt_proj."""
    hybrid = layer.kind == "hybrid"
    c, at = layer.config, layer.prefix + ("mamba_decoder." if hybrid else "")
    hidden, wide = c.integer("hidden_size"), _zamba_wide(c)
    heads, n, rank = c.integer("n_mamba_heads", 2), c.integer("mamba_d_state"), time_step_rank("mamba_dt_rank")
    assert callable(rank)
    r, per, b = rank(layer), wide // heads, c.flag("mamba_proj_bias")
    yield Tensor(at + "mamba.x_proj_weight", (heads, r + 2 * n, per), "mixer")
    yield Tensor(at + "mamba.dt_proj_weight", (heads, per, r), "mixer")
    yield Tensor(at + "mamba.dt_proj_bias", (heads, per), "mixer")
    yield Tensor(at + "mamba.A_log", (heads, per, n), "mixer")
    yield Tensor(at + "mamba.D", (heads, per), "mixer")
    yield from conv(at + "mamba.conv1d", wide, c.integer("mamba_d_conv"), c.flag("mamba_conv_bias"))
    yield from linear(at + "mamba.in_proj", 2 * wide, hidden, "mixer", b)
    yield from linear(at + "mamba.out_proj", hidden, wide, "mixer", b)
    yield Tensor(at + "input_layernorm.weight", (hidden,), "norms")
    if hybrid:
        yield from linear(layer.prefix + "linear", hidden, hidden, "mixer")


def _zamba_wide(c: Config) -> int:
    return int(c.factor("mamba_expand") * c.integer("hidden_size"))


def _shared_attention(layer: Layer, at: str) -> Iterator[Tensor]:
    """The shared block's attention reads the layer's input beside the embeddings: twice as wide."""
    c = layer.config
    hidden, twice = c.integer("hidden_size"), c.integer("attention_hidden_size", 2 * c.integer("hidden_size"))
    dim = _zamba_dim(c)
    q, kv = c.heads * dim, c.kv_heads * dim
    yield from linear(at + "self_attn.q_proj", q, twice, "attn")
    yield from linear(at + "self_attn.k_proj", kv, twice, "attn")
    yield from linear(at + "self_attn.v_proj", kv, twice, "attn")
    yield from linear(at + "self_attn.o_proj", hidden, q, "attn")
    yield Tensor(at + "input_layernorm.weight", (twice,), "norms")
    yield Tensor(at + "pre_ff_layernorm.weight", (hidden,), "norms")


def _zamba_dim(c: Config) -> int:
    return c.integer("attention_head_dim", 2 * c.integer("hidden_size") // c.heads)


def _zamba(layer: Layer) -> Iterator[Tensor]:
    yield from _zamba_mamba(layer)
    if layer.kind == "hybrid" and (not layer.config.tied or _ordinal(layer) == 0):
        at = layer.prefix + "shared_transf."
        yield from _shared_attention(layer, at)
        yield from glu(name="shared_transf.feed_forward.").tensors(layer)


def _hybrid_layers(c: Config) -> list[int]:
    return c.integers("hybrid_layers") or []


def _shared_by(config: Config) -> dict[str, Any]:
    """The hybrid layers, and Zamba2's intermediate_size where it is null."""
    hybrid = [index for index, kind in enumerate(_zamba_kinds(config)) if kind == "hybrid"]
    width = config.integer("intermediate_size", 4 * config.integer("hidden_size"))
    return {"hybrid_layers": hybrid, "intermediate_size": width}


def _ordinal(layer: Layer) -> int:
    """How many hybrid layers come before this one."""
    return _hybrid_layers(layer.config).index(layer.index)


#: Zamba2's class default: which of its 54 layers are hybrid.
ZAMBA2_KINDS = "m" + "mmmmmh" * 7 + "mmmmh" + "mmmh" + "mm"


def _zamba_kinds(config: Config) -> list[str]:
    listed = config.strings("layers_block_type", config.layers)
    if listed is not None:
        return ["hybrid" if kind == "hybrid" else "mamba" for kind in listed]
    ids = config.integers("hybrid_layer_ids")
    if ids is not None:
        return ["hybrid" if i in ids else "mamba" for i in range(config.layers)]
    if config.model_type == "zamba2":
        if config.layers != len(ZAMBA2_KINDS):
            raise config.error(
                "layers_block_type", "is missing", f"a list, unless there are {len(ZAMBA2_KINDS)} layers"
            )
        return ["hybrid" if kind == "h" else "mamba" for kind in ZAMBA2_KINDS]
    period, offset = config.integer("attn_layer_period", 6), config.size("attn_layer_offset", 4)
    # The class fixes the first three layers and counts the period from the fourth.
    return ["hybrid" if i == 2 or (i >= 3 and (i - 3) % period == offset) else "mamba" for i in range(config.layers)]


def _zamba_cache(layer: Layer) -> CacheSpec:
    c = layer.config
    wide, n = _zamba_wide(c), c.integer("mamba_d_state")
    channels = wide
    if c.model_type == "zamba2":
        channels += 2 * c.integer("mamba_ngroups") * n
    spec = recurrent(layer, conv_state(channels, c.integer("mamba_d_conv")), State("ssm", wide * n, fp32=True))
    if layer.kind == "hybrid":
        dim = _zamba_dim(c)
        return spec._replace(kind="full", kv_heads=c.kv_heads, k_dim=dim, v_dim=dim)
    return spec


register(
    "zamba",
    Block(_zamba, _zamba_cache),
    norms=(),
    final="final_layernorm",
    kinds=_zamba_kinds,
    derive=_shared_by,
)
ZAMBA2_MAMBA = mamba2(
    inner=expanded("mamba_expand"),
    heads="n_mamba_heads",
    groups="mamba_ngroups",
    state="mamba_d_state",
    kernel="mamba_d_conv",
    bias="add_bias_linear",
    name="mamba.",
)


def _zamba2(layer: Layer) -> Iterator[Tensor]:
    """Zamba2: num_mem_blocks shared transformer blocks in turn, with low-rank adapters for each use."""
    c, hybrid = layer.config, layer.kind == "hybrid"
    hidden = c.integer("hidden_size")
    inner = layer.at(layer.prefix + "mamba_decoder.") if hybrid else layer
    yield from ZAMBA2_MAMBA.tensors(inner)
    yield Tensor(inner.prefix + "input_layernorm.weight", (hidden,), "norms")
    if not hybrid:
        return
    yield from linear(layer.prefix + "linear", hidden, hidden, "mixer")
    uses, blocks, turn = len(_hybrid_layers(c)), c.integer("num_mem_blocks"), _ordinal(layer)
    if c.tied and turn >= blocks:
        return
    at, b = layer.prefix + "shared_transformer.", c.flag("add_bias_linear")
    yield from _shared_attention(layer, at)
    yield from glu(fused="gate_up_proj", bias=b, name="shared_transformer.feed_forward.").tensors(layer)
    rank, wide = c.integer("adapter_rank"), c.integer("intermediate_size")
    twice = c.integer("attention_hidden_size", 2 * hidden)
    # An adapter a use of this block, each where the list of all uses has its place.
    for use in range(turn % blocks, uses, blocks):
        # use_shared_mlp_adapter is a dead key: the class (4.57.6, 5.24) builds these whatever it says
        name = f"{at}feed_forward.gate_up_proj_adapter_list.{use}"
        yield Tensor(f"{name}.0.weight", (rank, hidden), "mlp")
        yield Tensor(f"{name}.1.weight", (2 * wide, rank), "mlp")
        if c.flag("use_shared_attention_adapter"):
            for part in ("q", "k", "v"):
                name = f"{at}self_attn.linear_{part}_adapter_list.{use}"
                yield Tensor(f"{name}.0.weight", (rank, twice), "attn")
                yield Tensor(f"{name}.1.weight", (twice, rank), "attn")


register(
    "zamba2",
    Block(_zamba2, _zamba_cache),
    norms=(),
    final="final_layernorm",
    kinds=_zamba_kinds,
    derive=_shared_by,
)
