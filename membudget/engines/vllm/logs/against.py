"""A log held against the budget it ran under: the settings, the bytes for the pool, and in which line they differ.

The pool's bytes are utilization x total - weights - activations - non-torch - CUDA graphs.  Weights are known to the
byte; activations, non-torch memory and graphs are assumed until they are measured, so the pool has a tolerance
(`ASSUMED_OFF`), and the weights have one of their own (`WEIGHTS_OVER`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from membudget.engines.vllm.logs import checks as of
from membudget.engines.vllm.logs.checks import Check
from membudget.engines.vllm.logs.question import on_cpu
from membudget.engines.vllm.logs.record import EngineLog, Figure
from membudget.engines.vllm.profile.identity import Figures, identity
from membudget.engines.vllm.versions import DEFAULT, OLDEST, rules
from membudget.formats import kv
from membudget.formats.base import FormatError
from membudget.units import GIB, MIB, gib

#: How far the pool may be from the prediction, in percent of the device's memory.  Of ten published starts without a
#: drafter whose model and device are known (fixtures/logs/public.jsonl, 23.5 to 121.69 GiB) the farthest are
#: gpt-oss-20b on an H100, 8.2% less than predicted (7.38 GiB of activations), and Llama-3.1-8B on a 24 GB card, 2.9%
#: more; tests_math/engines/vllm/logs/test_log_against.py holds them.
ASSUMED_OFF = 10
#: Loaded weights are never less than predicted, and at most so much more: padding and repacked formats.  The farthest
#: of the same starts is gpt-oss-20b, MXFP4 repacked for its kernel, 5.1% more.
WEIGHTS_OVER = 64 * MIB
WEIGHTS_OVER_PERCENT = 6
#: The device of the log is the budget's machine where its size is this near, in percent: what CUDA reports and what
#: nvidia-smi does are up to 2% apart (machines.yaml).
SAME_DEVICE = 4

_POOL_SET = "kv_cache_memory_bytes"
#: Settings that change the pool, and the value that an engine has where nobody says anything.
_UNSET: dict[str, tuple[Any, ...]] = {
    _POOL_SET: (None,),
    "num_gpu_blocks_override": (None,),
    "decode_context_parallel_size": (None, 1),
    "cpu_offload_gb": (None, 0, 0.0),
}
#: Settings that are compared where a budget says them.
_STATED = (
    "block_size",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "enforce_eager",
    "max_num_seqs",
    "async_scheduling",
    "disable_hybrid_kv_cache_manager",
    "mamba_cache_mode",
)


@dataclass(frozen=True)
class Expected:
    """What a budget says of a start-up.  Sizes are bytes of the rank with the least left for its pool."""

    #: The budget's file.
    place: str
    #: The line of each field in it.
    where: Mapping[str, int]
    #: Name, bytes as CUDA reports them, and platform of its machine.
    machine: str
    total: int
    platform: str
    weights: int
    activation: int
    #: Its overhead without CUDA graphs and the operating system.
    non_torch: int
    #: CUDA graphs.
    graphs: int
    #: gpu_memory_utilization; None where the budget does not state it.
    utilization: float | None
    #: Its contexts, in tokens.
    lengths: tuple[int, ...]
    #: max_num_batched_tokens.
    batched: int
    tp: int
    pp: int
    #: The KV cache's dtype, and what ``auto`` means for its model.
    cache: str
    auto: str
    #: vLLM's settings that it states.
    stated: Mapping[str, Any]


def against(log: EngineLog, expected: Expected) -> list[Check]:
    """Every setting that differs, the device, the weights, and the bytes for the pool with the lines they come from.

    `holds` is None where the budget does not say it, or the log does not; names of settings begin with ``setting.``.
    """
    out = [*_settings(log, expected), *_device(log, expected)]
    if on_cpu(log):  # there vLLM takes off what its process uses, which is not predicted
        return out
    return [*out, *_weights(log, expected), *_pool(log, expected)]


def _settings(log: EngineLog, expected: Expected) -> Iterable[Check]:
    stated = expected.stated
    yield from _set_pool(log, expected)
    util = log.utilization or _unsaid_share(log)
    if util is not None and expected.utilization is not None:
        same = abs(float(util.value) - expected.utilization) <= util.half + 1e-9
        yield from _differs(
            expected, "gpu_memory_utilization", util.printed, f"{expected.utilization:g}", same, util.line
        )
    yield from _length(log, expected)
    yield from _cache(log, expected)
    for name, mine in (("tensor_parallel_size", expected.tp), ("pipeline_parallel_size", expected.pp)):
        value = log.setting(name)
        if isinstance(value, int):
            yield from _differs(expected, name, f"{value:,}", f"{mine:,}", value == mine, log.settings[name].line)
    step = log.get("max_num_batched_tokens")
    value, line = (step.value, step.line) if step else (log.setting("max_num_batched_tokens"), 0)
    if isinstance(value, int):
        line = line or log.settings["max_num_batched_tokens"].line
        said = "max_num_batched_tokens" in stated
        same = value == expected.batched
        yield from _differs(
            expected, "max_num_batched_tokens", f"{value:,}", f"{expected.batched:,}", same, line, None if said else ""
        )
    for name in (*_UNSET, *_STATED):
        setting = log.settings.get(name)
        if setting is None or (name == _POOL_SET and log.get("reserved_kv") is not None):
            continue
        if name in stated:
            yield from _differs(
                expected, name, _shown(setting.value), _shown(stated[name]), setting.value == stated[name], setting.line
            )
        elif name in _UNSET and setting.value not in _UNSET[name]:
            yield from _differs(expected, name, _shown(setting.value), "not set", False, setting.line)


def _unsaid_share(log: EngineLog) -> Figure | None:
    """The version's default, where the log lists the arguments that are not and the share is not among them."""
    args = [setting.line for setting in log.settings.values() if setting.source == "args"]
    if not args or of.version_of(log) is None or "gpu_memory_utilization" in log.settings or on_cpu(log):
        return None
    share = rules(_version(log)).utilization / 100
    return Figure("utilization", share, "", 0, f"{share:g} (the default)", args[0], "", "", "args")


