"""Older encoders whose causal-LM form transformers still builds: BERT, RoBERTa, XLM, XLNet and kin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from membudget.model.blocks import (
    NOTHING,
    Block,
    Flag,
    Layer,
    Size,
    flag,
    linear,
    norm,
    norms,
    size,
    together,
    weight,
    when,
)
from membudget.model.caches import CacheSpec
from membudget.model.families.base import register
from membudget.model.families.legacy import positions
from membudget.model.feedforward import mlp
from membudget.model.tensors import Tensor

# ---- BERT -------------------------------------------------------------------------------------


def mha_cache(layer: Layer) -> CacheSpec:
    """Keys and values of every head, hidden_size wide."""
    c = layer.config
    d = c.integer("hidden_size") // c.heads
    return CacheSpec(layer.index, "full", c.heads, d, d)


def _bert_layer(
    attention_norm: str = "attention.output.LayerNorm", output_norm: str = "output.LayerNorm", qkv_bias: Flag = True
) -> Block:
    """Self attention and MLP with biases and two LayerNorms, under BERT's names."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix
        hidden, inner, b = c.integer("hidden_size"), c.integer("intermediate_size"), flag(layer, qkv_bias)
        for name in ("query", "key", "value"):
            yield from linear(f"{at}attention.self.{name}", hidden, hidden, "attn", b)
        yield from linear(at + "attention.output.dense", hidden, hidden, "attn", True)
        yield from norm(at + attention_norm, hidden, True)
        yield from linear(at + "intermediate.dense", inner, hidden, "mlp", True)
        yield from linear(at + "output.dense", hidden, inner, "mlp", True)
        yield from norm(at + output_norm, hidden, True)

    return Block(tensors, mha_cache)


def _embeddings(
    *, width: Size = "hidden_size", types: bool = True, learned: bool = True, layer_norm: bool = True
) -> Block:
    """Position and token-type tables and a LayerNorm, beside the word embeddings."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at, wide = layer.config, layer.prefix + "embeddings.", size(layer, width)
        if learned:
            yield Tensor(at + "position_embeddings.weight", (c.integer("max_position_embeddings"), wide), "embed")
        if types:
            yield Tensor(at + "token_type_embeddings.weight", (c.integer("type_vocab_size"), wide), "embed")
        if layer_norm:
            yield from norm(at + "LayerNorm", wide, True)

    return Block(tensors)


def _prediction(at: str, norm_name: str, width: Size = "hidden_size", bias: str = "", dense: str = "dense") -> Block:
    """The head's transform: a dense layer, a LayerNorm, and a bias of vocab_size."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, wide = layer.config, size(layer, width)
        yield from linear(f"{at}{dense}", wide, c.integer("hidden_size"), "lm_head", True)
        yield from norm(f"{at}{norm_name}", wide, True)
        if bias:
            yield Tensor(bias, (c.integer("vocab_size"),), "lm_head")

    return Block(tensors)


def _untied(layer: Layer) -> bool:
    return not layer.config.tied


CLS = together(_prediction("cls.predictions.transform.", "LayerNorm", bias="cls.predictions.bias"))
LM_HEAD = together(_prediction("lm_head.", "layer_norm", bias="lm_head.bias"))


def _bert(
    types: str,
    root: str,
    head: Block,
    decoder: str,
    *,
    layer: Block | None = None,
    extra: Block = NOTHING,
    embed: Block | None = None,
    after: Block = NOTHING,
    **more: Any,
) -> None:
    """A BERT-like family: its decoder has a second bias where it is not tied."""
    register(
        types,
        layer or _bert_layer(),
        extra,
        norms=(),
        root=root,
        embed="embeddings.word_embeddings",
        before=embed or _embeddings(),
        layers="encoder.layer",
        final="",
        after=together(after, head),
        head=decoder,
        **{"head_bias": _untied, **more},
    )


CLS_DECODER, LM_DECODER = "cls.predictions.decoder", "lm_head.decoder"
ROBERTA = (
    ("camembert", "roberta."),
    ("xlm-roberta", "roberta."),
    ("roberta", "roberta."),
    ("data2vec-text", "data2vec_text."),
)
_bert("bert", "bert.", CLS, CLS_DECODER)
for model_type, prefix in ROBERTA:
    _bert(model_type, prefix, LM_HEAD, LM_DECODER)
