"""Runs a program and reads its answer, also where it hangs: with its driver in trouble nvidia-smi cannot be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import IO

#: Seconds that a program may take to answer, and bytes that its answer may have.
TIMEOUT = 10.0
MOST = 2**20


class Failure(StrEnum):
    """Why a program gave no answer."""

    NOT_INSTALLED = "not_installed"
    EXIT_CODE = "exit_code"  # it ended by itself, and said no
    TIMEOUT = "timeout"
    TOO_LONG = "too_long"  # more than `MOST` bytes


@dataclass(frozen=True)
class Answer:
    """What a program said."""

    text: str | None  # standard output; None where there is no answer
    failure: Failure | None = None
    detail: str = ""  # for people: "exit code 9: No devices were found"

    @property
    def stuck(self) -> bool:
        """Whether the program is in trouble: asking again would cost as much time and say as little."""
        return self.failure in (Failure.TIMEOUT, Failure.TOO_LONG)


def ask(command: Sequence[str], timeout: float | None = None) -> Answer:
    """The answer of a program; bytes that are not UTF-8 are replaced.

    A program that takes longer, or prints more than `MOST` bytes, is killed with everything that it started, and is
    not waited for.
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
        return Answer(None, Failure.NOT_INSTALLED)
    assert child.stdout is not None
    assert child.stderr is not None
    out, err = _Reader(child.stdout), _Reader(child.stderr)
    until = time.monotonic() + timeout
    while (out.is_alive() or err.is_alive()) and not (out.full or err.full) and time.monotonic() < until:
        (out if out.is_alive() else err).join(0.02)
    if out.full or err.full:
        _abandon(child, out, err)
        return Answer(None, Failure.TOO_LONG, f"more than {MOST:,} bytes")
    try:
        code = child.wait(max(until - time.monotonic(), 0.01))
    except subprocess.TimeoutExpired:
        code = None
    if code is None or out.is_alive() or err.is_alive():
        _abandon(child, out, err)
        return Answer(None, Failure.TIMEOUT, f"no answer within {timeout:g} s")
    if code != 0:
        printed = " ".join((err.text or out.text).split())[:120]
        return Answer(None, Failure.EXIT_CODE, f"exit code {code}{f': {printed}' if printed else ''}")
    return Answer(out.text)


class _Reader(threading.Thread):
    """Reads a pipe to its end, or to `MOST` bytes."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self.pipe, self.read, self.full = pipe, b"", False
        self.start()

    def run(self) -> None:
        """Read."""
        try:
            while piece := os.read(self.pipe.fileno(), 65536):
                self.read += piece
                if len(self.read) > MOST:
                    self.full = True
                    return
        finally:
            self.pipe.close()

    @property
    def text(self) -> str:
        """What was read."""
        return self.read.decode("utf-8", "replace").replace("\r\n", "\n")


def _abandon(child: subprocess.Popen[bytes], *readers: _Reader) -> None:
    try:
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    except OSError:
        pass
    for reader in readers:
        reader.join(0.5)
    if child.poll() is None:
        # Stuck in the kernel: waiting for it would hang us as well. Its parent's end hands it to init.
        child.returncode = -signal.SIGKILL if hasattr(signal, "SIGKILL") else 1
