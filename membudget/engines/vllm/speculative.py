"""vLLM's speculative_config: the drafter, its tokens a step, and the layers that it adds to the KV cache.

vLLM: config/speculative.py (0.12 to 0.33).  The MTP layers of a config are its own; EAGLE, DFlash and draft models
have a config.json of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from membudget.errors import MembudgetError
from membudget.model import Model

#: Where a config keeps the number of its MTP layers, in vLLM's order.
_MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
#: Methods that propose tokens without layers of their own.
_WITHOUT_LAYERS = frozenset({"ngram", "ngram_gpu", "suffix", "custom_class"})
#: Words that a drafter's own model_type or name has, and the method that vLLM then chooses.
_BY_NAME = (("eagle3", "eagle3"), ("eagle", "eagle"), ("dflash", "dflash"), ("mtp", "mtp"))
MOST_TOKENS = 1024


class SpeculativeError(MembudgetError):
    """A speculative_config that vLLM would not accept either."""


class Kind(StrEnum):
    """Where the drafter's layers come from."""

    #: None: n-gram, suffix.
    NO_LAYERS = "no_layers"
    #: The target's own multi-token prediction layers.
    MTP = "mtp"
    #: A model of its own: EAGLE, DFlash, Medusa, a draft model.
    MODEL = "model"


@dataclass(frozen=True)
class Speculative:
    """One speculative_config."""

    #: vLLM's word: mtp, eagle3, dflash, draft_model, ngram ...; "" where only a model is named.
    method: str
    #: num_speculative_tokens, draft tokens a step; None for the drafter's own default.
    tokens: int | None
    #: The drafter's name or path; None where it has none of its own.
    model: str | None

    @property
    def kind(self) -> Kind:
        """Where its layers come from."""
        if self.method in _WITHOUT_LAYERS:
            return Kind.NO_LAYERS
        return Kind.MTP if self.method == "mtp" or self.method.endswith("_mtp") else Kind.MODEL


@dataclass(frozen=True)
class Drafter:
    """What a drafter adds to a pool: the fields of a `PoolRequest`."""

    #: Draft tokens a step.
    speculative_tokens: int
    #: MTP layers whose cache is like the target's full attention layers.
    draft_layers: int = 0
    #: A drafter of another shape.
    draft_model: Model | None = None
    #: One MTP module a draft token.
    multi_module: bool = False


def read(value: object) -> Speculative | None:
    """A speculative_config as vLLM takes it (a mapping, or JSON text) or prints it; None for none.

    Raises `SpeculativeError` for what is neither, or has no number of tokens that vLLM accepts.
    """
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise SpeculativeError('speculative_config: not JSON; write \'{"method": "mtp", ...}\'') from None
    if not isinstance(value, Mapping):
        raise SpeculativeError("speculative_config: not an object with a method and num_speculative_tokens")
    method, model = value.get("method"), value.get("model")
    tokens = value.get("num_speculative_tokens", value.get("num_spec_tokens"))
    if tokens is not None and (
        isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 < tokens <= MOST_TOKENS
    ):
        raise SpeculativeError(
            f"speculative_config: num_speculative_tokens is a whole number from 1 to {MOST_TOKENS:,}"
        )
    name = model if isinstance(model, str) and model else None
    method = method if isinstance(method, str) else ""
    if not method and name == "ngram":
        method, name = "ngram", None
    elif not method and name is not None:
        low = name.lower()
        method = next((word for part, word in _BY_NAME if part in low), "draft_model")
    if not method and name is None:
        raise SpeculativeError("speculative_config: neither a method nor a model")
    return Speculative(method, tokens, name)


def mtp_layers(model: Model) -> int:
    """The number of MTP layers that a model's config declares; 0 for none."""
    for place in (model.config.text, model.config.raw):
        for key in _MTP_LAYERS:
            value = place.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return 0


def drafter(given: Speculative, target: Model, find: Callable[[str], Model]) -> Drafter:
    """What the drafter adds to the target's pool.

    find: the model of a name; its errors pass.  Raises `SpeculativeError` where the config has no MTP layers.
    """
    if given.kind is Kind.NO_LAYERS:
        return Drafter(given.tokens or 0)
    if given.kind is Kind.MTP:
        # a checkpoint of MTP layers alone is another folder of the same model
        layers = mtp_layers(target)
        if not layers:
            raise SpeculativeError(f"{target.name}: its config.json declares no MTP layers")
        tokens = given.tokens if given.tokens is not None else layers
        own = target.config.get("num_nextn_predict_layers", 1)
        return Drafter(tokens, layers, multi_module=min(int(own), tokens) > 1)
    if given.model is None:
        raise SpeculativeError(f"speculative_config: method {given.method} needs a model")
    return Drafter(given.tokens or 1, draft_model=find(given.model))
