"""Servers that are none: what dies, talks nonsense or floods its log is red, and no process of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from membudget.measure import serve as serving_module
from membudget.measure import server
from membudget.measure.comparison import Comparison
from membudget.measure.serve import CannotServe, serve, server_command, serving
from tests_hw.test_served import rehearsal

pytestmark = pytest.mark.suite

#: A server of its own: what it answers to GET and to POST, in Python.
FAKE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200); self.end_headers(); self.wfile.write(body)
    def do_GET(self): self.answer({get!r})
    def do_POST(self): self.answer({post!r})
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""
ANSWER = b'{"usage": {"completion_tokens": 4}}'


def served(command: list[str]) -> Comparison:
    """The rehearsal with another command in the server's place."""
    made = replace(serving(rehearsal(), "python"), command=tuple(command))
    return serve(made, lock_file=f"/tmp/membudget.served.{os.getpid()}", available=lambda: 2**40)


def fake(get: bytes = b"", post: bytes = ANSWER) -> list[str]:
    """A command that answers so."""
    return [sys.executable, "-c", FAKE.format(get=get, post=post)]


@pytest.mark.parametrize("command", ["/nowhere/vllm", "/", "nul\0"])
def test_what_cannot_be_started(command: str) -> None:
    """A command that is not there is named, without a traceback."""
    comparison = served([command])
    assert comparison.status == "crashed"
    assert "could not be started" in comparison.why
    assert "Traceback" not in comparison.why + comparison.detail


@pytest.mark.parametrize(
    "post", [b"", b"garbage{", b"{}", b"[]", b"null", b'{"usage": {"completion_tokens": "4"}}', b"\xff"]
)
def test_an_answer_that_is_none(post: bytes) -> None:
    """A completion without a number of tokens is red, and the answer is shown."""
    comparison = served(fake(post=post))
    assert comparison.status == "crashed"
    assert "not vLLM's" in comparison.why
    assert "usage.completion_tokens" in comparison.why


@pytest.mark.parametrize("said", ["nan", "inf", "x", "", "None"])
def test_figures_that_are_none(said: str) -> None:
    """Figures of /metrics that are no numbers are not measured, and never compared."""
    comparison = served(fake(get=f'vllm:cache_config_info{{num_gpu_blocks="{said}"}} 1\n'.encode() + b"\xff"))
    found = {row.name: row.measured for row in comparison.rows}
    assert comparison.status == "done"
    assert found["num_blocks"] is None
    assert found["answered"] == 4


def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server on this machine is reached where http_proxy names one that is not there."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert served(fake()).status == "done"


def test_a_long_garbled_log(tmp_path: Path) -> None:
    """The end of a log of any length is read and shown, without what moves a terminal's cursor."""
    log = tmp_path / "vllm.log"
    with log.open("wb") as file:
        file.truncate(2**36)  # 64 GiB of nothing: a sparse file
        file.seek(0, os.SEEK_END)
        file.write(b"\nan error\x1b[2J\xff\n")
    assert serving_module._tail(str(log)).splitlines()[-1].startswith("an error\\x1b[2J")


def test_a_flood_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A server that writes and writes before it answers is ended by the size of its log."""
    monkeypatch.setattr(server, "MAX_LOG", 1000)
    log = tmp_path / "vllm.log"
    log.write_bytes(b"x" * 2000)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        said = server._asked(process, server._free_port(), {"seconds": 30, "log": str(log), "name": "m"})
        process.kill()
    assert "its log is larger than 1,000 bytes" in said["error"]


@pytest.mark.parametrize("text", ["", "   ", 'podman "run', "'"])
def test_commands_that_are_none(text: str) -> None:
    """What no shell would take for a command is refused, with what is allowed."""
    with pytest.raises(CannotServe, match="the vLLM command"):
        server_command(text, "m", [])


def test_a_command_may_have_spaces(tmp_path: Path) -> None:
    """A file is taken whole; a container's command is split as a shell does."""
    python = tmp_path / "my python"
    python.touch()
    assert server_command(str(python), "m", [])[:2] == [str(python), "-m"]
    assert server_command('podman run -e "A=b c" image', "m", ["--x"])[2:] == [
        "-e",
        "A=b c",
        "image",
        "--model",
        "m",
        "--x",
    ]


_INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from tests_hw.test_hostile_servers import served
served(["bash", "-c", "setsid sleep 600 & echo $! > {pids}; sleep 600 & echo $! >> {pids}; echo $$ >> {pids}; wait"])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found by Linux's /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_ctrl_c(number: int, tmp_path: Path) -> None:
    """After Ctrl-C, its children, those that left the group too, are gone; after kill -9 those of the group."""
    pids, root = tmp_path / "pids", str(Path(__file__).parent.parent)
    command = [sys.executable, "-c", _INTERRUPTED.format(pids=pids)]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (pids.exists() and len(pids.read_text().split()) == 3) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)  # the guard looks ten times a second
        process.send_signal(number)
    escaped, *left = map(int, pids.read_text().split())
    left += [escaped] if number == signal.SIGINT else []
    try:
        while any(map(_alive, left)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not [pid for pid in left if _alive(pid)]
    finally:
        if _alive(escaped):
            os.kill(escaped, signal.SIGKILL)


def _alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
