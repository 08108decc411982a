"""How a start-up ended: started, refused, failed or truncated."""

from __future__ import annotations

from dataclasses import dataclass

from membudget.engines.vllm.logs.kinds import TEXTS, Event, RefusalKind, Status
from membudget.engines.vllm.logs.record import EngineLog, Refusal

#: An exception this many lines before the end of the log ended the start-up.
_NEAR_END = 8
_TELLING = tuple(RefusalKind)


@dataclass(frozen=True)
class Verdict:
    """How the start-up ended."""

    status: Status
    #: Which refusal; None where it was none.
    kind: RefusalKind | None
    #: In words.
    text: str
    #: Where the log says so, 0 where it ends.
    line: int
    #: What went wrong after the start, or "".
    later: str = ""


def verdict(log: EngineLog) -> Verdict:
    """Started, refused, failed or truncated; the later of what the log says decides."""
    ready = max(log.events.get(Event.READY, 0), log.events.get(Event.INIT_DONE, 0))
    if ready:
        later = [refusal for refusal in log.refusals if refusal.line > ready]
        after = ""
        if later:
            telling = _telling(later)
            after = f"{TEXTS[telling.kind]} (line {telling.line})"
        elif log.error and log.error[0] > ready and _ended(log, log.error[0]):
            after = f"{log.error[1]} (line {log.error[0]})"
        what = "the server is up" if Event.READY in log.events else "the engine is initialised"
        return Verdict(Status.STARTED, None, what, ready, after)
    if log.refusals:
        telling = _telling(log.refusals)
        return Verdict(Status.REFUSED, telling.kind, TEXTS[telling.kind], telling.line)
    pool = log.get("available_kv")
    if pool is not None and pool.number < 0:
        text = f"{TEXTS[RefusalKind.NO_KV_MEMORY]}: {pool.printed}"
        return Verdict(Status.REFUSED, RefusalKind.NO_KV_MEMORY, text, pool.line)
    if log.error and (Event.FAILED in log.events or _ended(log, log.error[0])):
        return Verdict(Status.FAILED, None, log.error[1], log.error[0])
    if Event.FAILED in log.events:
        text = "the engine failed to start; the log has no reason"
        return Verdict(Status.FAILED, None, text, log.events[Event.FAILED])
    done = (
        "after sizing the pool"
        if "kv_tokens" in log.figures or "max_concurrency" in log.figures
        else ("after loading the weights" if "weights" in log.figures else "before loading the weights")
    )
    return Verdict(Status.TRUNCATED, None, f"the log ends {done}, neither ready nor refused; give it to its end", 0)


def _ended(log: EngineLog, line: int) -> bool:
    """Whether an exception in that line was the end: nothing else that counts came after it."""
    return line >= log.last_line and line >= log.events.get(Event.END, line) - _NEAR_END


def _telling(refusals: list[Refusal]) -> Refusal:
    return min(refusals, key=lambda refusal: _TELLING.index(refusal.kind))
