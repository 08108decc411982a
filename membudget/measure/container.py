"""A command that starts a container: made killable, or refused.

What `docker run` starts is the daemon's child, not the client's: killing the client's process group leaves the engine
running, with all of its memory.  So the container gets a name and a cidfile, and is killed by them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from membudget.errors import MembudgetError
from membudget.measure.child import Container
from membudget.text.sanitize import printable

_RUNTIMES = ("docker", "podman", "nerdctl")
#: Programs whose work another process does, and which cannot be killed by killing them.
_CLIENTS = (
    "ssh", "srun", "kubectl", "docker-compose", "podman-compose", "ctr", "crictl", "sudo", "doas", "su", "systemd-run",
    "machinectl", "flatpak", "tmux", "screen", "nohup", "at", "batch",
)  # fmt: skip
#: Programs that run the words behind their own options.
_WRAPPERS = ("env", "nice", "ionice", "chrt", "taskset", "numactl", "stdbuf", "time")
_HELP = "start it with a python that has vLLM, `vllm`, `docker run ...` or `podman run ...`"


class CannotContain(MembudgetError):
    """A command whose processes could not be killed: says why, and what to write instead."""


@dataclass(frozen=True)
class Contained:
    """A command as it is started, and the container that it makes."""

    command: tuple[str, ...]
    container: Container | None  # None for a command that makes none


def contained(command: Sequence[str], folder: str, mounts: Sequence[str] = ()) -> Contained:
    """The command with what is needed to kill its container; unchanged where it makes none.

    folder: where the cidfile goes.  mounts: folders that the container reads, at the same path inside.
    Raises `CannotContain` for `-d`, for `exec`, and for clients of other daemons.
    """
    words = list(command)
    place = _program(words)
    program = os.path.basename(words[place]) if place < len(words) else ""
    if program in _CLIENTS:
        raise CannotContain(
            f"{printable(program)} starts processes that cannot be killed from here, and a measurement must be: {_HELP}"
        )
    if program not in _RUNTIMES:
        return Contained(tuple(words), None)
    verb = next((number for number in range(place + 1, len(words)) if not words[number].startswith("-")), None)
    if words[place + 1 : place + 3] == ["container", "run"]:
        verb = place + 2
    if verb is None or words[verb] != "run":
        what = "nothing" if verb is None else printable(words[verb])
        raise CannotContain(
            f"{program} {what}: only `{program} run` gives a container that can be killed by its name; {_HELP}"
        )
    runtime = tuple(words[place:verb]) if words[verb - 1] != "container" else tuple(words[place : verb - 1])
    given = _options(words[verb + 1 :])
    if {"-d", "--detach", "--detach=true"} & set(given):
        raise CannotContain(f"{program} run -d returns at once, and its log is not read: leave -d out")
    if any(word.startswith("--restart") and "no" not in word for word in given):
        raise CannotContain(f"{program} run --restart starts again what was killed: leave --restart out")
    name = _value(given, "--name") or f"membudget-{os.getpid()}-{secrets.token_hex(4)}"
    cidfile = _value(given, "--cidfile") or os.path.join(folder, "container.id")
    more = []
    if _value(given, "--name") is None:
        more += ["--name", name]
    if _value(given, "--cidfile") is None:
        more += ["--cidfile", cidfile]
    if "--rm" not in given:
        more.append("--rm")
    if not any(word.startswith(("--network", "--net")) for word in given):
        more.append("--network=host")  # the server answers on 127.0.0.1
    if not any(word.startswith("--ipc") for word in given):
        more.append("--ipc=host")  # vLLM's workers share memory
    for path in mounts:
        more += ["--volume", f"{path}:{path}:ro"]
    return Contained(
        (*words[: verb + 1], *more, *words[verb + 1 :]), Container((*words[:place], *runtime), name, cidfile)
    )


def _program(words: Sequence[str]) -> int:
    """Where the program stands, behind wrappers, their options and variables (`env A=1 nice -n 5 docker ...`)."""
    place = 0
    while place < len(words) and os.path.basename(words[place]) in _WRAPPERS:
        place += 1
        while place < len(words) and (words[place].startswith("-") or "=" in words[place] or words[place].isdigit()):
            place += 1
    return place


def _options(words: Sequence[str]) -> list[str]:
    """The words up to the image: options, and the values of those known to take one."""
    found: list[str] = []
    place = 0
    while place < len(words) and words[place].startswith("-"):
        found.append(words[place])
        if "=" not in words[place] and words[place] in _WITH_VALUE and place + 1 < len(words):
            place += 1
            found.append(words[place])
        place += 1
    return found


#: Options of `docker run` that take their value as the next word (docker 29, `docker run --help`).
_WITH_VALUE = {
    "--add-host", "--annotation", "-a", "--attach", "--blkio-weight", "--cap-add", "--cap-drop", "--cgroup-parent",
    "--cgroupns", "--cidfile", "--cpu-period", "--cpu-quota", "-c", "--cpu-shares", "--cpus", "--cpuset-cpus",
    "--cpuset-mems", "--device", "--device-cgroup-rule", "--dns", "--domainname", "--entrypoint", "-e", "--env",
    "--env-file", "--expose", "--gpus", "--group-add", "--health-cmd", "-h", "--hostname", "--ip", "--ipc",
    "--isolation", "-l", "--label", "--label-file", "--link", "--log-driver", "--log-opt", "--mac-address", "-m",
    "--memory", "--memory-reservation", "--memory-swap", "--mount", "--name", "--network", "--net", "--network-alias",
    "--oom-score-adj", "--pid", "--pids-limit", "--platform", "-p", "--publish", "--pull", "--restart", "--runtime",
    "--security-opt", "--shm-size", "--stop-signal", "--stop-timeout", "--storage-opt", "--sysctl", "--tmpfs",
    "--ulimit", "-u", "--user", "--userns", "--uts", "-v", "--volume", "--volume-driver", "--volumes-from", "-w",
    "--workdir",
}  # fmt: skip


def _value(options: Sequence[str], name: str) -> str | None:
    """An option's value, written as two words or with an equals sign."""
    for number, word in enumerate(options):
        if word == name and number + 1 < len(options):
            return options[number + 1]
        if word.startswith(name + "="):
            return word.partition("=")[2]
    return None
