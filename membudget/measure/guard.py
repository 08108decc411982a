"""Runs one measurement in a process of its own and ends it before it can hurt the machine.

On unified memory an overshoot raises no exception: it can hang the host within seconds, and neither cgroup limits nor
the kernel's OOM killer see what CUDA has allocated.  So the child is watched from outside, fifty times a second, by
what Linux says is available.  Under the floor, or past its time, its process group is killed first; whoever escaped
from it is looked for afterwards (`membudget.measure.keeper`).

    outcome = run([sys.executable, "-m", "membudget.measure.worker"], request, limits)
    outcome.status      Status.DONE, REFUSED, KILLED, TIMEOUT, CRASHED
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from membudget.host import system
from membudget.host.limits import SLOPE_SECONDS
from membudget.measure.child import Child, Container, Ears
from membudget.measure.status import Status
from membudget.units import GIB, short

POLL_SECONDS = 0.02
#: Seconds between asking a child to end and ending it.
GRACE_SECONDS = 3.0
#: How far what was taken may exceed the predicted peak before the slope counts: others allocate on this machine too.
OVER_PEAK = 2 * GIB
#: What may stay away after an end, and the seconds that memory has to come back: drivers free it behind the process.
BACK_WITHIN, BACK_SECONDS = GIB, 60.0


@dataclass(frozen=True)
class Limits:
    """What a measurement may do.  Sizes in bytes, times in seconds."""

    peak: int  # what it is predicted to take at most
    reserve: int  # what must be left beside that to start
    floor: int  # available memory under which it is killed
    seconds: float  # how long it may run
    process: int = 0  # the part of the peak that is the process itself (libraries, CUDA context), for messages


class Ended(StrEnum):
    """Why the guard stopped watching."""

    EXIT = "exit"
    FLOOR = "floor"
    SLOPE = "slope"  # above the floor, and falling too fast to wait for it
    BLIND = "blind"  # available memory could not be read any more
    TIME = "time"
    ASKED = "asked"


@dataclass(frozen=True)
class Outcome:
    """How a measurement ended."""

    status: Status
    why: str  # for people
    result: dict[str, Any] | None  # the child's answer
    stages: tuple[dict[str, Any], ...]  # its reports, in order
    stderr: str  # its last lines
    lowest: int | None  # the least available memory seen while it ran, bytes
    seconds: float  # how long it ran
    exit_code: int | None
    garbage: int = 0  # lines it printed that are no JSON object
    killed_in: float | None = None  # seconds from the look that saw the floor crossed until nobody was left
    left: int = 0  # processes that would not die

    @property
    def last_stage(self) -> str:
        """The last stage the child reported."""
        return str(self.stages[-1].get("stage", "")) if self.stages else "before its first report"


def refusal(limits: Limits, available: int | None) -> str | None:
    """Why a measurement must not start, with both numbers; None where it may."""
    if available is None:
        return "how much memory is available is unknown here, so nothing is loaded"
    return None if _need(limits) <= available else needs(limits, available)


def needs(limits: Limits, available: int) -> str:
    """Both numbers, whether it may start or not: what it needs, and what there is."""
    parts = [f"{short(limits.peak - limits.process)} predicted peak"]
    parts += [f"{short(limits.process)} process"] if limits.process else []
    parts.append(f"{short(max(limits.reserve, limits.floor))} reserve")
    return f"needs {short(_need(limits))} ({' + '.join(parts)}), {short(available)} is available"


def _need(limits: Limits) -> int:
    return limits.peak + max(limits.reserve, limits.floor)


def run(
    command: Sequence[str],
    request: Mapping[str, Any],
    limits: Limits,
    *,
    available: Callable[[], int | None] = system.available,
    report: Callable[[dict[str, Any]], None] | None = None,
    environment: Mapping[str, str] | None = None,
    until: Callable[[], bool] | None = None,
    container: Container | None = None,
) -> Outcome:
    """Run `command` in its own session; `request` is its standard input, one JSON line.

    The child prints JSON objects, one a line: {"stage": ...} as it goes and {"result": ...} last.  `report` is called
    with every stage.  Once `until` says so the child is ended.  container: killed with it.
    Never raises for what the child does, and never returns while a process of its tree is alive but for those that
    `Outcome.left` counts.
    """
    before = available()
    reason = refusal(limits, before)
    if reason is not None:
        return Outcome(Status.REFUSED, f"not started: {reason}", None, (), "", None, 0.0, None)
    start = time.monotonic()
    child = Child(command, environment, container)
    ears = Ears(child.keeper, report)
    try:
        child.ask(request)
        ended, lowest, killed_in = _watch(child, limits, available, start, until, before or 0)
    finally:
        child.kill()
        ears.close()
    return _outcome(child, ears, limits, ended, lowest, time.monotonic() - start, killed_in)


def wait_until_back(
    before: int | None, available: Callable[[], int | None] = system.available, seconds: float = BACK_SECONDS
) -> int:
    """Wait until what was available before a measurement is available again; the bytes that did not come back."""
    until, pause, now = time.monotonic() + seconds, 0.02, available()
    while before is not None and now is not None and now + BACK_WITHIN < before:
        if time.monotonic() > until:
            return before - now
        time.sleep(pause)
        pause, now = min(2 * pause, 1.0), available()
    return 0


def not_back(size: int) -> str:
    """What `wait_until_back` counted, in words."""
    return f"{short(size)} of memory did not come back within {BACK_SECONDS:.0f} s of its end"


def _watch(
    child: Child,
    limits: Limits,
    available: Callable[[], int | None],
    start: float,
    until: Callable[[], bool] | None,
    before: int,
) -> tuple[Ended, int | None, float | None]:
    """Wait for the end: its reason, the least memory seen, and the seconds that a kill took, from the look on."""
    lowest: int | None = None
    slope = _Slope()
    while True:
        now, at = available(), time.monotonic()
        if now is not None:
            lowest = now if lowest is None else min(lowest, now)
        if now is None or now < limits.floor:
            child.kill()
            return (Ended.BLIND if now is None else Ended.FLOOR), lowest, time.monotonic() - at
        falls = slope.of(now, at)
        # Within its predicted peak it stops by itself; beyond that nobody knows where it stops.
        if before - now > limits.peak + OVER_PEAK and now < falls * SLOPE_SECONDS:
            child.kill()
            return Ended.SLOPE, lowest, time.monotonic() - at
        if at - start > limits.seconds:
            child.stop()
            deadline = at + GRACE_SECONDS
            while time.monotonic() < deadline and not child.ended(POLL_SECONDS):
                now = available()
                if now is None or now < limits.floor:
                    break
            child.kill()
            return Ended.TIME, lowest, None
        if until is not None and until():
            child.kill()
            return Ended.ASKED, lowest, None
        if child.ended(POLL_SECONDS):
            return Ended.EXIT, lowest, None


class _Slope:
    """How fast available memory falls: bytes a second, over the last second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def of(self, now: int, at: float) -> float:
        """The fall from the highest figure of the last second, a second at least."""
        self._seen.append((at, now))
        while self._seen[0][0] < at - 1.0:
            self._seen.popleft()
        return max(size for _, size in self._seen) - now


