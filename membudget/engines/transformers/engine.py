"""A plain transformers forward: every prompt at once, a cache that keeps the tokens."""

from __future__ import annotations

import functools

from membudget.budgets.settings import Settings
from membudget.engines.base import Load, Prepared
from membudget.engines.buckets import BucketEngine, Buckets, TokenCache
from membudget.engines.transformers.caches import kept
from membudget.formats import Format, kv
from membudget.machines import Machine
from membudget.model import Model


class Transformers(BucketEngine):
    """transformers."""

    name = "transformers"

    def prepare(self, model: Model, weights: Format, machine: Machine, settings: Settings) -> Prepared:
        """Weigh a model once.  Raises `FormatError` where the format or the KV cache dtype does not apply."""
        held = kv.cache(model, settings.kv_cache_dtype)
        if (specs := kept(model)) is not model.caches:
            held = kv.get(settings.kv_cache_dtype).sum(specs)
        cache = TokenCache(held)
        command = functools.partial(snippet, model, settings)
        return Buckets(model, weights, machine, settings, cache, whole_prompts=True, command=command)


def snippet(model: Model, settings: Settings, load: Load) -> str:
    """One line of Python that loads the model as the plan has it."""
    return (
        f"python -c 'from transformers import AutoModelForCausalLM as A; "
        f'A.from_pretrained("{model.name}", device_map="cuda", attn_implementation="{settings.attention}")\''
    )


ENGINE = Transformers()
