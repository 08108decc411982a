"""The process between the guard and its child: whatever the child starts ends with it, and with the guard.

    python -m membudget.measure.keeper FD CONTAINER COMMAND...

FD takes JSON lines: {"pid"} of the command first, {"exit", "left"} last.  CONTAINER: what a container's client starts,
as a JSON object {"runtime", "name", "cidfile"}; "" for none.

The keeper is a subreaper: processes whose parent ended become its own children, sessions of their own or not.  On
SIGTERM, on the guard's death and once the command has ended it kills all of them, and the container.  The command
itself dies with the keeper (PR_SET_PDEATHSIG), so that killing the keeper frees nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from os import _exit
from typing import Any

from membudget.host import processes

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Seconds that killing goes on: a process in an uninterruptible sleep dies when its driver lets go.
_PATIENCE = 30.0
_LOOK = 0.5  # seconds between looks at the parent
#: How often a container is killed that its runtime does not know, and the seconds between.
_CONTAINER_TRIES, _CONTAINER_PAUSE = 3, 0.3
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}


def main(words: list[str]) -> int:
    """Start, wait, and leave nobody behind."""
    status, container, command = int(words[0]), json.loads(words[1] or "{}"), words[2:]
    parent = os.getppid()
    os.set_inheritable(status, False)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    child = _start(command)
    _tell(status, {"pid": child})
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # the pipes are the child's: they end with it
        os.dup2(null, number)
    code = _wait(child, parent)
    _kill_container(container)
    left, code = _end_all(child, code)
    _tell(status, {"exit": code, "left": left})
    return 0


def prctl(option: int, value: int) -> None:
    """prctl(2) where this is Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _start(command: list[str]) -> int:
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:
                _exit(126)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        finally:
            _exit(127)
    return pid


def _wait(child: int, parent: int) -> int | None:
    """The child's exit code, negative for a signal; None where something else ends the wait."""
    while True:
        told = _signal(_LOOK)
        code = _reap(child)
        if code is not None:
            return code
        if told not in (None, signal.SIGCHLD) or os.getppid() != parent:
            return None


def _signal(seconds: float) -> int | None:
    """The next of our signals, None where there is none within that time."""
    if hasattr(signal, "sigtimedwait"):
        told = signal.sigtimedwait(_SIGNALS, seconds)
        return None if told is None else told.si_signo
    until = time.monotonic() + seconds  # macOS
    while time.monotonic() < until:
        if signal.sigpending() & _SIGNALS:
            return signal.sigwait(_SIGNALS)
        time.sleep(0.02)
    return None


def _reap(child: int) -> int | None:
    """Collect everyone who ended; the child's exit code if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                found = os.waitstatus_to_exitcode(ended[1])
    return found


def _end_all(child: int, code: int | None) -> tuple[int, int | None]:
    """Kill the child's group at once, then everyone below us until there is nobody: (how many are left, exit code)."""
    if code is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
    until, looks = time.monotonic() + _PATIENCE, 0
    while time.monotonic() < until:
        found = _reap(child)
        code = found if found is not None else code
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return 0, code
        # The group's processes are dying already: to look for others takes long where many processes are.
        for pid in processes.descendants([os.getpid()]) if looks else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        looks += 1
        _signal(0.02)
    return len(processes.descendants([os.getpid()])), code


def _kill_container(container: dict[str, Any]) -> None:
    """End what the client's daemon runs: it is not a child of ours, and a client that is killed leaves it running.

    By the id that the client wrote, else by its name: a client may be killed before it writes.
    """
    for _ in range(_CONTAINER_TRIES if container else 0):
        name = container["name"]
        with contextlib.suppress(OSError), open(container["cidfile"], encoding="utf-8") as file:
            name = file.read().strip() or name
        try:
            done = subprocess.run(
                [*container["runtime"], "kill", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                timeout=_PATIENCE, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return
        if done.returncode == 0:
            return
        time.sleep(_CONTAINER_PAUSE)  # it ended by itself, or its daemon has not made it yet


def _tell(status: int, what: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the guard is gone
        os.write(status, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
