"""The workflows, executed: every `run:` step in a clean clone, with stand-ins for installers, engines and tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.suite, pytest.mark.skipif(os.name != "posix", reason="steps are for bash")]

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / ".github").rglob("*.yml")}
#: Installs nothing, runs no test (one passes, in the report that is asked for), else it is this Python.
PYTHON = """#!/bin/sh
case " $* " in
  *" -m pip "*) exit 0 ;;
  *" -m pytest "*)
    for word in "$@"; do
      case $word in
        --junitxml=*) echo "<testsuite>$TESTS</testsuite>" > "${word#--junitxml=}" ;;
      esac
    done
    exit 0 ;;
  *" benchmarks/speed.py "*) set -- "$@" --rounds 2 --limit 9 ;; # the step, not the machine
esac
exec "@PYTHON@" "$@"
"""
#: Loaded by every Python of a step: an environment is made at once, and an engine answers as predicted, or otherwise.
STAND_IN = """
import os
if os.environ.get("STAND_IN"):
    from membudget.history import environments, survey

    def ensure(package, version, folder, **more):
        if os.environ["STAND_IN"] == "no wheel":
            raise environments.EnvironmentFailed("no wheel for this machine")
        return environments.Environment(folder, os.environ["PYTHON_STAND_IN"], package, version)

    def ask(python, package, budgets, timeout=0):
        versions = {"torch": "2.13.0", package: "1.0"}
        lines = {}
        for budget in budgets[:3]:
            found = survey._predicted(budget, "transformers", versions) if package == "transformers" else {}
            lines[budget.id] = {name: value for name, value in found.items() if name in ("params", "kv_cache")}
            if os.environ["STAND_IN"] == "double":
                lines[budget.id]["kv_cache"] *= 2
        return survey.Answer(versions, lines, {})

    environments.ensure = ensure
    environments.versions_of = lambda package, run=None: ["5.24.0", "5.23.0"]
    survey.ask = ask
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git has, as they are now, and the stand-ins beside them."""
    folder = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git clone")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / "repo" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / "repo" / name)
    tools = folder / "bin"
    tools.mkdir()
    scripts = {"python": PYTHON.replace("@PYTHON@", sys.executable), "membudget": 'exec python -m membudget "$@"'}
    scripts |= dict.fromkeys(("nox", "npm", "pip-audit"), "exit 0")
    for name, text in scripts.items():
        script = tools / name
        script.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(STAND_IN)
    return folder


Night = Callable[..., tuple[dict[str, int], dict[str, str]]]


@pytest.fixture
def execute(clone: Path, tmp_path: Path) -> Night:
    """Run a job's steps in order: each step's exit code by its name, and the outputs that they wrote."""
    files = {name: tmp_path / name for name in ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}

    def run(workflow: str, job: str, **more: str) -> tuple[dict[str, int], dict[str, str]]:
        for file in files.values():
            file.write_text("")
        document = WORKFLOWS[workflow]["jobs"][job]
        environment = {
            **os.environ,
            "PATH": f"{clone / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{clone / 'site'}{os.pathsep}{clone / 'repo'}",
            "PYTHON_STAND_IN": str(clone / "bin" / "python"),
            "HOME": str(tmp_path),
            "HF_HUB_OFFLINE": "1",
            "TESTS": '<testcase name="a"/>',
            **{name: str(file) for name, file in files.items()},
            **{name: _default(str(value)) for name, value in document.get("env", {}).items()},
            **more,
        }
        codes: dict[str, int] = {}
        failed = False
        for step in document["steps"]:
            if "run" not in step or (failed and "always()" not in step.get("if", "") and "if" not in step):
                continue
            command = _of_matrix(step["run"], document)
            assert "${{" not in command, "text from outside would be run as a command"
            named = dict(line.split("=", 1) for line in files["GITHUB_ENV"].read_text().splitlines())
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", command],
                cwd=clone / "repo",
                env={**environment, **named},
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            name = step.get("name", step["run"].splitlines()[0])
            codes[name] = done.returncode
            failed |= done.returncode != 0
            print(name, done.stdout, done.stderr, sep="\n")  # shown where a test fails
        return codes, dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())

    return run


def _default(text: str) -> str:
    """An expression such as ``${{ inputs.vllm || 'newest 1' }}`` in a scheduled run."""
    found = re.fullmatch(r"\$\{\{.*\|\| '([^']*)' \}\}", text)
    return found[1] if found else text


def _of_matrix(text: str, job: dict[str, Any]) -> str:
    """Values of the job's own matrix, the first of each."""
    values = job.get("strategy", {}).get("matrix", {})
    return re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda found: str(values[found[1]][0]), text)


MATRIX = "the newest versions, every tier, and what moved"


def test_three_nights(execute: Night, tmp_path: Path, clone: Path) -> None:
    """The first night has nothing to compare with, the second is quiet, on the third a cache has doubled."""
    for state in ("as predicted", "as predicted"):
        codes, outputs = execute("nightly", "spark", STAND_IN=state)
        assert set(codes.values()) == {0}
        assert outputs == {"state": "quiet"}
    codes, outputs = execute("nightly", "spark", STAND_IN="double")
    assert (codes[MATRIX], outputs) == (4, {"state": "failed"})
    summary = (tmp_path / "GITHUB_STEP_SUMMARY").read_text(encoding="utf-8")
    assert "FAILED" in summary
    assert "**moved: survey transformers newest**" in summary
    assert "kv_cache" in summary
    assert (clone / "repo" / "night.html").exists()
    assert list((tmp_path / "membudget" / "runs").glob("*.jsonl"))


def test_a_night_that_measured_nothing(execute: Night) -> None:
    """No environment, or a tier that is all skips: red, with its own exit code and word."""
    codes, outputs = execute("nightly", "spark", STAND_IN="no wheel")
    assert (codes[MATRIX], outputs) == (3, {"state": "not measured"})
    skipped = '<testcase name="a"><skipped message="needs torch"/></testcase>'
    codes, outputs = execute("nightly", "spark", STAND_IN="as predicted", TESTS=skipped)
    assert (codes[MATRIX], outputs) == (3, {"state": "not measured"})


@pytest.mark.parametrize("job", sorted(WORKFLOWS["ci"]["jobs"]))
def test_the_steps_of_ci(execute: Night, clone: Path, job: str) -> None:
    """Each step of each job ends well in a clean clone, and the tests that it names are there."""
    codes, _ = execute("ci", job)
    assert codes
    assert set(codes.values()) == {0}
    for step in WORKFLOWS["ci"]["jobs"][job]["steps"]:
        for path in re.findall(r"\btests_\w+/\S+\.py", step.get("run", "")):
            assert (clone / "repo" / path).exists(), path
