"""The package as others get it: file names, types, Python's names for it, and the wheel in an empty environment."""

from __future__ import annotations

import doctest
import importlib.util
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import membudget

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.suite


def test_names_that_windows_can_hold() -> None:
    """No reserved characters or names, no long path, no two names that differ in case only."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = [name for name in done.stdout.split("\0") if name]
    if not names:
        pytest.skip("not a git checkout")
    bad = re.compile(r'[<>:"\\|?*]|[ .](/|$)|(^|/)(con|prn|aux|nul|com\d|lpt\d)(\.|/|$)', re.IGNORECASE)
    assert [name for name in names if bad.search(name) or len(name) > 200] == []
    assert len({name.lower() for name in names}) == len(names)


def test_typed() -> None:
    """The package carries py.typed, so that a user's type checker reads its types."""
    assert (ROOT / "membudget" / "py.typed").is_file()


def test_the_example_in_the_docstring(monkeypatch: pytest.MonkeyPatch) -> None:
    """`help(membudget)` shows a session; it prints what is shown.

    144 KiB a token are 36 layers x 2 x 8 heads x 128 x 2 bytes; Qwen3-8B's files hold 16,381,470,720 bytes.
    """
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = doctest.testmod(membudget)
    assert (found.failed, found.attempted) == (0, 4)
    assert 36 * 2 * 8 * 128 * 2 * 32_768 * 8 == 38_654_705_664


def test_public_names() -> None:
    """Every name of `__all__` is there, is listed, and a wrong one is an AttributeError."""
    assert set(membudget.__all__) <= set(dir(membudget))
    for name in membudget.__all__:
        assert getattr(membudget, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = membudget.nonsense  # type: ignore[attr-defined]


def test_import_loads_nothing_of_its_own() -> None:
    """`import membudget` loads not one of its own modules, nor a large library."""
    code = "import sys, membudget; print(sorted(n for n in sys.modules if n.partition('.')[0] in HEAVY))"
    heavy = {"membudget", "torch", "transformers", "vllm", "numpy", "yaml"}
    start = code.replace("HEAVY", repr(heavy))
    done = subprocess.run([sys.executable, "-S", "-c", start], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['membudget']"


@pytest.mark.parametrize("machine", ["rtx-4090", "2x dgx-spark"])
@pytest.mark.parametrize("engine", ["vllm", "transformers", "llama_cpp"])
@pytest.mark.parametrize("model", ["openai/gpt-oss-20b", "meta-llama/Llama-3.1-8B"])
@pytest.mark.parametrize("form", [None, "fp8"])
def test_python_and_the_command_agree(
    run: Callable[..., tuple[int, str, str]], model: str, machine: str, engine: str, form: str | None
) -> None:
    """`membudget.plan` is `membudget plan --json`, or refuses where that refuses."""
    argv = [model, "--machine", machine, "--engine", engine, "--ctx", "8192", "--users", "3", "--json"]
    code, out, _ = run("plan", *argv, *(["--format", form] if form else []))
    document = json.loads(out)
    if code > 1:
        with pytest.raises(
            ValueError, match=re.escape(document["error"]["message"].partition("; `membudget")[0][-40:])
        ):
            membudget.plan(model, machine, ctx=8192, users=3, format=form, engine=engine)
        return
    answer = membudget.plan(model, machine, ctx=8192, users=3, format=form, engine=engine).as_json()
    assert {key: document[key] for key in answer} == json.loads(json.dumps(answer))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ctx": 0}, "ctx is 0; allowed is a whole number from 1"),
        ({"ctx": 8192.5}, "ctx is 8192.5"),
        ({"users": True}, "users is True"),
        ({"users": 10**30}, "users is 1000"),
        ({"engine": "tgi"}, "engine is 'tgi'; allowed are vllm, transformers, llama_cpp"),
        ({"machine": "rtx-9999"}, "rtx-9999"),
        ({"model": "../../etc/passwd"}, "passwd"),
        ({"format": "fp7"}, "fp7"),
        ({"kv_cache_dtype": "fp7"}, "fp7"),
    ],
    ids=str,
)
def test_wrong_arguments_are_value_errors(wrong: dict[str, Any], message: str) -> None:
    """The message names the argument and what is allowed."""
    given: dict[str, Any] = {"model": "Qwen/Qwen3-8B", "machine": "dgx-spark", "ctx": 8192, "offline": True} | wrong
    with pytest.raises(ValueError, match=re.escape(message)):
        membudget.plan(given.pop("model"), given.pop("machine"), **given)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    if importlib.util.find_spec("hatchling"):
        command.insert(4, "--no-build-isolation")
    _pip(command)
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_carries_all_it_reads(wheel: Path) -> None:
    """Every file of the package and of its data is inside, and no test of this repository."""
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    places = {
        "budgets": "membudget/data/budgets", "membudget": "membudget",
    }  # fmt: skip
    expected = {
        f"{there}/{path.relative_to(ROOT / here).as_posix()}"
        for here, there in places.items()
        for path in (ROOT / here).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected - names == set()
    assert {name for name in names if ".dist-info/" not in name} - expected == set()


@pytest.mark.slow
def test_the_wheel_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Every command that a newcomer types, with budgets of their own, away from the clone."""
    place = tmp_path / "environment"
    venv.create(place, with_pip=True)
    scripts = place / ("Scripts" if os.name == "nt" else "bin")
    _pip([str(scripts / "python"), "-m", "pip", "install", "--quiet", str(wheel)])
    home = tmp_path / "project"
    home.mkdir()
    # budgets are those of pytest's root folder; here it is this one, wherever temporary files lie
    (home / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "MEMBUDGET"))}

    def call(command: str, code: int = 0, tool: str = "membudget") -> str:
        argv = [str(scripts / tool), *command.split()]
        done = subprocess.run(argv, cwd=home, env=kept | {"HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"},
                              capture_output=True, encoding="utf-8", check=False)  # fmt: skip
        assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    assert call("--version") == f"membudget {membudget.__version__}\n"
    assert '"fits": true' in call("plan Qwen/Qwen3-8B --machine dgx-spark --ctx 32k --users 8 --json")
    call("init Qwen/Qwen3-8B --machine rtx-4090")
    call("init openai/gpt-oss-20b --machine dgx-spark")
    assert "2 as expected" in call("check")
    for command in ("doctor", "completion bash", "schema", "models", "machines", "formats", "--help"):
        assert call(command)
    assert call("fleet openai/gpt-oss-20b --users 100")
    assert call("pool Qwen/Qwen3-8B --machine dgx-spark")
    call("report budgets -o report.html")
    call("explore Qwen/Qwen3-8B -o explore.html")
    assert "gpt-oss-20b" in (home / "report.html").read_text(encoding="utf-8")
    assert "<script" in (home / "explore.html").read_text(encoding="utf-8")
    assert "not installed here" in call("trace Qwen/Qwen3-8B --json", 3)
    assert "2 passed" in call("--pyargs membudget.tests", tool="pytest")
    broken = next((home / "budgets").glob("qwen3*.yaml"))
    text = re.sub(r"^users: .*$", "users: 500", broken.read_text(encoding="utf-8"), flags=re.MULTILINE)
    broken.write_text(text, encoding="utf-8")
    assert "kv_cache breaks the budget" in call("--pyargs membudget.tests", 1, tool="pytest")


def _pip(command: list[str]) -> None:
    """Run pip; without an index the test is skipped, any other failure is one."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and re.search("No matching distribution|NewConnectionError|Temporary failure", done.stderr):
        pytest.skip("pip reaches no package index here")
    assert done.returncode == 0, done.stderr
