"""Secrets stay with their owner: tokens and logins in no output, record, report, page or message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from membudget.budgets.ids import plain
from membudget.cli.main import main
from membudget.history.store import file_of
from membudget.text.sanitize import without_tokens
from tests_math.test_security import CONTROL, EVIL, ROOT, TOKEN, Run, harmless, limited

pytestmark = pytest.mark.suite


def test_a_token_is_nowhere(tmp_path: Path) -> None:
    """With a token in the environment, in its file and in wrong places: no output, record, report or page holds it."""
    (tmp_path / "token").write_text(TOKEN)
    env = {"HF_TOKEN": TOKEN, "HUGGING_FACE_HUB_TOKEN": TOKEN, "PYTORCH_CUDA_ALLOC_CONF": f"x:{TOKEN}"}
    said = []
    for argv, codes in (
        (["init", "Qwen/Qwen3-8B", "--machine", "h100"], (0,)),
        (["doctor"], (0, 1)),
        (["doctor", "--json"], (0, 1)),
        (["probe", "--json"], (0, 3)),
        (["machines", "this-machine"], (0, 3)),
        (["machines", TOKEN], (2,)),
        (["plan", "Qwen/Qwen3-8B", "--format", TOKEN], (2,)),
        (["plan", "Qwen/Qwen3-8B", "--ctx", TOKEN], (2,)),
        (["plan", "Qwen/Qwen3-8B", "--machines", TOKEN], (2, 3)),
        (["check", TOKEN], (2, 3)),
        (["log", TOKEN], (2, 3)),
        (["oracle", "Qwen/Qwen3-8B", "--vllm", TOKEN], (3,)),
        (["explore", "Qwen/Qwen3-8B", "-o", "page.html"], (0,)),
        (["report", "-o", "report.html"], (0, 1, 2, 3)),
    ):
        said.append(harmless(limited(*argv, cwd=tmp_path, **env), *codes))
    command = [sys.executable, "-m", "pytest", "-q", "--pyargs", "membudget.tests"]
    command += ["-p", "no:cacheprovider", "-p", "membudget.pytest_plugin.plugin", "--record"]
    command += [f"--vllm=docker run -e HF_TOKEN={TOKEN} vllm", f"--runs={tmp_path / 'runs'}"]
    (tmp_path / "budgets" / "bad.yaml").write_text(
        "model: Qwen/Qwen3-8B\nformat: bf16\nctx: 8Ki\nusers: 1\nmachine: h100\nexpect: {params: 1}\n"
    )
    environment = {**os.environ, **env, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment, timeout=120
    )
    assert "1 failed" in done.stdout
    assert "rerun" in done.stdout
    said.append(done.stdout + done.stderr)
    assert [text for text in said if TOKEN in text] == []
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "token"]
    assert any(path.suffix == ".jsonl" for path in files)
    assert [path for path in files if TOKEN in path.read_text(encoding="utf-8", errors="replace")] == []


@pytest.mark.parametrize("variable", ["HF_ENDPOINT", "HTTPS_PROXY", "HTTP_PROXY"])
def test_credentials_in_an_address_are_not_repeated(variable: str, tmp_path: Path) -> None:
    """https://user:password@host in the endpoint or a proxy: the message names the host at most."""
    pytest.importorskip("huggingface_hub")
    env = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", variable: "http://me:hunter2@127.0.0.1:9"}
    for argv in (["fetch", "org/nothing", "--to", "x"], ["plan", "org/nothing"]):
        assert "hunter2" not in harmless(limited(*argv, cwd=tmp_path, **env), 2, 3)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Bearer {TOKEN}.", "Bearer <access token>."),
        ("api_org_abcdefgh1", "<access token>"),
        (
            "see https://me:pw@host/x?a=b and ftp://u@h",
            "see https://<credentials>@host/x?a=b and ftp://<credentials>@h",
        ),
        ("mail me@example.org, https://host/@scope/x", "mail me@example.org, https://host/@scope/x"),
        ("https:/me:pw@host/x", "https:/<credentials>@host/x"),
        (r"C:\here\https:\me:pw@host\x", r"C:\here\https:\<credentials>@host\x"),
        ("/here/https:/me:pw@host/x", "/here/https:/<credentials>@host/x"),
        ("at //me:pw@host, not a//b", "at //<credentials>@host, not a//b"),
        (f"x{TOKEN}", "x<access token>"),
        (f"cfg-{TOKEN}.json", "cfg-<access token>.json"),
        ("--hf-overrides, hf_overrides and shelf_no", "--hf-overrides, hf_overrides and shelf_no"),
        ("hf_quant_config.json", "hf_quant_config.json"),
        ("plain", "plain"),
    ],
)
def test_what_looks_like_a_secret_is_replaced(text: str, shown: str) -> None:
    """Tokens wherever they stand, and what stands before @ in an address; nothing else."""
    assert without_tokens(text) == shown


