"""Decoders of the GPT-2 generation and others with a shape of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from membudget.model.attention import fused_mha, gqa, mha_dim
from membudget.model.blocks import NOTHING, Block, Layer, linear, norm, norms, project, together, weight, when
from membudget.model.caches import CacheSpec, State
from membudget.model.config import Config
from membudget.model.families.base import PRE, full, register
from membudget.model.feedforward import four_times, glu, mlp
from membudget.model.state import conv, recurrent
from membudget.model.tensors import Tensor


def _all_heads(layer: Layer) -> int:
    return layer.config.heads


def _four(layer: Layer) -> int:
    return 4 * layer.config.integer("hidden_size")


def _multi_query(layer: Layer) -> int:
    """One key/value head with multi_query, else one a query head."""
    return 1 if layer.config.flag("multi_query", True) else layer.config.heads


def positions(name: str, more: int = 0, rows: str = "max_position_embeddings") -> Block:
    """Learned positions: `more` rows than the config's number."""
    return weight(f"{name}.weight", lambda layer: layer.config.integer(rows) + more, "hidden_size", role="embed")


LN12 = {"norms": ("ln_1", "ln_2"), "norm_bias": True}
GPT = {"root": "transformer.", "embed": "wte", "layers": "h", "final": "ln_f"}
FC_PROJ = ("c_fc", "c_proj")

register(
    "gpt2 gpt-sw3",
    fused_mha("attn.", "c_attn", "c_proj", transposed=True),
    mlp(width=four_times, transposed=True, names=FC_PROJ),
    before=positions("wpe"),
    **LN12,
    **GPT,
)
register(
    "openai-gpt",
    fused_mha("attn.", "c_attn", "c_proj", transposed=True),
    mlp(width=_four, transposed=True, names=FC_PROJ),
    before=positions("positions_embed"),
    caches=lambda config, layers: [CacheSpec(layer.index, "none") for layer in layers],
    **LN12,
    **{**GPT, "embed": "tokens_embed", "final": ""},
)
register(
    "gpt_bigcode",
    fused_mha("attn.", "c_attn", "c_proj", kv_heads=_multi_query),
    mlp(width=four_times, names=FC_PROJ),
    before=positions("wpe"),
    **LN12,
    **GPT,
)
register(
    "gpt_neo",
    gqa(
        out_bias=True,
        name="attn.attention.",
        names=("q_proj", "k_proj", "v_proj", "out_proj"),
        kv_heads=_all_heads,
        dim=mha_dim,
    ),
    mlp(width=four_times, names=FC_PROJ),
    before=positions("wpe"),
    kinds=full,
    **LN12,
    **GPT,
)
NEOX = {"root": "gpt_neox.", "embed": "embed_in", "final": "final_layer_norm", "head": "embed_out"}
H4 = ("dense_h_to_4h", "dense_4h_to_h")
register(
    "gpt_neox", fused_mha("attention.", bias="attention_bias"), mlp(names=H4), norm_bias=True, **NEOX
)
register(
    "gpt_neox_japanese",
    fused_mha("attention.", bias=False),
    mlp(
        width=lambda layer: int(
            layer.config.factor("intermediate_multiple_size", 4) * layer.config.integer("hidden_size")
        ),
        bias=False,
        names=H4,
    ),
    when(
        lambda layer: layer.index == layer.config.layers - 1,
        weight("attention.dense_bias", "hidden_size", role="attn"),
    ),
    norm_bias=True,
    **{**NEOX, "root": "gpt_neox_japanese."},
)
GPTJ = {"norms": ("ln_1",), "norm_bias": True, "head_bias": True, **GPT}
FC = ("fc_in", "fc_out")
register(
    "gptj",
    gqa(name="attn.", names=("q_proj", "k_proj", "v_proj", "out_proj"), kv_heads=_all_heads, dim=mha_dim),
    mlp(width=four_times, names=FC),
    **GPTJ,
)
register(
    "codegen", fused_mha("attn.", "qkv_proj", "out_proj", bias=False), mlp(width=four_times, names=FC), **GPTJ
)
register(
    "bloom",
    fused_mha("self_attention."),
    mlp(width=_four, names=H4),
    norm_bias=True,
    root="transformer.",
    embed="word_embeddings",
    before=norms("word_embeddings_layernorm", bias=True),
    layers="h",
    final="ln_f",
)


def _falcon_kv(layer: Layer) -> int:
    c = layer.config
    if c.flag("new_decoder_architecture"):
        return c.integer("num_kv_heads", c.heads)
    return 1 if c.flag("multi_query", True) else c.heads


