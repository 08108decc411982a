"""The estimate of CUDA graphs' memory that a start makes before it has its cache, and what of it is subtracted.

Runner V1 captures the two largest graphs of each mode and extrapolates (gpu_model_runner.py profile_cudagraph_memory,
0.18 on); runner V2 does so from 0.29 on (gpu/cudagraph_utils.py).  Both are measurements of the driver's free memory:
what they come out as is known from public starts, so this is a value with a range. The allocator grows by
segments of 20 MiB: where the second capture needs one, it is counted for every graph (24 to 26 MiB each in three public
rows, for 4 to 6: 1 GiB more). The estimate may also come out below 0, where freeing outweighs what two graphs take.
"""

from __future__ import annotations

from membudget.engines.vllm.profile.defaults import Steps
from membudget.engines.vllm.profile.estimate import Estimate, exact
from membudget.engines.vllm.profile.settings import ProfileSettings
from membudget.engines.vllm.profile.widths import Widths
from membudget.machines import Machine
from membudget.model import Model
from membudget.units import GIB, MIB

Version = tuple[int, int, int]

_SOURCE = "gpu_model_runner.py profile_cudagraph_memory; fixtures/logs/available_kv/rows.jsonl"
#: FlashAttention 3 splits a decode over the sequence this often, and keeps each part's sums (vllm_flash_attn).
_SPLITS = 32
#: What the first graph of each mode took beside that in 39 public starts: 4 to 14 MiB, 84 to 224 MiB.
_FIRST_FULL = 6 * MIB
#: How far 52 public estimates were from the rule.
_LOW, _HIGH = int(0.3 * GIB), int(1.0 * GIB)
#: From 0.26 on the first full graph of a model with recurrent layers is charged a temporary of up to so many bytes for
#: each token of max_num_batched_tokens: profile_cudagraph_memory runs it once with that many tokens of context (the
#: lines are 0.18's; what the forward allocates for them is new), and reads the driver's free memory before the
#: allocator gives it back.  vllm-project/vllm#50780 measured 128 KiB; by #52872's 0.52 GiB up to 4,096 tokens and 0.89
#: at 8,192 it is at most 114 KiB. Which operation it is neither says, so it is in the range and not in the figure.
_RECURRENT_SINCE, _RECURRENT = (0, 26, 0), 128 * 1024


def capture_sizes(
    model: Model, machine: Machine, settings: ProfileSettings, taken: Steps, version: Version
) -> list[int]:
    """Tokens of every graph, ascending (config/vllm.py _set_cudagraph_sizes, config/compilation.py)."""
    if settings.capture_sizes is not None:
        return sorted({size for size in settings.capture_sizes if size <= taken.tokens})
    ceiling = 512
    if version >= (0, 28, 0) and machine.compute_capability and machine.compute_capability[0] == 10:
        ceiling = 1024
    query = 1 + settings.speculative_tokens
    most = min(taken.sequences * query * 2, ceiling)
    if model.read_as == "gpt_oss":
        most = 1024  # model_executor/models/config.py GptOssForCausalLMConfig
    most = min(most, taken.tokens)
    sizes = [size for size in (1, 2, 4) if size <= most]
    if settings.performance_mode == "interactivity":
        sizes = list(range(1, min(most, 32) + 1))
    step = 16 if version >= (0, 12, 0) else 8
    sizes += [*range(8, min(most + 1, 256), 8), *range(256, most + 1, step)]
    if version >= (0, 29, 0) and query == 1 and taken.sequences <= most:
        sizes.append(taken.sequences)
    return sorted(set(sizes))


def graphs(
    model: Model,
    wide: Widths,
    machine: Machine,
    settings: ProfileSettings,
    taken: Steps,
    version: Version,
    runner: str,
) -> Estimate:
    """The estimate as this version subtracts it: 0 where it makes none or does not subtract it."""
    mode = "NONE" if settings.enforce_eager else settings.cudagraph_mode or "FULL_AND_PIECEWISE"
    if mode == "NONE":
        return exact("cuda_graphs", 0, "no CUDA graphs are captured", "enforce_eager")
    if version < (0, 18, 0) or (runner == "v2" and version < (0, 29, 0)):
        return exact("cuda_graphs", 0, "this version makes no estimate", _SOURCE)
    applied = version >= (0, 20, 0) if settings.estimate_graphs is None else settings.estimate_graphs
    if not applied:
        return exact("cuda_graphs", 0, "the estimate is printed, not subtracted", "gpu_worker.py")
    return estimate(model, wide, machine, settings, taken, version)


def estimate(
    model: Model, wide: Widths, machine: Machine, settings: ProfileSettings, taken: Steps, version: Version
) -> Estimate:
    """The estimate as it is printed, whether or not it is subtracted."""
    sizes = capture_sizes(model, machine, settings, taken, version)
    full = [size for size in sizes if size <= taken.sequences * (1 + settings.speculative_tokens)]
    hopper = machine.compute_capability is not None and machine.compute_capability[0] == 9
    window = any(spec.kind in ("sliding", "chunked") for spec in model.caches) and model.read_as != "gemma2"
    largest = full[-1] if full else 0
    split = _SPLITS * largest * wide.heads_out * 4 if hopper and not window else 0
    layers, hidden = wide.layers, wide.hidden
    piecewise = (100 + layers // 2 + hidden // 100) * MIB
    per_full = max(4, 2 * round(0.14 * layers / 2 + 0.5)) * MIB
    per_piecewise = max(4, 2 * round(0.19 * layers / 2 + 0.5)) * MIB
    first = max(split + _FIRST_FULL, piecewise)
    size = first + max(0, len(full) - 1) * per_full + (len(sizes) - 1) * per_piecewise
    high = size + _HIGH
    recurrent = any(spec.kind == "recurrent" for spec in model.caches)
    if full and recurrent and version >= _RECURRENT_SINCE and "FULL" in (settings.cudagraph_mode or "FULL"):
        high = max(high, size - first + max(first, split + _FIRST_FULL + taken.tokens * _RECURRENT) + _LOW)
    why = (
        f"first {first // MIB:,} MiB + {max(0, len(full) - 1)} full graphs x {per_full // MIB} MiB + "
        f"{len(sizes) - 1} piecewise x {per_piecewise // MIB} MiB"
    )
    return Estimate("cuda_graphs", size, max(0, size - _LOW), high, why, _SOURCE)