def test_a_message_of_any_error_is_cleaned(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """The one place where errors become messages replaces secrets and control characters, whoever raised."""
    from membudget.cli.commands import models

    def fail(args: Any) -> None:
        raise OSError(5, f"cannot open{EVIL} https://me:hunter2@host {TOKEN}")

    monkeypatch.setattr(models, "run", fail)
    code, out, err = run("models")
    assert (code, out) == (2, "")
    assert "<access token>" in err
    assert not CONTROL.search(err)
    assert "hunter2" not in err + str(main(["models", "--json"]))


#: What an address with a login, or a token, turns into on its way through paths, shells and file names.
WRAPPED = (
    "https://me:{pw}@host/repo", "https:/me:{pw}@host/repo", "./https:/me:{pw}@host/config.json", "//me:{pw}@host/x",
    "http://{pw}@proxy:3128", "xhttps://me:{pw}@host", "a=https://me:{pw}@host?b", "hf_{pw}", "Xhf_{pw}", "9hf_{pw}",
    "a-hf_{pw}.json", "api_org_{pw}", "org/hf_{pw}", "hf_{pw}/config.json", "\u00e9hf_{pw}", "tokenhf_{pw}=x",
)  # fmt: skip
#: Every command that takes text from outside, with a place for it.
DOORS = (
    ("plan", "{0}"), ("plan", "Qwen/Qwen3-8B", "--format", "{0}"), ("plan", "Qwen/Qwen3-8B", "--machine", "{0}"),
    ("plan", "Qwen/Qwen3-8B", "--machines", "{0}"), ("plan", "Qwen/Qwen3-8B", "--ctx", "{0}"), ("count", "{0}"),
    ("count", "Qwen/Qwen3-8B", "--as", "{0}"), ("formats", "{0}"), ("fleet", "{0}"), ("pool", "{0}"), ("check", "{0}"),
    ("log", "{0}"), ("history", "--runs", "{0}"), ("diff", "{0}", "last"), ("report", "{0}"), ("machines", "{0}"),
    ("init", "{0}"), ("init", "Qwen/Qwen3-8B", "--machine", "{0}"), ("explore", "{0}"), ("upgrade", "{0}"),
    ("oracle", "Qwen/Qwen3-8B", "--vllm", "{0}"), ("fetch", "{0}"), ("{0}",), ("--{0}",), ("plan", "--{0}"),
    ("models", "{0}"), ("trace", "{0}"), ("bisect", "{0}"), ("completion", "{0}"), ("probe", "{0}"),
)  # fmt: skip


@pytest.mark.parametrize("door", DOORS, ids=" ".join)
def test_no_door_repeats_a_secret(
    door: tuple[str, ...], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an argument of every command, in every shape: neither stdout nor stderr nor --json has the secret."""
    monkeypatch.chdir(tmp_path)
    for number, shape in enumerate(WRAPPED):
        password = f"hunter2Secret{number}"
        argv = [part.format(shape.format(pw=password)) for part in door]
        for more in ((), ("--json",)):
            try:
                code, out, err = run(*argv, *more)
            except SystemExit as stop:
                code, out, err = int(str(stop.code)), "", ""
            assert code in (0, 1, 2, 3), argv
            assert password not in out + err, argv


def _write(folder: Path, secret: str) -> list[tuple[str, ...]]:
    """Files of every kind that carry a secret in their values, and the commands that read them."""
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "vocab_size": 128, "intermediate_size": 96, "rope_theta": 1e4, secret: secret,
              "auto_map": {"AutoModelForCausalLM": secret}, "torch_dtype": secret,
              "layer_types": [secret] * 2}  # fmt: skip
    good = {key: value for key, value in config.items() if key != "layer_types"}
    budget = {"model": secret, "format": secret, "ctx": secret, "users": secret, "machine": secret, secret: 1}
    record = {
        "schema": 1,
        "id": f"2026-{secret}",
        "time": "2026-12-01T00:00:00Z",
        "source": secret,
        "machine": {"name": secret, "title": secret},
        "versions": {"torch": secret},
        "flags": {"A": secret},
        "budgets": {secret: {"verdict": "failed", "why": secret, "settings": {"model": secret}, "lines": {}}},
    }
    (folder / "runs").mkdir(exist_ok=True)
    for name, content in (
        ("bad.json", config), ("good.json", good), ("type.json", {**good, "model_type": secret}),
        ("budget.yaml", budget), ("runs/box.jsonl", record),
        ("machines.yaml", {"machines": {secret: {secret: secret}}}),
    ):  # fmt: skip
        (folder / name).write_text(json.dumps(content) + "\n", encoding="utf-8")
    (folder / "start.log").write_text(
        f"INFO 05-04 09:12:13 [api_server.py:1] args: {{'model': '{secret}'}}\n{secret}\n"
    )
    plans = [("plan", f"{name}.json", "--machine", "h100") for name in ("bad", "good", "type")]
    counts = [("count", f"{name}.json") for name in ("bad", "good", "type")]
    page = ("report", "--runs", "runs", "--force", "-o", "page.html")
    return [*plans, *counts, ("check", "budget.yaml"), ("history", "--runs", "runs"), page, ("log", "start.log"),
            ("diff", "first", "last", "--runs", "runs"), ("machines", "--machines", "machines.yaml"),
            ("explore", "good.json", "-o", "explore.html")]  # fmt: skip


@pytest.mark.parametrize("shape", WRAPPED)
def test_no_file_makes_a_door_repeat_a_secret(
    shape: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In configs, budgets, records, machines and logs of somebody else: neither a terminal nor a page has it."""
    monkeypatch.chdir(tmp_path)
    password = "hunter2Secret"
    for argv in _write(tmp_path, shape.format(pw=password)):
        code, out, err = run(*argv)
        assert code in (0, 1, 2, 3), argv
        assert password not in out + err, argv
    for page in tmp_path.glob("*.html"):
        assert password not in page.read_text(encoding="utf-8"), page.name


@pytest.mark.parametrize("shape", WRAPPED)
def test_no_name_of_ours_keeps_a_secret(shape: str) -> None:
    """Where slashes and colons are squeezed out of a name, the secret goes before them."""
    secret = shape.format(pw="hunter2Secret")
    assert "hunter2Secret" not in file_of("runs", secret)
    assert "hunter2Secret" not in plain(secret)
