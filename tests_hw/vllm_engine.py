"""Real vLLM engines for the tests: many in forks of one process, and a server that is started, asked and ended.

Everything runs in its own session (process group), so that ending it can be proven:
`left_behind` looks for any process of that session.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: Lines of a log that a failure shows.
TAIL = 25
_METRIC = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class EngineFailed(RuntimeError):
    """vLLM did not do what it was asked to: why, and the end of its log."""


def cpu_flags() -> frozenset[str]:
    """Instruction sets of this CPU, as Linux names them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def tail(path: Path, lines: int = TAIL) -> str:
    """The end of a log, or that there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(text[-lines:]) or "(the log is empty)"


def left_behind(session: int) -> list[str]:
    """Processes of a session that still run, as ``pid name``."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(encoding="utf-8")
        except OSError:
            continue
        name, _, rest = text.partition(" (")[2].rpartition(") ")
        fields = rest.split()
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(f"{entry.name} {name}")
    return found


def end_session(process: subprocess.Popen[bytes], seconds: float = 10) -> None:
    """End every process of a session, gently and then not."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            process.poll()
            if process.returncode is not None and not left_behind(process.pid):
                return
            time.sleep(0.1)


def run_forks(
    python: str, cases: Sequence[Mapping[str, Any]], folder: Path, *, seconds: float = 180, say: bool = True
) -> dict[str, dict[str, Any]]:
    """Start one engine a case in forks of one vLLM process; results by name, ``version`` under "".

    seconds: limit of one case; the whole has that for every case and three minutes more.
    Raises `EngineFailed` when the process itself fails; a case that fails is a result with ``error``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job, results, log = folder / "job.json", folder / "results.jsonl", folder / "forks.log"
    job.write_text(json.dumps({"folder": str(folder), "seconds": seconds, "cases": list(cases)}), encoding="utf-8")
    environment = {**os.environ, "VLLM_CACHE_ROOT": str(folder / "cache")}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [python, str(HERE / "vllm_forks.py"), str(job), str(results)],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        try:
            _watch(process, log, 180 + seconds * len(cases), "started", say)
        finally:
            end_session(process)
    if process.returncode != 0 or not results.exists():
        raise EngineFailed(f"the fork server ended with {process.returncode}\n{tail(log)}")
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return {line.get("name", ""): line for line in lines}


def _watch(process: subprocess.Popen[bytes], log: Path, seconds: float, word: str, say: bool) -> None:
    began, shown = time.monotonic(), 0
    while process.poll() is None:
        if time.monotonic() - began > seconds:
            raise EngineFailed(f"not {word} within {seconds:.0f} s\n{tail(log)}")
        if say and log.exists():
            text = log.read_text(encoding="utf-8", errors="replace")
            for line in text[shown:].splitlines():
                if ": started" in line or "imported" in line:
                    print(f"  {line}", file=sys.__stderr__, flush=True)
            shown = len(text)
        time.sleep(0.2)


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A vLLM server in its own session: start, ready, asked, stopped; its log in a file.

    with Server(command, port, folder) as server:
        server.wait(300)
        server.cache_config()
    """

    def __init__(
        self, command: Sequence[str], port: int, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.command, self.port, self.log = list(command), port, folder / "server.log"
        self.environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(folder / "cache"),
            **(environment or {}),
        }
        self.environment.pop("VLLM_CPU_KVCACHE_SPACE", None)
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                self.command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=self.environment,
            )
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process is not None:
            end_session(self.process)

    @property
    def session(self) -> int:
        """The server's session, 0 before it is started."""
        return self.process.pid if self.process is not None else 0

    def wait(self, seconds: float, say: bool = True) -> float:
        """Wait until /health answers; returns the seconds.  A crash, a signal or a hang is an `EngineFailed`."""
        process = self.process
        assert process is not None
        began = told = time.monotonic()
        while True:
            code = process.poll()
            now = time.monotonic()
            if code is not None:
                how = f"killed by signal {-code}" if code < 0 else f"ended with {code}"
                raise EngineFailed(f"the server {how} before it was ready, after {now - began:.0f} s\n{tail(self.log)}")
            if self._status("/health") == 200:
                return now - began
            if now - began > seconds:
                raise EngineFailed(f"the server was not ready within {seconds:.0f} s\n{tail(self.log)}")
            if say and now - told > 10:
                last = tail(self.log, 1)[-100:]
                print(f"  waiting for vLLM, {now - began:.0f} s: {last}", file=sys.__stderr__, flush=True)
                told = now
            time.sleep(0.2)

    def cache_config(self) -> dict[str, str]:
        """The labels of vllm:cache_config_info at /metrics."""
        text = self._get("/metrics")
        found = _METRIC.search(text)
        if found is None:
            raise EngineFailed(f"/metrics has no vllm:cache_config_info\n{text[:2000]}")
        return dict(_LABEL.findall(found[1]))

    def complete(self, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        """One completion of token ids; the usage it reports."""
        body = {"model": "tiny", "prompt": list(prompt), "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        request = urllib.request.Request(
            self._url("/v1/completions"), json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                usage = json.load(answer)["usage"]
        except (OSError, urllib.error.HTTPError) as error:
            raise EngineFailed(f"the request failed: {error}\n{tail(self.log)}") from None
        return dict(usage)

    def stop(self, seconds: float = 60) -> int:
        """Ctrl-C, and wait; returns the exit code.  What is left after that is an `EngineFailed`."""
        process = self.process
        assert process is not None
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise EngineFailed(f"the server did not end within {seconds:.0f} s\n{tail(self.log)}") from None
        limit = time.monotonic() + 10
        while (left := left_behind(process.pid)) and time.monotonic() < limit:
            time.sleep(0.1)
        if left:
            raise EngineFailed(f"left running: {', '.join(left)}\n{tail(self.log)}")
        return code

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self._url(path), timeout=30) as answer:
            return str(answer.read().decode())

    def _status(self, path: str) -> int | None:
        try:
            with urllib.request.urlopen(self._url(path), timeout=2) as answer:
                return int(answer.status)
        except (OSError, urllib.error.URLError):
            return None
