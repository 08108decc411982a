"""config.json -> what the model is made of: `Model`, its tensors and its caches."""

from __future__ import annotations

import os
from collections.abc import Mapping

from membudget.model.caches import CacheShape, CacheSpec, State, summarize
from membudget.model.config import Config, ConfigError, load
from membudget.model.defaults import class_defaults
from membudget.model.families import Family, all_families, find
from membudget.model.tensors import ParameterCount, Tensor, count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "CacheShape",
    "CacheSpec",
    "Config",
    "ConfigError",
    "Model",
    "ParameterCount",
    "State",
    "Tensor",
    "UnknownModelType",
    "build",
    "load",
]


class UnknownModelType(ConfigError):
    """A model_type that no recipe knows."""


class Model:
    """A model as its config.json describes it; everything is computed once and kept.

    name: how the user called it.  config: the text model's config.
    tensors: every tensor, in checkpoint order.  caches: one `CacheSpec` a layer.
    unknown: parts that are in the model but not counted, in words; empty when exact.
    """

    def __init__(self, config: Config, family: Family, name: str) -> None:
        self.name = name
        self.config = family.read(config)
        self.family = family
        self.tensors: tuple[Tensor, ...] = tuple(family.tensors(self.config))
        self.caches: tuple[CacheSpec, ...] = tuple(family.caches(self.config))
        self.count: ParameterCount = count(self.tensors)
        self.cache_shape: CacheShape = summarize(self.caches)
        self.unknown: tuple[str, ...] = ()
        self.memo: dict[Any, Any] = {}

    @property
    def model_type(self) -> str:
        """The text model's model_type."""
        return self.config.model_type

    def __repr__(self) -> str:
        return f"<Model {self.name} {self.model_type} {self.count.params:,} parameters>"


def build(config: Config | Mapping[str, Any] | str | os.PathLike[str], name: str | None = None) -> Model:
    """Build a `Model` from a `Config`, a config.json's content, or a path to one.

    Raises `UnknownModelType` for a model_type no recipe knows, and `ConfigError`
    for a config that is missing, malformed or contradictory.
    """
    if isinstance(config, Mapping):
        config = Config(config, name or "config")
    elif not isinstance(config, Config):
        config = load(config)
    family = find(config.model_type)
    if family is None:
        raise UnknownModelType(
            f"{config.source}: model_type {config.model_type!r} has no recipe, so nothing is counted. "
            f"Known are: {', '.join(sorted(all_families()))}. "
            "To add one, see docs/new-model-family.md"
        )
    return Model(config.with_defaults(*class_defaults(config.model_type)), family, name or config.source)
