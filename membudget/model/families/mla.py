"""Decoders with latent attention (MLA): DeepSeek-V2/V3/V3.2, GLM-5, Kimi-K2, MiniCPM3 and kin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from membudget.model.attention import gqa
from membudget.model.blocks import Block, Layer, buffer, dense_or, norms, together, weight, when
from membudget.model.caches import CacheSpec
from membudget.model.config import Config
from membudget.model.families.base import PRE, all_of, first_dense, register
from membudget.model.families.heads import mtp_layers
from membudget.model.feedforward import Router, Shared, Stacked, glu, moe, times
from membudget.model.latent import mla, own_indexer
from membudget.model.tensors import Tensor

MLA = mla(bias="attention_bias")
SCORE = "gate.e_score_correction_bias"
SHARED = moe(shared=Shared(times("moe_intermediate_size", "n_shared_experts")), router=Router(buffer=SCORE))


def _value_dim(config: Config) -> dict[str, int]:
    """v_head_dim, or hidden_size / heads where it is null (MiniCPM3)."""
    return {"v_head_dim": config.integer("v_head_dim", config.integer("hidden_size") // config.heads)}


register("minicpm3 youtu", MLA, glu(bias="mlp_bias"), derive=_value_dim)
register(
    "deepseek_v2",
    when(lambda layer: layer.config.flag("use_mla", True), MLA, gqa(bias="attention_bias")),
    dense_or(
        moe(shared=Shared(times("moe_intermediate_size", "n_shared_experts"), bias="mlp_bias")), glu(bias="mlp_bias")
    ),
    ffn=first_dense(),
)
register(
    "deepseek_v3 kimi_k2 sarvam_mla",
    MLA,
    dense_or(SHARED, glu()),
    ffn=first_dense(),
    mtp=mtp_layers(own_embeddings=True),
)
register("glm4_moe_lite", MLA, dense_or(SHARED, glu()), ffn=first_dense(default=1), mtp=mtp_layers())


def _indexers(config: Config) -> dict[str, list[str]]:
    """GLM-5: with index_topk_pattern or _freq, only some layers pick keys; the others reuse them."""
    pattern = config.get("index_topk_pattern")
    if pattern is not None and config.get("indexer_types") is None:
        return {"indexer_types": _kinds_of(config, pattern)}
    freq = config.integer("index_topk_freq", 1)
    offset = config.integer("index_skip_topk_offset", 2, minimum=0)
    if config.get("indexer_types") is not None:
        return {}
    return {"indexer_types": ["shared" if max(i - offset + 1, 0) % freq else "full" for i in range(config.layers)]}


def _kinds_of(config: Config, pattern: object) -> list[str]:
    """``FSSF`` or its words, one a layer."""
    letters = {"F": "full", "S": "shared"}
    if isinstance(pattern, str) and set(pattern) <= set(letters):
        pattern = [letters[letter] for letter in pattern]
    listed = isinstance(pattern, list) and all(item in letters.values() for item in pattern)
    if not isinstance(pattern, list) or not listed or len(pattern) < config.layers:
        allowed = f"F (picks keys) or S (reuses them) for each of {config.layers} layers"
        raise config.error("index_topk_pattern", "does not say it for every layer", allowed)
    return pattern[: config.layers]


register(
    "deepseek_v32",
    mla(bias="attention_bias", indexer=own_indexer),
    dense_or(SHARED, glu()),
    kinds=all_of("indexed_attention"),
    ffn=first_dense(default=1),
    mtp=mtp_layers(own_embeddings=True),
)
register(
    "glm_moe_dsa",
    mla(bias="attention_bias", indexer=own_indexer),
    dense_or(SHARED, glu()),
    kinds=all_of("indexed_attention"),
    ffn=first_dense(default=3),
    mtp=mtp_layers(),
    derive=_indexers,
)
register(
    "mistral4",
    MLA,
    dense_or(
        moe(
            stacked=Stacked(("experts.gate_up_proj", "experts.down_proj")),
            shared=Shared(times("moe_intermediate_size", "n_shared_experts")),
        ),
        glu(),
    ),
    ffn=first_dense(),
)
register(
    "axk1",
    MLA,
    # the files, and vLLM's class, have that norm in dense layers too, where transformers does not use it
    dense_or(
        together(SHARED, norms("post_mlp_layernorm")),
        together(glu(), buffer("post_mlp_layernorm.weight", "hidden_size", role="norms")),
    ),
    ffn=first_dense(default=1),
)


def _gated_norm(name: str, rank: bool = True) -> Block:
    """A.X-K2: a norm with a low-rank gate."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        hidden = c.integer("hidden_size")
        if not rank:
            yield Tensor(f"{at}.weight", (hidden,), "norms")
            return
        low = c.integer("gated_norm_rank")
        yield Tensor(f"{at}.norm.weight", (hidden,), "norms")
        yield Tensor(f"{at}.W_down.weight", (low, hidden), "norms")
        yield Tensor(f"{at}.W_up.weight", (hidden, low), "norms")

    return Block(tensors)


register(
    "axk2",
    mla(bias="attention_bias", indexer=True, twin_q=True),
    _gated_norm("input_layernorm"),
    dense_or(
        together(SHARED, _gated_norm("post_attention_layernorm")),
        together(glu(), _gated_norm("post_attention_layernorm", rank=False)),
    ),
    norms=(),
    kinds=all_of("indexed_attention"),
    ffn=first_dense(default=1),
)


