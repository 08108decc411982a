"""Records that somebody else wrote: one bad one is named, and stops no history, no report and no `--record`."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from membudget.history import read_folder

pytestmark = pytest.mark.suite

FIXTURES = Path(__file__).parents[2] / "fixtures"
Call = Callable[..., tuple[int, str, str]]
#: Exit codes that are not a bug of ours.
TOLD = (0, 1, 2, 3)
MISSING = object()
BAD = [MISSING, None, [], {}, "x", -1, 0, 1.5, True, 10**40, "", [None], [{}], {"a": None}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for records."""
    made = tmp_path / "runs"
    made.mkdir()
    return made


@pytest.mark.parametrize(
    ("name", "said"),
    [("runs-no-versions", "versions is not a table"), ("runs-users-null", "settings.users is None")],
)
def test_the_rest_is_read(run: Call, tmp_path: Path, name: str, said: str) -> None:
    """History and report read the good record beside the bad one, and name the bad one."""
    found = read_folder(str(FIXTURES / "hostile" / name))
    assert len(found.records) == 1
    assert len(found.problems) == 1
    assert said in str(found.problems[0])
    code, out, err = run("history", "--runs", str(FIXTURES / "hostile" / name))
    assert (code, said in out + err, found.records[0].id in out) == (0, True, True)
    code, out, err = run("report", "--runs", str(FIXTURES / "hostile" / name), "-o", str(tmp_path / "page.html"))
    assert (code, said in out + err) == (0, True)


def rich() -> dict[str, Any]:
    """A record with every field: a measured run, with samples, flags, a reference, and what was skipped."""
    lines = (FIXTURES / "history" / "xeon-2core.jsonl").read_text(encoding="utf-8").splitlines()
    record: dict[str, Any] = json.loads(lines[-1])
    name, entry = next(iter(record["budgets"].items()))
    entry["why"] = "kv_cache is over"
    entry["samples"] = {
        "kv_growth": {"tokens": [64, 128], "batch": [3, 3], "held": [393_216, 786_432]},
        "fragmentation_dynamic": {"step": [1, 2], "total": [10, 20], "allocated": [1, 11], "reserved": [None, None]},
        "max_users": {"users": [1, 2], "fits": [1, 0]},
    }
    for line in entry["samples"]:
        entry["lines"][line] = {"predicted": 3, "measured": 4, "unit": "count", "allowed": "within 1%"}
    entry["lines"]["class"] = {"predicted": "a", "measured": "b", "unit": "word"}
    record["machine"] |= {"driver": "580.1", "cuda": "13.0"}
    return {**record, "budgets": {name: entry}, "flags": {"A": "b"}, "reference": "why", "skipped": {"b": "no"}}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a record."""
    if at:
        yield at
    for key in value if isinstance(value, dict) else range(min(len(value), 1)) if isinstance(value, list) else ():
        yield from places(value[key], (*at, key))


def changed(record: dict[str, Any], at: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The record with another value in one place, later than the good one."""
    out = {**copy.deepcopy(record), "id": "99991231-other", "time": "2099-12-31T00:00:00Z"}
    inner: Any = out
    for key in at[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return out


def _all_changes() -> list[tuple[tuple[Any, ...], Any]]:
    return [(at, value) for at in places(rich()) for value in BAD]


def _doors_hold(run: Call, folder: Path, todo: list[tuple[tuple[Any, ...], Any]]) -> None:
    good = rich()
    for at, value in todo:
        lines = [json.dumps(good), json.dumps(changed(good, at, value))]
        (folder / "xeon-2core.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for command in (
            ("history", "--lines", "--runs", str(folder)),
            ("diff", "first", "last", "--runs", str(folder)),
            ("report", "--force", "--runs", str(folder), "-o", str(folder / "page.html")),
        ):
            assert run(*command)[0] in TOLD, (command[0], at, value)


def test_any_field_of_any_kind(run: Call, folder: Path) -> None:
    """A sample of the places of a record, each with a value of another kind: every door ends with a word of ours."""
    _doors_hold(run, folder, random.Random(20).sample(_all_changes(), 60))


@pytest.mark.slow
def test_every_field_of_any_kind(run: Call, folder: Path) -> None:
    """All places and all values."""
    _doors_hold(run, folder, _all_changes())


def test_a_pipe_and_a_folder_in_the_runs_folder(run: Call, folder: Path) -> None:
    """Neither is opened; both are named, and the records beside them are read."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no FIFOs")
    shutil.copy(FIXTURES / "history" / "xeon-2core.jsonl", folder)
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "folder.jsonl").mkdir()
    found = read_folder(str(folder))
    assert [Path(problem.path).name for problem in found.problems] == ["folder.jsonl", "pipe.jsonl"]
    assert found.records
    code, out, _ = run("history", "--runs", str(folder))
    assert (code, "not a regular file" in out) == (0, True)
    code, _, err = run("report", str(folder / "pipe.jsonl"), "-o", str(folder / "page.html"))
    assert (code, "not a regular file" in err) == (3, True)
