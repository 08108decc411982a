"""Completion: what argcomplete offers at the cursor, and real shells that are asked for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import argcomplete
import pytest

from membudget.cli.commands.completion import SHELLS
from membudget.cli.commands.registry import available, parser_of

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[2]
Run = Callable[..., tuple[int, str, str]]


#: Asks for each line of stdin, cut at the cursor, as bash does; argcomplete takes descriptor 9 for itself, so apart.
ASK = """
import io, json, os, sys
from membudget.cli.commands.candidates import complete
os.environ.update(_ARGCOMPLETE="1", _ARGCOMPLETE_IFS="\\n", _ARGCOMPLETE_SHELL="bash")
found = []
for line in json.load(sys.stdin):
    os.environ.update(COMP_LINE=f"membudget {line}", COMP_POINT=str(len(f"membudget {line}".encode())))
    out = io.StringIO()
    try:
        complete(exit_method=sys.exit, output_stream=out)
    except SystemExit:
        found.append([word.rstrip(" ") for word in out.getvalue().split("\\n") if word])
print(json.dumps(found))
"""


def values(lines: list[str], cache: Path) -> list[list[str]]:
    """The candidates of lines that are cut at the cursor, in a folder with budgets."""
    (cache / "budgets").mkdir(exist_ok=True)
    for name in ("one.yaml", "note.txt"):
        (cache / name).write_text("")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_CACHE": str(cache / "hub")}
    command = [sys.executable, "-c", ASK]
    done = subprocess.run(
        command, input=json.dumps(lines), capture_output=True, text=True, check=True, cwd=cache, env=environment
    )
    found: list[list[str]] = json.loads(done.stdout)
    return found


EXPECTED: dict[str, list[str]] = {
    "pl": ["plan"],
    "plan Qwen/Qwen3-8": ["Qwen/Qwen3-8B", "Qwen/Qwen3-8B-FP8"],
    "plan qwen/qwen3-8b": ["Qwen/Qwen3-8B", "Qwen/Qwen3-8B-FP8"],
    "plan m --machine dgx": ["dgx-spark"],
    "plan m --machine this": ["this-machine"],
    "plan m --engine ": ["vllm", "transformers", "llama_cpp", "arithmetic"],
    "plan m --format q4_k_": ["q4_k_m", "q4_k_s"],
    "plan m --kv-cache-dtype fp8_e4": ["fp8_e4m3"],
    "plan m --kv-c": ["--kv-cache-dtype", "--kv-cache-memory-bytes"],
    "plan m n": [],
    "plan m --users ": [],
    "plan --machine dgx-spark ./n": ["./note.txt"],
    "check o": ["one.yaml"],
    "check --models b": ["budgets/"],
    "plan m --machines o": ["one.yaml"],
    "doctor --ignore sw": ["swap"],
    "machines dgx": ["dgx-spark"],
    "log n": ["note.txt"],
    "completion f": ["fish"],
    "plan my": ["my-org/my-model"],  # in the Hugging Face cache, beside an odd folder that is no model
}


def test_what_may_stand_there(tmp_path: Path) -> None:
    """Commands, options, and values by what an option takes."""
    for name in ("models--my-org--my-model", "datasets--a--b"):
        (tmp_path / "hub" / name).mkdir(parents=True)
    found = values(list(EXPECTED), tmp_path)
    assert dict(zip(EXPECTED, found, strict=True)) == EXPECTED


def test_every_command_and_option_is_offered(tmp_path: Path) -> None:
    """Nothing that the parsers take is missing."""
    commands, *options = values(["", *(f"{name} -" for name in available())], tmp_path)
    assert set(commands) >= set(available()) | {"--help", "--version"}
    for name, found in zip(available(), options, strict=True):
        assert set(found) >= {option for action in parser_of(name)._actions for option in action.option_strings}


def test_each_shell_has_a_script(run: Run, ask: Callable[..., tuple[int, Any]]) -> None:
    """The script is argcomplete's own for `membudget`; another shell is refused."""
    for shell in SHELLS:
        code, found = ask("completion", shell)
        assert (code, found["shell"]) == (0, shell)
        assert "membudget" in found["script"]
    assert run("completion", "tcsh")[0] == 2


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with `membudget` in bin, budgets, and the scripts."""
    command = tmp_path / "bin" / "membudget"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m membudget "$@"\n')
    command.chmod(0o755)
    (tmp_path / "budgets").mkdir()
    for name in ("one.yaml", "other.yml", "note.txt"):
        (tmp_path / "budgets" / name).write_text("")
    for shell in SHELLS:
        (tmp_path / f"membudget.{shell}").write_text(
            argcomplete.shellcode(["membudget"], shell=shell), encoding="utf-8"
        )
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
    ("membudget plan m --engine ", ["arithmetic", "llama_cpp", "transformers", "vllm"]),
    ("membudget check budgets/o", ["budgets/one.yaml", "budgets/other.yml"]),
    ("membudget plan m --machine=dgx", ["--machine=dgx-spark"]),
]


@pytest.mark.skipif(os.name != "posix", reason="bash as POSIX systems have it")
@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash(here: Path, line: str, expected: list[str]) -> None:
    """bash gets the words that replace the one at the cursor; behind = only what follows it."""
    code = (
        "source ./membudget.bash; COMP_WORDBREAKS=$' \\t\\n\"\\'><=;|&(:'; COMP_LINE=$1; COMP_POINT=${#1}\n"
        'COMP_TYPE=9; _python_argcomplete membudget; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    wanted = [word.rpartition("=")[2] for word in expected]
    assert sorted(word.rstrip(" ") for word in shell(here, "bash", "--norc", "-c", code, "bash", line)) == wanted


@pytest.mark.parametrize(("line", "expected"), CASES[:-1])
def test_fish(here: Path, line: str, expected: list[str]) -> None:
    """fish gets whole words with their descriptions."""
    code = f"source ./membudget.fish; complete -C '{line}'"
    rows = shell(here, "fish", "--no-config", "-c", code)
    assert sorted(row.partition("\t")[0].rstrip(" ") for row in rows) == expected


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo terminals")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("membudget pl", "membudget plan "),
        ("membudget plan m --machine dgx", "membudget plan m --machine dgx-spark "),
        ("membudget check budgets/on", "membudget check budgets/one.yaml "),
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
    assert [row.replace("  >>", " >>") for row in shell(here, "zsh", "-f", "-c", code)] == [f"<<{expected}>>"]
