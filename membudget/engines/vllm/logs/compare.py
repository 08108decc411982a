"""Each printed figure of the pool against the arithmetic, and what would raise concurrency most.

The printed memory is rounded, so the arithmetic is done for the smallest and the largest
number of bytes that print like that: a printed figure is equal when it lies between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from membudget.engines.vllm.logs.record import EngineLog, Figure
from membudget.engines.vllm.logs.verdict import Check, version_of
from membudget.engines.vllm.pool.plan import plan_pool
from membudget.engines.vllm.pool.result import Pool, PoolError, PoolRequest
from membudget.engines.vllm.profile.identity import kept_free
from membudget.engines.vllm.versions import OLDEST, READ
from membudget.model import Model
from membudget.units import gib


class Compared(NamedTuple):
    """The log's pool beside the arithmetic's.

    pool: for the middle of the printed bytes, None where the arithmetic has no answer.
    checks: one a printed figure; `holds` is None where the log does not say enough.
    note: what was assumed, or why there is no answer.
    request: what the arithmetic was asked.
    """

    pool: Pool | None
    checks: tuple[Check, ...]
    note: str
    request: PoolRequest | None = None


class Option(NamedTuple):
    """A change of settings, and the concurrency it gives as a multiple of today's."""

    text: str
    times: float


def compare(log: EngineLog, model: Model | None, known: Mapping[str, Any] | None = None) -> Compared:
    """Ask the arithmetic what the log's settings give.

    known: fields of `PoolRequest` that the log does not print (tp, version, kv_cache_dtype, ...).
    """
    if model is None:
        return Compared(None, (), "the model is not known here, so only the log's own figures are compared")
    memory = log.memory
    if memory is None:
        return Compared(None, (), "the log does not print the memory of the pool")
    if not any(log.get(name) for name in ("kv_tokens", "max_concurrency", "needed_kv", "num_blocks")):
        return Compared(None, (), "the log has no figure of the pool to compare")
    request, drafts = _request(log, model, dict(known or {}))
    named = version_of(log) if known is None or "version" not in known else OLDEST
    if named is not None and named < OLDEST:
        return Compared(None, (), f"vLLM {log.version}: the arithmetic is known since {_dotted(OLDEST)}")
    if named is not None:
        return _with_unsaid(log, request, memory, drafts)
    fits = []
    for candidate in reversed(READ):
        version = _dotted(candidate)
        found = _with_unsaid(log, request._replace(version=version), memory, drafts)
        if found.checks and all(check.holds for check in found.checks):
            fits.append((version, found))
    if not fits:
        return Compared(None, (), "the log has no vLLM version, and no known one has all of these figures", request)
    names = fits[0][0] if len(fits) == 1 else f"{fits[-1][0]} to {fits[0][0]}"
    said = f"; {fits[0][1].note}" if fits[0][1].note else ""
    return fits[0][1]._replace(note=f"the log has no version; the figures are those of vLLM {names}{said}")


def _with_unsaid(log: EngineLog, request: PoolRequest, memory: Figure, drafts: bool) -> Compared:
    """The arithmetic with the defaults, and where that differs, with settings that the log does not print.

    A setting is only taken when it makes every figure equal, and the note says so.
    """
    first = _one(log, request, memory, drafts)
    if (first.checks and all(check.holds for check in first.checks)) or drafts:
        return first
    for change, text in _unsaid(request):
        other = _one(log, request._replace(**change), memory, drafts)
        if other.checks and all(check.holds for check in other.checks):
            return other._replace(note=f"the log does not say it, but the figures are those of {text}")
    return first


