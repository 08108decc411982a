"""A family: the blocks that a model_type's layers are made of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from membudget.model.blocks import NOTHING, Block, Flag, Layer, Size, flag, norm, norms, size
from membudget.model.caches import CacheSpec
from membudget.model.config import Config, ConfigError
from membudget.model.tensors import Tensor

Kinds = Callable[[Config], list[str]]
PRE = ("input_layernorm", "post_attention_layernorm")
SANDWICH = (*PRE, "pre_feedforward_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True)
class Names:
    """Names of modules, as checkpoints have them."""

    #: Prefix of the whole model, with its dot.
    root: str = "model."
    #: The embedding, below root.
    embed: str = "embed_tokens"
    #: The list of layers, below root.
    layers: str = "layers"
    #: The final norm, below root; "" for none.
    final: str = "norm"
    #: The head's full name.
    head: str = "lm_head"


@dataclass(frozen=True)
class Embedding:
    """The embedding and the head."""

    #: (rows, columns) of the embedding.
    embed_size: tuple[Size, Size] = ("vocab_size", "hidden_size")
    #: (rows, columns) of the head; None: as embed_size.
    head_size: tuple[Size, Size] | None = None
    #: Whether the head has a bias, tied or not.
    head_bias: Flag = False
    #: False where the class ignores tie_word_embeddings; None: the config's flag.
    tied: bool | None = None


@dataclass(frozen=True)
class Norms:
    """The norms of a layer, each hidden_size wide, and the final one's bias."""

    #: Names below the layer.
    norms: tuple[str, ...] = PRE
    #: Whether they are LayerNorms with a bias.
    norm_bias: Flag = False
    #: The final norm's bias; None: as norm_bias.
    final_bias: Flag | None = None


@dataclass(frozen=True)
class Patterns:
    """How layers differ, where config.json does not list it."""

    #: layer_types; None: every layer is full attention.
    kinds: Kinds | None = None
    #: mlp_layer_types; None: every layer is sparse.
    ffn: Kinds | None = None
    #: Number of layers; None: num_hidden_layers.
    count: Callable[[Config], int] | None = None
    #: Values computed from other keys.
    derive: Callable[[Config], dict[str, Any]] | None = None


@dataclass(frozen=True)
class Extra:
    """Tensors and caches beside those of the layers' blocks."""

    #: The model's own tensors before the layers.
    before: Block = NOTHING
    #: The model's own tensors behind the final norm.
    after: Block = NOTHING
    #: The specs of all caches; None: one spec per layer, from its blocks.
    caches: Callable[[Config, list[Layer]], Iterable[CacheSpec]] | None = None
    #: Multi-token prediction heads that checkpoints store.
    mtp: Callable[[Family, Config], Iterable[Tensor]] | None = None


