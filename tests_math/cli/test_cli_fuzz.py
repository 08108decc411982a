"""Whatever is typed, `membudget` ends in an answer or one message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings

from membudget.cli.commands.registry import COMMANDS
from membudget.cli.main import main
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
