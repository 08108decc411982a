"""llama.cpp: a slot of cells for each user, allocated when it starts."""

from __future__ import annotations

from membudget.budgets.settings import Settings
from membudget.engines.base import Prepared
from membudget.engines.buckets import BucketEngine, Buckets
from membudget.engines.llama_cpp.cells import PAD, slot
from membudget.engines.llama_cpp.options import UBATCH
from membudget.formats import Format
from membudget.machines import Machine
from membudget.model import Model


class LlamaCpp(BucketEngine):
    """llama.cpp."""

    name = "llama_cpp"

    def prepare(self, model: Model, weights: Format, machine: Machine, settings: Settings) -> Prepared:
        """Weigh a model once.  Raises `CacheCellsError` where llama.cpp's cells are not known for the model."""
        cells = slot(model, settings.kv_cache_dtype, settings.max_num_batched_tokens or UBATCH)
        return Buckets(model, weights, machine, settings, cells, pad=PAD)


ENGINE = LlamaCpp()