class Family:
    """How one or more model_types are built, in declarative terms.

    layer: the blocks of a layer, in checkpoint order; the cache of the first that has one is the layer's.
    """

    def __init__(
        self,
        *layer: Block,
        names: Names = Names(),
        norms: Norms = Norms(),
        embedding: Embedding = Embedding(),
        patterns: Patterns = Patterns(),
        extra: Extra = Extra(),
        module: str = "",
    ) -> None:
        self.layer, self.names, self.norms, self.embedding = layer, names, norms, embedding
        self.patterns, self.extra, self.module = patterns, extra, module
        self.blocks = (*layer, _norms(norms.norms, norms.norm_bias))

    def read(self, config: Config) -> Config:
        """The config with the values that this family derives from others."""
        derive = self.patterns.derive
        return config if derive is None else config.overlay(derive(config))

    @property
    def prefix(self) -> str:
        """Prefix of all layers' tensors: ``model.layers.``."""
        return f"{self.names.root}{self.names.layers}."

    def layers(self, config: Config) -> list[Layer]:
        """The model's layers, each with its kind."""
        rules = self.patterns
        count = config.layers if rules.count is None else rules.count(config)
        kinds = config.strings("layer_types", count) or (rules.kinds or full)(config)
        ffn = config.strings("mlp_layer_types", count) or (rules.ffn(config) if rules.ffn else ["sparse"] * count)
        short = min(len(kinds), len(ffn))
        if short < count:
            raise ConfigError(f"{config.source}: num_hidden_layers is {count:,}, and its layer pattern has {short:,}")
        own = _per_layer(config)
        at = self.prefix
        return [
            Layer(config.overlay(own[i]) if i in own else config, i, kinds[i], f"{at}{i}.", ffn[i])
            for i in range(count)
        ]

    def tensors(self, config: Config) -> Iterator[Tensor]:
        """The whole inventory, in checkpoint order."""
        names, embedding, extra = self.names, self.embedding, self.extra
        whole = Layer(config, -1, "", names.root)
        rows, columns = (size(whole, extent) for extent in embedding.embed_size)
        yield Tensor(f"{names.root}{names.embed}.weight", (rows, columns), "embed")
        yield from extra.before.tensors(whole)
        for layer in self.layers(config):
            for block in self.blocks:
                yield from block.tensors(layer)
        if names.final:
            bias = self.norms.norm_bias if self.norms.final_bias is None else self.norms.final_bias
            yield from norm(names.root + names.final, config.integer("hidden_size"), flag(whole, bias))
        yield from extra.after.tensors(whole)
        head_size = embedding.head_size or embedding.embed_size
        if not (config.tied if embedding.tied is None else embedding.tied):
            rows, columns = (size(whole, extent) for extent in head_size)
            yield Tensor(f"{names.head}.weight", (rows, columns), "lm_head")
        if embedding.head_bias is not False and flag(whole, embedding.head_bias):
            yield Tensor(f"{names.head}.bias", (size(whole, head_size[0]),), "lm_head")
        if extra.mtp is not None:
            yield from extra.mtp(self, config)

    def caches(self, config: Config) -> list[CacheSpec]:
        """One `CacheSpec` a layer."""
        layers = self.layers(config)
        if self.extra.caches is not None:
            return list(self.extra.caches(config, layers))
        keeps = next((block.cache for block in self.layer if block.cache is not None), None)
        return [keeps(layer) if keeps is not None else CacheSpec(layer.index, "none") for layer in layers]


def _norms(names: tuple[str, ...], bias: Flag) -> Block:
    return norms(*names, bias=bias) if names else NOTHING


def _per_layer(config: Config) -> dict[int, dict[str, Any]]:
    """per_layer_config: values of single layers, keyed by index (JSON makes the index a string)."""
    own = config.get("per_layer_config")
    if own is None:
        return {}
    if not isinstance(own, dict) or not all(isinstance(values, dict) for values in own.values()):
        raise config.error("per_layer_config", "is not an object of objects", "{layer index: {key: value}}")
    try:
        return {int(index): values for index, values in own.items()}
    except ValueError:
        raise config.error("per_layer_config", "has a key that is not a number", "layer indices") from None


# ---- layer_types, where a config does not list them ----------------------------------


def full(config: Config) -> list[str]:
    """Every layer attends to everything."""
    return ["full_attention"] * config.layers


def sliding_if_set(config: Config) -> list[str]:
    """Every layer slides when sliding_window is set (Mistral, Mixtral, Phi-3)."""
    kind = "full_attention" if config.get("sliding_window") is None else "sliding_attention"
    return [kind] * config.layers


def qwen_window(config: Config) -> list[str]:
    """Layers from max_window_layers on slide, if use_sliding_window says so (Qwen2, Qwen3)."""
    count = config.layers
    if not config.flag("use_sliding_window") or config.get("sliding_window") is None:
        return ["full_attention"] * count
    start = config.integer("max_window_layers", count, minimum=0)
    return ["full_attention" if index < start else "sliding_attention" for index in range(count)]


def all_if_used(config: Config) -> list[str]:
    """Every layer slides, if use_sliding_window says so (Qwen3-MoE)."""
    return sliding_if_set(config) if config.flag("use_sliding_window") else ["full_attention"] * config.layers


def slide_from(config: Config) -> list[str]:
    """Layers from max_window_layers on slide when sliding_window is set (dots.llm1)."""
    count = config.layers
    start = config.size("max_window_layers") if config.get("sliding_window") is not None else count
    return ["full_attention" if index < start else "sliding_attention" for index in range(count)]


def even_slide(config: Config) -> list[str]:
    """Every other layer below max_window_layers slides, if use_sliding_window says so (Qwen2-MoE)."""
    stop = config.size("max_window_layers") if config.flag("use_sliding_window") else 0
    return ["full_attention" if index % 2 or index >= stop else "sliding_attention" for index in range(config.layers)]


