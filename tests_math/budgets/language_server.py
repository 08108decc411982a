"""A client of the Language Server Protocol, as small as the editor tests need: framing, requests, diagnostics."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Seconds that one answer may take.
TIMEOUT = 60


class LanguageServer:
    """A server over stdio; a context manager that ends it."""

    def __init__(self, command: Sequence[str], settings: dict[str, Any]) -> None:
        self.settings = settings
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.diagnostics: dict[str, queue.Queue[list[dict[str, Any]]]] = {}
        self.number = 0
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def __enter__(self) -> LanguageServer:
        can = {"textDocument": {"hover": {"contentFormat": ["markdown"]}}, "workspace": {"configuration": True}}
        self.request("initialize", {"processId": None, "rootUri": None, "capabilities": can})
        self.notify("initialized", {})
        self.notify("workspace/didChangeConfiguration", {"settings": self.settings})
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT)
        self.reader.join(TIMEOUT)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def notify(self, method: str, params: Any) -> None:
        """Say something that has no answer."""
        self._send({"method": method, "params": params})

    def request(self, method: str, params: Any) -> Any:
        """Ask, and wait for the answer."""
        self.number += 1
        self._send({"id": self.number, "method": method, "params": params})
        while True:
            answer = self.answers.get(timeout=TIMEOUT)
            if answer["id"] == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path: Path, text: str) -> list[dict[str, Any]]:
        """Open a document; what the server finds wrong with it."""
        uri = path.as_uri()
        self.diagnostics[uri] = queue.Queue()
        self.notify(
            "textDocument/didOpen",
            {"textDocument": {"uri": uri, "languageId": "yaml", "version": 1, "text": text}},
        )
        return self.diagnostics[uri].get(timeout=TIMEOUT)

    def at(self, method: str, path: Path, line: int, character: int) -> Any:
        """Ask about one position, from 0."""
        place = {"textDocument": {"uri": path.as_uri()}, "position": {"line": line, "character": character}}
        return self.request(method, place)

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)
        self.process.stdin.flush()

    def _read(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        while True:
            size = 0
            while line := stream.readline().strip():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    size = int(value)
            if not size:
                return
            self._take(json.loads(stream.read(size)))

    def _take(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method == "textDocument/publishDiagnostics":
            params = message["params"]
            if params["uri"] in self.diagnostics:
                self.diagnostics[params["uri"]].put(params["diagnostics"])
        elif method == "workspace/configuration":
            items = [self.settings.get(item.get("section") or "") for item in message["params"]["items"]]
            self._send({"id": message["id"], "result": items})
        elif method is not None and "id" in message:
            self._send({"id": message["id"], "result": None})
        elif method is None:
            self.answers.put(message)
