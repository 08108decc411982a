"""The command line as a whole: lists, errors, help."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.cli.commands.registry import COMMANDS, available, parser_of
from membudget.cli.main import BUG, INTERRUPTED, UNWRITTEN, usage

pytestmark = pytest.mark.suite

Run = Callable[..., tuple[int, str, str]]
Ask = Callable[..., tuple[int, Any]]


def test_lists(ask: Ask) -> None:
    """machines, formats and models list what the tables hold."""
    _, document = ask("machines")
    names = [machine["name"] for machine in document["machines"]]
    assert {"dgx-spark", "h100-80gb", "rtx-4090"} <= set(names)
    spark = next(machine for machine in document["machines"] if machine["name"] == "dgx-spark")
    assert spark["memory"] == 127_600_748 * 1024  # MemTotal in kB, as Linux says
    _, document = ask("formats")
    assert {"bf16", "fp8", "q8_0", "awq", "q4_k_m"} <= {row["name"] for row in document["formats"]}
    assert document["kv_cache_dtypes"][0] == "auto"
    code, document = ask("models", "llama-3.1", "8b")
    assert (code, document["models"]) == (0, ["meta-llama/Llama-3.1-8B"])
    assert ask("models", "no-such-model")[0] == 1


def test_schema_is_one_document(run: Run) -> None:
    """With and without --json the same JSON Schema."""
    plain, as_json = run("schema")[1], run("schema", "--json")[1]
    assert json.loads(plain) == json.loads(as_json)
    assert json.loads(plain)["type"] == "object"


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["plan", "Qwen/Qwen3-9B-Nope", "--machine", "h100"], 3, ["Qwen/Qwen3-8B", "membudget fetch"]),
        (["plan", "Qwen/Qwen3-8B", "--machine", "h100-80bg"], 2, ["h100-80gb"]),
        (["plan", "Qwen/Qwen3-8B", "--format", "q4km"], 2, ["q4_k_m"]),
        (["plan", "Qwen/Qwen3-8B", "--kv-cache-dtype", "fp9"], 2, ["fp9", "fp8"]),
        (["plan", "Qwen/Qwen3-8B", "--ctx", "0"], 2, ["--ctx", "0", "1"]),
        (["plan", "Qwen/Qwen3-8B", "--ctx", "eight"], 2, ["--ctx", "eight"]),
        (["plan", "Qwen/Qwen3-8B", "--ctx", "9" * 5000], 2, ["--ctx"]),
        (["plan", "Qwen/Qwen3-8B", "--users", "8k"], 2, ["--users", "8,000", "8Ki"]),
        (["plan", "Qwen/Qwen3-8B", "--users", "1.5"], 2, ["--users"]),
        (["plan", "Qwen/Qwen3-8B", "--gpu-memory-utilization", "1.2"], 2, ["--gpu-memory-utilization", "1"]),
        (["plan", "Qwen/Qwen3-8B", "--machines", "none.yaml", "--machine", "x"], 2, ["none.yaml"]),
        (["plan", "./no/such/folder"], 2, ["no such file"]),
        (["plan", ""], 2, ["empty"]),
        (["plan"], 2, ["MODEL"]),
        (["plan", "a", "b"], 2, ["'b'"]),
        (["plan", "Qwen/Qwen3-8B", "--user", "3"], 2, ["--user", "--users"]),
        (["plan", "Qwen/Qwen3-8B", "--engine", "vlm"], 2, ["vllm"]),
        (["plan", "Qwen/Qwen3-8B", "--ctx"], 2, ["--ctx"]),
        (["plann", "Qwen/Qwen3-8B"], 2, ["plann", "plan"]),
        (["fleet"], 2, ["--params"]),
        (["fleet", "--params", "70"], 2, ["--layers", "--kv-heads"]),
        (["pool", "Qwen/Qwen3-8B"], 2, ["--available-kv"]),
        (["pool", "Qwen/Qwen3-8B", "--available-kv", "60G"], 2, ["60G", "GiB"]),
        (["oracle", "Qwen/Qwen3-8B", "--vllm", "/no/such/python"], 3, ["/no/such/python"]),
    ],
)
def test_errors_are_one_message(run: Run, ask: Ask, argv: list[str], code: int, words: list[str]) -> None:
    """People get one message on stderr and nothing on stdout; --json gives one error object on stdout."""
    got, out, err = run(*argv)
    assert (got, out) == (code, "")
    assert err.startswith("membudget: ")
    assert "Traceback" not in err
    assert all(word in err for word in words), err
    got, document = ask(*argv)
    assert got == code
    assert document["error"]["exit_code"] == code
    assert document["error"]["message"] == err.removeprefix("membudget: ").strip()


def test_unreadable_config_names_the_line(run: Run, tmp_path: Path) -> None:
    """A config.json that is no JSON says where."""
    (tmp_path / "config.json").write_text('{\n "model_type": "llama",\n oops\n}')
    code, _, err = run("plan", str(tmp_path))
    assert code == 2
    assert "config.json:3" in err


def test_a_token_is_never_shown(run: Run) -> None:
    """What looks like an access token stays out of every message."""
    for argv in (["plan", "hf_abcdefghijklmnop"], ["hf_abcdefghijklmnop"], ["plan", "x", "--hf_abcdefghijklmnop"]):
        _, out, err = run(*argv)
        assert "abcdefghijklmnop" not in out + err


def test_help_fits_a_screen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 lines for `membudget`, 40 for a command, and no line is wider than the terminal's 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("--help")
    assert code == 0
    assert out.rstrip() == usage()
    assert len(out.splitlines()) <= 32
    assert max(map(len, out.splitlines())) <= 80
    assert all(f"{code} " in out for code in (0, 1, 2, 3, BUG, UNWRITTEN, INTERRUPTED))
    for name in available():
        code, text, err = run(name, "--help")
        assert (code, err) == (0, "")
        assert text.startswith(f"usage: membudget {name}")
        assert f"  {name} " in out
        assert len(text.splitlines()) <= 40, name
        assert max(map(len, text.splitlines())) <= 80, name
    assert run()[0] == 2
    assert run("--version")[1].startswith("membudget ")


def test_every_command_is_listed_once() -> None:
    """Names are unique, and each that is here has a parser that takes --json."""
    names = [name for name, _, _ in COMMANDS]
    assert len(set(names)) == len(names)
    for name in available():
        options = [option for action in parser_of(name)._actions for option in action.option_strings]
        assert "--json" in options
        assert len(set(options)) == len(options)
