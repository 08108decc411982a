"""A stand-in for the hub on localhost: config.json, an index, and safetensors headers with no data behind them.

What it tells is `models.json`: a published (or meta-device) number of elements for each
dtype, dealt out evenly to the layers.  So a tool that sums a header, reads an index or asks
for file sizes gets the published totals; nothing comes from membudget.
"""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MODELS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "models.json").read_text(encoding="utf-8"))
WIDTH = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "U8": 1, "F8_E4M3": 1}


def config_of(model: str) -> dict[str, Any]:
    """The model's config.json as this repository carries it."""
    name = model.replace("/", "--") + ".json"
    for folder in ("benchmarks/peers/configs", "membudget/data/models", "fixtures/oracle/configs"):
        if (ROOT / folder / name).exists():
            found: dict[str, Any] = json.loads((ROOT / folder / name).read_text(encoding="utf-8"))
            found.pop("_source", None)
            return found
    raise FileNotFoundError(f"{model}: no config in fixtures")


def files_of(model: str) -> dict[str, tuple[bytes, int]]:
    """Every file of the repository: its first bytes, and how long it is in all."""
    config = config_of(model)
    layers = config.get("text_config", config)["num_hidden_layers"]
    header: dict[str, Any] = {}
    end = 0
    for dtype, count in MODELS[model]["elements"].items():
        for layer in range(layers):
            share = count // layers + (count % layers if layer == 0 else 0)
            begin, end = end, end + share * WIDTH[dtype]
            name = f"model.layers.{layer}.{dtype.lower()}.weight"
            header[name] = {"dtype": dtype, "shape": [share], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    shard = "model-00001-of-00001.safetensors"
    index = {"metadata": {"total_size": end}, "weight_map": dict.fromkeys(header, shard)}
    plain = {"config.json": config, "model.safetensors.index.json": index}
    found = {name: (json.dumps(value).encode(), 0) for name, value in plain.items()}
    found[shard] = (len(text).to_bytes(8, "little") + text, 8 + len(text) + end)
    return {name: (head, size or len(head)) for name, (head, size) in found.items()}


class Hub(BaseHTTPRequestHandler):
    """GET and HEAD of /api/models/... and /{model}/resolve/{revision}/{file}, with byte ranges."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: it is a benchmark."""

    def do_HEAD(self) -> None:
        """Headers only."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer from `files_of`."""
        path = self.path.partition("?")[0].removeprefix("/api/models").strip("/")
        model = "/".join(path.split("/")[:2])
        rest = path.split("/")[2:]
        if model not in MODELS:
            return self.answer(404, b"{}")
        files = files_of(model)
        if rest[:1] == ["resolve"]:
            name = "/".join(rest[2:])
            if name not in files:
                return self.answer(404, b"{}", **{"X-Error-Code": "EntryNotFound"})
            return self.file(*files[name], etag=f"{model}/{name}")
        if rest[:1] == ["tree"]:
            rows = [{"path": name, "type": "file", "size": size} for name, (_, size) in files.items()]
            return self.answer(200, json.dumps(rows).encode())
        counts = MODELS[model]["elements"]
        config = config_of(model)
        told = {
            "id": model, "modelId": model, "sha": "0" * 40, "library_name": "transformers", "tags": [],
            "siblings": [{"rfilename": name, "size": size} for name, (_, size) in files.items()],
            "safetensors": {"parameters": counts, "total": sum(counts.values())},
            "config": {key: config.get(key) for key in ("architectures", "model_type")},
        }  # fmt: skip
        return self.answer(200, json.dumps(told).encode())

    def file(self, head: bytes, size: int, etag: str) -> None:
        """The whole file, or the asked range of it; what lies behind the header is zeros and short."""
        asked = self.headers.get("Range")
        tag = hashlib.sha1(etag.encode()).hexdigest()
        extra = {"ETag": f'"{tag}"', "X-Repo-Commit": "0" * 40, "Accept-Ranges": "bytes"}
        if asked is None:
            return self.answer(200, head, size, **extra)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        stop = min(int(last or size - 1), size - 1)
        body = head[int(first) : stop + 1].ljust(stop + 1 - int(first), b"\0")
        return self.answer(206, body, **extra, **{"Content-Range": f"bytes {first}-{stop}/{size}"})

    def answer(self, status: int, body: bytes, size: int | None = None, **headers: str) -> None:
        """One response."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if size is None else size))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def serve() -> ThreadingHTTPServer:
    """A hub on a free port of this machine; `shutdown()` ends it."""
    hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    return hub