def _dots3(config: Config) -> dict[str, Any]:
    """layer_types from use_dsa and use_sliding_window, and the sliding layers' own sizes."""
    count = config.layers
    wide = "full_attention" if not config.flag("use_dsa", True) else "indexed_attention"
    slides = config.flag("use_sliding_window", True)
    kinds = config.strings("layer_types", count) or [
        wide if not slides or i < 2 or i % 4 == 1 else "sliding_attention" for i in range(count)
    ]
    if config.get("use_dsa") is not None:
        kinds = [wide if kind in ("full_attention", "indexed_attention") else kind for kind in kinds]
    found: dict[str, Any] = {"layer_types": kinds}
    if config.get("sliding_window") is None:
        found["sliding_window"] = config.integer("sliding_window_size", 512)
    if config.get("per_layer_config") is None:
        own = {
            "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1024, "kv_lora_rank": 1024,
            "head_dim": 256, "qk_nope_head_dim": 192, "v_head_dim": 128,
        }  # fmt: skip
        own = {key: config.integer(f"swa_{key}", value) for key, value in own.items()}
        own["qk_rope_head_dim"] = config.integer("swa_qk_rope_head_dim", own["head_dim"] - own["qk_nope_head_dim"])
        found["per_layer_config"] = {i: own for i, kind in enumerate(kinds) if kind == "sliding_attention"}
    return found


register(
    "dots3_note_text",
    mla(
        bias="attention_bias",
        indexer=lambda layer: layer.kind == "indexed_attention",
        gate="g_proj",
        rope_norm="k_rope_only_layernorm",
        index_fp32=True,
    ),
    dense_or(
        moe(shared=Shared(times("shared_experts_intermediate_size", "n_shared_experts")), router=Router(buffer=SCORE)),
        glu(),
    ),
    derive=_dots3,
    ffn=first_dense(default=1),
)


def _hyper(name: str) -> Block:
    """Hyper-connections (HY-V4): how the hc_mult residual streams are mixed around a sub-layer."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        streams, hidden = c.integer("hc_mult"), c.integer("hidden_size")
        yield Tensor(at + "hc_fn", (2 * streams, streams * hidden), "other")
        yield Tensor(at + "hc_base", (2 * streams,), "other")
        yield Tensor(at + "hc_scale", (2,), "other")

    return Block(tensors)


def _hyper_head(prefix: str) -> Block:
    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + prefix
        streams, hidden = c.integer("hc_mult"), c.integer("hidden_size")
        yield Tensor(at + "fn", (streams, streams * hidden), "other")
        yield Tensor(at + "base", (streams,), "other")
        yield Tensor(at + "scale", (1,), "other")

    return Block(tensors)


def _every_fourth_indexer(config: Config) -> dict[str, list[str]]:
    """HY-V4: the first layer and every fourth from the second on pick keys."""
    if config.get("indexer_types") is not None:
        return {}
    return {"indexer_types": ["full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(config.layers)]}


LINEAR_GATE = ("linear_gate", "up_proj", "down_proj")
register(
    "hy_v4 hy_v4_vl_text",
    mla(bias="attention_bias", indexer=own_indexer, gate="linear_gate:wide"),
    weight("self_attn.learnable_sink_param", "num_attention_heads", role="attn"),
    dense_or(
        moe(
            router=Router(buffer=SCORE),
            stacked=Stacked(("experts.gate_up_proj", "experts.down_proj")),
            shared=Shared(times("moe_intermediate_size", "n_shared_experts"), names=LINEAR_GATE),
        ),
        glu(names=LINEAR_GATE),
    ),
    _hyper("hc_pre.hc_attn_layer."),
    _hyper("hc_pre.hc_mlp_layer."),
    kinds=all_of("indexed_attention"),
    derive=_every_fourth_indexer,
    ffn=first_dense(default=1),
    after=_hyper_head("hc_pre.hc_head.hc_head_"),
)


def _longcat(layer: Layer) -> Iterator[Tensor]:
    """LongCat: two attentions and two dense MLPs a layer, one mixture of experts across."""
    c, at = layer.config, layer.prefix
    hidden, latent = c.integer("hidden_size"), mla(bias="attention_bias", name="")
    dense = glu(width="ffn_hidden_size", name="")
    for half in (0, 1):
        yield from latent.tensors(layer.at(f"{at}self_attn.{half}."))
        yield from dense.tensors(layer.at(f"{at}mlps.{half}."))
        for name in PRE:
            yield Tensor(f"{at}{name}.{half}.weight", (hidden,), "norms")


def _longcat_caches(config: Config, layers: list[Layer]) -> Iterable[CacheSpec]:
    cache = MLA.cache
    assert cache is not None
    for layer in layers:
        for half in (0, 1):
            yield cache(layer)._replace(layer=2 * layer.index + half)


def _zero_experts(layer: Layer) -> int:
    return layer.config.size("zero_expert_num")


register(
    "longcat_flash",
    Block(_longcat, MLA.cache),
    moe(
        width="expert_ffn_hidden_size",
        router=Router(
            "router.classifier.weight", top_k="moe_topk", buffer="router.e_score_correction_bias", more=_zero_experts
        ),
    ),
    norms=(),
    count=lambda config: config.integer("num_layers", maximum=10_000),
    kinds=lambda config: ["full_attention"] * config.integer("num_layers", maximum=10_000),
    caches=_longcat_caches,
)
