"""What would raise the concurrency of an engine that started, the strongest change first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from membudget.engines.vllm.logs.compare import Compared
from membudget.engines.vllm.logs.record import EngineLog, Figure
from membudget.engines.vllm.pool.plan import plan_pool
from membudget.engines.vllm.pool.result import Pool, PoolError, PoolRequest
from membudget.engines.vllm.profile.identity import kept_free
from membudget.units import gib


@dataclass(frozen=True)
class Option:
    """A change of settings that raises concurrency."""

    #: The option as it is typed, and what it stands for.
    text: str
    #: The concurrency it gives, as a multiple of today's.
    times: float


def options(log: EngineLog, compared: Compared) -> list[Option]:
    """Changes that raise concurrency, the strongest first.

    With the model known each is computed; without it only those that give
    the pool more bytes, in proportion.
    """
    memory, request, pool = log.memory, compared.request, compared.pool
    if memory is None or memory.number <= 0 or log.get("override_blocks") is not None:
        return []
    found: list[Option] = []
    for text, more in _more_bytes(log, memory):
        found += _computed(text, request, pool, memory.number + more, {}) or [
            Option(text, (memory.number + more) / memory.number)
        ]
    if request is not None and pool is not None:
        changes: list[tuple[str, dict[str, Any]]] = []
        if request.kv_cache_dtype in ("auto", "bfloat16", "float16") and request.platform == "cuda":
            changes.append(("--kv-cache-dtype fp8", {"kv_cache_dtype": "fp8"}))
        if pool.request_len >= 2:
            half = pool.request_len // 2
            changes.append((f"--max-model-len {half} (half)", {"max_model_len": half}))
        if request.max_num_batched_tokens and request.max_num_batched_tokens > 2048:
            changes.append(("--max-num-batched-tokens 2048", {"max_num_batched_tokens": 2048}))
        for text, change in changes:
            found += _computed(text, request, pool, memory.number, change)
    return sorted((option for option in found if option.times > 1.005), key=lambda option: -option.times)


def _more_bytes(log: EngineLog, memory: Figure) -> list[tuple[str, int]]:
    """Settings that leave more bytes to the pool, by the log's own figures."""
    out: list[tuple[str, int]] = []
    total, free, util = log.value("total_memory"), log.value("free_memory"), log.utilization
    kept = kept_free(int(total)) if total else 0
    full = log.value("suggested_kv_full")
    if full is not None and full > memory.number and not kept:
        out.append((f"--kv-cache-memory={full} (all free memory, by vLLM's own suggestion)", int(full) - memory.number))
    asked = log.value("requested_memory")
    if (full is None or kept) and total and free and util is not None and free <= total:
        most = int(max(free - kept, 0) / total * 100) / 100
        if most > float(util.value):
            more = round(total * most) - (asked if asked is not None else round(total * float(util.value)))
            rest = f" but for {gib(kept, 0)} that the system needs" if kept else ""
            out.append((f"--gpu-memory-utilization {most:.2f} (all that was free at start{rest})", more))
    graphs = log.value("cudagraph_estimate")
    if graphs and log.setting("enforce_eager") is not True and "utilization_without_graphs" in log.figures:
        out.append(("--enforce-eager (no CUDA graphs, slower decoding)", int(graphs)))
    return out


def _computed(
    text: str, request: PoolRequest | None, pool: Pool | None, size: int, change: dict[str, Any]
) -> list[Option]:
    if request is None or pool is None or not pool.max_concurrency:
        return []
    try:
        other = plan_pool(request._replace(available=size, kv_cache_memory_bytes=None, **change))
    except PoolError:
        return []
    return [Option(text, other.max_concurrency / pool.max_concurrency)] if other.starts else []
