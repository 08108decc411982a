"""Mixtures of experts with a rule of their own: ERNIE, Laguna, Llama 4, Granite, Aria, DBRX, JetMoE, MiMo."""

from __future__ import annotations

from collections.abc import Iterator

from membudget.model.attention import Gate, Heads, QkNorm, gqa, kv_spec
from membudget.model.blocks import Block, Layer, dense_or, linear, weight, when
from membudget.model.caches import CacheSpec
from membudget.model.config import Config
from membudget.model.families.base import first_dense, pattern, register
from membudget.model.feedforward import Router, Shared, Stacked, glu, moe, optional, times
from membudget.model.tensors import Tensor

PLAIN = gqa(bias="attention_bias")
SCORE = "gate.e_score_correction_bias"
STACKED = ("experts.gate_up_proj", "experts.down_proj")


def _ernie_sparse(config: Config) -> list[str]:
    """ERNIE 4.5: every moe_layer_interval-th layer between two bounds has experts."""
    count, step = config.layers, config.integer("moe_layer_interval", 1)
    start = config.size("moe_layer_start_index")
    end = config.integer("moe_layer_end_index", -1, minimum=-1)
    end = count - 1 if end == -1 else end
    return ["sparse" if (i + 1) % step == 0 and start <= i <= end else "dense" for i in range(count)]


register(
    "ernie4_5_moe",
    gqa(bias="use_bias"),
    dense_or(
        moe(
            router=Router(top_k="moe_k", bias=None),
            shared=Shared(times("moe_intermediate_size", "moe_num_shared_experts"), bias="use_bias"),
        ),
        glu(bias="use_bias"),
    ),
    dense_or(
        weight("mlp.moe_statics.e_score_correction_bias", 1, "num_experts", role="mlp.router"),
        Block(lambda layer: iter(())),
    ),
    ffn=_ernie_sparse,
    head_bias="use_bias",
)


def _heads_here(layer: Layer) -> int:
    """Laguna: num_attention_heads_per_layer gives each layer its own number."""
    c = layer.config
    listed = c.integers("num_attention_heads_per_layer", c.layers)
    return listed[layer.index] if listed else c.heads


def _laguna_gate(layer: Layer) -> int:
    """One gate value a head, or one a channel, as `gating` says."""
    gating = layer.config.get("gating", True)
    heads = _heads_here(layer)
    return heads if gating is True or gating == "per-head" else heads * layer.config.head_dim


register(
    "laguna",
    gqa(
        bias="attention_bias",
        norm=QkNorm("head"),
        sizes=Heads(heads=_heads_here),
        gate=Gate("g_proj", size=_laguna_gate),
    ),
    dense_or(
        moe(
            router=Router(bias="experts.e_score_correction_bias"),
            shared=Shared("shared_expert_intermediate_size", name="shared_expert."),
        ),
        glu(),
    ),
    ffn=first_dense(default=1),
)


def _llama4_sparse(config: Config) -> list[str]:
    """Llama 4: moe_layers lists the layers with experts, or every interleave_moe_layer_step-th has."""
    step = config.integer("interleave_moe_layer_step", 1)
    listed = config.integers("moe_layers")
    picked = set(range(step - 1, config.layers, step) if listed is None else listed)
    return ["sparse" if i in picked else "dense" for i in range(config.layers)]


def _llama4_kinds(config: Config) -> list[str]:
    """Llama 4: layers with rotary positions attend within a chunk, the others to everything."""
    count = config.layers
    listed = config.integers("no_rope_layers", count) if config.get("no_rope_layers") else None
    step = config.integer("no_rope_layer_interval", config.integer("nope_layer_interval", 4))
    rotary = listed or [int((i + 1) % step != 0) for i in range(count)]
    return ["chunked_attention" if one else "full_attention" for one in rotary]


