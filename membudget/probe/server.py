"""The process that holds a server: `python -m membudget.probe.server`, started by `membudget.probe.guard`.

One JSON request comes in: {"command", "log", "seconds", "name"}.  It starts the command on a free port, waits until
/health answers, reads /metrics, asks for one completion, and ends it; {"result": ...} goes out last.  The server
stays in this process group: whoever ends the group ends the server.
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
from typing import Any

_METRIC = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: Seconds that a server may take to end after Ctrl-C.
_END = 60.0


def main() -> int:
    """Answer one request; 0 when the server was started and ended."""
    request = json.loads(sys.stdin.readline())
    _end_with_parent()
    port = _free_port()
    command = [*request["command"], "--port", str(port)]
    say({"stage": "start", "port": port})
    with open(request["log"], "wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
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
        with contextlib.suppress(OSError), urllib.request.urlopen(url + "/health", timeout=2) as answer:
            if answer.status == 200:
                break
        time.sleep(0.3)
    say({"stage": "ready", "seconds": round(time.monotonic() - began)})
    out: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1)}
    try:
        with urllib.request.urlopen(url + "/metrics", timeout=30) as answer:
            found = _METRIC.search(answer.read().decode())
        out["metrics"] = dict(_LABEL.findall(found[1])) if found else {}
        body = {"model": request["name"], "prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True, "temperature": 0}
        asked = urllib.request.Request(
            url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=300) as answer:
            out["completion_tokens"] = json.load(answer)["usage"]["completion_tokens"]
    except OSError as error:
        out["error"] = f"the server answered no request: {error}"
    say({"stage": "asked"})
    return out


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
