"""What would make a refused engine start, by the refusal's own figures.

Each is a flag with its value, from printed bytes: roundings are taken to the safe side.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from membudget.engines.vllm import verdict as of
from membudget.engines.vllm.compare import Compared
from membudget.engines.vllm.pool import PoolError, plan_pool
from membudget.engines.vllm.record import EngineLog, Figure
from membudget.units import gib

_UTILIZATION = "--gpu-memory-utilization"


class Remedy(NamedTuple):
    """text: what to change.  why: the figures behind it."""

    text: str
    why: str


def remedies(log: EngineLog, compared: Compared) -> list[Remedy]:
    """What would make it start; empty where it did, and where the log has no figures to tell from."""
    ended = of.verdict(log)
    if ended.status != "refused":
        return []
    if ended.kind == "free_memory":
        return _less_free(log)
    if ended.kind == "max_model_len":
        return _too_long(log, compared) + _blocks(log)
    if ended.kind in ("no_kv_memory", "auto_fit"):
        return _no_pool(log) + _blocks(log)
    if ended.kind == "kv_allocation":
        return _allocation(log)
    if ended.kind in ("sampler_warmup", "pooler_warmup"):
        return _warm_up(log)
    return []


def _allocation(log: EngineLog) -> list[Remedy]:
    """The CPU's pool is set, or it is what the share leaves beside the process, which may be less than nothing."""
    free, asked, util = log.get("free_memory"), log.get("requested_memory"), log.utilization
    if free is None:
        return []
    if asked is not None and asked.number < free.number:  # no size was set, so it is not memory that lacks
        had = f" than {util.printed}" if util is not None else ""
        return [Remedy(f"a higher {_UTILIZATION}{had}", f"the process itself holds all of {gib(asked.number, 2)}")]
    size = math.floor(free.low)
    return [Remedy(f"--kv-cache-memory-bytes {size} or less", f"{gib(free.number, 2)} were available")]


def _blocks(log: EngineLog) -> list[Remedy]:
    """The number of blocks was set by hand."""
    blocks = log.value("override_blocks")
    if blocks is None:
        return []
    return [Remedy("leave out --num-gpu-blocks-override", f"it holds the pool to {int(blocks):,} blocks")]


def _less_free(log: EngineLog) -> list[Remedy]:
    """vLLM asks for utilization x total, and that much is not free."""
    free, total, asked = log.get("free_memory"), log.get("total_memory"), log.get("requested_memory")
    if free is None or total is None or free.number > total.number:
        return []
    held = f"{gib(free.number, 2)} of {gib(total.number, 2)} were free"
    found = []
    most = _floor(free.low / total.high)
    if most > 0:
        found.append(Remedy(f"{_UTILIZATION} {most:.2f} or less", held))
    if asked is not None and asked.number > free.number:
        lacks = math.ceil(asked.high - free.low)
        other = gib(total.number - free.number, 2)
        found.append(Remedy(f"free {gib(lacks, 2)} first", f"others hold {other}, page cache too where memory is one"))
    return found


def _too_long(log: EngineLog, compared: Compared) -> list[Remedy]:
    """One request of max_model_len tokens is larger than the pool."""
    found = []
    longest = log.value("estimated_max_model_len")
    if longest:
        found.append(Remedy(f"--max-model-len {int(longest)} or less", "the longest that fits, by vLLM's own estimate"))
    needed, memory = log.get("needed_kv"), log.memory
    if needed is None or memory is None:
        return found
    lacks = math.ceil(needed.high - memory.low)
    if lacks <= 0:
        return found
    if log.get("reserved_kv") is not None or log.setting("kv_cache_memory_bytes"):
        size = math.ceil(needed.high)
        return [*found, Remedy(f"--kv-cache-memory-bytes {size} or more", f"one request needs {gib(needed.number, 2)}")]
    found += _more(log, lacks, "the pool lacks")
    request = compared.request
    if request is not None and request.platform == "cuda" and request.kv_cache_dtype in ("auto", "bfloat16", "float16"):
        try:
            other = plan_pool(request._replace(available=max(math.floor(memory.low), 0), kv_cache_dtype="fp8"))
        except PoolError:
            return found
        if other.starts:
            found.append(Remedy("--kv-cache-dtype fp8", f"one request then needs {gib(other.need, 2)}"))
    return found


def _no_pool(log: EngineLog) -> list[Remedy]:
    """Weights and activations leave nothing; by how much is only known where the line before says so."""
    memory = log.get("available_kv")
    lacks = math.ceil(-memory.low) if memory is not None and memory.number <= 0 else 0
    found = _more(log, lacks, "the pool is short of one byte by") if lacks else []
    graphs = log.value("cudagraph_estimate")
    if graphs and lacks and graphs > lacks and log.setting("enforce_eager") is not True:
        found.append(Remedy("--enforce-eager", f"without CUDA graphs {gib(int(graphs), 2)} are not kept back"))
    batched = log.value("max_num_batched_tokens")
    peak = log.get("peak_activation")
    if batched and int(batched) > 2048 and peak is not None:
        text = f"a step of {int(batched):,} tokens takes {gib(peak.number, 2)} of activations"
        found.append(Remedy("--max-num-batched-tokens 2048", text))
    return found


def _warm_up(log: EngineLog) -> list[Remedy]:
    requests = log.value("warmup_requests")
    found = []
    if requests and int(requests) > 1:
        text = f"the warm-up holds the logits of {int(requests):,} requests"
        found.append(Remedy(f"--max-num-seqs {max(int(requests) // 4, 1)}", text))
    util = log.utilization
    if util is not None and float(util.value) > 0.05:
        lower = _floor(float(util.value) - 0.02)
        found.append(Remedy(f"{_UTILIZATION} {lower:.2f} or less", "the pool then leaves more to the warm-up"))
    return found


def _more(log: EngineLog, lacks: int, said: str) -> list[Remedy]:
    """A larger share of the device, if that much was free at the start."""
    util, total, free = log.utilization, log.get("total_memory"), log.get("free_memory")
    if util is None:
        return []
    why = f"{said} {gib(lacks, 2)}"
    if total is None:
        return [Remedy(f"a higher {_UTILIZATION} than {util.printed}", why)]
    share = math.ceil(round((float(util.value) + lacks / total.low) * 100, 6)) / 100
    most = _floor(_free_share(free, total)) if free is not None else 1.0
    return [Remedy(f"{_UTILIZATION} {share:.2f} or more", why)] if share <= most else []


def _free_share(free: Figure, total: Figure) -> float:
    return min(free.low / total.high, 1.0)


def _floor(share: float) -> float:
    return math.floor(round(share * 100, 6)) / 100
