"""What a start of vLLM has left for its KV cache, part by part, without a GPU.

    available(model, form, machine, settings, version) -> Available

`Available.bytes` is requested - weights - activation - non_torch - cuda_graphs, each an `Estimate` with value, range,
reason and source; `Available.stages` is what `PoolRequest.available` takes.

    learn(log, model, form, machine) -> Entry

is what a start's log says of that machine; `available(..., learned=Learned((entry,)))` takes it in place of the tables.
"""

from membudget.engines.vllm.profile.available import Available, RankAvailable, available
from membudget.engines.vllm.profile.estimate import Estimate
from membudget.engines.vllm.profile.learned import Entry, Learned, learn
from membudget.engines.vllm.profile.settings import ProfileError, ProfileSettings

__all__ = [
    "Available",
    "Entry",
    "Estimate",
    "Learned",
    "ProfileError",
    "ProfileSettings",
    "RankAvailable",
    "available",
    "learn",
]
