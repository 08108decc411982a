"""A family: the blocks that a model_type's layers are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from membudget.model.blocks import Block, Layer, norm
from membudget.model.caches import CacheSpec
from membudget.model.config import Config
from membudget.model.tensors import Tensor

Kinds = Callable[[Config], list[str]]


def every_layer(kind: str) -> Kinds:
    """All layers are of one kind, unless the config lists layer_types."""
    return lambda config: [kind] * config.layers


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


def one_full_in(pattern: int, key: str = "sliding_window_pattern") -> Kinds:
    """Of every `pattern` layers the last attends to everything, the others slide."""

    def kinds(config: Config) -> list[str]:
        period = config.integer(key, pattern)
        return ["sliding_attention" if (index + 1) % period else "full_attention" for index in range(config.layers)]

    return kinds


class Family:
    """How one or more model_types are built, in declarative terms.

    attention, mlp: the blocks of a layer.
    norms: the layer's norms by checkpoint name, each hidden_size wide.
    kinds: layer_types where config.json does not list them.
    prefix: what the text model's names start with.
    defaults: the class's values for keys that a config.json may leave out altogether.
    """

    def __init__(
        self,
        *,
        attention: Block,
        mlp: Block,
        norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm"),
        norm_bias: bool = False,
        kinds: Kinds = every_layer("full_attention"),
        prefix: str = "model.",
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.attention, self.mlp, self.norms, self.norm_bias = attention, mlp, norms, norm_bias
        self.kinds, self.prefix, self.defaults = kinds, prefix, defaults or {}

    def layers(self, config: Config) -> list[Layer]:
        """The model's layers, each with its kind."""
        count = config.layers
        kinds = config.strings("layer_types", count) or self.kinds(config)
        return [Layer(config, i, kind, f"{self.prefix}layers.{i}.") for i, kind in enumerate(kinds)]

    def tensors(self, config: Config) -> Iterator[Tensor]:
        """The whole inventory, in checkpoint order."""
        hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
        yield Tensor(self.prefix + "embed_tokens.weight", (vocab, hidden), "embed")
        for layer in self.layers(config):
            yield from self.attention.tensors(layer)
            yield from self.mlp.tensors(layer)
            for name in self.norms:
                yield from norm(layer.prefix + name, hidden, self.norm_bias)
        yield from norm(self.prefix + "norm", hidden, self.norm_bias)
        if not config.tied:
            yield Tensor("lm_head.weight", (vocab, hidden), "lm_head")

    def caches(self, config: Config) -> list[CacheSpec]:
        """One `CacheSpec` a layer."""
        cache = self.attention.cache
        assert cache is not None
        return [cache(layer) for layer in self.layers(config)]


FAMILIES: dict[str, Family] = {}


def register(*model_types: str, **declared: Any) -> None:
    """Declare a family for these model_types."""
    family = Family(**declared)
    for model_type in model_types:
        if model_type in FAMILIES:
            raise ValueError(f"model_type {model_type!r} is declared twice")
        FAMILIES[model_type] = family
