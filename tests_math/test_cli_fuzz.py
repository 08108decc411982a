"""Whatever is typed, `membudget` ends in an answer or one message; the quick reader reads as argparse does."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from membudget.cli import COMMANDS, available, main
from membudget.commands.arguments import UsageError, build, quick
from tests_math.strategies import command_lines

pytestmark = pytest.mark.suite

#: Commands that write files or start processes are not run with random arguments.
HARMLESS = {"plan", "count", "check", "fleet", "machines", "formats", "models", "schema", "pool"}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(argv=command_lines)
@example(argv=["plan", "\ud800"])
@example(argv=["plan", "Qwen/Qwen3-8B", "--machine", "\x00"])
@example(argv=["count", "\n"])
@example(argv=["check", "\x00"])
@example(argv=["plan", "Qwen/Qwen3-8B", "--machines", "\x00"])
@example(argv=["plan", "Qwen/Qwen3-8B", "--json", "--json"])
@example(argv=["--json"])
def test_no_argv_ends_in_a_traceback(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """200 command lines: an exit code of the documented four, and with --json one document."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names = {name for name, _, _ in COMMANDS}
    if argv and argv[0] in names - HARMLESS:
        argv = ["--help", *argv]
    code = main(list(argv))
    out, err = capsys.readouterr()
    assert code in (0, 1, 2, 3), err
    assert "Traceback" not in out + err
    if "--json" in argv and argv[0] not in ("--help", "-h", "--version", "help") and not {"-h", "--help"} & set(argv):
        assert isinstance(json.loads(out), dict)
    elif code == 2 and argv and argv[0] != "check":
        assert out == ""
        assert err.startswith("membudget: ")


@st.composite
def tidy_lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Options of one command, written in full, in any order, some left out, some wrong."""
    name = draw(st.sampled_from(sorted(HARMLESS & set(available()))))
    parser = _parser(name)
    words: list[str] = []
    for action in draw(st.lists(st.sampled_from(parser._actions), max_size=6)):
        value = draw(
            st.sampled_from(["8", "x", "bf16", "vllm", "-1", "", "a b", "--json", *map(str, action.choices or ())])
        )
        if not action.option_strings:
            words.append(value)
            continue
        option = draw(st.sampled_from(action.option_strings))
        if action.nargs == 0:
            words.append(option)
        elif draw(st.booleans()):
            words.append(f"{option}={value}")
        else:
            words += [option, value]
    return name, words


@settings(max_examples=200, deadline=None)
@given(tidy_lines())
def test_quick_reads_as_argparse_does(line: tuple[str, list[str]]) -> None:
    """What the quick reader accepts, argparse reads the same; what argparse refuses, it never accepts."""
    name, words = line
    found = quick(_options(name), words)
    try:
        args, rest = _parser(name).parse_known_intermixed_args(words)
    except UsageError:
        assert found is None
        return
    if found is not None:
        assert rest == []
        assert vars(found) == vars(args)


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_plain_command_lines_are_read_quickly(name: str) -> None:
    """Every command's own declarations are ones that the quick reader understands."""
    words = {"plan": ["m"], "count": ["m"], "pool": ["m"]}.get(name, [])
    assert quick(_options(name), words) is not None


@cache
def _parser(name: str) -> ArgumentParser:
    return build(name, "", _options(name))


def _options(name: str) -> Callable[[Any], None]:
    from importlib import import_module

    options = import_module(f"membudget.commands.{name}").options
    assert callable(options)
    return options  # type: ignore[no-any-return]
