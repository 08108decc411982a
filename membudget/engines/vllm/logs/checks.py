"""Whether a log's own lines agree with each other.

Needs no model: only arithmetic between printed figures, each with the rounding of its print.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from membudget.engines.vllm.logs.record import EngineLog, Figure
from membudget.engines.vllm.profile.identity import SUGGESTION_MARGIN, TOLERANCE, Figures, Identity, IdentityError
from membudget.engines.vllm.profile.identity import identity as sum_up
from membudget.engines.vllm.versions import DEFAULT, OLDEST, VersionError, parse, rules
from membudget.units import gib


@dataclass(frozen=True)
class Check:
    """One relation between printed figures, or between one and a prediction."""

    #: What was checked: a figure's name, or ``setting.NAME``, ``pool_bytes.PART``.
    name: str
    #: None where the log does not print enough.
    holds: bool | None
    #: The relation with its numbers.
    text: str
    #: Of the figure that does not agree, 0 for none.
    line: int = 0
    #: By how much, in the unit of the figure (bytes, tokens, multiples).
    off: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain values, keys as the fields."""
        return asdict(self)


def checks(log: EngineLog) -> list[Check]:
    """Every relation that the printed figures allow to check."""
    found = [
        requested(log),
        identity(log),
        graph_estimate(log),
        footprint(log),
        weights(log),
        suggestion(log),
        tokens(log),
        blocks(log),
    ]
    return [check for check in found if check is not None]


def differences(log: EngineLog) -> list[Check]:
    """The relations that do not hold."""
    return [check for check in checks(log) if check.holds is False]


def identity(log: EngineLog, total: int | None = None) -> Check:
    """requested - what is not KV = available KV, by the rule of the version that printed the lines.

    total: bytes of the device, where the log does not print them.
    """
    reserved, available = log.get("reserved_kv"), log.get("available_kv")
    if reserved is not None:
        return Check(
            "identity", None, f"the KV pool was set to {reserved.printed}: nothing was profiled", reserved.line
        )
    if available is None:
        return Check("identity", None, "the available KV memory is not printed")
    try:
        found = budget(log, total)
    except IdentityError as error:
        return Check("identity", False, str(error), available.line)
    if found.closes is None:
        return Check("identity", None, found.text, available.line)
    sum_ = " ".join(f"{'-' if part.bytes < 0 else '+'} {gib(abs(part.bytes), 2)} {part.name}" for part in found.parts)
    text = f"{sum_.removeprefix('+ ')}: {found.text}"
    if found.closes:
        return Check("identity", True, text, 0, float(found.off or 0))
    names = {"requested": "requested_memory", "cuda_graphs": "cudagraph_estimate"}
    figure = log.utilization if found.suspect == "utilization" else log.get(names.get(found.suspect or "", ""))
    return Check("identity", False, text, figure.line if figure else available.line, float(found.off or 0))


def budget(log: EngineLog, total: int | None = None) -> Identity:
    """The lines of the log as `membudget.engines.vllm.profile.identity` sums them."""
    estimate = log.value("cudagraph_estimate") if charges_graphs(log) else None
    known = version_of(log)
    version = log.version if log.version and known is not None and known >= OLDEST else DEFAULT
    if estimate is not None and not rules(version).graph_estimate:
        # switched on by VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS before it was the default
        version = DEFAULT
    util = log.utilization
    peak = log.value("peak_with_weights")
    consumed, activation, holds = log.value("consumed"), log.value("peak_activation"), False
    if log.get("peak_with_graphs") is not None:
        # since 0.27.0 the closing line adds the graph estimate to the peak
        activation, holds = log.value("peak_with_graphs"), True
    elif consumed is not None and log.get("non_kv") is not None:
        consumed, activation = log.value("non_kv"), 0
    elif peak is not None:
        # 0.6.3 to 0.6.5 print PyTorch's peak, weights in it
        activation = 0
    elif any(figure.message == "cpu_auto" for figure in log.all("consumed")):
        # the CPU worker takes what the process uses, and nothing else
        activation = 0
    figures = Figures(
        total=log.value("total_memory") if total is None else total,
        utilization=None if util is None else float(util.value),
        requested=log.value("requested_memory"),
        weights=log.value("weights") if peak is None else peak,
        activation=activation,
        non_torch=log.value("non_torch"),
        consumed=consumed,
        graph_estimate=estimate,
        activation_holds_graphs=holds,
        available_kv=log.value("available_kv"),
    )
    return sum_up(figures, version)


