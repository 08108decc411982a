"""Each printed figure of the pool against the arithmetic.

The printed memory is rounded, so the arithmetic is done for the smallest and the largest
number of bytes that print like that: a printed figure is equal when it lies between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from membudget.engines.vllm.logs.checks import Check, version_of
from membudget.engines.vllm.logs.question import Question, ask
from membudget.engines.vllm.logs.record import EngineLog, Figure
from membudget.engines.vllm.pool.plan import plan_pool
from membudget.engines.vllm.pool.result import Pool, PoolError, PoolRequest
from membudget.engines.vllm.versions import OLDEST, READ
from membudget.model import Model
from membudget.units import gib


@dataclass(frozen=True)
class Compared:
    """The log's pool beside the arithmetic's."""

    #: For the middle of the printed bytes, None where the arithmetic has no answer.
    pool: Pool | None = None
    #: One a printed figure; `holds` is None where the log does not say enough.
    checks: tuple[Check, ...] = ()
    #: What was assumed, or why there is no answer.
    note: str = ""
    #: What the arithmetic was asked.
    request: PoolRequest | None = None


def compare(log: EngineLog, model: Model | None, known: Mapping[str, Any] | None = None) -> Compared:
    """Ask the arithmetic what the log's settings give.

    known: fields of `PoolRequest` that the log does not print (tp, version, kv_cache_dtype, ...).
    """
    if model is None:
        return Compared(note="the model has no config.json here, so only the log's own figures are compared")
    memory = log.memory
    if memory is None:
        return Compared(note="the log does not print the memory of the pool")
    if not any(log.get(name) for name in ("kv_tokens", "max_concurrency", "needed_kv", "num_blocks")):
        return Compared(note="the log has no figure of the pool to compare")
    question = ask(log, model, known)
    request = question.request
    version = version_of(log) if known is None or "version" not in known else OLDEST
    if version is not None and version < OLDEST:
        return Compared(note=f"vLLM {log.version}: the arithmetic is known since {_dotted(OLDEST)}")
    if version is not None:
        return _with_unsaid(log, question, memory)
    fits = []
    for candidate in reversed(READ):
        asked = replace(question, request=request._replace(version=_dotted(candidate)))
        found = _with_unsaid(log, asked, memory)
        if found.checks and all(check.holds for check in found.checks):
            fits.append((_dotted(candidate), found))
    if not fits:
        return Compared(note="the log has no vLLM version, and no known one has all of these figures", request=request)
    names = fits[0][0] if len(fits) == 1 else f"{fits[-1][0]} to {fits[0][0]}"
    said = f"; {fits[0][1].note}" if fits[0][1].note else ""
    return replace(fits[0][1], note=f"the log has no version; the figures are those of vLLM {names}{said}")


def _with_unsaid(log: EngineLog, question: Question, memory: Figure) -> Compared:
    """The arithmetic with the defaults, and where that differs, with settings that the log does not print.

    A setting is only taken when it makes every figure equal, and the note says so.
    """
    first = _one(log, question, memory)
    if (first.checks and all(check.holds for check in first.checks)) or question.unknown_drafter:
        return first
    for change, text in _unsaid(question.request):
        other = _one(log, replace(question, request=question.request._replace(**change)), memory)
        if other.checks and all(check.holds for check in other.checks):
            return replace(other, note=f"the log does not say it, but the figures are those of {text}")
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


def _one(log: EngineLog, question: Question, memory: Figure) -> Compared:
    request = question.request
    low, middle, high = (memory.number - int(memory.half), memory.number, memory.number + int(memory.half))
    try:
        pools = [plan_pool(request._replace(available=max(size, 0))) for size in (low, middle, high)]
    except PoolError as error:
        return Compared(note=str(error), request=request)
    hidden = request.tp * request.pp > 1 and len({f.rank for f in log.all("available_kv")}) <= 1
    found = _sizes(log, pools, hidden) if log.get("kv_tokens") or log.get("max_concurrency") else []
    found += _refused(log, pools)
    block = log.get("block_size")
    if block is not None:
        found.append(_exact("block_size", block, pools[1].block_size))
    note = ""
    if question.unknown_drafter:
        note = f"{question.unknown_drafter}: the drafter's layers are not counted, they make a token larger"
        found = [check if check.holds else replace(check, holds=None) for check in found]
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


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))
