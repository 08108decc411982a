"""Decoders of older encoder-decoders, with cross attention: BART, mBART, Pegasus, Whisper, ProphetNet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from membudget.model.blocks import Block, Flag, Layer, flag, linear, norm, norms, together, when
from membudget.model.caches import CacheSpec
from membudget.model.config import Config
from membudget.model.families.base import register
from membudget.model.families.encoders import mha_cache
from membudget.model.families.legacy import positions
from membudget.model.tensors import Tensor


def _bart_layer(bias: Flag = True, k_bias: bool = True) -> Block:
    """Self attention, cross attention and MLP, each with a LayerNorm."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at, b = layer.config, layer.prefix, flag(layer, bias)
        hidden, inner = c.integer("hidden_size"), c.integer("intermediate_size")
        for part in ("self_attn", "encoder_attn"):
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                yield from linear(f"{at}{part}.{name}", hidden, hidden, "attn", b and (k_bias or name != "k_proj"))
            yield from norm(f"{at}{part}_layer_norm", hidden, True)
        yield from linear(at + "fc1", inner, hidden, "mlp", True)
        yield from linear(at + "fc2", hidden, inner, "mlp", True)
        yield from norm(at + "final_layer_norm", hidden, True)

    return Block(tensors, mha_cache)


def _decoder_keys(config: Config) -> dict[str, int]:
    """The decoder's own sizes under the usual names."""
    names = {
        "num_hidden_layers": ("decoder_layers", "num_decoder_layers"),
        "num_attention_heads": ("decoder_attention_heads", "num_decoder_attention_heads"),
        "intermediate_size": ("decoder_ffn_dim",),
    }
    found = {}
    for key, others in names.items():
        for other in others:
            if config.get(other) is not None:
                found[key] = config.integer(other)
    return found


def _cross_too(config: Config, layers: list[Layer]) -> list[CacheSpec]:
    """Every layer keeps its own keys and values and those of the encoder's output."""
    own = [mha_cache(layer) for layer in layers]
    return own + [spec._replace(kind="cross") for spec in own]


def _bart(
    types: str,
    *,
    more: int = 0,
    rows: str = "max_position_embeddings",
    embed_norm: Flag = False,
    final: str = "",
    layer: Block | None = None,
    **declared: Any,
) -> None:
    """A BART-like decoder: learned positions (`more` rows than configured), an optional norm on them."""
    register(
        types,
        layer or _bart_layer(),
        norms=(),
        root="model.decoder.",
        final=final,
        final_bias=True,
        before=together(
            positions("embed_positions", more, rows), when(embed_norm, norms("layernorm_embedding", bias=True))
        ),
        derive=_decoder_keys,
        caches=_cross_too,
        **declared,
    )


_bart("bart mvp plbart", more=2, embed_norm=True)
_bart("mbart", more=2, embed_norm=True, final="layer_norm")
_bart("blenderbot pegasus", final="layer_norm")
_bart("blenderbot-small", embed_norm=True)
_bart("bigbird_pegasus", embed_norm=True, tied=False, layer=_bart_layer(bias="use_bias"))
_bart("whisper", rows="max_target_positions", final="layer_norm", head="proj_out", layer=_bart_layer(k_bias=False))
_bart(
    "marian",
    embed_size=(
        lambda layer: layer.config.integer("decoder_vocab_size", layer.config.integer("vocab_size")),
        "hidden_size",
    ),
)
register(
    "trocr",
    _bart_layer(),
    norms=(),
    root="model.decoder.",
    final="",
    before=together(
        when("use_learned_position_embeddings", positions("embed_positions", 2)),
        when("layernorm_embedding", norms("layernorm_embedding", bias=True)),
    ),
    head="output_projection",
    derive=_decoder_keys,
    caches=_cross_too,
)


def _prophet(layer: Layer) -> Iterator[Tensor]:
    c, at = layer.config, layer.prefix
    hidden, inner = c.integer("hidden_size"), c.integer("intermediate_size")
    for part in ("self_attn", "cross_attn") if c.flag("add_cross_attention", True) else ("self_attn",):
        for name in ("query_proj", "key_proj", "value_proj", "out_proj"):
            yield from linear(f"{at}{part}.{name}", hidden, hidden, "attn", True)
        yield from norm(f"{at}{part}_layer_norm", hidden, True)
    buckets = c.integer("num_buckets") * c.heads
    yield from linear(at + "self_attn.relative_pos_embeddings", buckets, hidden, "attn", True)
    yield from linear(at + "feed_forward.intermediate", inner, hidden, "mlp", True)
    yield from linear(at + "feed_forward.output", hidden, inner, "mlp", True)
    yield from norm(at + "feed_forward_layer_norm", hidden, True)


def _prophet_embeddings(layer: Layer) -> Iterator[Tensor]:
    c, at = layer.config, layer.prefix + "decoder."
    hidden = c.integer("hidden_size")
    yield Tensor(at + "position_embeddings.weight", (c.integer("max_position_embeddings"), hidden), "embed")
    yield Tensor(at + "ngram_embeddings.weight", (c.integer("ngram"), hidden), "embed")
    yield from norm(at + "embeddings_layer_norm", hidden, True)
    if not c.tied:
        yield Tensor(at + "word_embeddings.weight", (c.integer("vocab_size"), hidden), "embed")


register(
    "prophetnet",
    Block(_prophet, mha_cache),
    norms=(),
    root="prophetnet.",
    embed="word_embeddings",
    layers="decoder.layers",
    final="",
    before=Block(_prophet_embeddings),
    derive=_decoder_keys,
    caches=_cross_too,
)
