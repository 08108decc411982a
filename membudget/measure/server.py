"""The process that holds a server: `python -m membudget.measure.server`, started by `membudget.measure.guard`.

One JSON request comes in: {"command", "log", "seconds", "name", "together"}.  It starts the command on a free port,
waits until /health answers, reads /metrics, asks for one completion, then for all users' at once (`together`), and
ends it; {"result": ...} goes out last.  The server stays in this process group: whoever ends the group ends the server.
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
import threading
import time
import urllib.request
from http.client import HTTPException
from typing import Any

_METRIC = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PREEMPTED = re.compile(
    r"^vllm:num_preemptions(?:_total)?(?:\{[^}]*\})? ([0-9]+(?:\.[0-9]+)?(?:e\+?[0-9]+)?)$", re.MULTILINE
)
#: This machine is never asked through a proxy, whatever http_proxy says.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
#: Bytes that are read of one answer, and that a log may have before the server answers.
MAX_ANSWER, MAX_LOG = 2**24, 2**28
#: Seconds that a server may take to end after Ctrl-C.
_END = 60.0
#: Seconds that all users' prompts may take together.
TOGETHER = 1800.0


def main() -> int:
    """Answer one request; 0 when the server was started and ended."""
    request = json.loads(sys.stdin.readline())
    _end_with_parent()
    port = _free_port()
    command = [*request["command"], "--port", str(port)]
    say({"stage": "start", "port": port})
    try:
        with open(request["log"], "wb") as log:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    except (OSError, ValueError) as error:  # not there, not executable, a NUL in it
        say({"result": {"error": f"the server could not be started: {error}; its command is {command[0]!r}"}})
        return 0
    try:
        say({"result": _asked(server, port, request)})
    finally:
        _end(server)
    return 0


def say(what: dict[str, Any]) -> None:
    """One JSON line."""
    print(json.dumps(what), flush=True)


def _asked(server: subprocess.Popen[bytes], port: int, request: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    url = f"http://127.0.0.1:{port}"
    while True:
        code = server.poll()
        if code is not None:
            return {
                "error": f"the server ended with {code} before it was ready, after {time.monotonic() - began:.0f} s"
            }
        if time.monotonic() - began > request["seconds"]:
            return {"error": f"the server was not ready within {request['seconds']:.0f} s"}
        if os.path.getsize(request["log"]) > MAX_LOG:
            return {"error": f"the server was not ready, and its log is larger than {MAX_LOG:,} bytes"}
        with contextlib.suppress(OSError, HTTPException), _OPENER.open(url + "/health", timeout=2) as answer:
            if answer.status == 200:
                break
        time.sleep(0.3)
    say({"stage": "ready", "seconds": round(time.monotonic() - began)})
    out: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1)}
    try:
        with _OPENER.open(url + "/metrics", timeout=30) as answer:
            found = _METRIC.search(answer.read(MAX_ANSWER).decode("utf-8", "replace"))
        out["metrics"] = dict(_LABEL.findall(found[1])) if found else {}
        body = {"model": request["name"], "prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True, "temperature": 0}
        asked = urllib.request.Request(
            url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with _OPENER.open(asked, timeout=300) as answer:
            out["completion_tokens"] = _tokens(answer.read(MAX_ANSWER))
        if request.get("together"):
            out |= _together(url, request["name"], **request["together"])
    except (OSError, HTTPException) as error:
        out["error"] = f"the server answered no request: {error}"
    except ValueError as error:
        out["error"] = f"the server's answer to a completion is not vLLM's: {error}"
    say({"stage": "asked"})
    return out


def _together(url: str, name: str, users: int, prompt: int, tokens: int) -> dict[str, Any]:
    """All users' prompts of full length at once: how many got all of their tokens, and how often one had to wait.

    Each prompt begins with a token of its own, so that no block is shared.
    """
    answered: list[int] = []
    said: list[str] = []

    def ask(user: int) -> None:
        words = [user + 1, *[1] * (prompt - 1)]
        body = {"model": name, "prompt": words, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        asked = urllib.request.Request(
            url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with _OPENER.open(asked, timeout=TOGETHER) as answer:
                answered.append(_tokens(answer.read(MAX_ANSWER)))
        except (OSError, HTTPException, ValueError) as error:
            said.append(f"one of them: {error}")

    threads = [threading.Thread(target=ask, args=(user,), daemon=True) for user in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found: dict[str, Any] = {"together": sum(number == tokens for number in answered)}
    if said:
        found["together_said"] = said[0][:300]
    say({"stage": "together"})
    with contextlib.suppress(OSError, HTTPException), _OPENER.open(url + "/metrics", timeout=30) as answer:
        counts = _PREEMPTED.findall(answer.read(MAX_ANSWER).decode("utf-8", "replace"))
        if counts:
            found["preemptions"] = round(sum(float(count) for count in counts))
    return found


def _tokens(body: bytes) -> int:
    """The number of tokens that a completion's answer says.  Raises `ValueError` for another answer."""
    try:
        number = json.loads(body)["usage"]["completion_tokens"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{body[:80]!r} has no usage.completion_tokens") from error
    if isinstance(number, bool) or not isinstance(number, int):
        raise ValueError(f"usage.completion_tokens is {number!r:.80}, no whole number")
    return number


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(_END)
        except subprocess.TimeoutExpired:
            server.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    """End everything of this group when the parent, and with it our standard input, is gone."""

    def wait() -> None:
        sys.stdin.read()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(os.getpgid(0), getattr(signal, "SIGKILL", signal.SIGTERM))

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
