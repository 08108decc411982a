"""llama.cpp: a slot of cells for each user, allocated when it starts."""

from __future__ import annotations

import functools
import shlex

from membudget.budgets.settings import Settings
from membudget.engines.base import Load, Prepared
from membudget.engines.buckets import BucketEngine, Buckets
from membudget.engines.llama_cpp.cells import PAD, pad, slot
from membudget.engines.llama_cpp.options import UBATCH
from membudget.formats import Format
from membudget.machines import Machine
from membudget.model import Model

#: llama.cpp's names of the plain dtypes (common/arg.cpp kv_cache_types).
_TYPES = {"fp16": "f16", "fp32": "f32"}


class LlamaCpp(BucketEngine):
    """llama.cpp."""

    name = "llama_cpp"

    def prepare(self, model: Model, weights: Format, machine: Machine, settings: Settings) -> Prepared:
        """Weigh a model once.  Raises `CacheCellsError` where llama.cpp's cells are not known for the model."""
        cells = slot(model, settings.kv_cache_dtype, settings.max_num_batched_tokens or UBATCH)
        command = functools.partial(server, model, weights, settings)
        return Buckets(model, weights, machine, settings, cells, pad=PAD, command=command)


def server(model: Model, weights: Format, settings: Settings, load: Load) -> str:
    """The `llama-server` line of a load: a slot of cells for each user, none of them unified."""
    stem = model.name.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    words = ["llama-server", "-m", f"{stem}-{weights.name}.gguf", "-c", str(pad(load.ctx) * load.users)]
    words += ["-np", str(load.users), "--no-kv-unified"]
    kept = _TYPES.get(settings.kv_cache_dtype, settings.kv_cache_dtype)
    if kept != "f16":
        words += ["-ctk", kept, "-ctv", kept]
    if settings.max_num_batched_tokens not in (None, UBATCH):
        words += ["-ub", str(settings.max_num_batched_tokens)]
    return shlex.join(words)


ENGINE = LlamaCpp()
