"""The schema in an editor: VS Code's YAML server (npm: yaml-language-server) opens budgets, good and spoiled.

Needs node and the server: on PATH as yaml-language-server, or named by MEMBUDGET_YAML_LS.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from membudget.budgets.schema import json_schema
from tests_math.budgets.language_server import LanguageServer

pytestmark = pytest.mark.suite

BUDGETS = Path(__file__).parents[2] / "budgets"
SCHEMA = "budgets.schema.json"
ENV = "MEMBUDGET_YAML_LS"
MODELINE = f"# yaml-language-server: $schema=./{SCHEMA}\n"
GOOD = MODELINE + "model: Qwen/Qwen3-8B\nformat: bf16\nctx: 8Ki\nusers: 8\nmachine: dgx-spark\n"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[LanguageServer]:
    """A running server, with the settings that VS Code's extension sends; it asks no schema store."""
    command = shlex.split(os.environ.get(ENV) or shutil.which("yaml-language-server") or "")
    if not command:
        pytest.skip(f"no yaml-language-server on PATH: npm install yaml-language-server, and name its bin in {ENV}")
    if shutil.which("node") is None:
        pytest.skip("no node here")
    settings = {"yaml": {"validate": True, "hover": True, "completion": True, "schemaStore": {"enable": False}}}
    with LanguageServer([*command, "--stdio"], settings) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, run: Run) -> Path:
    """A folder with the schema that `membudget schema` prints."""
    (tmp_path / SCHEMA).write_text(run("schema")[1], encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("path", sorted(BUDGETS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_budgets_have_no_complaint(server: LanguageServer, path: Path) -> None:
    """Through the modeline that stands in each of them."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith(MODELINE)
    assert server.open(path, text) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "word"),
    [
        ("users: 8", "usres: 8", 4, "usres"),
        ("users: 8", "users: many", 4, ""),
        ("users: 8", "users: 8\nexpect: {fitz: true}", 5, "fitz"),
        ("users: 8", "users: 8\ncapacity: full", 5, "reported"),
        ("users: 8", "users: 8\nos_reserve: 10 G", 5, ""),
        ("users: 8", "users: 8\nmeasure: {weights: about 3%}", 5, ""),
        ("users: 8\n", "", 1, "users"),
        ("users: 8", "users: 8\nbreak: [{attention: eager, outcome: fits}]", 1, "ceiling"),
    ],
)
def test_spoiled_budgets_are_marked(
    server: LanguageServer, folder: Path, old: str, new: str, line: int, word: str
) -> None:
    """A complaint on the line that is wrong; a field that is missing is one on the document's first line."""
    path = folder / "spoiled.yaml"
    found = server.open(path, GOOD.replace(old, new))
    server.notify("textDocument/didClose", {"textDocument": {"uri": path.as_uri()}})
    assert {item["range"]["start"]["line"] for item in found} <= {1, line}
    assert any(word in item["message"] for item in found if item["range"]["start"]["line"] == line), found


def test_hover_says_what_a_field_means(server: LanguageServer, folder: Path) -> None:
    """On `ctx` stands the schema's own description."""
    path = folder / "hover.yaml"
    assert server.open(path, GOOD) == []
    content = str(server.at("textDocument/hover", path, 3, 1)["contents"])
    assert json_schema()["properties"]["ctx"]["description"].rstrip(".") in content.replace("\\", "")


def test_completion_offers_fields_and_values(server: LanguageServer, folder: Path) -> None:
    """Fields that are not there yet with their descriptions, and the values of a closed choice."""
    path = folder / "completion.yaml"
    text = GOOD + "\ncapacity: \n"
    server.open(path, text)
    fields = {item["label"]: item for item in _items(server, path, text.count("\n") - 2, 0)}
    assert {"expect", "measure", "why", "engine", "kv_cache_dtype"} <= set(fields)
    assert "model" not in fields
    assert "Exact truths" in str(fields["expect"].get("documentation"))
    choices = {item["label"] for item in _items(server, path, text.count("\n") - 1, len("capacity: "))}
    assert {"reported", "nominal"} <= choices


def test_what_init_writes_is_understood(
    server: LanguageServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`membudget init` writes the modeline with a path that is right from where the file is, and the schema there."""
    monkeypatch.chdir(tmp_path)
    for to in ("budgets", "deep/er"):
        assert run("init", "Qwen/Qwen3-8B", "--machine", "dgx-spark", "--to", to)[0] == 0
        (path,) = Path(tmp_path, to).glob("*.yaml")
        text = path.read_text(encoding="utf-8")
        assert server.open(path, text) == []
        spoiled = path.with_name("spoiled.yaml")
        assert server.open(spoiled, text.replace("users:", "usres:"))


def test_every_field_says_what_it_means() -> None:
    """Each property of the schema has a description that is a sentence; no server needed."""
    seen = 0
    waiting: list[Any] = [json_schema()]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            for field in item.get("properties", {}).values():
                seen += 1
                assert field["description"][0].isupper() or field["description"].startswith(("vLLM", "llama.cpp"))
                assert field["description"].rstrip()[-1] in ".)"
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    assert seen > 50


def _items(server: LanguageServer, path: Path, line: int, character: int) -> list[dict[str, Any]]:
    found = server.at("textDocument/completion", path, line, character)
    return list(found["items"] if isinstance(found, dict) else found)