def _set_pool(log: EngineLog, expected: Expected) -> Iterable[Check]:
    """A pool that was set by hand, as the worker printed it, beside the budget's."""
    printed, stated = log.get("reserved_kv"), expected.stated.get(_POOL_SET)
    if printed is None:
        return
    if isinstance(stated, int):
        same = printed.low - 1 <= stated <= printed.high + 1
        yield from _differs(expected, _POOL_SET, printed.printed, gib(stated, 2), same, printed.line)
    else:
        yield from _differs(expected, _POOL_SET, printed.printed, "not set", False, printed.line)


def _differs(
    expected: Expected, name: str, log: str, budget: str, same: bool, line: int, unsaid: str | None = None
) -> Iterable[Check]:
    """A setting that is not the same.  unsaid: not None where the budget does not say it and membudget assumed it."""
    if same:
        return
    place = expected.where.get(f"engine.vllm.{name}", expected.where.get(name, 0))
    where = f" ({expected.place}{f':{place}' if place else ''})" if expected.place and unsaid is None else ""
    text = f"{name} is {log} in the log, {budget} in the budget{where}"
    if unsaid is not None:
        text += unsaid or ", which does not say it"
    yield Check(f"setting.{name}", False if unsaid is None else None, text, line)


def _length(log: EngineLog, expected: Expected) -> Iterable[Check]:
    """The longest request: as the budget states it, else its longest context must be served."""
    length, stated = log.max_model_len, expected.stated.get("max_model_len")
    if length is None:
        return
    figure = log.get("max_model_len") or log.get("autofit_max_model_len") or log.get("configured_max_model_len")
    named = [log.settings[name] for name in ("max_seq_len", "max_model_len") if name in log.settings]
    line = figure.line if figure else named[0].line if named else 0
    if isinstance(stated, int) and stated > 0:
        yield from _differs(expected, "max_model_len", f"{length:,}", f"{stated:,}", length == stated, line)
        return
    most, lengths = max(expected.lengths), ", ".join(f"{size:,}" for size in expected.lengths[:4])
    if most > length:
        place = expected.where.get("ctx", 0)
        where = f" ({expected.place}{f':{place}' if place else ''})" if expected.place else ""
        text = f"max_model_len is {length:,} in the log: requests of ctx {most:,} in the budget{where} are refused"
        yield Check("setting.max_model_len", False, text, line)
    elif length not in expected.lengths:
        why = f", whose ctx is {lengths}; it does not say max_model_len"
        yield from _differs(expected, "max_model_len", f"{length:,}", "not set", False, line, why)