_bert(
    "ernie",
    "ernie.",
    CLS,
    CLS_DECODER,
    embed=together(
        _embeddings(),
        when("use_task_id", weight("embeddings.task_type_embeddings.weight", "task_type_vocab_size", "hidden_size")),
    ),
)
_bert(
    "megatron-bert",
    "bert.",
    CLS,
    CLS_DECODER,
    layer=_bert_layer("attention.ln", "ln"),
    embed=_embeddings(layer_norm=False),
    after=norms("encoder.ln", bias=True),
)
_bert(
    "xlm-roberta-xl",
    "roberta.",
    LM_HEAD,
    LM_DECODER,
    layer=_bert_layer("attention.self_attn_layer_norm", "LayerNorm"),
    embed=_embeddings(layer_norm=False),
    after=norms("encoder.LayerNorm", bias=True),
)
_bert(
    "roberta-prelayernorm",
    "roberta_prelayernorm.",
    LM_HEAD,
    LM_DECODER,
    layer=_bert_layer("attention.LayerNorm", "intermediate.LayerNorm"),
    after=norms("LayerNorm", bias=True),
)
_bert(
    "bert-generation",
    "bert.",
    Block(lambda layer: iter([Tensor("lm_head.bias", (layer.config.integer("vocab_size"),), "lm_head")])),
    LM_DECODER,
    embed=_embeddings(types=False),
)
_bert(
    "big_bird",
    "bert.",
    CLS,
    CLS_DECODER,
    layer=_bert_layer(qkv_bias="use_bias"),
    after=Block(
        lambda layer: linear(
            layer.prefix + "pooler",
            layer.config.integer("hidden_size"),
            layer.config.integer("hidden_size"),
            "other",
            True,
        )
    ),
)