def _falcon_norms(layer: Layer) -> Iterator[Tensor]:
    """Falcon: one norm where attention and MLP run side by side; two named ones in the new architecture."""
    c, at = layer.config, layer.prefix
    hidden, new = c.integer("hidden_size"), c.flag("new_decoder_architecture")
    if new and c.integer("num_ln_in_parallel_attn", 2) == 2:
        names: tuple[str, ...] = ("ln_attn", "ln_mlp")
    else:
        names = ("input_layernorm",)
    if not c.flag("parallel_attn", True):
        names = (*names, "post_attention_layernorm")
    for name in names:
        yield from norm(at + name, hidden, True)


register(
    "falcon RefinedWeb RefinedWebModel",
    fused_mha("self_attention.", bias="bias", kv_heads=_falcon_kv),
    mlp(
        width=lambda layer: layer.config.integer("ffn_hidden_size", 4 * layer.config.integer("hidden_size")),
        bias="bias",
        names=H4,
    ),
    Block(_falcon_norms),
    norms=(),
    final_bias=True,
    root="transformer.",
    embed="word_embeddings",
    layers="h",
    final="ln_f",
)
register(
    "mpt",
    fused_mha("attn.", "Wqkv", "out_proj", bias=False),
    mlp(width=_four, bias=False, name="ffn."),
    norms=("norm_1", "norm_2"),
    root="transformer.",
    embed="wte",
    layers="blocks",
    final="norm_f",
)


def _out_names(name: str) -> dict[str, object]:
    return {"name": name, "names": ("q_proj", "k_proj", "v_proj", "out_proj"), "kv_heads": _all_heads, "dim": mha_dim}


FC12 = ("fc1", "fc2")
FAIRSEQ = ("self_attn_layer_norm", "final_layer_norm")


def _projected(layer: Layer) -> bool:
    c = layer.config
    return c.integer("word_embed_proj_dim", c.integer("hidden_size")) != c.integer("hidden_size")


def _opt_final(layer: Layer) -> bool:
    c = layer.config
    return c.flag("do_layer_norm_before", True) and not c.flag("_remove_final_layer_norm")


def _embed_width(layer: Layer) -> int:
    return layer.config.integer("word_embed_proj_dim", layer.config.integer("hidden_size"))


register(
    "opt",
    gqa(bias="enable_bias", **_out_names("self_attn.")),  # type: ignore[arg-type]
    mlp(width="ffn_dim", bias="enable_bias", name="", names=FC12),
    norms=FAIRSEQ,
    norm_bias=True,
    root="model.decoder.",
    embed_size=("vocab_size", _embed_width),
    before=together(
        positions("embed_positions", 2),
        when(_projected, together(project("project_in", "hidden_size", _embed_width, "embed"),
                                  project("project_out", _embed_width, "hidden_size", "embed"))),
    ),
    final="",
    after=when(_opt_final, norms("final_layer_norm", bias=True)),
)
register(
    "xglm",
    gqa(bias=True, **_out_names("self_attn.")),  # type: ignore[arg-type]
    mlp(width="ffn_dim", name="", names=FC12),
    norms=FAIRSEQ,
    norm_bias=True,
    final="layer_norm",
)
register(
    "biogpt",
    gqa(bias=True, **_out_names("self_attn.")),  # type: ignore[arg-type]
    mlp(name="", names=FC12),
    norms=FAIRSEQ,
    norm_bias=True,
    root="biogpt.",
    before=positions("embed_positions", 2),
    final="layer_norm",
    head="output_projection",
)
register(
    "ctrl",
    gqa(bias=True, name="multi_head_attention.", names=("Wq", "Wk", "Wv", "dense"), kv_heads=_all_heads, dim=mha_dim),
    mlp(width="dff", name="ffn.", names=("0", "2")),
    norms=("layernorm1", "layernorm2"),
    norm_bias=True,
    root="transformer.",
    embed="w",
    layers="h",
    final="layernorm",
    head_bias=True,
)


def _cpmant_rows(layer: Layer) -> int:
    c = layer.config
    return c.integer("vocab_size") + c.integer("prompt_types") * c.integer("prompt_length")


def _cpmant_buckets(layer: Layer) -> int:
    c = layer.config
    return c.integer("segment_types") ** 2 + c.integer("position_bias_num_buckets")


