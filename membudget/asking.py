"""What a program answers, also where it hangs for good: with its driver in trouble nvidia-smi cannot even be killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

#: Seconds that a program may take to answer.
TIMEOUT = 10.0
#: The beginning of `why` where a program hung.
HANGS = "no answer"


class Answer(NamedTuple):
    """text: standard output, None where there is none.  why: how it failed, "" where it did not or is not installed."""

    text: str | None
    why: str = ""


def ask(command: Sequence[str], timeout: float | None = None) -> Answer:
    """Run a program and read what it prints; bytes that are no UTF-8 are replaced.

    A program that takes longer is killed with all that it started, and is not waited for.
    """
    timeout = TIMEOUT if timeout is None else timeout
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except (OSError, ValueError):
        return Answer(None)
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _abandon(child)
        return Answer(None, f"{HANGS} within {timeout:g} s")
    if child.returncode != 0:
        said = " ".join((err or out).split())[:120]
        return Answer(None, f"exit code {child.returncode}{f': {said}' if said else ''}")
    return Answer(out)


def _abandon(child: subprocess.Popen[str]) -> None:
    try:
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    except OSError:
        pass
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    if child.poll() is None:
        # Stuck in the kernel: waiting for it would hang us as well. Its parent's end hands it to init.
        child.returncode = -signal.SIGKILL if hasattr(signal, "SIGKILL") else 1