def _projected_embeddings(width: str, name: str = "embeddings_project", always: bool = False) -> Block:
    """Word embeddings of another width than the layers, projected to it."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c = layer.config
        hidden = c.integer("hidden_size")
        wide = c.integer(width, hidden)
        if always or wide != hidden:
            yield from linear(layer.prefix + name, hidden, wide, "embed", True)

    return Block(tensors)


def _or_hidden(key: str) -> Callable[[Layer], int]:
    return lambda layer: layer.config.integer(key, layer.config.integer("hidden_size"))


NARROW = _or_hidden("embedding_size")
_bert(
    "electra",
    "electra.",
    _prediction("generator_predictions.", "LayerNorm", NARROW),
    "generator_lm_head",
    embed=together(_embeddings(width=NARROW), _projected_embeddings("embedding_size")),
    embed_size=("vocab_size", NARROW),
    head_bias=True,
)
_bert(
    "rembert",
    "rembert.",
    _prediction("cls.predictions.", "LayerNorm", "output_embedding_size"),
    CLS_DECODER,
    embed=together(
        _embeddings(width="input_embedding_size"),
        _projected_embeddings("input_embedding_size", "encoder.embedding_hidden_mapping_in", always=True),
    ),
    embed_size=("vocab_size", "input_embedding_size"),
    head_size=("vocab_size", "output_embedding_size"),
    tied=False,
    head_bias=True,
)


def _sinusoids(layer: Layer) -> Iterator[Tensor]:
    c = layer.config
    shape = (c.integer("max_position_embeddings"), c.integer("hidden_size") // c.heads)
    yield Tensor(layer.prefix + "encoder.embed_positions.weight", shape, "embed")


_bert(
    "roformer",
    "roformer.",
    _prediction("cls.predictions.transform.", "LayerNorm", NARROW, bias="cls.predictions.bias"),
    CLS_DECODER,
    embed=together(
        _embeddings(width=NARROW, learned=False), Block(_sinusoids), _projected_embeddings("embedding_size")
    ),
    embed_size=("vocab_size", NARROW),
)


def _roc(layer: Layer) -> Iterator[Tensor]:
    """RoCBert: embeddings of a character's sound and shape, joined to the word's."""
    c, at = layer.config, layer.prefix + "embeddings."
    hidden, wide = c.integer("hidden_size"), c.integer("hidden_size")
    for part in ("pronunciation", "shape"):
        dim = c.integer(f"{part}_embed_dim")
        yield Tensor(f"{at}{part}_embed.weight", (c.integer(f"{part}_vocab_size"), dim), "embed")
        wide += dim if c.flag(f"enable_{part}", True) else 0
    if c.flag("concat_input", True):
        yield from linear(at + "map_inputs_layer", hidden, wide, "embed", True)


_bert("roc_bert", "roc_bert.", CLS, CLS_DECODER, embed=together(_embeddings(), Block(_roc)))


def _adapters(layer: Layer) -> Iterator[Tensor]:
    """X-MOD: an adapter a language."""
    c, at = layer.config, layer.prefix + "output.adapter_"
    hidden, languages = c.integer("hidden_size"), c.get("languages") or ["en_XX"]
    if not isinstance(languages, list) or not all(isinstance(one, str) for one in languages):
        raise c.error("languages", "is not a list of names", "a list of strings")
    low = hidden // c.integer("adapter_reduction_factor")
    for language in languages:
        yield from linear(f"{at}modules.{language}.dense1", low, hidden, "mlp", True)
        yield from linear(f"{at}modules.{language}.dense2", hidden, low, "mlp", True)
    if c.flag("adapter_layer_norm"):
        yield from norm(at + "layer_norm", hidden, True)


_bert(
    "xmod",
    "roberta.",
    LM_HEAD,
    LM_DECODER,
    extra=Block(_adapters),
    after=when("pre_norm", norms("LayerNorm", bias=True)),
)


def _xlm(layer: Layer) -> Iterator[Tensor]:
    """XLM keeps each part of all layers in a list of its own."""
    c, at, i = layer.config, layer.prefix, layer.index
    hidden = c.integer("hidden_size")
    for name in ("q_lin", "k_lin", "v_lin", "out_lin"):
        yield from linear(f"{at}attentions.{i}.{name}", hidden, hidden, "attn", True)
    yield from linear(f"{at}ffns.{i}.lin1", 4 * hidden, hidden, "mlp", True)
    yield from linear(f"{at}ffns.{i}.lin2", hidden, 4 * hidden, "mlp", True)
    for name in ("layer_norm1", "layer_norm2"):
        yield from norm(f"{at}{name}.{i}", hidden, True)


def _languages(layer: Layer) -> bool:
    return layer.config.integer("n_langs", 1) > 1 and layer.config.flag("use_lang_emb", True)


register(
    "xlm",
    Block(lambda layer: _xlm(layer.at("transformer."))),
    norms=(),
    root="transformer.",
    embed="embeddings",
    before=together(
        positions("position_embeddings"),
        norms("layer_norm_emb", bias=True),
        when(_languages, weight("lang_embeddings.weight", "n_langs", "hidden_size", role="embed")),
    ),
    final="",
    head="pred_layer.proj",
    head_bias=True,
    caches=lambda config, layers: [CacheSpec(layer.index, "none") for layer in layers],
)


def _xlnet(layer: Layer) -> Iterator[Tensor]:
    """XLNet: relative attention whose projections keep heads apart."""
    c, at = layer.config, layer.prefix
    hidden, heads = c.integer("hidden_size"), c.heads
    d = c.integer("d_head", hidden // heads)
    for name in ("q", "k", "v", "o", "r"):
        yield Tensor(f"{at}rel_attn.{name}", (hidden, heads, d), "attn")
    for name in ("r_r_bias", "r_s_bias", "r_w_bias"):
        yield Tensor(f"{at}rel_attn.{name}", (heads, d), "attn")
    yield Tensor(at + "rel_attn.seg_embed", (2, heads, d), "attn")
    yield from norm(at + "rel_attn.layer_norm", hidden, True)
    yield from mlp(name="ff.", names=("layer_1", "layer_2")).tensors(layer)
    yield from norm(at + "ff.layer_norm", hidden, True)


register(
    "xlnet",
    Block(_xlnet),
    norms=(),
    root="transformer.",
    embed="word_embedding",
    before=weight("mask_emb", 1, 1, "hidden_size", role="embed"),
    layers="layer",
    final="",
    head="lm_loss",
    head_bias=True,
    caches=lambda config, layers: [CacheSpec(layer.index, "none") for layer in layers],
)
