"""What a program answers: text, a failure with its words, a hang that is not waited for."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from membudget.host.command import Answer, Failure, ask

pytestmark = pytest.mark.suite


def python(code: str) -> list[str]:
    """A program."""
    return [sys.executable, "-c", code]


def test_answers_and_failures(tmp_path: Path) -> None:
    """Standard output; the exit code with what was said; nothing of a program that is not there."""
    assert ask(python("print('x')")) == Answer("x\n")
    assert ask(python("import sys; print('no', file=sys.stderr); sys.exit(9)")) == Answer(
        None, Failure.EXIT_CODE, "exit code 9: no"
    )
    assert ask(python("import sys; sys.exit(3)")) == Answer(None, Failure.EXIT_CODE, "exit code 3")
    assert ask([str(tmp_path / "nothing")]) == Answer(None, Failure.NOT_INSTALLED)
    assert ask(python("import sys; sys.stdout.buffer.write(b'\\xff\\xfe')")).text == "\ufffd\ufffd"


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_a_hang_is_left_with_all_it_started(tmp_path: Path) -> None:
    """A child that keeps the pipe open is ended too, and nobody waits for either."""
    told = tmp_path / "pid"
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(told)!r}, 'w').write(str(child.pid)); time.sleep(60)"
    )
    start = time.monotonic()
    assert ask(python(code), 1.5) == Answer(None, Failure.TIMEOUT, "no answer within 1.5 s")
    assert time.monotonic() - start < 10
    pid = int(told.read_text(encoding="utf-8"))
    until = time.monotonic() + 10
    while time.monotonic() < until and _lives(pid):
        time.sleep(0.05)
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        pass
    if os.path.isdir("/proc"):
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
