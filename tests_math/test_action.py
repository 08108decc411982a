"""The GitHub Action and the pre-commit hook, executed on a project of somebody else."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.suite, pytest.mark.skipif(os.name != "posix", reason="steps are for bash")]

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
BUDGET = "model: meta-llama/Llama-3.1-8B\nformat: bf16\nctx: 8Ki\nusers: {users}\nmachine: rtx-4090\n"
#: Installs nothing: the package under test is there.
PYTHON = '#!/bin/sh\ncase " $* " in *" -m pip "*) exit 0 ;; esac\nexec "{python}" "$@"\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with one budget that fits, in a folder of its own choice."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "chat.yaml").write_text(BUDGET.format(users=2), encoding="utf-8")
    tool = tmp_path / "bin" / "python"
    tool.parent.mkdir()
    tool.write_text(PYTHON.format(python=sys.executable), encoding="utf-8")
    tool.chmod(0o755)
    return tmp_path


def steps(project: Path) -> tuple[int, str]:
    """Every step of the action with the project's inputs: the last exit code and what was printed."""
    inputs = {name: each["default"] for name, each in ACTION["inputs"].items()} | {"budgets": "memory"}
    said, code = "", 0
    for step in ACTION["runs"]["steps"]:
        given = {
            name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: inputs[found[1]], value)
            for name, value in step.get("env", {}).items()
        }
        assert not any("${{" in value for value in (*given.values(), step["run"]))
        done = subprocess.run(
            [step["shell"], "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=project,
            env={
                **os.environ,
                **given,
                "GITHUB_ACTIONS": "true",
                "GITHUB_ACTION_PATH": str(ROOT),
                "PATH": f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said, code = said + done.stdout + done.stderr, done.returncode
        if code:
            break
    return code, said


def test_the_action_passes_and_fails_with_the_budgets(project: Path) -> None:
    """What fits is green with its bytes in a report; what does not is red, with a table and an annotation."""
    code, said = steps(project)
    assert code == 0, said
    assert "1 budget in 1 file: 1 as expected" in said
    assert 'name="membudget_weights' in (project / "memory.xml").read_text(encoding="utf-8")
    (project / "memory" / "chat.yaml").write_text(BUDGET.format(users=500), encoding="utf-8")
    code, said = steps(project)
    assert code == 1
    assert "it would fit with 5 users instead of 500" in " ".join(said.split())  # lines are as wide as the terminal
    assert "::error file=memory/chat.yaml,line=1" in said


def test_the_hook_checks_the_files_that_changed(project: Path) -> None:
    """pre-commit passes the names of changed files to the entry."""
    assert re.search(HOOK["files"], "budgets/chat.yaml")
    assert not re.search(HOOK["files"], "budgets/readme.md")
    words = [sys.executable, "-m", *shlex.split(HOOK["entry"]), "memory/chat.yaml"]
    for users, expected in ((2, 0), (500, 1)):
        (project / "memory" / "chat.yaml").write_text(BUDGET.format(users=users), encoding="utf-8")
        done = subprocess.run(
            words, cwd=project, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == expected, done.stdout
