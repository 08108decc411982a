"""A hub that hangs, drips, is busy, or sends more than it says: each ends soon, with a word of ours."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.suite
pytest.importorskip("huggingface_hub", reason="huggingface_hub is in the [hub] and [test] extras")

CONFIG = json.dumps({
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128,
    "intermediate_size": 96,
}).encode()  # fmt: skip
Answer = Callable[[BaseHTTPRequestHandler], None]


def send(handler: BaseHTTPRequestHandler, content: bytes, status: int = 200, **headers: str) -> None:
    """One whole answer, with what huggingface_hub wants to see."""
    handler.send_response(status)
    known = {"ETag": '"abc"', "X-Repo-Commit": "c0ffee" * 6 + "c0ff", "Content-Length": str(len(content))}
    for name, value in {**known, **{key.replace("_", "-"): value for key, value in headers.items()}}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(content)


def good(handler: BaseHTTPRequestHandler) -> None:
    """config.json as it should be; nothing else is there."""
    if handler.path.endswith("config.json") and "quant" not in handler.path:
        send(handler, CONFIG)
    else:
        send(handler, b"", 404, X_Error_Code="EntryNotFound")


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, for ever."""
    command, handler.command = handler.command, "HEAD"
    send(handler, b"", Content_Length="1000000")
    for _ in range(2000 if command == "GET" else 0):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def hang(handler: BaseHTTPRequestHandler) -> None:
    """The connection is taken, and nothing is said."""
    time.sleep(60)


def busy(status: int, after: str) -> Answer:
    """Busy, with a Retry-After."""
    return lambda handler: send(handler, b"", status, **({"Retry_After": after} if after else {}))


def bomb(handler: BaseHTTPRequestHandler) -> None:
    """64 MiB of JSON in 64 kB."""
    send(handler, gzip.compress(b'{"a": "' + b" " * 2**26 + b'"}', 6), Content_Encoding="gzip")


def twice(handler: BaseHTTPRequestHandler, seen: list[int] = []) -> None:  # noqa: B006
    """Busy once, then as it should be."""
    seen.append(1)
    if len(seen) == 1:
        send(handler, b"", 503)
    else:
        good(handler)


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """Start a server that answers everything in one way; its address."""
    servers = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                try:
                    if self.path.startswith("/api/"):  # huggingface_hub's own questions about its surroundings
                        send(self, b"", 404)
                    else:
                        answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_HEAD = do_GET

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.socket.close()


#: Our bounds, shortened.
SHORT = "import membudget.sources.locate as l, membudget.sources.small as s; s.WAITS = (0.1, 0.1)\n"


def command(url: str, home: Path, code: str) -> list[Any]:
    """A process of its own: huggingface_hub reads the endpoint once."""
    keep = {key: value for key, value in os.environ.items() if not key.upper().startswith(("HF_", "HUGGING"))}
    keep = {key: value for key, value in keep.items() if not key.upper().endswith("_PROXY")}
    root = str(Path(__file__).parents[2])
    keep |= {"PYTHONPATH": root, "HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    return [[sys.executable, "-c", SHORT + code], keep]


def count(url: str, home: Path, bound: float) -> tuple[int, str, float]:
    """`membudget count org/model` with a bound on one file: exit code, what it printed, and seconds."""
    code = f"l.FILE_SECONDS = {bound}; from membudget.cli.main import main; sys_exit = main(['count', 'org/model'])\n"
    argv, env = command(url, home, code)
    argv[-1] += "import sys, os; sys.stdout.flush(); sys.stderr.flush(); os._exit(sys_exit)"
    start = time.monotonic()
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - start


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (good, 0, "params"),
        (twice, 0, "params"),
        (hang, 3, "did not answer within 0.6 s"),
        (drip, 3, "did not answer within 0.6 s"),
        (busy(429, "1000"), 3, "429, and asks to wait 1,000 s"),
        (busy(503, ""), 3, "it answers 503"),
        (bomb, 2, "config.json: is larger than 16,777,216 bytes"),
    ],
    ids=["good", "busy-once", "hang", "drip", "429", "503", "gzip"],
)
def test_it_ends_soon(serve: Callable[[Answer], str], tmp_path: Path, answer: Answer, code: int, said: str) -> None:
    """The answer or one clear refusal, well within ten seconds, and no large file left behind."""
    found, text, seconds = count(serve(answer), tmp_path, 0.6 if answer in (hang, drip) else 9)
    assert (found, said in text) == (code, True), text
    assert seconds < 10
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 2**20


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_the_waiting(serve: Callable[[Answer], str], tmp_path: Path) -> None:
    """While the hub hangs: exit code 130 at once, and no traceback."""
    code = "l.FILE_SECONDS = 50; from membudget.sources import waiting; print('ready', flush=True)\n"
    asked = threading.Event()

    def hangs(handler: BaseHTTPRequestHandler) -> None:
        asked.set()
        hang(handler)

    argv, env = command(serve(hangs), tmp_path, code + "from membudget.cli.main import entry; import sys\n")
    # a shell's background jobs, and all that they start, ignore it
    argv[-1] += "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    argv[-1] += "sys.argv = ['membudget', 'count', 'org/model']; entry()"
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        assert asked.wait(30)  # it waits for the hub now, however busy this machine is
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        _, err = process.communicate(timeout=40)
    assert (process.returncode, "Traceback" in err) == (130, False), err
    assert time.monotonic() - start < 25  # of the 50 s that it would wait


def test_a_terminal_sees_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr, and none where nobody looks."""
    from membudget.sources import waiting

    monkeypatch.setattr(waiting, "_SAY_AFTER", 0.1)
    for looks in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda looks=looks: looks)
        assert waiting.bounded(lambda: threading.Event().wait(0.5), "org/model/config.json", 5) is False
        err = capsys.readouterr().err
        assert err.count("waiting for the hub: org/model/config.json (at most 5 s, Ctrl-C ends it)") == looks