def charges_graphs(log: EngineLog) -> bool:
    """Whether the CUDA-graph estimate was taken off the pool: as the log says, else as its version does."""
    if "graphs_not_charged" in log.figures:
        return False
    version = version_of(log)
    return "utilization_without_graphs" in log.figures or version is None or version >= (0, 20, 0)


def requested(log: EngineLog) -> Check | None:
    """utilization x total = requested memory."""
    asked, total, util = log.get("requested_memory"), log.get("total_memory"), log.utilization
    if asked is None or total is None or util is None:
        return None
    product = total.number * float(util.value)
    off = asked.number - product
    allowed = asked.half + total.half * float(util.value) + total.number * util.half + 1
    text = f"{total.printed} x {util.printed} = {gib(round(product), 2)}; printed {asked.printed}"
    return Check("requested", abs(off) <= allowed, text, 0 if abs(off) <= allowed else asked.line, off)


def graph_estimate(log: EngineLog) -> Check | None:
    """A negative CUDA-graph estimate makes the pool larger than the share allows; None where it is not negative."""
    estimate = log.get("cudagraph_estimate")
    if estimate is None or estimate.number >= 0:
        return None
    more = "" if charges_graphs(log) is False else f", and the KV cache is {gib(-estimate.number, 2)} larger for it"
    text = f"CUDA graphs, estimate {estimate.printed}: memory was freed while vLLM measured it{more}"
    return Check("graph_estimate", False, text, estimate.line, estimate.number)


def footprint(log: EngineLog) -> Check | None:
    """What the engine has taken by its own figures, real CUDA graphs included where they are charged, and its share.

    None where it is within `requested_memory`, or the log does not print all of it.
    """
    asked, pool = log.get("requested_memory"), log.memory
    if asked is None or pool is None or pool.number <= 0 or log.get("reserved_kv") is not None:
        return None
    used = _used(log)
    if used is None:
        return None
    estimate, real = log.value("cudagraph_estimate"), log.value("cudagraph")
    charged = charges_graphs(log) and estimate is not None
    graphs = max(int(real), 0) if charged and real is not None else 0
    total = used + graphs + pool.number
    over = total - asked.number
    if over <= TOLERANCE + asked.half:
        return None
    text = f"{gib(total, 2)} are in use, {asked.printed} were requested: {gib(over, 2)} over"
    # real graphs may be larger than their estimate by as much, and vLLM prints both
    beyond = over - max(graphs - max(int(estimate or 0), 0), 0) > TOLERANCE + asked.half
    return Check("footprint", False if beyond else None, text, pool.line, over)


def _used(log: EngineLog) -> int | None:
    """Bytes of weights, activations and non-torch memory, without CUDA graphs; None where a figure is missing."""
    if log.get("consumed") is not None:
        both, peak = log.value("peak_with_graphs"), log.value("peak_activation")
        if peak is None and both is not None:
            peak = int(both) - int(log.value("cudagraph_estimate") or 0)
        return None if peak is None else int(log.value("consumed")) + int(peak)
    parts = [log.value("peak_with_weights")]
    if parts[0] is None:
        parts = [log.value("weights"), log.value("peak_activation")]
    parts.append(log.value("non_torch"))
    return None if any(part is None for part in parts) else sum(int(part) for part in parts)


