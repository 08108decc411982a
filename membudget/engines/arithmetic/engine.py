"""The textbook's sum: weights, caches that keep tokens and nothing more, one step, overhead.  No engine runs so.

It is the floor that engines start from: none needs less.  Several devices split as vLLM's ranks do.
"""

from __future__ import annotations

from membudget.budgets.settings import Settings
from membudget.engines.base import Prepared
from membudget.engines.buckets import BucketEngine, Buckets, Split, Stage, TokenCache
from membudget.engines.vllm.parallel.layouts import advice
from membudget.engines.vllm.parallel.ranks import stages
from membudget.formats import Format, kv
from membudget.machines import Machine
from membudget.model import Model


class Arithmetic(BucketEngine):
    """Nobody's rules."""

    name = "arithmetic"

    def prepare(self, model: Model, weights: Format, machine: Machine, settings: Settings) -> Prepared:
        """Weigh a model once.

        Raises `FormatError` where the format or the KV cache dtype does not apply, `RankError` for a layout that
        vLLM refuses or that is not known.
        """
        tp, pp = settings.tensor_parallel, settings.pipeline_parallel

        def held(part: Model) -> Buckets:
            return Buckets(part, weights, machine, settings, TokenCache(kv.cache(part, settings.kv_cache_dtype)))

        if tp * pp == 1:
            return held(model)
        return Split([Stage(each.layers, held(each.model)) for each in stages(model, weights, tp, pp)], tp)

    def advice(self, model: Model, weights: Format, settings: Settings) -> str:
        """The sizes that vLLM takes for this model."""
        return advice(model, weights, settings.tensor_parallel, settings.pipeline_parallel)


ENGINE = Arithmetic()