def _unsaid(request: PoolRequest) -> list[tuple[dict[str, Any], str]]:
    kinds = {cache.kind for cache in request.model.caches}
    out: list[tuple[dict[str, Any], str]] = []
    if request.prefix_caching is None and "recurrent" in kinds:
        out += [({"prefix_caching": True}, "prefix caching on"), ({"prefix_caching": False}, "prefix caching off")]
    if kinds & {"sliding", "chunked"}:
        if request.async_scheduling is None:
            out.append(({"async_scheduling": False}, "async scheduling off"))
        if request.max_num_batched_tokens is None:
            out += [
                ({"max_num_batched_tokens": size}, f"max_num_batched_tokens {size:,}")
                for size in (2048, 4096, 8192, 16384, 32768)
            ]
    return out


def _request(log: EngineLog, model: Model, known: dict[str, Any]) -> tuple[PoolRequest, bool]:
    """The question the log's settings pose; True where a drafter is involved that the log does not describe."""

    def number(*names: str) -> int | None:
        for name in names:
            value = log.setting(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None

    def flag(name: str) -> bool | None:
        value = log.setting(name)
        return value if isinstance(value, bool) else None

    def word(name: str, default: str) -> str:
        value = log.setting(name)
        return value if isinstance(value, str) else default

    cpu = log.setting("device_config") == "cpu" or any(
        figure.message.startswith("cpu_") for name in ("available_kv", "reserved_kv") for figure in log.all(name)
    )
    batched = log.value("max_num_batched_tokens")
    if batched is None or flag("enable_chunked_prefill") is False:
        # switched off after the line was printed (MLA on the CPU): only an argument still holds
        batched = number("max_num_batched_tokens")
    override = log.value("override_blocks")
    fields: dict[str, Any] = {
        "max_model_len": log.max_model_len,
        "max_num_batched_tokens": batched,
        "kv_cache_dtype": word("kv_cache_dtype", "auto"),
        "dtype": word("dtype", "") or None,
        "tp": number("tensor_parallel_size") or 1,
        "pp": number("pipeline_parallel_size") or 1,
        "dcp": number("decode_context_parallel_size") or 1,
        "block_size": number("block_size"),
        "prefix_caching": flag("enable_prefix_caching"),
        "num_gpu_blocks_override": None if override is None else int(override),
        "async_scheduling": flag("async_scheduling"),
        "hybrid_manager": False if flag("disable_hybrid_kv_cache_manager") else None,
        "mamba_cache_dtype": word("mamba_cache_dtype", "auto"),
        "mamba_ssm_cache_dtype": word("mamba_ssm_cache_dtype", "auto"),
        "mamba_cache_mode": word("mamba_cache_mode", "") or None,
        "version": log.version or "0.32.0",
        "platform": "cpu" if cpu else "cuda",
        "device_memory": log.value("total_memory"),
    }
    if fields["dtype"] == "auto":
        fields["dtype"] = None
    drafts = log.setting("speculative_config") is not None and not known.get("draft_layers")
    fields.update(known)
    return PoolRequest(model=model, **fields), drafts


def _one(log: EngineLog, request: PoolRequest, memory: Figure, drafts: bool) -> Compared:
    low, middle, high = (memory.number - int(memory.half), memory.number, memory.number + int(memory.half))
    try:
        pools = [plan_pool(request._replace(available=max(size, 0))) for size in (low, middle, high)]
    except PoolError as error:
        return Compared(None, (), str(error), request)
    hidden = request.tp * request.pp > 1 and len({f.rank for f in log.all("available_kv")}) <= 1
    found = _sizes(log, pools, hidden) if log.get("kv_tokens") or log.get("max_concurrency") else []
    found += _refused(log, pools)
    block = log.get("block_size")
    if block is not None:
        found.append(_exact("block_size", block, pools[1].block_size))
    note = ""
    if drafts:
        note = "speculative decoding: the drafter's own layers are not in the log, so the pool may be larger per token"
        found = [check if check.holds else check._replace(holds=None) for check in found]
    return Compared(pools[1], tuple(found), note, request)


def _sizes(log: EngineLog, pools: list[Pool], hidden: bool) -> list[Check]:
    low, middle, high = pools
    out: list[Check] = []
    size, times, count = log.get("kv_tokens"), log.get("max_concurrency"), log.get("num_blocks")
    if size is not None:
        out.append(_between("kv_tokens", size, low.tokens, middle.tokens, high.tokens, hidden))
        version = version_of(log)
        if out[-1].holds is False and version is not None and version[:2] == (0, 20):
            # builds around 0.20.1 print either; the version alone does not say which
            for name in ("tokens_legacy", "tokens_concurrent"):
                least, half_way, most = (getattr(pool, name) for pool in pools)
                other = _between("kv_tokens", size, least, half_way, most, hidden)
                if other.holds:
                    out[-1] = other
    if times is not None:
        out.append(
            _between(
                "max_concurrency", times, low.max_concurrency, middle.max_concurrency, high.max_concurrency, hidden
            )
        )
    if count is not None and log.get("override_blocks") is None:
        out.append(_between("num_blocks", count, low.num_blocks, middle.num_blocks, high.num_blocks, hidden))
    return out


def _refused(log: EngineLog, pools: list[Pool]) -> list[Check]:
    """The refusal of max_model_len: the bytes needed, the length that would fit, and that it is one."""
    low, middle, high = pools
    needed, longest = log.get("needed_kv"), log.get("estimated_max_model_len")
    out: list[Check] = []
    if needed is not None:
        holds = needed.low <= middle.need <= needed.high
        text = f"{gib(middle.need, 4)} for one request; printed {needed.printed}"
        out.append(Check("needed_kv", holds, text, 0 if holds else needed.line, needed.number - middle.need))
        start = Check(
            "refusal",
            not low.starts,
            "the arithmetic refuses too" if not low.starts else "the arithmetic would start",
            0 if not low.starts else needed.line,
        )
        out.append(start)
    if longest is not None:
        out.append(_between("estimated_max_model_len", longest, low.longest, middle.longest, high.longest, False))
    return out


def _between(name: str, figure: Figure, low: float, middle: float, high: float, hidden: bool) -> Check:
    """Whether a printed figure is one that the printed bytes may give."""
    printed = float(figure.value)
    text = f"arithmetic {_shown(middle)}; printed {figure.printed}"
    if low - figure.half - 1e-9 <= printed <= high + figure.half + 1e-9:
        return Check(name, True, text)
    off = printed - middle
    if hidden and printed < low and middle and -off / middle < 0.05:
        text += f": {-off / middle:.1%} less, as a rank with less memory decides and only one rank's is printed"
        return Check(name, None, text, figure.line, off)
    share = f" ({off / middle:+.1%})" if middle else ""
    return Check(name, False, text + share, figure.line, off)


def _exact(name: str, figure: Figure, wanted: int) -> Check:
    holds = figure.number == wanted
    text = f"arithmetic {wanted:,}; printed {figure.printed}"
    return Check(name, holds, text, 0 if holds else figure.line, figure.number - wanted)


def options(log: EngineLog, compared: Compared) -> list[Option]:
    """Changes that raise concurrency, the strongest first.

    With the model known each is asked of the arithmetic; without it only those that give
    the pool more bytes, in proportion.
    """
    memory, request, pool = log.memory, compared.request, compared.pool
    if memory is None or memory.number <= 0 or log.get("override_blocks") is not None:
        return []
    found: list[Option] = []
    for text, more in _more_bytes(log, memory):
        found += _asked(text, request, pool, memory.number + more, {}) or [
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
            found += _asked(text, request, pool, memory.number, change)
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


def _asked(
    text: str, request: PoolRequest | None, pool: Pool | None, size: int, change: dict[str, Any]
) -> list[Option]:
    if request is None or pool is None or not pool.max_concurrency:
        return []
    try:
        other = plan_pool(request._replace(available=size, kv_cache_memory_bytes=None, **change))
    except PoolError:
        return []
    return [Option(text, other.max_concurrency / pool.max_concurrency)] if other.starts else []


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))
