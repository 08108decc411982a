"""Decoders of the GPT-2 generation and others with a shape of their own."""

from __future__ import annotations

from collections.abc import Iterator

from membudget.model.attention import Heads, QkNorm, fused_mha, gqa, mha_dim
from membudget.model.blocks import Block, Flag, Layer, linear, norm, norms, project, together, weight, when
from membudget.model.caches import CacheSpec
from membudget.model.config import Config
from membudget.model.families.base import full, register
from membudget.model.feedforward import four_times, glu, mlp
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
        sizes=Heads(kv_heads=_all_heads, dim=mha_dim),
    ),
    mlp(width=four_times, names=FC_PROJ),
    before=positions("wpe"),
    kinds=full,
    **LN12,
    **GPT,
)
NEOX = {"root": "gpt_neox.", "embed": "embed_in", "final": "final_layer_norm", "head": "embed_out"}
H4 = ("dense_h_to_4h", "dense_4h_to_h")
register("gpt_neox", fused_mha("attention.", bias="attention_bias"), mlp(names=H4), norm_bias=True, **NEOX)
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
    gqa(name="attn.", names=("q_proj", "k_proj", "v_proj", "out_proj"), sizes=Heads(kv_heads=_all_heads, dim=mha_dim)),
    mlp(width=four_times, names=FC),
    **GPTJ,
)
register("codegen", fused_mha("attn.", "qkv_proj", "out_proj", bias=False), mlp(width=four_times, names=FC), **GPTJ)


def _n_embed(config: Config) -> dict[str, int]:
    """The name that BLOOM and Falcon were published with: their classes let it win over hidden_size."""
    return {"hidden_size": config.integer("n_embed")} if config.text.get("n_embed") is not None else {}


register(
    "bloom",
    fused_mha("self_attention."),
    mlp(width=_four, names=H4),
    norm_bias=True,
    derive=_n_embed,
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
    """Falcon: one norm where attention and MLP run side by side, or one each in the new architecture."""
    c, at = layer.config, layer.prefix
    hidden, new = c.integer("hidden_size"), c.flag("new_decoder_architecture")
    names: tuple[str, ...] = ("input_layernorm",)
    if not c.flag("parallel_attn", True):
        names += ("post_attention_layernorm",)
    elif c.integer("num_ln_in_parallel_attn", 2 if new else 1) == 2:
        names = ("ln_attn", "ln_mlp")
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
    derive=_n_embed,
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


def _apart(bias: Flag) -> Block:
    """Multi-head attention whose output projection is called out_proj."""
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    return gqa(bias=bias, names=names, sizes=Heads(kv_heads=_all_heads, dim=mha_dim))


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


def _opt_affine(config: Config) -> dict[str, int]:
    """No recipe for norms without weights: no published OPT or Galactica has them."""
    if not config.flag("layer_norm_elementwise_affine", True):
        raise config.error("layer_norm_elementwise_affine", "is false", "true")
    return {}


register(
    "opt",
    _apart("enable_bias"),
    mlp(width="ffn_dim", bias="enable_bias", name="", names=FC12),
    norms=FAIRSEQ,
    norm_bias=True,
    root="model.decoder.",
    embed_size=("vocab_size", _embed_width),
    before=together(
        positions("embed_positions", 2),
        when(
            _projected,
            together(
                project("project_in", "hidden_size", _embed_width, "embed"),
                project("project_out", _embed_width, "hidden_size", "embed"),
            ),
        ),
    ),
    final="",
    after=when(_opt_final, norms("final_layer_norm", bias=True)),
    derive=_opt_affine,
)
register(
    "xglm",
    _apart(True),
    mlp(width="ffn_dim", name="", names=FC12),
    norms=FAIRSEQ,
    norm_bias=True,
    final="layer_norm",
)
register(
    "biogpt",
    _apart(True),
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
    gqa(
        bias=True,
        name="multi_head_attention.",
        names=("Wq", "Wk", "Wv", "dense"),
        sizes=Heads(kv_heads=_all_heads, dim=mha_dim),
    ),
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
        sizes=Heads(kv_heads=_all_heads, dim="dim_head"),
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
        norm=QkNorm("head_ln", when="qk_layernorm", names=("q_layernorm", "k_layernorm")),
        sizes=Heads(kv_heads=_all_heads, dim=mha_dim),
    ),
    mlp(names=H4),
)
register("persimmon", *PERSIMMON, norm_bias=True, final="final_layernorm")


def _patches(layer: Layer) -> int:
    raw = layer.config.overlay(layer.config.raw)
    return raw.integer("num_channels", 3) * raw.integer("patch_size", 30) ** 2


register(
    "fuyu",
    *PERSIMMON,
    norm_bias=True,
    root="language_model.model.",
    final="final_layernorm",
    head="language_model.lm_head",
    tied=False,
    after=together(
        Block(
            lambda layer: linear(
                "vision_embed_tokens", layer.config.integer("hidden_size"), _patches(layer), "vision", True
            )
        )
    ),
)
