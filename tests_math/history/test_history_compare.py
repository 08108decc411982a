"""Two runs compared: words, budgets that were asked for, logs, machines, and which runs stand between."""

from __future__ import annotations

import pytest

from membudget.budgets.tolerance import Tolerance
from membudget.history import Entry, Line, compare
from membudget.history.drift import Difference, drift_tolerance
from tests_math.history.test_history_drift import GIB, run

pytestmark = pytest.mark.suite


def test_a_difference_in_words() -> None:
    """What is not there is not set."""
    assert str(Difference("flag", "eager", "True", "")) == "flag eager: True -> not set"
    assert str(Difference("flag", "eager", "", "True")) == "flag eager: not set -> True"


def test_a_word_that_moved_has_no_bytes() -> None:
    """An outcome that is another one is beyond any tolerance, by no number."""
    old, new = (
        run(day)._replace(budgets={"b": entry(outcome)}) for day, outcome in ((1, "fits"), (2, "out_of_memory"))
    )
    (move,) = compare(old, new).moves
    assert (move.before, move.after, move.off, move.share, move.beyond) == ("fits", "out_of_memory", 0, None, True)
    (gone,) = compare(run(1, measured=0), run(2)).moves
    assert (gone.off, gone.share) == (GIB, None)


def entry(outcome: str) -> Entry:
    """A budget that measured a word."""
    return Entry("passed", {"outcome": Line(None, outcome, "", "exact")}, {})


def test_only_some_budgets_are_compared() -> None:
    """What was not asked for is neither moved nor gone nor new."""
    one = run(1).budgets["mistral"]
    moved_one = run(2, measured=3 * GIB).budgets["mistral"]
    old = run(1)._replace(budgets={"a": one, "b": one, "gone": one, "left": one})
    new = run(2)._replace(budgets={"a": moved_one, "b": moved_one, "new": one, "come": one})
    drift = compare(old, new, budgets=["b", "gone", "new"])
    assert [move.budget for move in drift.moves] == ["b"]
    assert (drift.only_before, drift.only_after) == (("gone",), ("new",))
    whole = compare(old, new)
    assert [move.budget for move in whole.moves] == ["a", "b"]
    assert (whole.only_before, whole.only_after) == (("gone", "left"), ("new", "come"))


def test_a_log_is_compared_although_it_says_less() -> None:
    """What both runs say and say otherwise is a flag; the numbers are compared all the same."""
    old = run(1, settings={"block_size": 16, "mode": "a"})
    new = run(2, settings={"block_size": 32, "seed": 1}, measured=2 * GIB, source="vllm log")
    drift = compare(old, new)
    assert [str(item) for item in drift.named("flag")] == ["flag block_size: 16 -> 32"]
    assert [move.line for move in drift.moves] == ["kv_cache"]
    assert drift.changed == {}
    # between two runs of tests another setting is another question
    asked = compare(old, new._replace(source="pytest -m spark"))
    assert (asked.moves, list(asked.changed), asked.named("flag")) == ((), ["mistral"], [])


def test_a_machine_that_is_not_said_is_no_difference() -> None:
    """A log does not name its machine; two that are named differ."""
    assert compare(run(1, machine={}), run(2)).named("machine") == []
    assert compare(run(1), run(2, machine={})).named("machine") == []
    other = compare(run(1), run(2, machine={"name": "spark", "memory": 119_000}))
    assert [str(item) for item in other.named("machine")] == ["machine memory: 128 -> 119,000"]


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ("exact", Tolerance()),
        ("within 5%", Tolerance("within", 5_000_000, "%")),
        # a drift has no good side
        ("within +64 MiB", Tolerance("within", 64 * 2**20, "bytes")),
        ("within 5", Tolerance("within", 5, "count")),
        # a limit says nothing of two runs
        ("below 1 GiB", Tolerance("within", 1_000_000, "%")),
        ("below 5", Tolerance("within", 1_000_000, "%")),
        ("", Tolerance("within", 1_000_000, "%")),
    ],
)
def test_how_far_a_line_may_go(allowed: str, expected: Tolerance) -> None:
    """What its budget allows, to both sides; one percent where it says nothing."""
    assert drift_tolerance(allowed) == expected


def test_a_run_with_another_package_beside_is_not_between() -> None:
    """Three packages: a run in between counts where the two others are the same, and only then."""
    base = {"torch": "2.13.0", "vllm": "0.32.0"}
    old, new = run(1, {**base, "transformers": "5.8.0"}), run(9, {**base, "transformers": "5.24.0"}, 2 * GIB)
    aside = run(2, {**base, "vllm": "0.31.0", "transformers": "5.10.0"})
    alike = run(3, {**base, "transformers": "5.11.0"})
    (move,) = compare(old, new, [aside]).moves
    assert move.since is not None
    assert (move.since.before.id, move.since.after.id) == (old.id, new.id)
    (move,) = compare(old, new, [aside, alike]).moves
    assert move.since is not None
    assert [str(item) for item in move.since.versions] == ["version transformers: 5.11.0 -> 5.24.0"]


def test_runs_of_other_machines_and_lines_are_not_between() -> None:
    """Where another machine, or a run without the line, measured in between, nothing is said from it."""
    old, new = run(1), run(9, measured=2 * GIB)
    far = run(3, machine={"name": "other"})
    blank = run(4, measured=None)  # type: ignore[arg-type]
    strange = run(5)._replace(budgets={})
    other = run(6, settings={"ctx": 1})
    (move,) = compare(old, new, [far, blank, strange, other]).moves
    assert move.since is not None
    assert (move.since.before.id, move.since.after.id) == (old.id, new.id)
    near = run(7)
    (move,) = compare(old, new, [far, blank, strange, other, near]).moves
    assert move.since is not None
    assert move.since.before.id == near.id
