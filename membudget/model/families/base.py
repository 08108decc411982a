"""A family: the blocks that a model_type's layers are made of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from membudget.model.blocks import NOTHING, Block, Flag, Layer, Size, flag, norm, norms, size
from membudget.model.caches import CacheSpec
from membudget.model.config import Config, ConfigError
from membudget.model.tensors import Tensor

Kinds = Callable[[Config], list[str]]
PRE = ("input_layernorm", "post_attention_layernorm")
SANDWICH = (*PRE, "pre_feedforward_layernorm", "post_feedforward_layernorm")


class Family:
    """How one or more model_types are built, in declarative terms.

    layer: the blocks of a layer, in checkpoint order; the first with a cache says what it keeps.
    norms: the layer's norms by checkpoint name, each hidden_size wide; norm_bias: LayerNorms.
    kinds, ffn: layer_types and mlp_layer_types where config.json does not list them.
    count: number of layers.  root, embed, layers, final, head: names (final "" for no final norm).
    embed_size: (rows, columns) of the embedding.  tied: False where the class ignores the flag.
    head_size: as embed_size, for the head.  head_bias: whether the head has a bias, tied or not.
    before, after: the model's own other tensors.  caches: all layers' specs, where they are not one a layer.
    mtp: multi-token-prediction heads that checkpoints store.  derive: values computed from others.
    """

    def __init__(
        self,
        *layer: Block,
        norms: tuple[str, ...] = PRE,
        norm_bias: Flag = False,
        kinds: Kinds | None = None,
        ffn: Kinds | None = None,
        count: Callable[[Config], int] | None = None,
        root: str = "model.",
        embed: str = "embed_tokens",
        layers: str = "layers",
        final: str = "norm",
        final_bias: Flag | None = None,
        head: str = "lm_head",
        embed_size: tuple[Size, Size] = ("vocab_size", "hidden_size"),
        head_size: tuple[Size, Size] | None = None,
        head_bias: Flag = False,
        tied: bool | None = None,
        before: Block = NOTHING,
        after: Block = NOTHING,
        caches: Callable[[Config, list[Layer]], Iterable[CacheSpec]] | None = None,
        mtp: Callable[[Family, Config], Iterable[Tensor]] | None = None,
        derive: Callable[[Config], dict[str, Any]] | None = None,
    ) -> None:
        self.layer, self.norms, self.norm_bias = layer, norms, norm_bias
        self.kinds, self.ffn, self.layer_count = kinds or full, ffn, count
        self.root, self.embed, self.layers_name, self.final, self.head = root, embed, layers, final, head
        self.final_bias = norm_bias if final_bias is None else final_bias
        self.embed_size, self.head_size, self.head_bias, self.tied = embed_size, head_size, head_bias, tied
        self.module = ""
        self.before, self.after, self.cache_list, self.mtp, self.derive = before, after, caches, mtp, derive
        self.blocks = (*layer, _norms(norms, norm_bias))

    def read(self, config: Config) -> Config:
        """The config with the values that this family derives from others."""
        return config if self.derive is None else config.overlay(self.derive(config))

    def layers(self, config: Config) -> list[Layer]:
        """The model's layers, each with its kind."""
        count = config.layers if self.layer_count is None else self.layer_count(config)
        kinds = config.strings("layer_types", count) or self.kinds(config)
        ffn = config.strings("mlp_layer_types", count) or (self.ffn(config) if self.ffn else ["sparse"] * count)
        short = min(len(kinds), len(ffn))
        if short < count:
            raise ConfigError(f"{config.source}: num_hidden_layers is {count:,}, and its layer pattern has {short:,}")
        own = _per_layer(config)
        at = f"{self.root}{self.layers_name}."
        return [
            Layer(config.overlay(own[i]) if i in own else config, i, kinds[i], f"{at}{i}.", ffn[i])
            for i in range(count)
        ]

    def tensors(self, config: Config) -> Iterator[Tensor]:
        """The whole inventory, in checkpoint order."""
        whole = Layer(config, -1, "", self.root)
        rows, columns = (size(whole, extent) for extent in self.embed_size)
        yield Tensor(f"{self.root}{self.embed}.weight", (rows, columns), "embed")
        yield from self.before.tensors(whole)
        for layer in self.layers(config):
            for block in self.blocks:
                yield from block.tensors(layer)
        if self.final:
            yield from norm(self.root + self.final, config.integer("hidden_size"), flag(whole, self.final_bias))
        yield from self.after.tensors(whole)
        if not (config.tied if self.tied is None else self.tied):
            rows, columns = (size(whole, extent) for extent in self.head_size or self.embed_size)
            yield Tensor(f"{self.head}.weight", (rows, columns), "lm_head")
        if self.head_bias is not False and flag(whole, self.head_bias):
            yield Tensor(f"{self.head}.bias", (size(whole, (self.head_size or self.embed_size)[0]),), "lm_head")
        if self.mtp is not None:
            yield from self.mtp(self, config)

    def caches(self, config: Config) -> list[CacheSpec]:
        """One `CacheSpec` a layer."""
        layers = self.layers(config)
        if self.cache_list is not None:
            return list(self.cache_list(config, layers))
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


def register(model_types: str, *layer: Block, **declared: Any) -> None:
    """Declare a family for these model_types, separated by spaces."""
    family = Family(*layer, **declared)
    family.module = sys._getframe(1).f_globals["__name__"]
    for model_type in model_types.split():
        if model_type in FAMILIES:
            raise ValueError(f"model_type {model_type!r} is declared twice")
        FAMILIES[model_type] = family


__all__ = ["FAMILIES", "ConfigError", "Family", "register"]
