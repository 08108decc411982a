"""A measurement's process as its guard holds it: below a keeper, listened to, killed with everyone it started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

#: Seconds for the keeper to end everyone.
END_SECONDS = 40.0
#: What one child may print: longer lines are cut, more lines are dropped, and both are counted.
MAX_LINE, MAX_LINES, STDERR_LINES = 2**20, 100_000, 40
KEEPER = ("-m", "membudget.measure.keeper")


@dataclass(frozen=True)
class Container:
    """What a container's client starts: it is its daemon's child, and is killed by its name or id."""

    runtime: tuple[str, ...]  # docker, podman, or a path to one
    name: str
    cidfile: str


class Ears:
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


class Child:
    """The command below its keeper."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None, container: Container | None
    ) -> None:
        mine, theirs = os.pipe()
        about = "" if container is None else json.dumps({**vars(container), "runtime": list(container.runtime)})
        self.keeper = subprocess.Popen(
            [sys.executable, *KEEPER, str(theirs), about, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(theirs,),
            env=dict(environment) if environment is not None else None,
        )
        os.close(theirs)
        self._status, self._buffer = mine, b""
        self.pid: int | None = None
        self.code: int | None = None
        self.left = 0

    def ask(self, request: Mapping[str, Any]) -> None:
        """Hand the request over.  The input stays open: the worker ends itself when the pipe is gone."""
        assert self.keeper.stdin is not None
        with contextlib.suppress(OSError):
            self.keeper.stdin.write(json.dumps(request).encode() + b"\n")
            self.keeper.stdin.flush()

    def ended(self, seconds: float) -> bool:
        """Whether the child ended within that time; its keeper sees to the others then."""
        until = time.monotonic() + seconds
        while self._status >= 0 and not self._hear(max(0.0, until - time.monotonic())):
            if time.monotonic() >= until:
                return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.keeper.wait(timeout=END_SECONDS)
        return True

    def stop(self) -> None:
        """Ask the child's process group to end."""
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the child's process group at once, then whoever is left: the keeper looks for them."""
        if self.keeper.poll() is None:
            if self.pid is None:
                self._hear(0.0)
            self._signal_group(signal.SIGKILL)
            with contextlib.suppress(OSError):
                self.keeper.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.keeper.wait(timeout=END_SECONDS)
        while self._hear(0.0):
            pass
        assert self.keeper.stdin is not None
        with contextlib.suppress(OSError):
            self.keeper.stdin.close()
        if self._status >= 0:
            os.close(self._status)
            self._status = -1

    def _signal_group(self, number: int) -> None:
        if self.pid is not None and self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _hear(self, seconds: float) -> bool:
        """Read what the keeper says; True once it has said how the child ended, or is gone."""
        if self._status < 0:
            return False
        ready, _, _ = select.select([self._status], [], [], seconds)
        if not ready:
            return False
        piece = os.read(self._status, 65536)
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "pid" in told:
                self.pid = int(told["pid"])
            else:
                self.code, self.left = told["exit"], int(told["left"])
                return True
        if not piece:
            os.close(self._status)
            self._status = -1
        return not piece