register(
    "cpmant",
    gqa(
        name="self_att.self_attention.",
        names=("project_q", "project_k", "project_v", "attention_out"),
        kv_heads=_all_heads,
        dim="dim_head",
    ),
    glu(width="dim_ff", name="ffn.ffn.", names=("w_in.w_0", "w_in.w_1", "w_out")),
    norms=("self_att.layernorm_before_attention", "ffn.layernorm_before_ffn"),
    root="cpmant.",
    embed="input_embedding",
    embed_size=(_cpmant_rows, "hidden_size"),
    head_size=("vocab_size", "hidden_size"),
    before=together(
        weight("segment_embedding.weight", "segment_types", "hidden_size", role="embed"),
        weight("position_bias.relative_attention_bias", _cpmant_buckets, "num_attention_heads", role="attn"),
    ),
    layers="encoder.layers",
    final="encoder.output_layernorm",
    tied=False,
)
PERSIMMON = (
    gqa(
        bias=True,
        fused="query_key_value",
        names=("", "", "", "dense"),
        qk_norm="head_ln",
        norm_if="qk_layernorm",
        norm_names=("q_layernorm", "k_layernorm"),
        kv_heads=_all_heads,
        dim=mha_dim,
    ),
    mlp(names=H4),
)
register("persimmon", *PERSIMMON, norm_bias=True, final="final_layernorm")


def _patches(layer: Layer) -> int:
    return layer.config.integer("num_channels", 3) * layer.config.integer("patch_size", 30) ** 2


register(
    "fuyu",
    *PERSIMMON,
    norm_bias=True,
    root="language_model.model.",
    final="final_layernorm",
    head="language_model.lm_head",
    tied=False,
    after=together(
        Block(lambda layer: linear("vision_embed_tokens", layer.config.integer("hidden_size"), _patches(layer), "vision", True))
    ),
)


def _crosses(layer: Layer) -> bool:
    return layer.index in (layer.config.integers("cross_attention_layers") or ())


CROSS = gqa(qk_norm="head", name="cross_attn.")
register(
    "mllama_text_model mllama",
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


register(
    "modernbert-decoder",
    gqa(
        bias="attention_bias",
        name="attn.",
        names=("q_proj", "k_proj", "v_proj", "Wo"),
        kv_heads=_all_heads,
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
    high, low = min(config.integer("H_cycles", 2), 100), min(config.integer("L_cycles", 3), 100)
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


def _dory_kinds(config: Config) -> list[str]:
    count = config.integer("n_input_layers") + config.integer("n_recurrent_layers") + config.integer("n_output_layers")
    return ["mlp" if i % 2 else "full_attention" for i in range(count)]


def _dory_caches(config: Config, layers: list[Layer]) -> Iterable[CacheSpec]:
    """The recurrent block's layers keep their own in every loop; MLP layers keep nothing."""
    start, middle = config.integer("n_input_layers"), config.integer("n_recurrent_layers")
    loops = min(config.integer("n_recurrent_loops", 1), 1000)
    order = [*layers[:start], *layers[start : start + middle] * loops, *layers[start + middle :]]
    cache = DORY_ATTENTION.cache
    assert cache is not None
    return [cache(layer)._replace(layer=index) for index, layer in enumerate(order) if layer.kind != "mlp"]


DORY_ATTENTION = gqa(bias="attention_bias", gate="g_proj")


def _dory(block: Block) -> Block:
    """Checkpoints count an attention and the MLP behind it as one layer."""
    return Block(lambda layer: block.tensors(layer.at(f"backbone.layers.{layer.index // 2}.")))


register(
    "dory",
    _dory(when(
        lambda layer: layer.kind == "mlp",
        together(
            glu(bias="mlp_bias"),
            weight("mlp.suv_gate", "intermediate_size", role="mlp"),
            weight("mlp.suv_up", "intermediate_size", role="mlp"),
            weight("lambda_2", "hidden_size"),
        ),
        together(
            DORY_ATTENTION,
            weight("self_attn.s_gate", _dory_wide, role="attn"),
            weight("self_attn.sqk", _dory_wide, role="attn"),
            weight("lambda_1", "hidden_size"),
        ),
    )),
    norms=(),
    root="backbone.",
    embed="embeddings",
    final="",
    count=lambda config: len(config.get("layer_types") or _dory_kinds(config)),
    kinds=_dory_kinds,
    after=Block(lambda layer: iter([Tensor("lm_head.logit_scale", (layer.config.integer("vocab_size"),), "lm_head")])),
    caches=_dory_caches,
)


def _doge_kv(layer: Layer) -> int:
    return layer.config.kv_heads


def _doge_wide(layer: Layer) -> int:
    return layer.config.kv_heads * layer.config.head_dim


register(
    "doge",
    gqa(bias="attention_bias", qk_norm="head"),
    weight("self_attn.A", _doge_kv, role="attn"),
    project("self_attn.dt_proj", _doge_kv, _doge_wide, "attn", "attention_bias"),
    glu(bias="mlp_bias"),
    weight("input_residual", "hidden_size"),
    weight("post_attention_residual", "hidden_size"),
)


# ---- recurrent nets ---------------------------------------------------------------------------


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
    kept = wide * (c.integer("conv1d_width") - 1)
    return recurrent(layer, State("conv", kept), State("rg_lru", wide, fp32=True))


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
_ = (NOTHING, PRE)