register(
    "llama4_text",
    PLAIN,
    dense_or(
        moe(
            width="intermediate_size",
            name="feed_forward.",
            router=Router("router.weight"),
            stacked=Stacked(STACKED, transposed=True),
            shared=Shared("intermediate_size", name="shared_expert."),
        ),
        glu(width="intermediate_size_mlp", name="feed_forward."),
    ),
    kinds=_llama4_kinds,
    ffn=_llama4_sparse,
)
GRANITE = moe(
    width="intermediate_size",
    name="block_sparse_moe.",
    router=Router("router.layer.weight"),
    stacked=Stacked(("input_linear.weight", "output_linear.weight")),
)
GRANITE_SHARED = when(
    lambda layer: layer.config.size("shared_intermediate_size") > 0,
    glu(
        width=optional("shared_intermediate_size"),
        name="shared_mlp.",
        fused="input_linear",
        names=("", "", "output_linear"),
        role="mlp.shared",
    ),
)
register("granitemoe", PLAIN, GRANITE)
register("granitemoeshared", PLAIN, GRANITE, GRANITE_SHARED)
register(
    "granitemoe_swa",
    gqa(bias="attention_bias", sinks="sinks"),
    moe(width="intermediate_size", name="block_sparse_moe.", router=Router("router.weight"), stacked=Stacked(STACKED)),
    GRANITE_SHARED,
    kinds=pattern("full_attention", "sliding_attention", "sliding_attention", "sliding_attention"),
)
register(
    "aria_text",
    PLAIN,
    moe(
        width="intermediate_size",
        experts="moe_num_experts",
        router=Router("router.weight", top_k="moe_topk"),
        stacked=Stacked(("experts.fc1.weight", "experts.fc2.weight"), transposed=True),
        shared=Shared(times("intermediate_size", "moe_num_shared_experts"), bias="mlp_bias"),
    ),
)


def _dbrx(config: Config) -> dict[str, int]:
    attn, ffn = config.section("attn_config"), config.section("ffn_config")
    return {
        "num_key_value_heads": attn.integer("kv_n_heads", 1),
        "ffn_hidden_size": ffn.integer("ffn_hidden_size", 3584),
        "moe_num_experts": ffn.integer("moe_num_experts", 4),
        "moe_top_k": ffn.integer("moe_top_k", 1),
    }


def _dbrx_experts(layer: Layer) -> Iterator[Tensor]:
    c, at = layer.config, layer.prefix + "ffn."
    hidden, inner, count = c.integer("hidden_size"), c.integer("ffn_hidden_size"), c.integer("moe_num_experts")
    active = c.integer("moe_top_k", maximum=count)
    yield Tensor(at + "router.layer.weight", (count, hidden), "mlp.router")
    for part in ("w1", "v1", "w2"):
        yield Tensor(f"{at}experts.mlp.{part}", (inner, hidden), "mlp.experts", count, active, joined=True)


register(
    "dbrx",
    gqa(fused="Wqkv", name="norm_attn_norm.attn.", names=("", "", "", "out_proj")),
    Block(_dbrx_experts),
    norms=("norm_attn_norm.norm_1", "norm_attn_norm.norm_2"),
    root="transformer.",
    embed="wte",
    layers="blocks",
    final="norm_f",
    derive=_dbrx,
)


def _jetmoe(layer: Layer) -> Iterator[Tensor]:
    """JetMoE: the query and output projections are experts too."""
    c, at = layer.config, layer.prefix
    hidden, inner, count = c.integer("hidden_size"), c.integer("intermediate_size"), c.integer("num_experts")
    active, width = c.integer("num_experts_per_tok", maximum=count), c.integer("kv_channels") * c.kv_heads
    for name, role, (up, down) in (
        ("mlp.", "mlp", ((2 * inner, hidden), (hidden, inner))),
        ("self_attention.experts.", "attn", ((width, hidden), (hidden, width))),
    ):
        yield Tensor(f"{at}{name}bias", (hidden,), role)
        yield Tensor(f"{at}{name}input_linear.weight", up, f"{role}.experts", count, active)
        yield Tensor(f"{at}{name}output_linear.weight", down, f"{role}.experts", count, active)
        yield Tensor(f"{at}{name}router.layer.weight", (count, hidden), f"{role}.router")
    yield from linear(at + "self_attention.kv_proj", 2 * width, hidden, "attn")


def _jetmoe_cache(layer: Layer) -> CacheSpec:
    c = layer.config
    return kv_spec(layer, c.integer("num_key_value_heads"), c.integer("kv_channels"), c.integer("kv_channels"))


