"""Completion: what may stand at the cursor, and real shells that are asked for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from membudget.cli.commands.candidates import candidates
from membudget.cli.commands.completion import SCRIPTS, WORDS
from membudget.cli.main import COMMANDS, available, parser_of

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[2]
Run = Callable[..., tuple[int, str, str]]


def values(line: str) -> list[str]:
    """The candidates of a line that is cut at the cursor."""
    return [value for value, _ in candidates(line.split(" "))]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pl", ["plan"]),
        ("plan Qwen/Qwen3-8", ["Qwen/Qwen3-8B", "Qwen/Qwen3-8B-FP8", ":files"]),
        ("plan qwen/qwen3-8b", ["Qwen/Qwen3-8B", "Qwen/Qwen3-8B-FP8", ":files"]),
        ("plan m --machine dgx", ["dgx-spark"]),
        ("plan m --machine=dgx", ["--machine=dgx-spark"]),
        ("plan m --machine this", ["this-machine"]),
        ("plan m --engine ", ["vllm", "transformers", "llama_cpp"]),
        ("plan m --format q4_k_", ["q4_k_m", "q4_k_s"]),
        ("plan m --kv-cache-dtype fp8_e4", ["fp8_e4m3"]),
        ("plan m --kv-c", ["--kv-cache-dtype"]),
        ("plan m --users 3 --user", []),
        ("plan m --machine h100-80gb --machine", ["--machine", "--machines"]),
        ("plan m n", []),
        ("plan m --users ", []),
        ("plan --machine dgx-spark ./x", [":files"]),
        ("check ", [":yaml"]),
        ("check a.yaml ", [":yaml"]),
        ("check --models ", [":folders"]),
        ("plan m --machines=x", [":yaml"]),
        ("init m --to b", [":folders"]),
        ("doctor --ignore sw", ["swap"]),
        ("machines dgx", ["dgx-spark"]),
        ("log ", [":files"]),
        ("help fle", ["fleet"]),
        ("nothing ", []),
        ("completion f", ["fish"]),
    ],
)
def test_what_may_stand_there(line: str, expected: list[str]) -> None:
    """Commands, options that may still be given, and values by what an option takes."""
    assert values(line) == expected


def test_every_command_and_option_is_offered() -> None:
    """Nothing that the parsers take is missing, and descriptions are their help."""
    assert set(values("")) >= set(available()) | {"--help", "--version"}
    for name in available():
        options = {option for action in parser_of(name)._actions for option in action.option_strings}
        assert set(values(f"{name} -")) == options
    helps = dict(candidates([""]))
    assert {name: text for name, _, text in COMMANDS if name in available()}.items() <= helps.items()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(["plan", "--machine", "--machine=", "check", "-", "--"]), st.text(max_size=9)))
)
@example(["plan", "\x00"])
@example(["plan", "--machine=\ud800"])
def test_no_line_breaks_it(words: list[str]) -> None:
    """Whatever was typed, an answer and no error between two key presses."""
    for value, _ in candidates(words):
        assert "\n" not in value
        assert "\t" not in value


def test_cached_models_are_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Repositories of the Hugging Face cache stand beside the shipped ones; an odd folder name is nothing."""
    for name in ("models--my-org--my-model", "datasets--a--b", "version.txt"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert values("plan my") == ["my-org/my-model", ":files"]


def test_the_script_and_the_answer(
    run: Run, ask: Callable[..., tuple[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shell has a script; the words come in a variable, ended by a dot that shells cannot swallow."""
    for shell in SCRIPTS:
        code, out, err = run("completion", shell)
        assert (code, err) == (0, "")
        assert "MEMBUDGET_COMPLETE" in out
        assert ask("completion", shell)[1] == {"shell": shell, "script": SCRIPTS[shell]}
    assert run("completion", "tcsh")[0] == 2
    monkeypatch.setenv(WORDS, "membudget\nplan\nm\n--engine\n\n.")
    assert run("completion", "bash")[1] == "vllm\t\ntransformers\t\nllama_cpp\t\n"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with `membudget` in bin, budgets, a space in a name, and the scripts."""
    command = tmp_path / "bin" / "membudget"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m membudget "$@"\n')
    command.chmod(0o755)
    (tmp_path / "budgets").mkdir()
    for name in ("one.yaml", "other.yml", "note.txt"):
        (tmp_path / "budgets" / name).write_text("")
    for shell, script in SCRIPTS.items():
        (tmp_path / f"membudget.{shell}").write_text(script, encoding="utf-8")
    return tmp_path


def shell(here: Path, *command: str) -> list[str]:
    """Lines that a shell prints, with our command first on PATH."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    path = f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HF_HOME": str(here), "TERM": "dumb", "HOME": str(here)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=here, env=environment, timeout=120)
    assert done.stderr == ""
    return done.stdout.splitlines()


CASES = [
    ("membudget pl", ["plan"]),
    ("membudget plan Qwen/Qwen3-8", ["Qwen/Qwen3-8B", "Qwen/Qwen3-8B-FP8"]),
    ("membudget plan m --machine dgx", ["dgx-spark"]),
    ("membudget plan m --engine ", ["llama_cpp", "transformers", "vllm"]),
    ("membudget check budgets/o", ["budgets/one.yaml", "budgets/other.yml"]),
    ("membudget plan m --kv-c", ["--kv-cache-dtype"]),
    ("membudget plan m --machine=dgx", ["--machine=dgx-spark"]),
]


@pytest.mark.skipif(os.name != "posix", reason="bash as POSIX systems have it")
@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash(here: Path, line: str, expected: list[str]) -> None:
    """bash gets the words that replace the one at the cursor; behind = only what follows it."""
    code = (
        "source \"./membudget.bash\"; COMP_WORDBREAKS=$' \\t\\n\"\\'><=;|&(:'; COMP_LINE=$1; COMP_POINT=${#1}\n"
        '_membudget_complete; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    wanted = [word.rpartition("=")[2] for word in expected]
    assert sorted(shell(here, "bash", "--norc", "-c", code, "bash", line)) == wanted


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_fish(here: Path, line: str, expected: list[str]) -> None:
    """fish gets whole words with their descriptions."""
    code = f"source ./membudget.fish; complete -C '{line}'"
    assert sorted(row.partition("\t")[0] for row in shell(here, "fish", "--no-config", "-c", code)) == expected


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo terminals")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("membudget pl", "membudget plan "),
        ("membudget plan Qwen/Qwen3-8", "membudget plan Qwen/Qwen3-8B"),
        ("membudget plan m --machine=dgx", "membudget plan m --machine=dgx-spark "),
        ("membudget plan m --machine dgx", "membudget plan m --machine dgx-spark "),
        ("membudget check budgets/on", "membudget check budgets/one.yaml "),
        ("membudget plan m --engine t", "membudget plan m --engine transformers "),
    ],
)
def test_zsh(here: Path, line: str, expected: str) -> None:
    """zsh completes the line itself; a second zsh in a pseudo terminal (zsh/zpty) is typed into."""
    code = (
        "zmodload zsh/zpty; zpty z zsh -f -i\n"
        "say() { zpty -w z $1; }\n"
        'say "PS1=; autoload -Uz compinit; compinit -u -D; source ./membudget.zsh"\n'
        "say \"bindkey '^I' complete-word; zle -N report; bindkey '^X' report\"\n"
        "say 'report() { print -r -- \"<<$BUFFER>>\" > ./buffer; zle kill-whole-line }'\n"
        "say 'print ready > ./ready'\n"
        "for i in {1..200}; do [[ -s ./ready ]] && break; sleep 0.05; done\n"
        f"zpty -w -n z '{line}'$'\\t\\x18'\n"
        "for i in {1..400}; do [[ -s ./buffer ]] && break; sleep 0.05; done\n"
        "zpty -d z; cat ./buffer"
    )
    assert shell(here, "zsh", "-f", "-c", code) == [f"<<{expected}>>"]
