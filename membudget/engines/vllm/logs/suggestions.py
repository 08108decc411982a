"""What would make a refused engine start: by the refusal's own figures where it has any, else what to try.

Each is a flag, with its value where that follows from printed bytes: roundings are taken to the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from membudget.engines.activations import prefill
from membudget.engines.vllm.logs.compare import Compared
from membudget.engines.vllm.logs.kinds import RefusalKind
from membudget.engines.vllm.logs.record import EngineLog
from membudget.engines.vllm.logs.verdict import verdict
from membudget.engines.vllm.pool.plan import PoolError, plan_pool
from membudget.engines.vllm.profile.identity import kept_free
from membudget.model import Model
from membudget.units import GIB, gib

_UTILIZATION = "--gpu-memory-utilization"
#: What a plan assumes until it is measured: CUDA context, allocator and graphs; tokens of a step.
_OVERHEAD, _STEP = 3 * GIB // 2, 8192


@dataclass(frozen=True)
class Suggestion:
    """One change of the settings."""

    #: The option as it is typed, or what to do.
    text: str
    #: The figures behind it.
    why: str
    #: It starts by these figures; else it may help.
    sure: bool = True


def suggestions(log: EngineLog, compared: Compared, model: Model | None = None) -> list[Suggestion]:
    """What would make a refused engine start, the sure ones first; empty where it was not refused.

    model: what it serves, where that is known: a share that does not even hold its weights starts nothing.
    """
    kind = verdict(log).kind
    if kind is None:
        return []
    return sorted(_BY_KIND[kind](log, compared, model), key=lambda found: not found.sure)


def _weights(log: EngineLog, model: Model | None) -> int | None:
    """Bytes of one rank's weights: as printed, else a device's part of the config's own format."""
    printed = log.get("weights")
    if printed is not None:
        return printed.number
    if model is None or log.setting("quantization") is not None:
        return None
    from membudget.formats import FormatError, of_config

    ranks = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        size = log.setting(name)
        ranks *= size if isinstance(size, int) and size > 0 else 1
    try:
        return of_config(model.config).weigh(model).total // ranks
    except FormatError:
        return None


def _less_free(log: EngineLog, _: Compared, model: Model | None) -> list[Suggestion]:
    """vLLM asks for utilization x total, and that much is not free."""
    free, total, asked = log.get("free_memory"), log.get("total_memory"), log.get("requested_memory")
    if free is None or total is None or free.number > total.number:
        return []
    kept = kept_free(total.number)
    beside = f", and {gib(kept, 0)} of memory that the system shares must stay free" if kept else ""
    found = []
    most, needs = _floor((free.low - kept) / total.high), _needs(log, model)
    least = 0.0 if needs is None else math.ceil(needs / total.low * 100) / 100
    small = f"; but weights and a step alone take about {gib(needs, 2)}, more than that" if needs is not None else ""
    if most > 0:
        held = f"{gib(free.number, 2)} of {gib(total.number, 2)} were free{beside}"
        range_ = f"{least:.2f} to {most:.2f}" if 0 < least < most else f"{most:.2f}{'' if least else ' or less'}"
        fits = least <= most
        found.append(Suggestion(f"{_UTILIZATION} {range_}", held if fits else held + small, fits))
    if asked is not None and asked.number > free.number:
        lacks, theirs = math.ceil(asked.high - free.low) + kept, total.number - free.number
        others = f"others hold {gib(theirs, 2)}, page cache too where memory is one{beside}"
        if lacks <= theirs:
            fits = needs is None or asked.low >= needs
            found.append(Suggestion(f"free {gib(lacks, 2)} first", others if fits else others + small, fits))
        elif kept:  # however much is freed, that share leaves the system too little
            share = _floor(1 - kept / total.low)
            found.append(Suggestion(f"free what is held, and {_UTILIZATION} {share:.2f} or less", others, False))
    return found


