"""Secrets stay with their owner: tokens and logins in no output, record, report, page or message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from membudget.cli.main import main
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