def _outcome(
    child: Child,
    ears: Ears,
    limits: Limits,
    ended: Ended,
    lowest: int | None,
    seconds: float,
    killed_in: float | None,
) -> Outcome:
    where = str(ears.stages[-1].get("stage", "")) if ears.stages else "before its first report"
    code = child.code
    if ended is Ended.FLOOR:
        status = Status.KILLED
        why = f"killed at {where!r}: {short(lowest or 0)} available, under the floor of {short(limits.floor)}"
    elif ended is Ended.SLOPE:
        status = Status.KILLED
        why = (
            f"killed at {where!r}: {short(lowest or 0)} available and falling by more than that a second, past its "
            f"predicted peak of {short(limits.peak)}"
        )
    elif ended is Ended.BLIND:
        status, why = Status.KILLED, f"killed at {where!r}: available memory could no longer be read"
    elif ended is Ended.TIME:
        status, why = Status.TIMEOUT, f"ended at {where!r}: past its limit of {limits.seconds:g} s"
    elif ended is Ended.ASKED:
        status, why = Status.DONE, "ended when it was asked to"
    elif code == 0 and ears.result is not None:
        status, why = Status.DONE, "done"
    else:
        status, why = Status.CRASHED, f"crashed at {where!r}: {_exit_text(code)}"
        if ears.garbage:
            why += f"; {ears.garbage} lines it wrote are no JSON object"
    if child.left:
        why += f"; {child.left} of its processes did not die"
    return Outcome(
        status, why, ears.result, tuple(ears.stages), "\n".join(ears.stderr), lowest, seconds, code, ears.garbage,
        killed_in, child.left,
    )  # fmt: skip


def _exit_text(code: int | None) -> str:
    if code is None:
        return "it would not die"
    if code >= 0:
        return f"exit code {code} and no result" if code == 0 else f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
