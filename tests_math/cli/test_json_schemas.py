"""What commands print with --json is what `membudget schema COMMAND` says: other cases than the schemas came from."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from membudget.cli.commands.registry import available
from membudget.cli.commands.schema import documents
from membudget.doctor import Source
from tests_math.doctor.doctor_machine import Machine, idle_spark

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[2]
Ask = Callable[..., tuple[int, Any]]
Put = Callable[[Source], None]
LOGS = [path for kind in ("odd", "sizing") for path in sorted((ROOT / "fixtures" / "logs" / kind).glob("*.log"))][::2]
RUNS = str(ROOT / "fixtures" / "history")
#: They answer with an engine, a GPU or a network alone, or print a schema themselves.
UNPUBLISHED = {"bisect", "fetch", "oracle", "schema", "trace"}


@pytest.fixture
def valid(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a command line and validate what it prints."""
    monkeypatch.chdir(tmp_path)

    def call(*argv: str) -> Any:
        _, document = ask(*argv)
        name = "error" if isinstance(document, dict) and set(document) == {"error"} else argv[0]
        found = [f"{error.json_path}: {error.message}" for error in _validator(ask, name).iter_errors(document)]
        assert found == [], "a document changed its shape; if that is meant: python tools/json_schemas.py"
        return document

    return call


def _validator(ask: Ask, name: str) -> Draft202012Validator:
    _, schema = ask("schema", name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_every_command_has_one() -> None:
    """Of those that answer on any machine."""
    assert set(documents()) - {"budget", "error"} == set(available()) - UNPUBLISHED


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "google/gemma-2-9b", "--machine", "rtx-4090", "--users", "3"],
        ["plan", "Qwen/Qwen3-30B-A3B", "--machine", "2x dgx-spark"],
        ["plan", "microsoft/phi-2", "--machine", "l4", "--engine", "transformers", "--attention", "eager"],
        ["plan", "openai/gpt-oss-120b", "--machine", "dgx-spark", "--users", "500", "--ctx", "128k"],
        ["count", "google/gemma-3-27b-it", "--layers"],
        ["count", "deepseek-ai/DeepSeek-V2-Lite"],
        ["fleet", "meta-llama/Llama-3.1-70B", "--ctx", "8k"],
        ["machines", "h200"],
        ["formats", "openai/gpt-oss-20b", "--machine", "rtx-4090"],
        ["models", "llama"],
        ["completion", "zsh"],
        ["pool", "openai/gpt-oss-20b", "--machine", "h100"],
        ["history", "--runs", RUNS, "--budget", "llama"],
        ["diff", "transformers==4.57.6", "transformers==5.8.0", "--runs", RUNS],
        ["report", "first", "--runs", RUNS],
        ["explore", "microsoft/phi-2", "--offline"],
        ["doctor", "--ignore", "swap"],
        ["plan", "no/such-model"],
        ["plan", "Qwen/Qwen3-8B", "--users", "0"],
        ["check", "nowhere"],
    ],
    ids=" ".join,
)
def test_documents_are_as_published(valid: Callable[..., Any], argv: list[str]) -> None:
    """Every key is known, none that is promised is missing, every value has its type."""
    valid(*argv)


def test_init_and_check(valid: Callable[..., Any]) -> None:
    """A first budget, one that is not written, and the check of the first."""
    assert valid("init", "microsoft/phi-2", "--machine", "l4")["file"]
    assert valid("init", "openai/gpt-oss-120b", "--machine", "l4")["file"] is None
    assert valid("check")["ok"]


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_logs(valid: Callable[..., Any], log: Path) -> None:
    """Starts that went well and starts that were refused."""
    valid("log", str(log))


def test_the_schemas_are_written_by_the_tool() -> None:
    """The tool knows the same documents."""
    spec = importlib.util.spec_from_file_location("json_schemas", ROOT / "tools" / "json_schemas.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert {*tool.CASES, "error", "budget"} == set(documents())
    assert tool.schema([{"a": 1}, {"a": None, "b": "x"}], ()) == {
        "type": "object",
        "properties": {"a": {"type": ["integer", "null"]}, "b": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("kind", ["spark", "nothing", "darwin"])
def test_the_doctors_document_of_any_machine(kind: str, valid: Callable[..., Any], put: Put, tmp_path: Path) -> None:
    """A machine that knows everything about itself, and ones that know nothing."""
    put(idle_spark(tmp_path) if kind == "spark" else Machine(tmp_path, "darwin" if kind == "darwin" else "linux"))
    valid("doctor")