def unrotated_slide(config: Config) -> list[str]:
    """Layers without rotary positions slide, if use_sliding_window says so (SmolLM3)."""
    count = config.layers
    every = config.integer("no_rope_layer_interval", 4)
    rotary = config.integers("no_rope_layers", count) or [int((index + 1) % every != 0) for index in range(count)]
    slides = config.flag("use_sliding_window") and config.get("sliding_window") is not None
    return ["sliding_attention" if slides and not turned else "full_attention" for turned in rotary]


def one_full_in(pattern: int, key: str = "sliding_window_pattern") -> Kinds:
    """Of every `pattern` layers the last attends to everything, the others slide."""

    def kinds(config: Config) -> list[str]:
        period = config.integer(key, pattern)
        return ["sliding_attention" if (index + 1) % period else "full_attention" for index in range(config.layers)]

    return kinds


def all_of(kind: str) -> Kinds:
    """Every layer is of this kind."""
    return lambda config: [kind] * config.layers


def pattern(*kinds: str) -> Kinds:
    """These kinds in turn."""
    return lambda config: [kinds[index % len(kinds)] for index in range(config.layers)]


def alternating(config: Config) -> list[str]:
    """Even layers slide, odd ones attend to everything (Gemma 2, gpt-oss)."""
    return ["full_attention" if index % 2 else "sliding_attention" for index in range(config.layers)]


def one_full_linear(pattern: int = 4) -> Kinds:
    """Of every full_attention_interval layers the last is attention, the others linear (Qwen3-Next)."""

    def kinds(config: Config) -> list[str]:
        period = config.integer("full_attention_interval", pattern)
        return ["linear_attention" if (index + 1) % period else "full_attention" for index in range(config.layers)]

    return kinds


# ---- mlp_layer_types ------------------------------------------------------------------


def first_dense(key: str = "first_k_dense_replace", default: int = 0) -> Kinds:
    """The first layers have a plain MLP; moe_layer_freq may list or space out the others."""

    def kinds(config: Config) -> list[str]:
        count = config.layers
        freq = config.get("moe_layer_freq")
        if isinstance(freq, list):
            picked = config.integers("moe_layer_freq", count) or []
            return ["sparse" if one else "dense" for one in picked]
        first, step = config.size(key, default), config.integer("moe_layer_freq", 1)
        return ["sparse" if index >= first and index % step == 0 else "dense" for index in range(count)]

    return kinds


def sparse_step(config: Config) -> list[str]:
    """Dense where mlp_only_layers says so or decoder_sparse_step skips (Qwen)."""
    step, dense = config.integer("decoder_sparse_step", 1), config.integers("mlp_only_layers") or ()
    experts = config.size("num_experts")
    return ["sparse" if experts and i not in dense and (i + 1) % step == 0 else "dense" for i in range(config.layers)]


FAMILIES: dict[str, Family] = {}
T = TypeVar("T", Names, Norms, Embedding, Patterns, Extra)


def _group(group: type[T], declared: dict[str, Any]) -> T:
    """One group of what is declared; its fields leave `declared`."""
    return group(**{one.name: declared.pop(one.name) for one in fields(group) if one.name in declared})


def register(model_types: str, *layer: Block, **declared: Any) -> None:
    """Declare a family for these model_types, separated by spaces.

    declared: fields of `Names`, `Norms`, `Embedding`, `Patterns` and `Extra`, flat, so that a declaration stays short.
    """
    names, norms, embedding = _group(Names, declared), _group(Norms, declared), _group(Embedding, declared)
    patterns, extra = _group(Patterns, declared), _group(Extra, declared)
    if declared:
        raise TypeError(f"{model_types}: unknown {', '.join(declared)}")
    module = sys._getframe(1).f_globals["__name__"]
    family = Family(
        *layer, names=names, norms=norms, embedding=embedding, patterns=patterns, extra=extra, module=module
    )
    for model_type in model_types.split():
        if model_type in FAMILIES:
            raise ValueError(f"model_type {model_type!r} is declared twice")
        FAMILIES[model_type] = family


__all__ = ["FAMILIES", "ConfigError", "Embedding", "Extra", "Family", "Names", "Norms", "Patterns", "register"]