def weights(log: EngineLog) -> Check | None:
    """The model's size at loading and in the profile are one figure."""
    mine = log.get("weights")
    if mine is None:
        return None
    same = [figure for figure in log.all("weights") if figure.rank == mine.rank]
    low, high = min(same, key=lambda f: f.number), max(same, key=lambda f: f.number)
    if low.message == high.message:
        return None
    off = high.number - low.number
    holds = off <= low.half + high.half + TOLERANCE
    return Check(
        "weights",
        holds,
        f"{low.printed} (line {low.line}) and {high.printed} (line {high.line})",
        0 if holds else high.line,
        off,
    )


def suggestion(log: EngineLog) -> Check | None:
    """The suggested --kv-cache-memory = requested - used - real graphs - 150 MiB."""
    suggested, asked = log.get("suggested_kv_requested"), log.get("requested_memory")
    real = _same_message(log, "cudagraph", "actual_split") or _same_message(log, "cudagraph", "actual_consumed")
    if suggested is None or asked is None or real is None:
        return None
    if _same_message(log, "consumed", "actual_consumed"):
        parts = ["consumed", "peak_with_graphs"]
    else:
        parts = ["weights", "peak_activation", "non_torch"]
    figures = [log.get(name) for name in parts]
    if any(figure is None for figure in figures):
        return None
    rest = asked.number - SUGGESTION_MARGIN - real.number - sum(f.number for f in figures if f is not None)
    off = suggested.number - rest
    holds = abs(off) <= TOLERANCE + asked.half + real.half
    text = f"{asked.printed} - used - {real.printed} graphs - 150 MiB = {gib(rest, 2)}; printed {suggested.number:,} B"
    return Check("suggestion", holds, text, 0 if holds else suggested.line, off)


def tokens(log: EngineLog) -> Check | None:
    """KV cache size against concurrency x max_model_len (equal since 0.20.1; in older versions for uniform models)."""
    size, times, length = log.get("kv_tokens"), log.get("max_concurrency"), log.max_model_len
    if size is None or times is None or length is None:
        return None
    low, high = times.low * length - 1, times.high * length + 1
    middle = float(times.value) * length
    text = f"{times.printed}x x {length:,} = {middle:,.0f}; printed {size.number:,} tokens"
    if low <= size.number <= high:
        return Check("tokens", True, text)
    version = version_of(log)
    if version is None or version < (0, 20, 1) or _is_development(log):
        return Check(
            "tokens", None, f"{text}: blocks / groups x block size, as vLLM printed it before 0.20.1", size.line
        )
    return Check("tokens", False, text, size.line, size.number - middle)


def blocks(log: EngineLog) -> Check | None:
    """An override is what the log says it is: fewer blocks than profiled may not be asked, more must not be there."""
    override, profiled = log.get("override_blocks"), log.get("profiled_blocks")
    if override is None or profiled is None:
        return None
    text = f"num_gpu_blocks_override {override.printed} replaces {profiled.printed} profiled blocks"
    holds = override.number <= profiled.number
    return Check("blocks", holds or None, text if holds else text + ": more than fit", 0 if holds else override.line)


def bytes_per_token(log: EngineLog) -> tuple[float, float] | None:
    """available KV / printed tokens, with the rounding of both; of one rank; None where one is missing.

    It is the growth of a sequence only for models whose layers are all alike.
    """
    have, size = log.memory, log.get("kv_tokens")
    if have is None or size is None or size.number <= 0 or have.number <= 0 or "override_blocks" in log.figures:
        return None
    block = log.value("block_size") or log.setting("block_size")
    more = block if isinstance(block, int) and 0 < block < size.number else 0
    count = size.number / log.context_parallel
    return max(have.low, 0.0) / (count + more), have.high / count


def version_of(log: EngineLog) -> tuple[int, int, int] | None:
    """(0, 20, 2), or None for no version and for builds without one."""
    if log.version is None:
        return None
    try:
        return parse(log.version)
    except VersionError:
        return None


def _is_development(log: EngineLog) -> bool:
    return log.version is not None and any(mark in log.version for mark in ("dev", "rc", "+g"))


def _same_message(log: EngineLog, name: str, message: str) -> Figure | None:
    found = [figure for figure in log.all(name) if figure.message == message]
    return found[0] if found else None
