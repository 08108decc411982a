"""What a program answers, also where it hangs for good: with its driver in trouble nvidia-smi cannot even be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import IO, NamedTuple

#: Seconds that a program may take to answer, and bytes that its answer may have.
TIMEOUT = 10.0
MOST = 2**20
#: The beginning of `why` where a program ended by itself; all else is a program in trouble.
FAILED = "exit code"


class Answer(NamedTuple):
    """text: standard output, None where there is none.  why: how it failed, "" where it did not or is not installed."""

    text: str | None
    why: str = ""


def ask(command: Sequence[str], timeout: float | None = None) -> Answer:
    """Run a program and read what it prints; bytes that are no UTF-8 are replaced.

    A program that takes longer, or says more than `MOST` bytes, is killed with all that it started, and is not
    waited for.
    """
    timeout = TIMEOUT if timeout is None else timeout
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError):
        return Answer(None)
    assert child.stdout is not None
    assert child.stderr is not None
    out, err = _Ear(child.stdout), _Ear(child.stderr)
    until = time.monotonic() + timeout
    while (out.is_alive() or err.is_alive()) and not (out.full or err.full) and time.monotonic() < until:
        (out if out.is_alive() else err).join(0.02)
    if out.full or err.full:
        _abandon(child, out, err)
        return Answer(None, f"more than {MOST:,} bytes")
    try:
        code = child.wait(max(until - time.monotonic(), 0.01))
    except subprocess.TimeoutExpired:
        code = None
    if code is None or out.is_alive() or err.is_alive():
        _abandon(child, out, err)
        return Answer(None, f"no answer within {timeout:g} s")
    if code != 0:
        said = " ".join((err.text or out.text).split())[:120]
        return Answer(None, f"{FAILED} {code}{f': {said}' if said else ''}")
    return Answer(out.text)


class _Ear(threading.Thread):
    """Reads a pipe to its end, or to `MOST` bytes."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self.pipe, self.heard, self.full = pipe, b"", False
        self.start()

    def run(self) -> None:
        """Listen."""
        try:
            while piece := os.read(self.pipe.fileno(), 65536):
                self.heard += piece
                if len(self.heard) > MOST:
                    self.full = True
                    return
        finally:
            self.pipe.close()

    @property
    def text(self) -> str:
        """What was heard."""
        return self.heard.decode("utf-8", "replace").replace("\r\n", "\n")


def _abandon(child: subprocess.Popen[bytes], *ears: _Ear) -> None:
    try:
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    except OSError:
        pass
    for ear in ears:
        ear.join(0.5)
    if child.poll() is None:
        # Stuck in the kernel: waiting for it would hang us as well. Its parent's end hands it to init.
        child.returncode = -signal.SIGKILL if hasattr(signal, "SIGKILL") else 1
