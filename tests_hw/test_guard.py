"""The guard, on real processes: nothing a child does may hang the run, lose it, or take the floor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from membudget.host import system
from membudget.measure import guard, lock
from membudget.units import GIB, MIB

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: the guard reads /proc"),
]

CALM = guard.Limits(peak=0, reserve=0, floor=0, seconds=30.0)
#: What every child here may take for real: the floor is set this far under what is available.
ROOM = 600 * MIB


def _run(code: str, limits: guard.Limits = CALM, **more: object) -> guard.Outcome:
    return guard.run([sys.executable, "-u", "-c", code], {"ask": 1}, limits, **more)  # type: ignore[arg-type]


def _alive(marker: str) -> list[str]:
    """Processes whose environment carries the marker."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and marker.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                found.append(entry)
        except OSError:
            continue
    return found


def test_result_and_stages_come_back() -> None:
    """A child that reports stages and a result is done, and it was given its request."""
    code = (
        "import json, sys; ask = json.loads(sys.stdin.readline())['ask'];"
        "print(json.dumps({'stage': 'load'})); print(json.dumps({'result': {'bytes': ask}}))"
    )
    heard: list[dict[str, object]] = []
    outcome = _run(code, report=heard.append)
    assert (outcome.status, outcome.result, outcome.last_stage) == ("done", {"bytes": 1}, "load")
    assert heard == [{"stage": "load"}]


def test_endless_allocation_is_killed_and_the_floor_kept() -> None:
    """A child that allocates and touches memory without end is killed with the floor kept."""
    available = system.available()
    assert available is not None
    floor = available - ROOM
    code = (
        "import json, time; print(json.dumps({'stage': 'growing'})); kept = []\n"
        "while True: kept.append(bytearray(b'x') * (8 << 20)); time.sleep(0.02)"
    )
    outcome = _run(code, guard.Limits(peak=0, reserve=0, floor=floor - ROOM, seconds=60.0))
    assert outcome.status == "killed"
    assert "under the floor" in outcome.why
    assert outcome.last_stage == "growing"
    # 8 MiB every 20 ms and ten looks a second: what it took beyond the floor is small
    assert outcome.lowest is not None
    assert outcome.lowest > floor - ROOM - 400 * MIB


def test_disabled_watchdog_would_be_noticed() -> None:
    """With a floor of nothing the same child runs into its time limit instead: the floor is what stops it."""
    code = "import time\nkept = [bytearray(b'x') * (8 << 20) for _ in range(4)]\ntime.sleep(60)"
    outcome = _run(code, guard.Limits(peak=0, reserve=0, floor=0, seconds=1.0))
    assert outcome.status == "timeout"


@pytest.mark.parametrize("session", ["", "os.setsid();"])
def test_grandchildren_die_too(session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that forks, even into a session of its own, leaves nobody behind."""
    marker = f"MEMBUDGET_TEST_MARK={os.getpid()}{bool(session)}"
    monkeypatch.setenv(*marker.split("="))
    code = (
        "import os, time\n"
        f"for _ in range(3):\n    if os.fork() == 0:\n        {session} time.sleep(300); os._exit(0)\n"
        "time.sleep(300)"
    )
    outcome = _run(code, guard.Limits(peak=0, reserve=0, floor=0, seconds=1.5))
    assert outcome.status == "timeout"
    deadline = time.monotonic() + 5
    while len(_alive(marker)) > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _alive(marker) == []


def test_sigterm_ignored_is_killed() -> None:
    """A child that ignores SIGTERM gets SIGKILL."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
    outcome = _run(code, guard.Limits(peak=0, reserve=0, floor=0, seconds=2.0))
    assert outcome.status == "timeout"
    assert outcome.exit_code == -9
    assert outcome.seconds < 10


def test_garbage_is_counted_not_believed() -> None:
    """A child that writes garbage is crashed, with the number of its lines that say nothing."""
    code = "import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\n[1]\\n{}\\nNaN\\n' + b'x' * 5_000_000 + b'\\n')"
    outcome = _run(code)
    assert outcome.status == "crashed"
    assert outcome.result is None
    assert outcome.garbage >= 5


def test_garbage_around_a_result_does_not_lose_it() -> None:
    """Lines that a library prints on stdout do not lose a result."""
    outcome = _run("print('loading...'); print('{\"result\": {\"bytes\": 7}}'); print('bye')")
    assert (outcome.status, outcome.result, outcome.garbage) == ("done", {"bytes": 7}, 2)


def test_death_before_the_first_line() -> None:
    """A child that dies before its first line is crashed, with its last words."""
    outcome = _run("import os, sys; print('last words', file=sys.stderr); sys.stderr.flush(); os.abort()")
    assert outcome.status == "crashed"
    assert "before its first report" in outcome.why
    assert "SIGABRT" in outcome.why
    assert "last words" in outcome.stderr


def test_exit_zero_without_a_result_is_a_crash() -> None:
    """Ending well without an answer is not done."""
    assert _run("pass").status == "crashed"


def test_open_pipe_of_a_grandchild_does_not_hang() -> None:
    """A daemon that inherits the pipes does not keep the guard waiting."""
    code = (
        "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(300); os._exit(0)\n"
        "time.sleep(0.5); print('{\"result\": {}}')"
    )
    outcome = _run(code)
    assert outcome.status == "done"
    assert outcome.seconds < 10


def test_does_not_start_what_cannot_fit() -> None:
    """Predicted peak + reserve over what is available: not started, and both numbers are said."""
    limits = guard.Limits(peak=100 * GIB, reserve=12 * GIB, floor=0, seconds=1.0)
    outcome = _run("raise SystemExit(3)", limits, available=lambda: 40 * GIB)
    assert outcome.status == "refused"
    assert "112.00 GiB" in outcome.why
    assert "40.00 GiB is available" in outcome.why


def test_blindness_is_no_permission() -> None:
    """Where available memory cannot be read nothing starts, and what runs is ended."""
    assert _run("pass", available=lambda: None).status == "refused"
    answers = iter([40 * GIB, 40 * GIB])
    outcome = _run("import time; time.sleep(60)", available=lambda: next(answers, None))
    assert outcome.status == "killed"
    assert "no longer be read" in outcome.why


def test_two_at_once_is_refused(tmp_path: Path) -> None:
    """A second process on the same machine is told who measures and what to do."""
    path = str(tmp_path / "lock")
    code = (
        "import sys; from membudget.measure import lock\n"
        "try:\n    with lock.machine_lock(sys.argv[1]): print('held')\n"
        "except lock.Busy as error: print(error)"
    )
    ask = [sys.executable, "-c", code, path]
    with lock.machine_lock(path):
        said = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
        assert f"process {os.getpid()}" in said
        assert "is measuring on this machine" in said
        assert "Wait for it to end" in said
    assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == "held\n"
