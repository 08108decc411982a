"""A log held against the budget it ran under: the settings, the bytes for the pool, and in which line they differ.

What the budget predicts is what `membudget plan` says of it under the log's version: each part with its range.  A
printed figure agrees inside that range and `BESIDE_PERCENT` of the device beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from membudget.engines.vllm.logs import checks as of
from membudget.engines.vllm.logs.checks import Check
from membudget.engines.vllm.logs.question import on_cpu
from membudget.engines.vllm.logs.record import EngineLog, Figure
from membudget.engines.vllm.profile import Estimate
from membudget.engines.vllm.versions import DEFAULT, OLDEST, rules
from membudget.formats import kv
from membudget.formats.base import FormatError
from membudget.units import GIB, MIB, gib

#: How far beside its range a figure may be, in percent of the device's memory: what predicted starts are scored by
#: (docs/accuracy.md).
BESIDE_PERCENT = 1
#: The device of the log is the budget's machine where its size is this near, in percent: what CUDA reports and what
#: nvidia-smi does are up to 2% apart (machines.yaml).
SAME_DEVICE = 4

_POOL_SET = "kv_cache_memory_bytes"
_HELD = ("weights", "lora", "drafter")
_OUTSIDE = ("non_torch", "cuda_graphs")
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
    #: ``weights``, ``activation``, ``non_torch``, ``cuda_graphs``, ``lora``, ``drafter``, each with its range.
    parts: tuple[Estimate, ...]
    #: What is asked of the device.
    requested: int
    #: Bytes for the pool, and both ends of their range.
    left: int
    low: int
    high: int
    #: gpu_memory_utilization as the budget states it, None where it does not; the share that is predicted with, and
    #: where that comes from.
    utilization: float | None
    share: float
    whose: str
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

    def part(self, *names: str) -> tuple[int, int, int]:
        """(bytes, low, high) of the parts of these names in all."""
        found = [part for part in self.parts if part.name in names]
        return sum(part.bytes for part in found), sum(part.low for part in found), sum(part.high for part in found)


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
    share = rules(version(log)).utilization / 100
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
    size, low, high = expected.part(*_HELD)
    off = printed.number - size
    beside = expected.total * BESIDE_PERCENT // 100
    holds = low - beside <= printed.number + printed.half and printed.number - printed.half <= high + beside
    text = f"weights: predicted {_ranged(size, low, high)}; printed {printed.printed} ({_signed(off)})"
    if not holds:
        text += f"; allowed is the range and {gib(beside, 2)} beside it: another model or format"
    if not holds and off > 0 and log.setting("speculative_config") is not None and not expected.part("drafter")[0]:
        yield Check("weights_predicted", None, f"{text}, or the drafter, which the budget does not have", 0, off)
        return
    yield Check("weights_predicted", holds, text, 0 if holds else printed.line, off)


def _pool(log: EngineLog, expected: Expected) -> Iterable[Check]:
    """The pool's bytes, and each printed line they come from, as ``pool_bytes.weights``."""
    printed = log.get("available_kv")
    if log.get("reserved_kv") is not None or log.setting(_POOL_SET) is not None:
        return
    sums = [f"{expected.share:g}{expected.whose} x {gib(expected.total, 2)}"]
    for name, names in (("weights", _HELD), ("activations", ("activation",)), ("overhead", _OUTSIDE)):
        sums.append(f"{gib(expected.part(*names)[0], 2)} {name}")
    text = f"the pool: predicted {_ranged(expected.left, expected.low, expected.high)} ({' - '.join(sums)})"
    if printed is None:
        yield Check("pool_bytes", None, f"{text}; the log does not print it")
        return
    off = printed.number - expected.left
    beside = expected.total * BESIDE_PERCENT // 100
    holds: bool | None = expected.low - beside <= printed.number + printed.half
    holds = holds and printed.number - printed.half <= expected.high + beside
    text += f"; printed {printed.printed}: {gib(abs(off), 2)} {'less' if off < 0 else 'more'}"
    text += f", allowed is the range and {gib(beside, 2)} ({BESIDE_PERCENT}% of the device) beside it"
    printed_parts = list(_parts(log, expected))
    drafted = log.setting("speculative_config") is not None and not expected.part("drafter")[0]
    if not holds and off < 0 and drafted:
        holds, text = None, f"{text}; the drafter takes some of it, and the budget does not have it"
    if not holds:
        text += f"; {_culprit(printed_parts, off)}"
    yield Check("pool_bytes", holds, text, 0 if holds else printed.line, off)
    yield from printed_parts


def _ranged(size: int, low: int, high: int) -> str:
    return gib(size, 2) if low == high else f"{gib(size, 2)} ({gib(low, 2)} to {gib(high, 2)})"


def _parts(log: EngineLog, expected: Expected) -> Iterable[Check]:
    """Each line that the pool is made of, where the log prints it.  off: what it adds to the pool, in bytes."""
    asked, total, util = log.get("requested_memory"), log.get("total_memory"), log.utilization
    requested = expected.requested
    if asked is not None:
        yield _part("requested", requested, asked.number, asked.printed, asked.line, 1)
    elif total is not None and util is not None:
        product = round(total.number * float(util.value))
        yield _part("requested", requested, product, f"{util.printed} x {total.printed}", total.line, 1)
    elif util is not None and expected.utilization is not None:
        product = round(expected.total * float(util.value))
        yield _part("requested", requested, product, f"utilization {util.printed}", util.line, 1)
    rows: list[tuple[str, tuple[str, ...], Figure | None]] = []
    consumed = log.get("consumed")
    if consumed is not None:
        rows.append(("weights and non-torch", (*_HELD, "non_torch"), consumed))
    else:
        rows += [("weights", _HELD, log.get("weights")), ("non-torch", ("non_torch",), log.get("non_torch"))]
    both = log.get("peak_with_graphs")
    if both is not None:
        rows.append(("activations and graphs", ("activation", "cuda_graphs"), both))
    else:
        rows.append(("activations", ("activation",), log.get("peak_activation")))
        estimate = log.get("cudagraph_estimate") if expected.part("cuda_graphs")[0] else None
        rows.append(("CUDA graphs, estimate", ("cuda_graphs",), estimate))
    for name, names, figure in rows:
        if figure is not None:
            yield _part(name, expected.part(*names)[0], figure.number, figure.printed, figure.line, -1)


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


def version(log: EngineLog) -> str:
    """The version whose rules count for a log: its own where it is known, else the newest."""
    known = of.version_of(log)
    return log.version if log.version and known is not None and known >= OLDEST else DEFAULT


def _signed(size: float) -> str:
    return f"{size / GIB:+,.2f} GiB" if abs(size) >= GIB // 100 else f"{size / MIB:+,.1f} MiB"


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
