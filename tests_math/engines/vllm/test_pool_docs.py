"""The worked examples of docs/where-did-24x-come-from.md are what the command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from membudget.cli.main import main

pytestmark = pytest.mark.math
PAGE = Path(__file__).parents[3] / "docs" / "where-did-24x-come-from.md"
_EXAMPLE = re.compile(r"```\n\$ membudget (pool .*?)\n(groups.*?)```", re.DOTALL)
EXAMPLES = _EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))


def test_there_are_three_worked_examples() -> None:
    """A uniform model, a sliding hybrid and a recurrent hybrid."""
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[shlex.split(command)[1] for command, _ in EXAMPLES])
def test_example_is_what_is_printed(command: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every line of the example is a line of the command's output."""
    assert main(shlex.split(command.replace("\\\n", " "))) == 0
    printed = capsys.readouterr().out.splitlines()
    missing = [line for line in shown.splitlines() if line and line not in printed]
    assert missing == []
