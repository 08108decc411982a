"""Repositories read through huggingface_hub from a server on this machine that is shaped like the hub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from membudget.checkpoint import read_path
from membudget.model import Model
from tests_math.checkpoint.checkpoint_files import stored, write_gguf, write_model, write_safetensors, write_shards

pytestmark = pytest.mark.suite
pytest.importorskip("huggingface_hub", reason="huggingface_hub is in the [hub] and [test] extras")

COMMIT = "c0ffee" * 6 + "c0ff"
TOKEN = "hf_" + "Zz9" * 12
Get = Callable[[str], Model]


class Hub:
    """A folder of repositories (root/org/name/files) served with ranges; closed ones need a token."""

    def __init__(self, root: Path) -> None:
        self.root, self.log, self.closed = root, [], set[str]()
        self.log: list[tuple[str, str, str | None, str | None, int]] = []
        self.honour_ranges, self.endless = True, False
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """The request handler, bound to this hub."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, body: bool) -> None:
                path = unquote(urlsplit(self.path).path)
                tree = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?", path)
                file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
                repo = (tree or file or re.match(r"/api/models/([^/]+/[^/]+)", path) or [None, ""])[1]
                folder = hub.root / repo
                if not repo or not folder.is_dir():
                    return self.fail(404, "RepoNotFound")
                if repo in hub.closed and self.headers.get("authorization") != f"Bearer {TOKEN}":
                    return self.fail(403, "GatedRepo")
                if tree:
                    files = [p for p in sorted(folder.iterdir()) if p.is_file()]
                    items = [{"type": "file", "oid": "0" * 40, "size": p.stat().st_size, "path": p.name} for p in files]
                    return self.send(json.dumps(items).encode(), body)
                if not file:
                    return self.send(json.dumps({"id": repo, "sha": COMMIT, "siblings": []}).encode(), body)
                if not (folder / file[3]).is_file():
                    return self.fail(404, "EntryNotFound")
                return self.send_file(folder / file[3], body)

            def fail(self, status: int, code: str) -> None:
                self.send_response(status)
                self.send_header("X-Error-Code", code)
                self.send_header("X-Error-Message", "no")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def send(self, content: bytes, body: bool) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if body:
                    self.wfile.write(content)

            def send_file(self, path: Path, body: bool) -> None:
                size, wanted = path.stat().st_size, self.headers.get("range")
                first, last = 0, size - 1
                if wanted and hub.honour_ranges:
                    found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
                    assert found
                    first, last = int(found[1]), min(int(found[2] or last), last)
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
                else:
                    self.send_response(200)
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("ETag", f'"{path.name}-{size}"')
                self.send_header("X-Repo-Commit", COMMIT)
                if hub.endless:
                    self.close_connection = True
                else:
                    self.send_header("Content-Length", str(last - first + 1))
                self.end_headers()
                sent = 0
                if body:
                    with open(path, "rb") as stream:
                        stream.seek(first)
                        left = last - first + 1
                        try:
                            while left:
                                piece = stream.read(min(left, 65536))
                                self.wfile.write(piece)
                                left -= len(piece)
                                sent += len(piece)
                            while hub.endless and sent < 2**30:
                                self.wfile.write(bytes(65536))
                                sent += 65536
                        except (BrokenPipeError, ConnectionResetError):
                            self.close_connection = True
                hub.log.append((self.command, path.name, wanted, self.headers.get("authorization"), sent))

        return Handler


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A server for this test."""
    served = Hub(tmp_path / "hub")
    yield served
    served.server.shutdown()
    served.server.server_close()


def ask(hub: Hub, tmp_path: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, as the endpoint is read when huggingface_hub is imported."""
    root = str(Path(__file__).parents[2])
    keep = {key: value for key, value in os.environ.items() if not key.upper().startswith(("HF_", "HUGGING"))}
    for key in [key for key in keep if key.upper().endswith("_PROXY")]:
        del keep[key]
    keep |= {"PYTHONPATH": root, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    head = "import json, sys\nfrom membudget.checkpoint import config_of\n"
    head += "from membudget.sources.checkpoints import read\n"
    head += "from membudget.sources.locate import locate\n"
    return subprocess.run(
        [sys.executable, "-c", head + code], capture_output=True, text=True, env=keep | environment, timeout=120
    )


SHOW = """
c = read({repo!r})
print(json.dumps([[list(e[:4]) + [e.offset] for e in c.entries], c.total_size, [list(f) for f in c.files], c.kind]))
"""


def shown(done: subprocess.CompletedProcess[str]) -> tuple[list[Any], int | None, list[Any], str]:
    """What SHOW printed."""
    assert done.returncode == 0, done.stderr[-2000:]
    entries, total, files, kind = json.loads(done.stdout.splitlines()[-1])
    return [(n, d, tuple(s), b, o) for n, d, s, b, o in entries], total, [tuple(f) for f in files], kind


def same_as_disk(done: subprocess.CompletedProcess[str], path: Path) -> None:
    """The remote reading equals the one from disk: every tensor, offset, file and total."""
    entries, total, files, kind = shown(done)
    disk = read_path(str(path))
    assert sorted(entries) == sorted((*entry[:4], entry.offset) for entry in disk.entries)
    assert (total, kind) == (disk.total_size, disk.kind)
    assert sorted(files) == sorted(tuple(file) for file in disk.files)


def repository(hub: Hub, name: str) -> Path:
    """An empty repository."""
    folder = hub.root / name
    folder.mkdir(parents=True)
    return folder


def test_sharded_repository(hub: Hub, tmp_path: Path, model: Get) -> None:
    """Llama-3.2-1B in three shards of 800 MB: only headers cross the wire."""
    folder = repository(hub, "org/llama")
    names = list(stored(model("meta-llama/Llama-3.2-1B")).items())
    write_shards(folder, [dict(names[:50]), dict(names[50:100]), dict(names[100:])])
    done = ask(hub, tmp_path, SHOW.format(repo="org/llama"))
    same_as_disk(done, folder)
    assert sum(sent for _, name, _, _, sent in hub.log if name.endswith(".safetensors")) < 400_000


def test_single_file_repository(hub: Hub, tmp_path: Path) -> None:
    """One model.safetensors, with a header longer than the first read of 100,000 bytes."""
    folder = repository(hub, "org/one")
    tensors = {f"model.layers.{n}.mlp.up_proj.weight": ("BF16", (64, 64)) for n in range(2000)}
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    done = ask(hub, tmp_path, SHOW.format(repo="org/one"))
    entries, *_ = shown(done)
    assert len(entries) == 2000
    same_as_disk(done, folder / "model.safetensors")


def test_gguf_repository(hub: Hub, tmp_path: Path, model: Get) -> None:
    """A 2.5 GB GGUF with a vocabulary of 300,000: windows of the header, and a plan's config from it."""
    pytest.importorskip("gguf", reason="the gguf library is in the [test] extra")
    from tests_math.checkpoint.checkpoint_files import gguf_keys, gguf_tensors

    folder = repository(hub, "org/gguf")
    llama = model("meta-llama/Llama-3.2-1B")
    keys = {**gguf_keys(llama), "tokenizer.ggml.tokens": [f"token{n}" for n in range(300_000)]}
    path = write_gguf(folder / "m.gguf", "llama", keys, gguf_tensors(llama))
    done = ask(hub, tmp_path, SHOW.format(repo="org/gguf"))
    same_as_disk(done, path)
    assert 4_000_000 < sum(sent for *_, sent in hub.log) < 20_000_000
    hub.log.clear()
    done = ask(hub, tmp_path, "print(config_of(read('org/gguf')).model_type)")
    assert done.stdout.strip() == "llama", done.stderr
    for name in ("org/gguf", "org/gguf/m.gguf"):
        code = f"l = locate({name!r}); print(l.kind, l.repo, l.config.model_type, l.checkpoint.elements)"
        expected = f"hub org/gguf llama {llama.count.params}"
        assert ask(hub, tmp_path, code).stdout.strip() == expected
    hub.honour_ranges = False
    done = ask(hub, tmp_path, SHOW.format(repo="org/gguf"))
    assert "CheckpointError" in done.stderr
    assert "does not honour range requests" in done.stderr
    assert sum(sent for *_, sent in hub.log) < 100_000_000  # not the file's 2.5 GB


def test_a_body_that_never_ends(hub: Hub, tmp_path: Path) -> None:
    """Of an index and of headers as much is read as was asked for, whatever the server sends and says of its length."""
    tensors = {f"model.layers.{n}.mlp.up_proj.weight": ("BF16", (64, 64)) for n in range(1200)}
    names = list(tensors.items())
    write_safetensors(repository(hub, "org/one") / "model.safetensors", tensors)
    write_shards(repository(hub, "org/two"), [dict(names[:600]), dict(names[600:])])
    hub.endless = True
    for repo, most in (("org/one", 2), ("org/two", 4)):
        hub.log.clear()
        done = ask(hub, tmp_path, SHOW.format(repo=repo))
        entries, *_ = shown(done)
        assert len(entries) == 1200
        for _, _, wanted, _, sent in [row for row in hub.log if row[0] == "GET"]:
            assert wanted
            assert sent < 2**25  # what the sockets hold of it
        assert 0 < len([row for row in hub.log if row[0] == "GET"]) <= most
    hub.honour_ranges = False
    hub.log.clear()
    done = ask(hub, tmp_path, SHOW.format(repo="org/one"))
    assert "does not honour range requests" in done.stderr
    assert all(row[4] < 2**25 for row in hub.log)


def test_split_gguf_and_choice(hub: Hub, tmp_path: Path, model: Get) -> None:
    """A split GGUF is one model; of several the user names one."""
    pytest.importorskip("gguf", reason="the gguf library is in the [test] extra")
    folder = repository(hub, "org/many")
    qwen = model("Qwen/Qwen3-0.6B")
    write_model(folder / "q.gguf", qwen, split=100)
    done = ask(hub, tmp_path, SHOW.format(repo="org/many"))
    same_as_disk(done, folder)
    write_model(folder / "other.gguf", qwen)
    done = ask(hub, tmp_path, SHOW.format(repo="org/many"))
    assert "has 2 GGUF models; name one, as org/many/other.gguf" in done.stderr
    done = ask(hub, tmp_path, SHOW.format(repo="org/many/other.gguf"))
    same_as_disk(done, folder / "other.gguf")


def test_locate_and_fetch(hub: Hub, tmp_path: Path) -> None:
    """A config comes from the hub, then from the cache offline; fetch saves it and gives the index's total_size."""
    folder = repository(hub, "org/model")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 7}))
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    write_shards(folder, [{"a": ("F32", (4,))}])
    code = "l = locate('org/model'); print(l.kind, l.repo, l.config.integer('hidden_size'), l.hf_quant_config)"
    wanted = "org/model 7 {'quantization': {'quant_algo': 'FP8'}}"
    assert ask(hub, tmp_path, code).stdout.strip() == f"hub {wanted}"
    assert ask(hub, tmp_path, code, HF_HUB_OFFLINE="1").stdout.strip() == f"cache {wanted}"
    saved = str(tmp_path / "saved")
    fetch = f"print(json.dumps([list(f) for f in fetch(['org/model'], {saved!r})]))"
    done = ask(hub, tmp_path, "from membudget.sources.hub import fetch\n" + fetch)
    assert done.returncode == 0, done.stderr
    stem = str(tmp_path / "saved" / "org--model")
    assert json.loads(done.stdout) == [
        ["org/model", stem + ".json", 16, [stem + ".json", stem + ".hf_quant_config.json"]]
    ]
    assert json.loads(Path(stem + ".json").read_text())["hidden_size"] == 7


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("org/nothing", "locate", "does not have it, or it is private"),
        ("org/nothing", "read", "does not have it, or it is private"),
        ("org/closed", "locate", "closed: accept its licence on the hub and log in"),
        ("org/closed", "read", "closed: accept its licence on the hub and log in"),
        ("org/empty", "locate", "has neither model.safetensors.*name the base model"),
        ("org/empty", "read", "has neither model.safetensors, model.safetensors.index.json nor a .gguf file"),
        ("org/broken", "read", "the header is not a JSON object"),
        ("org/gap", "read", "names 'b.safetensors', which is not there"),
        ("org/short", "read", "5 bytes are no safetensors file"),
        ("org/liar", "read", "'b' leaves a hole of 1 bytes after 'a'"),
    ],
)
def test_what_the_hub_refuses(name: str, kind: str, message: str, hub: Hub, tmp_path: Path) -> None:
    """Missing, closed, empty and broken repositories each end in one error."""
    repository(hub, "org/empty")
    repository(hub, "org/closed")
    hub.closed.add("org/closed")
    (repository(hub, "org/broken") / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not JSON at all.")
    (repository(hub, "org/gap") / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')
    (repository(hub, "org/short") / "model.safetensors").write_bytes(b"12345")
    header = {"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}
    header["b"] = {"dtype": "U8", "shape": [2], "data_offsets": [3, 5]}
    text = json.dumps(header).encode()
    (repository(hub, "org/liar") / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 5)
    done = ask(hub, tmp_path, f"{kind}({name!r})")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(message, last), last
    assert last.startswith(("membudget.checkpoint.entries.CheckpointError", "membudget.sources.locate.ModelNotFound"))


def test_token_is_sent_and_never_shown(hub: Hub, tmp_path: Path) -> None:
    """The usual token opens a closed repository, and stands in no output, not even of an error."""
    folder = repository(hub, "org/closed")
    hub.closed.add("org/closed")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    done = ask(hub, tmp_path, "print(locate('org/closed').kind)", HF_TOKEN=TOKEN)
    assert done.stdout.strip() == "hub", done.stderr
    assert any(sent == f"Bearer {TOKEN}" for _, _, _, sent, _ in hub.log)
    done = ask(hub, tmp_path, "locate('org/nothing')", HF_TOKEN=TOKEN)
    assert done.returncode == 1
    assert TOKEN not in done.stdout + done.stderr
    kept = [
        path for path in (tmp_path / "home").rglob("*") if path.is_file() and TOKEN in path.read_text(errors="replace")
    ]
    assert not kept


def test_offline_is_not_asked(hub: Hub, tmp_path: Path) -> None:
    """HF_HUB_OFFLINE: no request is made and the error says so."""
    repository(hub, "org/model")
    done = ask(hub, tmp_path, "read('org/model')", HF_HUB_OFFLINE="1")
    assert "and the hub is not asked: offline" in done.stderr
    assert not hub.log
