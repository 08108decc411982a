"""Runs one measurement in a process of its own and ends it before it can hurt the machine.

On unified memory an overshoot raises no exception: it can hang the host within seconds,
and neither cgroup limits nor the kernel's OOM killer see what CUDA holds.  So the child
is watched from outside, ten times a second, by what Linux says is available; under the
floor, or past its time, its whole process tree is killed.

    outcome = run([sys.executable, "-m", "membudget.measure.worker"], request, limits)
    outcome.status      "done", "refused", "killed", "timeout", "crashed"
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from membudget.host import processes, system
from membudget.measure.status import Status
from membudget.units import GIB, short

#: Where CPU and GPU share the memory, what must stay available: a step of 7.4 GiB in 3 s has been
#: seen on a DGX Spark, and one of 23.8 to 6.3 GiB in 5 s.
UNIFIED_FLOOR = 12 * GIB
#: Elsewhere the operating system only needs room to breathe.
DISCRETE_FLOOR = GIB
POLL_SECONDS = 0.1
#: Seconds between asking a child to end and ending it.
GRACE_SECONDS = 3.0
#: What one child may say: longer lines are cut, more lines are dropped, and both are counted.
MAX_LINE, MAX_LINES, STDERR_LINES = 2**20, 100_000, 40
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


@dataclass(frozen=True)
class Limits:
    """What a measurement may do.  Sizes in bytes, times in seconds.

    peak: what it is predicted to take at most.  reserve: what must be left beside that to start.
    floor: available memory under which it is killed.  seconds: how long it may run.
    process: the part of the peak that is the process itself (libraries, CUDA context), for messages.
    """

    peak: int
    reserve: int
    floor: int
    seconds: float
    process: int = 0


@dataclass(frozen=True)
class Outcome:
    """How a measurement ended.

    status: done (it delivered a result), refused (not started), killed (under the floor),
    timeout, crashed (it ended without a result).  why: the sentence for people.
    result: the child's answer.  stages: its reports, in order.  stderr: its last lines.
    lowest: the least available memory seen while it ran.  seconds: how long it ran.
    garbage: lines it wrote that are no JSON object.
    """

    status: Status
    why: str
    result: dict[str, Any] | None
    stages: tuple[dict[str, Any], ...]
    stderr: str
    lowest: int | None
    seconds: float
    exit_code: int | None
    garbage: int = 0

    @property
    def last_stage(self) -> str:
        """The last stage the child reported."""
        return str(self.stages[-1].get("stage", "")) if self.stages else "before its first report"


def default_floor(unified: bool) -> int:
    """The floor where nobody chose one."""
    return UNIFIED_FLOOR if unified else DISCRETE_FLOOR


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
) -> Outcome:
    """Run `command` in its own process group; `request` is its standard input, one JSON line.

    The child writes JSON objects, one a line: {"stage": ...} as it goes and {"result": ...}
    last.  `report` is called with every stage.  Once `until` says so the child is ended.
    Never raises for what the child does, and never returns while a process of its tree is alive.
    """
    said_no = refusal(limits, available())
    if said_no is not None:
        return Outcome(Status.REFUSED, f"not started: {said_no}", None, (), "", None, 0.0, None)
    start = time.monotonic()
    child = subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=dict(environment) if environment is not None else None,
    )
    ears, tree = _Ears(child, report), _Tree(child)
    try:
        _ask(child, request)
        ended, lowest = _watch(tree, limits, available, start, until)
    finally:
        tree.end(grace=0.0)
        ears.close()
    return _outcome(child, ears, limits, ended, lowest, time.monotonic() - start)


class _Ears:
    """Listens to a child on two threads; what it keeps is bounded whatever the child writes."""

    def __init__(self, child: subprocess.Popen[bytes], report: Callable[[dict[str, Any]], None] | None) -> None:
        self.stages: list[dict[str, Any]] = []
        self.result: dict[str, Any] | None = None
        self.garbage = 0
        self.stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._report = report
        assert child.stdout is not None
        assert child.stderr is not None
        self._pipes = (child.stdout, child.stderr)
        self._threads = [
            threading.Thread(target=self._listen, args=(pipe, hear), daemon=True)
            for pipe, hear in ((child.stdout, self._hear_line), (child.stderr, self._hear_error))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Read what is left; a process that escaped with a pipe in its hand does not keep us."""
        for thread, pipe in zip(self._threads, self._pipes, strict=True):
            thread.join(timeout=2.0)
            if not thread.is_alive():  # closing under a reader would wait for it
                pipe.close()

    def _listen(self, pipe: IO[bytes], hear: Callable[[bytes], None]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := pipe.readline(MAX_LINE):
                hear(line)

    def _hear_error(self, line: bytes) -> None:
        self.stderr.append(line.decode("utf-8", "replace").rstrip()[:2000])

    def _hear_line(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict) or len(self.stages) >= MAX_LINES:
            self.garbage += 1
        elif isinstance(said.get("result"), dict):
            self.result = said["result"]
        elif "stage" in said:
            self.stages.append(said)
            if self._report is not None:
                self._report(said)
        else:
            self.garbage += 1


def _ask(child: subprocess.Popen[bytes], request: Mapping[str, Any]) -> None:
    # Its input stays open: the worker ends itself when we, and with us the pipe, are gone.
    assert child.stdin is not None
    with contextlib.suppress(OSError):
        child.stdin.write(json.dumps(request).encode() + b"\n")
        child.stdin.flush()


class _Tree:
    """A child and all that it ever started, as far as ten looks a second see."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self.seen: dict[int, float] = {}

    def look(self) -> None:
        """Note who is there now; whoever's parent ends later is not lost."""
        self.seen.update(processes.descendants([self.child.pid, *self.seen]))

    def signal(self, number: int) -> None:
        """Send a signal to the process group and to everyone noted."""
        self.look()
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, number)
        for pid, started in self.seen.items():
            if processes.is_running(pid, started):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)

    def end(self, grace: float, floor: int = 0, available: Callable[[], int | None] | None = None) -> None:
        """Ask everyone to end, wait `grace` seconds with an eye on memory, then kill."""
        if grace and self.child.poll() is None:
            self.signal(signal.SIGTERM)
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline and self.child.poll() is None:
                now = available() if available is not None else None
                if now is not None and now < floor:
                    break
                time.sleep(POLL_SECONDS)
        self.signal(_KILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(timeout=10.0)
        if self.child.stdin is not None:
            with contextlib.suppress(OSError):
                self.child.stdin.close()


def _watch(
    tree: _Tree,
    limits: Limits,
    available: Callable[[], int | None],
    start: float,
    until: Callable[[], bool] | None = None,
) -> tuple[str, int | None]:
    """Wait for the end; the reason for it and the least memory seen."""
    lowest: int | None = None
    while True:
        now = available()
        if now is not None:
            lowest = now if lowest is None else min(lowest, now)
        if now is None or now < limits.floor:
            tree.end(grace=0.0)
            return ("blind" if now is None else "floor"), lowest
        if time.monotonic() - start > limits.seconds:
            tree.end(GRACE_SECONDS, limits.floor, available)
            return "time", lowest
        if until is not None and until():
            tree.end(grace=0.0)
            return "asked", lowest
        tree.look()
        with contextlib.suppress(subprocess.TimeoutExpired):
            tree.child.wait(timeout=POLL_SECONDS)
            return "exit", lowest


def _outcome(
    child: subprocess.Popen[bytes], ears: _Ears, limits: Limits, ended: str, lowest: int | None, seconds: float
) -> Outcome:
    where = str(ears.stages[-1].get("stage", "")) if ears.stages else "before its first report"
    code = child.returncode
    if ended == "floor":
        status, why = (
            Status.KILLED,
            (f"killed at {where!r}: {short(lowest or 0)} available, under the floor of {short(limits.floor)}"),
        )
    elif ended == "blind":
        status, why = Status.KILLED, f"killed at {where!r}: available memory could no longer be read"
    elif ended == "time":
        status, why = Status.TIMEOUT, f"ended at {where!r}: past its limit of {limits.seconds:g} s"
    elif ended == "asked":
        status, why = Status.DONE, "ended when it was asked to"
    elif code == 0 and ears.result is not None:
        status, why = Status.DONE, "done"
    else:
        status, why = Status.CRASHED, f"crashed at {where!r}: {_exit_text(code)}"
        if ears.garbage:
            why += f"; {ears.garbage} lines it wrote are no JSON object"
    return Outcome(
        status, why, ears.result, tuple(ears.stages), "\n".join(ears.stderr), lowest, seconds, code, ears.garbage
    )


def _exit_text(code: int | None) -> str:
    if code is None:
        return "it would not die"
    if code >= 0:
        return f"exit code {code} and no result" if code == 0 else f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
