"""config.json -> what the model is made of: `Model`, its tensors and its caches."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from typing import Any

from membudget.model.caches import CacheShape, CacheSpec, State, summarize
from membudget.model.closest import closest
from membudget.model.config import Config, ConfigError, load
from membudget.model.defaults import class_defaults
from membudget.model.families import Family, all_families, find
from membudget.model.length import Length, longest
from membudget.model.tensors import ParameterCount, Tensor, count
from membudget.model.towers import towers
from membudget.model.unread import custom_code, unread
from membudget.model.wrappers import STYLE_OF, TEXT_TYPES, WHOLE, parts, rename

__all__ = [
    "CacheShape",
    "CacheSpec",
    "Config",
    "ConfigError",
    "Length",
    "Model",
    "ParameterCount",
    "State",
    "Tensor",
    "UnknownModelType",
    "build",
    "load",
]


#: What an error names of all the known families.
POPULAR = (
    "llama", "llama4_text", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "gemma2", "gemma3_text",
    "phi3", "deepseek_v3", "glm4_moe", "gpt_oss", "nemotron_h",
)  # fmt: skip


class UnknownModelType(ConfigError):
    """A model_type without a family."""


class Model:
    """A model as its config.json describes it; everything is computed once and kept.

    name: how the user called it.  config: the text model's config.
    tensors: every tensor, in checkpoint order.  caches: one `CacheSpec` a layer.
    unknown: parts that are in the model but not counted, in words; empty when exact.
    unproven: the family is the one that --as named, not the model_type's own.
    read_as: the model_type whose family it is.
    not_read: keys of the config that nothing here reads and that may change sizes.
    custom_code: the model class that the repository brings itself; it may differ from the model_type's.
    """

    def __init__(self, config: Config, family: Family, name: str) -> None:
        self.name = name
        self.config = family.read(config)
        self.family = family
        beside, self.unknown = towers(self.config, parts(config.raw))
        self.tensors: tuple[Tensor, ...] = (*self._tensors(), *beside)
        self.caches: tuple[CacheSpec, ...] = tuple(family.caches(self.config))
        self.count: ParameterCount = count(self.tensors)
        self.cache_shape: CacheShape = summarize(self.caches)
        self.unproven = False
        self.read_as = config.model_type
        self.memo: dict[Any, Any] = {}
        self.not_read = unread(config)
        self.custom_code = custom_code(config)

    def _tensors(self) -> Iterable[Tensor]:
        found, wrapper = self.family.tensors(self.config), self.config.wrapper
        if wrapper not in STYLE_OF:
            return found
        return (rename(tensor, wrapper) for tensor in found)

    @property
    def model_type(self) -> str:
        """The text model's model_type."""
        return self.config.model_type

    @functools.cached_property
    def longest(self) -> Length:
        """The longest sequence, in tokens, as vLLM derives it; see `membudget.model.length`."""
        return longest(self.config)

    @property
    def notes(self) -> list[str]:
        """What makes the count less than certain, in words: custom code, and keys that are not read."""
        found = []
        if self.custom_code:
            found.append(
                f"custom code: the repository has a class of its own ({self.custom_code}); counted as {self.read_as}: "
                "its tensors and its cache may differ"
            )
        if self.not_read:
            found.append(f"not read: {', '.join(self.not_read[:12])}{', ...' if len(self.not_read) > 12 else ''}")
        return found

    def __repr__(self) -> str:
        return f"<Model {self.name} {self.model_type} {self.count.params:,} parameters>"


def build(
    config: Config | Mapping[str, Any] | str | os.PathLike[str], name: str | None = None, as_type: str | None = None
) -> Model:
    """Build a `Model` from a `Config`, a config.json's content, or a path to one.

    as_type: read it as this model_type, whatever it says; the model is then `unproven`,
    and sizes that the config leaves out are errors, not that type's defaults.
    Raises `UnknownModelType` for a model_type without a family, and `ConfigError`
    for a config that is missing, malformed or contradictory.
    """
    if isinstance(config, Mapping):
        config = Config(config, name or "config")
    elif not isinstance(config, Config):
        config = load(config)
    model_type = as_type or config.model_type
    if as_type is None and model_type == "gpt2" and config.get("attention_head_type") == "multiquery":
        model_type = "gpt_bigcode"  # SantaCoder, published before that class was there
    family = find(model_type)
    if family is None and as_type is None and model_type in TEXT_TYPES:
        # A wrapper's config that keeps the text model's keys at the top.
        model_type = TEXT_TYPES[model_type]
        family = find(model_type)
    if family is None:
        raise _unknown(config, model_type, as_type)
    values, aliases = class_defaults(WHOLE.get(model_type, model_type))
    if as_type and as_type != config.model_type:
        values = {key: value for key, value in values.items() if isinstance(value, bool)}
    elif config.text is not config.raw and config.wrapper:
        # Where neither level says it, the text class's default holds before the wrapper's: Mistral-Small-3.1 and
        # 3.2 say nothing, their files store a head, and the wrapper's class of transformers 5 would tie it.
        tied = class_defaults(config.wrapper)[0].get("tie_word_embeddings", False)
        values = {"tie_word_embeddings": tied, **values}
    model = Model(config.with_defaults(values, aliases), family, name or config.source)
    model.unproven = as_type is not None and as_type != config.model_type
    model.read_as = model_type
    return model


def _unknown(config: Config, model_type: str, as_type: str | None) -> UnknownModelType:
    if as_type:
        return UnknownModelType(f"--as {as_type}: unknown model_type. Known: {', '.join(sorted(all_families()))}")
    near = closest(config)
    hint = (
        f"By its keys it is closest to {near}: --as {near} treats it as that model_type and marks the result unproven. "
        if near
        else "No known family has keys like it; --as llama treats it as llama and marks the result unproven. "
    )
    known = all_families()
    meant = next((name for name in known if name.replace("-", "_") == model_type.lower().replace("-", "_")), None)
    if meant:
        hint = f"Did you mean {meant!r}? "
    shown = [name for name in POPULAR if name in known]
    return UnknownModelType(
        f"{config.source}: model_type {model_type!r} is not supported, so nothing is counted. {hint}"
        f"Known: {', '.join(shown)} and {len(known) - len(shown)} more, all in docs/coverage.md. "
        "To add one, see docs/new-model-family.md"
    )
