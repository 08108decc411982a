"""The end of a measurement, on real processes: how fast it is, that nobody survives it, that memory is waited for."""

from __future__ import annotations

import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from membudget.host import processes
from membudget.measure import guard
from membudget.measure.container import CannotContain, contained
from membudget.measure.status import Status
from membudget.units import GIB

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: /proc, subreapers, PR_SET_PDEATHSIG"),
]

FLOOR = guard.Limits(peak=0, reserve=0, floor=20 * GIB, seconds=60.0)
#: A child that starts two more, one of them in a session of its own, and says so.
FAMILY = [
    "sh", "-c", "sleep 300 & setsid sleep 300 & sleep 0.05; echo '{\"stage\": \"up\"}'; exec sleep 300",
]  # fmt: skip


def _gone(pid: int, seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if processes.started(pid) is None:
            return True
        time.sleep(0.02)
    return False


def _rehearse(times: int) -> list[float]:
    """Seconds from the look that saw the floor crossed until the last process was gone."""
    found = []
    for _ in range(times):
        up: list[dict[str, object]] = []
        outcome = guard.run(
            FAMILY,
            {},
            FLOOR,
            available=lambda up=up: (19 if up else 100) * GIB,
            report=up.append,  # type: ignore[misc]
        )
        assert (outcome.status, outcome.left) == (Status.KILLED, 0)
        assert outcome.killed_in is not None
        found.append(outcome.killed_in)
    return found


def test_from_the_floor_to_nobody_left() -> None:
    """A tree of three processes is gone in well under the second that a Spark's 20 GiB are for."""
    took = _rehearse(5)
    assert statistics.median(took) < 1.0, took


@pytest.mark.slow
def test_from_the_floor_to_nobody_left_on_a_full_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """The same 50 times, with 10,000 more processes on the machine."""
    others = subprocess.Popen(
        ["sh", "-c", "i=0; while [ $i -lt 10000 ]; do sleep 3000 & i=$((i+1)); done; echo up; wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert others.stdout is not None
        assert others.stdout.readline() == b"up\n"
        took = sorted(_rehearse(50))
    finally:
        os.killpg(others.pid, signal.SIGKILL)
        others.wait()
        assert others.stdout is not None
        others.stdout.close()
    with capsys.disabled():
        print(
            f"\nfrom crossing to gone, 10,000 processes: median {statistics.median(took):.3f} s, worst {took[-1]:.3f} s"
        )
    # MemAvailable fell 14.2 GiB a second: 20 GiB last 1.4 s
    assert took[44] < 1.4, took


@pytest.mark.parametrize("killed", ["guard", "keeper"])
def test_nobody_survives_a_killed_parent(killed: str, tmp_path: Path) -> None:
    """SIGKILL of the guard's process ends the whole tree, sessions of their own too; of the keeper, its child."""
    pids = tmp_path / "pids"
    code = (
        "import sys\nfrom membudget.measure import guard\n"
        "guard.run(['sh', '-c', sys.argv[1]], {}, guard.Limits(0, 0, 0, 60.0), available=lambda: 2**40)"
    )
    family = (
        f"sleep 300 & echo $! >> {pids}; setsid sleep 300 & echo $! >> {pids}; echo $PPID $$ >> {pids}; exec sleep 300"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, family], cwd=Path(__file__).parents[1])
    until = time.monotonic() + 20
    while time.monotonic() < until and not (pids.exists() and len(pids.read_text().split()) == 4):
        time.sleep(0.02)
    in_group, in_session, keeper, child = map(int, pids.read_text().split())
    try:
        os.kill(parent.pid if killed == "guard" else keeper, signal.SIGKILL)
        assert _gone(child)
        if killed == "guard":
            assert _gone(in_group)
            assert _gone(in_session)
            assert _gone(keeper)
    finally:
        parent.kill()
        parent.wait()
        for pid in (in_group, in_session):
            if processes.started(pid) is not None:
                os.kill(pid, signal.SIGKILL)


class Daemon:
    """Stands for a container's daemon: `docker run` asks it for a process, `docker kill` for its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.docker = folder / "docker"
        # its client: writes the id, asks, and waits, as docker's does
        self.docker.write_text(
            f"#!{sys.executable}\n"
            "import os, sys, time\nfrom pathlib import Path\n"
            f"folder = Path({str(folder)!r})\n"
            "words = sys.argv[1:]\n"
            "if words[0] == 'kill':\n"
            "    (folder / f'kill-{words[1]}').touch(); sys.exit(0)\n"
            "options = dict(zip(words, words[1:]))\n"
            "name = options['--name']\n"
            "Path(options['--cidfile']).write_text(name)\n"
            "(folder / f'run-{name}').touch()\n"
            'print(\'{"stage": "client"}\', flush=True)\n'
            "time.sleep(300)\n",
            encoding="utf-8",
        )
        self.docker.chmod(0o755)
        code = (
            "import os, subprocess, sys, time\nfrom pathlib import Path\nfolder, running = Path(sys.argv[1]), {}\n"
            "while True:\n"
            "    for file in folder.glob('run-*'):\n"
            "        name = file.name[4:]\n"
            "        if name not in running:\n"
            "            running[name] = subprocess.Popen(['sleep', '300'])\n"
            "            (folder / 'pid').write_text(str(running[name].pid))\n"
            "    for file in folder.glob('kill-*'):\n"
            "        if file.name[5:] in running: running[file.name[5:]].kill(); running[file.name[5:]].wait()\n"
            "    time.sleep(0.02)\n"
        )
        self.process = subprocess.Popen([sys.executable, "-c", code, str(folder)], start_new_session=True)

    def engine(self) -> int:
        """The pid of what runs in the container."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if (self.folder / "pid").exists() and (text := (self.folder / "pid").read_text()):
                return int(text)
            time.sleep(0.02)
        raise AssertionError("nothing was started")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon, ended with all it started."""
    made = Daemon(tmp_path)
    yield made
    os.killpg(made.process.pid, signal.SIGKILL)
    made.process.wait()


def test_a_container_is_killed_with_its_client(daemon: Daemon, tmp_path: Path) -> None:
    """The engine is the daemon's child: under the floor it ends too, by the name that was given to it."""
    made = contained([str(daemon.docker), "run", "--gpus", "all", "image"], str(tmp_path))
    assert made.container is not None
    seen: list[int] = []

    def available() -> int:
        if (tmp_path / "pid").exists():
            seen[:] = seen or [daemon.engine()]
        return 19 * GIB if seen else 100 * GIB

    outcome = guard.run(made.command, {}, FLOOR, available=available, container=made.container)
    assert outcome.status is Status.KILLED
    assert _gone(seen[0])


def test_a_container_does_not_survive_a_killed_guard(daemon: Daemon, tmp_path: Path) -> None:
    """SIGKILL of the process that measures: the keeper ends the container."""
    code = (
        "import sys\nfrom membudget.measure import guard\nfrom membudget.measure.container import contained\n"
        "made = contained([sys.argv[1], 'run', 'image'], sys.argv[2])\n"
        "guard.run(made.command, {}, guard.Limits(0, 0, 0, 60.0), available=lambda: 2**40, container=made.container)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(daemon.docker), str(tmp_path)], cwd=Path(__file__).parents[1]
    )
    engine = daemon.engine()
    parent.kill()
    parent.wait()
    assert _gone(engine)


@pytest.mark.parametrize(
    "command",
    [
        "docker run -d image", "docker run --detach image", "docker exec box vllm", "docker compose run vllm",
        "ssh spark vllm serve", "sudo docker run image", "kubectl run vllm", "docker run --restart always image",
        "docker run --restart=always image", "env A=1 sudo vllm", "nice -n 5 systemd-run vllm", "docker",
    ],
)  # fmt: skip
def test_what_cannot_be_killed_is_refused(command: str, tmp_path: Path) -> None:
    """Clients of daemons other than a container that has a name."""
    with pytest.raises(CannotContain):
        contained(shlex.split(command), str(tmp_path))


def test_what_is_added_to_a_container(tmp_path: Path) -> None:
    """A name, a cidfile, the host's network and a mount; what the user gave stays, and the image's own words too."""
    made = contained(shlex.split("docker run --gpus all -v /a:/b image --name model"), str(tmp_path), ["/models/x"])
    assert made.container is not None
    words = list(made.command)
    assert words[:2] == ["docker", "run"]
    assert words[-7:] == ["--gpus", "all", "-v", "/a:/b", "image", "--name", "model"]
    assert words[words.index("--name") + 1] == made.container.name != "model"
    assert words[words.index("--cidfile") + 1] == made.container.cidfile
    assert "--network=host" in words
    assert "/models/x:/models/x:ro" in words
    given = contained(shlex.split("podman run --name=mine --network none image"), str(tmp_path))
    assert given.container is not None
    assert (given.container.name, given.container.runtime) == ("mine", ("podman",))
    assert "--network=host" not in given.command
    plain = contained(["env", "A=1", "python", "-m", "vllm"], str(tmp_path))
    assert (plain.command, plain.container) == (("env", "A=1", "python", "-m", "vllm"), None)


def test_memory_is_waited_for() -> None:
    """What a driver gives back late is waited for; what does not come back is counted."""
    answers = iter([80, 85, 95, 99])
    assert guard.wait_until_back(100 * GIB, lambda: next(answers, 100) * GIB) == 0
    assert guard.wait_until_back(100 * GIB, lambda: 70 * GIB, seconds=0.1) == 30 * GIB
    assert guard.wait_until_back(None, lambda: 70 * GIB, seconds=0.1) == 0


def test_a_fall_past_the_peak_is_ended_above_the_floor() -> None:
    """20 GiB more than predicted, 60 GiB within a second: ended although 50 are available; the peak itself is not."""
    seen = iter([120, 120, 100, 70, 50])
    allowed = guard.Limits(peak=40 * GIB, reserve=0, floor=20 * GIB, seconds=60.0)
    outcome = guard.run(["sleep", "60"], {}, allowed, available=lambda: next(seen, 50) * GIB)
    assert outcome.status is Status.KILLED
    assert "past its predicted peak" in outcome.why
    calm = iter([120, 120, 82])
    allowed = guard.Limits(peak=40 * GIB, reserve=0, floor=20 * GIB, seconds=1.5)
    assert guard.run(["sleep", "60"], {}, allowed, available=lambda: next(calm, 82) * GIB).status is Status.TIMEOUT