def _cache(log: EngineLog, expected: Expected) -> Iterable[Check]:
    word = log.setting("kv_cache_dtype")
    if not isinstance(word, str):
        return
    mine, theirs = expected.cache, expected.auto if word == "auto" else word
    try:
        one, other = kv.get(mine), kv.get(theirs)
        # bf16 and fp16, fp8 and fp8_e4m3 are other numbers in as many bytes
        same = one._replace(name="", engine="", indexer=0) == other._replace(name="", engine="", indexer=0)
    except FormatError:
        same = mine == theirs
    shown = f"{word} ({theirs} for this model)" if word == "auto" else word
    yield from _differs(expected, "kv_cache_dtype", shown, mine, same, log.settings["kv_cache_dtype"].line)


def _device(log: EngineLog, expected: Expected) -> Iterable[Check]:
    cpu = on_cpu(log)
    if cpu != (expected.platform == "cpu"):
        name = "the CPU" if cpu else "a GPU"
        text = f"the log is of an engine on {name}, the budget's machine is {expected.machine} ({expected.platform})"
        yield Check("device", False, text)
        return
    total = log.get("total_memory")
    if total is None or cpu:
        return
    off = total.number - expected.total
    holds = abs(off) * 100 <= SAME_DEVICE * expected.total + total.half * 100
    text = f"the device has {total.printed}, {expected.machine} has {gib(expected.total, 2)}: another machine"
    if not holds:
        yield Check("device", False, text, total.line, off)


def _weights(log: EngineLog, expected: Expected) -> Iterable[Check]:
    printed = log.get("weights")
    if printed is None or expected.pp > 1:  # stages hold different layers, and the log does not say which printed it
        return
    off = printed.number - expected.weights
    most = WEIGHTS_OVER + expected.weights * WEIGHTS_OVER_PERCENT // 100
    holds = -printed.half <= off <= most + printed.half
    text = f"weights: predicted {gib(expected.weights, 2)}; printed {printed.printed} ({_signed(off)})"
    if not holds:
        text += f"; allowed is 0 to {gib(most, 2)} more: another model or format"
    if not holds and off > 0 and log.setting("speculative_config") is not None:
        yield Check("weights_predicted", None, f"{text}, or the drafter, which the budget does not have", 0, off)
        return
    yield Check("weights_predicted", holds, text, 0 if holds else printed.line, off)


def _pool(log: EngineLog, expected: Expected) -> Iterable[Check]:
    """The pool's bytes, and each printed line they come from, as ``pool_bytes.weights``."""
    printed = log.get("available_kv")
    if log.get("reserved_kv") is not None or log.setting(_POOL_SET) is not None:
        return
    util = log.utilization
    share = expected.utilization
    version, whose = _version(log), ""
    if share is None:
        share = float(util.value) if util is not None else rules(version).utilization / 100
        whose = " (the log's)" if util is not None else " (the default)"
    graphs = expected.graphs if of.charges_graphs(log) else 0
    figures = Figures(
        total=expected.total,
        utilization=share,
        weights=expected.weights,
        activation=expected.activation,
        non_torch=expected.non_torch,
        graph_estimate=graphs,
    )
    found = identity(figures, version)
    if not rules(version).graph_estimate:
        graphs = 0
    predicted = found.predicted
    assert predicted is not None  # every figure is given
    parts = [f"{share:g}{whose} x {gib(expected.total, 2)}", f"{gib(expected.weights, 2)} weights"]
    parts += [f"{gib(expected.activation, 2)} activations", f"{gib(expected.non_torch + graphs, 2)} overhead"]
    sums = " - ".join(parts)
    text = f"the pool: predicted {gib(predicted, 2)} ({sums})"
    if printed is None:
        yield Check("pool_bytes", None, f"{text}; the log does not print it")
        return
    off = printed.number - predicted
    allowed = expected.total * ASSUMED_OFF // 100
    holds: bool | None = abs(off) <= allowed + printed.half
    text += f"; printed {printed.printed}: {gib(abs(off), 2)} {'less' if off < 0 else 'more'}"
    text += f", allowed {gib(allowed, 2)} ({ASSUMED_OFF}% of the device: activations and overhead are assumed)"
    printed_parts = list(_parts(log, expected, _first(found.parts), graphs))
    if not holds and off < 0 and log.setting("speculative_config") is not None:
        holds, text = None, f"{text}; the drafter takes some of it, and the budget does not have it"
    if not holds:
        text += f"; {_culprit(printed_parts, off)}"
    yield Check("pool_bytes", holds, text, 0 if holds else printed.line, off)
    yield from printed_parts