def _needs(log: EngineLog, model: Model | None) -> int | None:
    """About what a rank holds before its pool has a byte: weights, the assumed overhead, a step; None if not known."""
    weights = _weights(log, model)
    if weights is None:
        return None
    step = 0
    if model is not None:
        tokens = log.value("max_num_batched_tokens")
        step = prefill(model, int(tokens) if isinstance(tokens, int) else _STEP).bytes
    return weights + _OVERHEAD + step


def _too_many(log: EngineLog, compared: Compared, _: Model | None) -> list[Suggestion]:
    """Every running request needs a Mamba cache block, and the pool has fewer."""
    wanted, blocks = log.value("max_num_seqs"), log.value("mamba_blocks")
    if wanted is None or blocks is None:
        return []
    found = []
    if blocks:
        found.append(Suggestion(f"--max-num-seqs {int(blocks)} or less", f"the pool has {int(blocks):,} blocks"))
    pool, memory = compared.pool, log.memory
    if pool is not None and memory is not None and int(wanted) > int(blocks):
        lacks = math.ceil((int(wanted) - int(blocks) + 1) * pool.bytes_per_block)
        found += _more(log, lacks, f"{int(wanted):,} blocks need")
    else:
        found.append(Suggestion(f"a higher {_UTILIZATION}", "more blocks", False))
    return found


def _too_long(log: EngineLog, compared: Compared, _: Model | None) -> list[Suggestion]:
    """One request of max_model_len tokens is larger than the pool."""
    found = _blocks(log)
    longest = log.value("estimated_max_model_len")
    cells = log.value("kv_tokens")
    if not longest and cells and any(found.message == "len_v0" for found in log.all("kv_tokens")):
        # the V0 engine's pool holds that many tokens, of one request or of many
        text = f"--max-model-len {int(cells)} or less"
        found.insert(0, Suggestion(text, f"the KV cache has room for {int(cells):,} tokens"))
        found += _all_that_is_free(log)
    if longest:
        text = f"--max-model-len {int(longest)} or less"
        found.insert(0, Suggestion(text, "the longest that fits, by vLLM's own estimate"))
    needed, memory = log.get("needed_kv"), log.memory
    if needed is None or memory is None:
        return found
    lacks = math.ceil(needed.high - memory.low)
    if lacks <= 0:
        return found
    if log.get("reserved_kv") is not None or log.setting("kv_cache_memory_bytes"):
        size = math.ceil(needed.high)
        return [
            *found,
            Suggestion(f"--kv-cache-memory-bytes {size} or more", f"one request needs {gib(needed.number, 2)}"),
        ]
    found += _more(log, lacks, "the pool lacks")
    request = compared.request
    if request is not None and request.platform == "cuda" and request.kv_cache_dtype in ("auto", "bfloat16", "float16"):
        try:
            other = plan_pool(request._replace(available=max(math.floor(memory.low), 0), kv_cache_dtype="fp8"))
        except PoolError:
            return found
        if other.starts:
            found.append(Suggestion("--kv-cache-dtype fp8", f"one request then needs {gib(other.need, 2)}"))
    return found


def _no_pool(log: EngineLog, *_: object) -> list[Suggestion]:
    """Weights and activations leave nothing; by how much is only known where the line before says so."""
    found = _blocks(log)
    if found:
        return found
    memory = log.get("available_kv")
    lacks = math.ceil(-memory.low) if memory is not None and memory.number <= 0 else 0
    found += _more(log, lacks, "the pool is short of its first byte by") if lacks else _all_that_is_free(log)
    graphs = log.value("cudagraph_estimate")
    if log.setting("enforce_eager") is not True and (graphs or not lacks):
        why = f"without CUDA graphs {gib(int(graphs), 2)} are not kept back" if graphs else "no room for CUDA graphs"
        found.append(Suggestion("--enforce-eager", why, bool(graphs and lacks and graphs > lacks)))
    batched, peak = log.value("max_num_batched_tokens"), log.get("peak_activation")
    if batched is None or int(batched) > 2048:
        step = f"a step of {int(batched):,} tokens" if batched else "a step"
        takes = f"takes {gib(peak.number, 2)} of activations" if peak is not None else "takes less of activations"
        found.append(Suggestion("--max-num-batched-tokens 2048", f"{step} {takes}", False))
    weights, asked = log.get("weights"), log.get("requested_memory")
    if weights is not None:
        of_all = f" of the {gib(asked.number, 2)} that vLLM may use" if asked is not None else ""
        why = f"the weights are {gib(weights.number, 2)}{of_all}"
        found.append(Suggestion("weights in a smaller format, or --tensor-parallel-size on more devices", why, False))
    return found