def _jetmoe_heads(config: Config) -> dict[str, int]:
    return {"num_attention_heads": config.integer("num_key_value_heads") * config.integer("num_experts_per_tok")}


register("jetmoe", Block(_jetmoe, _jetmoe_cache), derive=_jetmoe_heads)


def _mimo_kinds(config: Config) -> list[str]:
    count = config.layers
    listed = config.integers("hybrid_layer_pattern", count)
    if listed:
        return ["sliding_attention" if one else "full_attention" for one in listed]
    return ["full_attention" if i == 0 or (i + 1) % 6 == 0 else "sliding_attention" for i in range(config.layers)]


def _slides(layer: Layer) -> bool:
    return layer.kind == "sliding_attention"


def _mimo(config: Config) -> dict[str, int]:
    """The hub's sliding_window_size does not count the token itself."""
    window = config.size("sliding_window_size")
    return {"sliding_window": window + 1} if window else {}


register(
    "mimo_v2_flash",
    gqa(
        bias="attention_bias",
        out_bias=False,
        sizes=Heads(v_dim="v_head_dim", kv_heads=lambda layer: layer.config.kv_heads * (2 if _slides(layer) else 1)),
    ),
    when(_slides, weight("self_attn.attention_sink_bias", "num_attention_heads", role="attn")),
    dense_or(moe(router=Router(buffer=SCORE)), glu()),
    derive=_mimo,
    kinds=_mimo_kinds,
    ffn=first_dense(default=1),
)


# ---- Step-3.5 / 3.7 ------------------------------------------------------------------------------


def _step(config: Config) -> dict[str, object]:
    """Per-layer lists without their trailing MTP entries; sliding layers may have other heads."""
    count = config.layers
    found: dict[str, object] = {}
    for key in ("layer_types", "mlp_layer_types"):
        listed = config.get(key)
        if isinstance(listed, list) and len(listed) == count + config.size("num_nextn_predict_layers"):
            found[key] = listed[:count]
    other = config.section("attention_other_setting").get("num_attention_heads")
    if other is not None and config.get("num_sliding_attention_heads") is None:
        found["num_sliding_attention_heads"] = other
    return found


def _step_ffn(config: Config) -> list[str]:
    """moe_layers_enum lists the layers with experts ("3,4,5"); else all from the fourth on."""
    listed = config.get("moe_layers_enum")
    if isinstance(listed, str):
        numbers = [part for part in listed.split(",") if part.strip()]
        if not all(part.strip().isdigit() for part in numbers):
            raise config.error("moe_layers_enum", "is not a list of layers", '"3,4,5"')
        picked = {int(part) for part in numbers}
    else:
        own = config.integers("moe_layers_enum")
        picked = set(range(3, config.layers)) if own is None else set(own)
    return ["sparse" if i in picked else "dense" for i in range(config.layers)]


def _step_heads(layer: Layer) -> int:
    c = layer.config
    if layer.kind == "sliding_attention" and not c.get("per_layer_config"):
        return c.integer("num_sliding_attention_heads", c.heads)
    return c.heads


def _step_experts(layer: Layer) -> Iterator[Tensor]:
    c, at = layer.config, layer.prefix
    hidden, inner, count = c.integer("hidden_size"), c.integer("moe_intermediate_size"), c.integer("num_experts")
    active = c.integer("num_experts_per_tok", maximum=count)
    yield Tensor(at + "moe.gate.weight", (count, hidden), "mlp.router")
    yield Tensor(at + "moe.router_bias", (count,), "mlp.router", part="checkpoint")
    for part, shape in (("gate_proj", (inner, hidden)), ("up_proj", (inner, hidden)), ("down_proj", (hidden, inner))):
        yield Tensor(f"{at}moe.{part}.weight", shape, "mlp.experts", count, active)
    yield from glu(width="share_expert_dim", bias="mlp_bias", name="share_expert.", role="mlp.shared").tensors(layer)


register(
    "step3p5 step3p7",
    gqa(
        bias="attention_bias",
        norm=QkNorm("head"),
        sizes=Heads(heads=_step_heads),
        gate=Gate("g_proj", size=_step_heads),
    ),
    dense_or(Block(_step_experts), glu(bias="mlp_bias")),
    tied=False,
    ffn=_step_ffn,
    derive=_step,
)