def _first(parts: Iterable[Any]) -> int:
    """The first line of an identity: what is asked of the device, in bytes."""
    return next((part.bytes for part in parts if part.name == "requested"), 0)


def _parts(log: EngineLog, expected: Expected, requested: int, graphs: int) -> Iterable[Check]:
    """Each line that the pool is made of, where the log prints it.  off: what it adds to the pool, in bytes."""
    asked, total, util = log.get("requested_memory"), log.get("total_memory"), log.utilization
    if asked is not None:
        yield _part("requested", requested, asked.number, asked.printed, asked.line, 1)
    elif total is not None and util is not None:
        product = round(total.number * float(util.value))
        yield _part("requested", requested, product, f"{util.printed} x {total.printed}", total.line, 1)
    elif util is not None and expected.utilization is not None:
        product = round(expected.total * float(util.value))
        yield _part("requested", requested, product, f"utilization {util.printed}", util.line, 1)
    rows: list[tuple[str, int, Figure | None]] = []
    consumed, weights = log.get("consumed"), log.get("weights")
    if consumed is not None:
        rows.append(("weights and non-torch", expected.weights + expected.non_torch, consumed))
    else:
        rows += [("weights", expected.weights, weights), ("non-torch", expected.non_torch, log.get("non_torch"))]
    both = log.get("peak_with_graphs")
    if both is not None:
        rows.append(("activations and graphs", expected.activation + graphs, both))
    else:
        rows.append(("activations", expected.activation, log.get("peak_activation")))
        rows.append(("CUDA graphs, estimate", graphs, log.get("cudagraph_estimate") if graphs else None))
    for name, mine, figure in rows:
        if figure is not None:
            yield _part(name, mine, figure.number, figure.printed, figure.line, -1)


def _part(name: str, predicted: int, printed: int, shown: str, line: int, sign: int) -> Check:
    off = printed - predicted
    text = f"{name}: {gib(predicted, 2)} by the budget, {shown} in the log ({_signed(off)})"
    return Check(f"pool_bytes.{name}", None, text, line, sign * off)


def _culprit(parts: list[Check], off: int) -> str:
    """In which printed line the difference is, and how much of it is in none."""
    rest = off - round(sum(part.off for part in parts))
    mine = [part for part in parts if part.off * off > 0 and abs(part.off) * 10 >= abs(off)]
    said = [f"line {part.line}, {part.text}" for part in sorted(mine, key=lambda part: -abs(part.off))]
    if abs(rest) * 10 >= abs(off) or not said:
        said.append(f"{_signed(rest)} of it is in no line that this log prints")
    return "it is in " + "; ".join(said) if mine else said[0]


def _version(log: EngineLog) -> str:
    known = of.version_of(log)
    return log.version if log.version and known is not None and known >= OLDEST else DEFAULT


def _signed(size: float) -> str:
    return f"{size / GIB:+,.2f} GiB" if abs(size) >= GIB // 100 else f"{size / MIB:+,.1f} MiB"


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