def _allocation(log: EngineLog, *_: object) -> list[Suggestion]:
    """The CPU's pool is set, or it is what the share leaves beside the process, which may be less than nothing."""
    free, asked, util = log.get("free_memory"), log.get("requested_memory"), log.utilization
    if free is None:
        return []
    if asked is not None and asked.number < free.number:  # no size was set, so it is not memory that lacks
        had = f" than {util.printed}" if util is not None else ""
        return [Suggestion(f"a higher {_UTILIZATION}{had}", f"the process itself holds all of {gib(asked.number, 2)}")]
    size = math.floor(free.low)
    return [Suggestion(f"--kv-cache-memory-bytes {size} or less", f"{gib(free.number, 2)} were available")]


def _warm_up(log: EngineLog, *_: object) -> list[Suggestion]:
    requests = log.value("warmup_requests")
    found = []
    if requests and int(requests) > 1:
        why = f"the warm-up holds the logits of {int(requests):,} requests"
        found.append(Suggestion(f"--max-num-seqs {max(int(requests) // 4, 1)}", why, False))
    return found + _smaller_share(log, "the pool then leaves more to the warm-up")


def _out_of_memory(log: EngineLog, *_: object) -> list[Suggestion]:
    wanted, free = log.get("oom_wanted"), log.get("oom_free")
    why = "what vLLM does not claim is there for what it did not foresee"
    if wanted is not None and free is not None:
        why = f"{gib(wanted.number, 2)} more were asked for, {gib(free.number, 2)} were free"
    found = _smaller_share(log, why)
    batched = log.value("max_num_batched_tokens")
    if batched is None or int(batched) > 2048:
        found.append(Suggestion("--max-num-batched-tokens 2048", "a smaller step has smaller temporaries", False))
    weights, total = log.get("weights"), log.get("oom_total") or log.get("total_memory")
    if weights is not None and total is not None:
        why = f"the weights are {gib(weights.number, 2)} of {gib(total.number, 2)}"
        found.append(Suggestion("weights in a smaller format, or --tensor-parallel-size on more devices", why, False))
    elif "weights" not in log.figures:
        why = "it ended before the weights were loaded"
        found.append(Suggestion("weights in a smaller format, or --tensor-parallel-size on more devices", why, False))
    return found


def _killed(log: EngineLog, *_: object) -> list[Suggestion]:
    why = "the kernel ended it for the host's memory, which CPU and GPU share on a DGX Spark"
    return [
        Suggestion("more free host memory (`membudget doctor` says who holds it)", why, False),
        *_smaller_share(log, why),
    ]


def _profiling(log: EngineLog, *_: object) -> list[Suggestion]:
    why = "another process gave memory back while vLLM measured, so its sum was wrong"
    return [Suggestion("start it again when nothing else starts or ends on the device", why, False)]


def _multimodal(log: EngineLog, *_: object) -> list[Suggestion]:
    reserved, memory = log.get("mm_reserved"), log.get("available_kv")
    if reserved is None or memory is None:
        return []
    lacks = math.ceil(reserved.high - memory.low)
    why = f"{gib(reserved.number, 2)} are reserved, {gib(memory.number, 2)} are there"
    less = Suggestion("a smaller mm_ipc_gpu_memory_gb, or fewer hw_decoders", why, False)
    return [*(_more(log, lacks, "the reserve lacks") if lacks > 0 else []), less]


def _pages(log: EngineLog, *_: object) -> list[Suggestion]:
    block = log.value("block_size_needed")
    if block:
        return [Suggestion(f"--block-size {int(block)} or more", "what vLLM asks for")]
    if log.setting("disable_hybrid_kv_cache_manager") is True:
        return [Suggestion("leave out --disable-hybrid-kv-cache-manager", "layers of this model need it", False)]
    why = "pages of all layers must divide the largest"
    return [Suggestion("--kv-cache-dtype auto and no --block-size", f"{why}: vLLM then chooses both", False)]


def _blocks(log: EngineLog) -> list[Suggestion]:
    """The number of blocks was set by hand."""
    blocks = log.value("override_blocks")
    if blocks is None:
        return []
    return [Suggestion("leave out --num-gpu-blocks-override", f"it holds the pool to {int(blocks):,} blocks")]


def _smaller_share(log: EngineLog, why: str) -> list[Suggestion]:
    util = log.utilization
    if util is None or float(util.value) <= 0.1:
        return [Suggestion(f"a lower {_UTILIZATION}", why, False)] if util is None else []
    return [Suggestion(f"{_UTILIZATION} {_floor(float(util.value) - 0.05):.2f} or less", why, False)]


def _more(log: EngineLog, lacks: int, said: str) -> list[Suggestion]:
    """A larger share of the device: sure where so much was free at the start, none where that much is not there."""
    util, why = log.utilization, f"{said} {gib(lacks, 2)}"
    if util is None:
        return [Suggestion(f"a higher {_UTILIZATION}", why, False)]
    total = _device(log)
    if total is None:
        return [Suggestion(f"a higher {_UTILIZATION} than {util.printed}, if the device has that much", why, False)]
    share = math.ceil(round((float(util.value) + lacks / total[0]) * 100, 6)) / 100
    most = _most(log)
    if share > most:
        return []
    return [Suggestion(f"{_UTILIZATION} {share:.2f} or more", why, log.get("free_memory") is not None)]


def _all_that_is_free(log: EngineLog) -> list[Suggestion]:
    """The largest share that was free at the start, where that is more than was asked for."""
    util, most = log.utilization, _most(log)
    if util is None or log.get("free_memory") is None or most <= float(util.value):
        return []
    return [Suggestion(f"{_UTILIZATION} up to {most:.2f}", "that much was free at the start", False)]


def _most(log: EngineLog) -> float:
    """The largest share that can be had: of what was free at the start, and what shared memory must keep."""
    total, free = _device(log), log.get("free_memory")
    if total is None:
        return 1.0
    kept = kept_free(int(total[0]))
    if free is None:
        return _floor(1 - kept / total[0])
    return _floor(min((free.low - kept) / total[1], 1.0))


def _device(log: EngineLog) -> tuple[float, float] | None:
    """The least and the most bytes that the device can have: printed, or requested / utilization."""
    total = log.get("total_memory")
    if total is not None:
        return total.low, total.high
    asked, util = log.get("requested_memory"), log.utilization
    if asked is None or util is None or not float(util.value):
        return None
    return asked.low / float(util.value), asked.high / float(util.value)


def _floor(share: float) -> float:
    return max(math.floor(round(share * 100, 6)) / 100, 0.0)


_BY_KIND: dict[RefusalKind, Callable[[EngineLog, Compared, Model | None], list[Suggestion]]] = {
    RefusalKind.SAMPLER_WARMUP: _warm_up,
    RefusalKind.POOLER_WARMUP: _warm_up,
    RefusalKind.MAX_NUM_SEQS: _too_many,
    RefusalKind.MAX_MODEL_LEN: _too_long,
    RefusalKind.FREE_MEMORY: _less_free,
    RefusalKind.KV_ALLOCATION: _allocation,
    RefusalKind.MULTIMODAL_RESERVE: _multimodal,
    RefusalKind.PAGE_SIZE: _pages,
    RefusalKind.AUTO_FIT: _no_pool,
    RefusalKind.NO_KV_MEMORY: _no_pool,
    RefusalKind.PROFILING: _profiling,
    RefusalKind.OUT_OF_MEMORY: _out_of_memory,
    RefusalKind.KILLED: _killed,
}
