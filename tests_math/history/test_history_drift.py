"""What moved between two runs: the right line, the right version, the right reason; and which run is meant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget.history import Entry, Line, Record, SelectError, compare, select
from membudget.history.changes import Change, ChangesError, known_changes
from membudget.history.drift import moved
from membudget.history.logs import of_log
from membudget.history.select import baseline
from membudget.history.text import BARS, drift_lines, series, sparkline
from membudget.history.versions import version_key

pytestmark = pytest.mark.suite

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
GIB = 2**30


def run(
    number: int,
    versions: dict[str, str] | None = None,
    measured: int = GIB,
    verdict: str = "passed",
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> Record:
    """Run number `number`: one budget, one measured cache line, its tolerance 1%."""
    lines = {"kv_cache": Line(GIB, measured, "bytes", "within 1%"), "weights": Line(5, 5, "bytes", "within +64 MiB")}
    values: dict[str, Any] = {
        "id": f"202611{number:02}-000000-{number:06}",
        "time": f"2026-11-{number:02}T00:00:00.000000Z",
        "source": "pytest -m spark",
        "machine": {"name": "spark", "memory": 128},
        "versions": {"torch": "2.13.0", "transformers": "5.8.0"} | (versions or {}),
        "budgets": {"mistral": Entry(verdict, lines, {"ctx": 8192, **(settings or {})})},
    }
    return Record(**(values | more))


def said(old: Record, new: Record, runs: Sequence[Record] = ()) -> str:
    """The comparison as it is shown."""
    return "\n".join(drift_lines(compare(old, new, runs)))


def test_nothing_moved() -> None:
    """Two runs alike: every line is counted, none is told."""
    drift = compare(run(1), run(2))
    assert drift.moves == ()
    assert drift.same == 4
    assert "nothing moved: 4 lines" in said(run(1), run(2))


def test_the_bucket_its_bytes_its_share_and_the_version() -> None:
    """The cache is twice what it was since one version among several that were run out of order."""
    runs = [
        run(1, {"transformers": "5.8.0"}),
        run(2, {"transformers": "5.24.0"}, 2 * GIB),
        run(3, {"transformers": "5.10.0"}),
        run(4, {"transformers": "5.9.0"}),
        run(5, {"transformers": "5.11.0"}, 2 * GIB),
        run(6, {"transformers": "5.7.0"}, 3 * GIB),
        run(7, {"transformers": "5.10.4", "torch": "2.12.0"}, 2 * GIB),
    ]
    (move,) = compare(runs[0], runs[1], runs).moves
    assert (move.budget, move.line, move.side, move.off, move.beyond) == ("mistral", "kv_cache", "measured", GIB, True)
    assert move.since is not None
    assert [str(item) for item in move.since.versions] == ["version transformers: 5.10.0 -> 5.11.0"]
    text = said(runs[0], runs[1], runs)
    assert "kv_cache of mistral measured: 1.00 GiB -> 2.00 GiB, +1.00 GiB (+100%, 2x more)" in text
    assert "transformers 5.10.0 -> 5.11.0 (last as before on 2026-11-03)" in text


def test_several_versions_changed_then_time_decides() -> None:
    """Where two packages differ between the runs, the first neighbours in time count."""
    runs = [
        run(1),
        run(2, {"torch": "2.14.0"}),
        run(3, {"torch": "2.14.0", "transformers": "5.9.0"}, 2 * GIB),
        run(4, {"torch": "2.14.0", "transformers": "5.10.0"}, 2 * GIB),
    ]
    (move,) = compare(runs[0], runs[3], runs).moves
    assert move.since is not None
    assert [item.name for item in move.since.versions] == ["transformers"]
    assert move.since.before.id == runs[1].id


def test_within_its_tolerance_is_told_and_is_no_drift() -> None:
    """Half a percent of a line that may differ by one."""
    drift = compare(run(1), run(2, measured=GIB + GIB // 200))
    assert [move.beyond for move in drift.moves] == [False]
    assert drift.beyond == []
    assert "within tolerance: kv_cache" in said(run(1), run(2, measured=GIB + GIB // 200))


@pytest.mark.parametrize(
    ("before", "after", "allowed", "beyond"),
    [
        (1000, 1010, "within 1%", False),
        (1000, 1011, "within 1%", True),
        (1000, 990, "within 1%", False),
        (2**30, 2**30 - 2**25, "within +64 MiB", False),
        (2**30, 2**30 + 2**27, "within +64 MiB", True),
        (1000, 1001, "exact", True),
        (1000, 1001, "", False),
        (1000, 1011, "", True),
        (1000, 1011, "below 8 MB", True),
        (1000, 1001, "nonsense", False),
        (100, 102, "within 2", False),
        (0, 1, "within 1%", True),
    ],
)
def test_tolerances(before: int, after: int, allowed: str, beyond: bool) -> None:
    """A budget's tolerance holds between two runs, to both sides; without one, 1%."""
    assert moved(before, after, "measured", allowed) is beyond


@given(st.integers(0, 2**60), st.integers(0, 2**60), st.sampled_from(["", "exact", "within 1%", "below 1 GiB"]))
def test_a_prediction_moves_by_a_byte(before: int, after: int, allowed: str) -> None:
    """The arithmetic has no tolerance, whatever the hardware is allowed."""
    assert moved(before, after, "predicted", allowed) is (before != after)


def test_machine_and_flags_are_named_before_numbers() -> None:
    """Another driver and another allocator setting stand above the first number."""
    new = run(2, measured=2 * GIB, machine={"name": "spark", "memory": 128, "driver": "590.1"}, flags={"A": "1"})
    text = said(run(1), new)
    assert text.index("machine  driver: not set -> 590.1") < text.index("kv_cache of mistral")
    assert text.index("flag     A: not set -> 1") < text.index("kv_cache of mistral")


def test_another_question_is_not_compared() -> None:
    """A budget whose context or engine flag changed is named, and its numbers are left alone."""
    drift = compare(run(1), run(2, measured=2 * GIB, settings={"engine.block_size": 32}))
    assert drift.moves == ()
    assert [str(item) for item in drift.changed["mistral"]] == ["setting engine.block_size: not set -> 32"]
    assert "not compared: mistral: settings changed" in said(
        run(1), run(2, measured=2 * GIB, settings={"engine.block_size": 32})
    )


def test_what_is_gone_is_named() -> None:
    """A line that is no longer measured, a budget that is gone, a new one."""
    old, new = run(1), run(2)
    gone = new.budgets["mistral"].lines | {"kv_cache": Line(GIB)}
    new = new._replace(budgets={"mistral": new.budgets["mistral"]._replace(lines=gone), "new": Entry("passed", {})})
    old = old._replace(budgets={**old.budgets, "old": Entry("passed", {})})
    drift = compare(old, new)
    assert (drift.lost, drift.only_before, drift.only_after) == (("mistral kv_cache",), ("old",), ("new",))


WINDOWS = Change("transformers", "5.10.0", ("kv_cache",), "up", "keeps twice the window", "a file", ("sliding",))


@pytest.mark.parametrize(
    ("versions", "off", "line", "caches", "certain"),
    [
        (("5.8.0", "5.24.0"), 1, "kv_cache", ["sliding"], True),
        (("5.8.0", "5.24.0"), 1, "kv_cache", None, False),
        (("5.8.0", "5.24.0"), 1, "kv_cache", ["full"], None),
        (("5.8.0", "5.24.0"), -1, "kv_cache", ["sliding"], None),
        (("5.24.0", "5.8.0"), -1, "kv_cache", ["sliding"], True),
        (("5.10.0", "5.24.0"), 1, "kv_cache", ["sliding"], None),
        (("5.9.9", "5.10.0"), 1, "kv_cache", ["sliding"], True),
        (("5.8.0", "5.9.0"), 1, "kv_cache", ["sliding"], None),
        (("5.8.0", "5.24.0"), 1, "weights", ["sliding"], None),
        (("", "5.24.0"), 1, "kv_cache", ["sliding"], None),
    ],
)
def test_a_known_change_fits_or_not(
    versions: tuple[str, str], off: int, line: str, caches: list[str] | None, certain: bool | None
) -> None:
    """Version, line, direction and kind of cache must all fit; backwards the direction turns."""
    known = WINDOWS.fits(line, off, {"transformers": versions}, caches)
    assert (None if known is None else known.certain) is certain


@pytest.mark.parametrize(
    ("model", "certain"), [("google/gemma-2-2b", True), ("google/gemma-3-1b-it", None), (None, False)]
)
def test_a_change_of_one_model(model: str | None, certain: bool | None) -> None:
    """Where a change is about one family, the model's name decides; where it is not known, it is only perhaps so."""
    (change,) = [item for item in known_changes() if item.models == ("gemma-2",)]
    known = change.fits("prefill_peak", 1, {"transformers": ("5.20.2", "5.21.0")}, None, model)
    assert (None if known is None else known.certain) is certain


def test_an_explained_move_is_no_unexplained_one() -> None:
    """A known change takes the blame; in another direction it does not."""
    settings = {"caches": ["sliding"]}
    old = run(1, settings=settings)
    new = run(2, {"transformers": "5.24.0"}, 2 * GIB, settings=settings)
    assert compare(old, new, changes=[WINDOWS]).unexplained == []
    less = run(2, {"transformers": "5.24.0"}, GIB // 2, settings=settings)
    assert len(compare(old, less, changes=[WINDOWS]).unexplained) == 1


def test_the_table_of_known_changes() -> None:
    """Every entry has a source and a version, and is about lines that exist."""
    changes = known_changes()
    assert len(changes) >= 10
    for change in changes:
        assert change.package in ("vllm", "transformers")
        assert version_key(change.version)[0] == 1
        assert change.source
        assert set(change.caches) <= {"full", "sliding", "chunked", "latent", "recurrent", "cross"}


@pytest.mark.parametrize("text", ["{}", "- 1", "- {package: a}", "- {package: a, colour: b}"])
def test_a_wrong_table_is_refused(tmp_path: Path, text: str) -> None:
    """A table that is none says which entry is wrong."""
    place = tmp_path / "changes.yaml"
    place.write_text(text)
    with pytest.raises(ChangesError, match=r"changes\.yaml"):
        known_changes(str(place))


def test_two_logs_name_the_line_and_the_version() -> None:
    """vLLM's own figures for Gemma 3 27B: 112,336 tokens by 0.12.0, 292,307 by 0.20.2, the same pool (vLLM #43308)."""
    old = of_log(str(LOGS / "sizing" / "0.12.0-gemma-3-27b-text.log"), "0.12.0")
    new = of_log(str(LOGS / "sizing" / "0.20.2-gemma-3-27b-text.log"), "0.20.2")
    (move,) = compare(old, new).moves
    assert (move.line, move.before, move.after) == ("pool_tokens", 112_336, 292_307)
    text = said(old, new)
    assert "pool_tokens of engine measured: 112,336 -> 292,307, +179,971 (+160%, 2.6x more)" in text
    assert "since    vllm 0.12.0 -> 0.20.2" in text
    assert "vllm 0.20.1: the printed size is concurrency x max_model_len" in text


def test_a_log_of_an_older_version_in_between_narrows_it() -> None:
    """With a log of 0.16.0 in between, gpt-oss's move is put between its neighbours."""
    versions = ("0.16.0", "0.18.0", "0.24.0")
    logs = [of_log(str(LOGS / "sizing" / f"{version}-gpt-oss-20b.log"), version) for version in versions]
    drift = compare(logs[0], logs[2], logs)
    moves = [move for move in drift.moves if move.line == "pool_tokens"]
    values = [log.budgets["engine"].lines["pool_tokens"].measured for log in logs]
    assert len(moves) == (values[0] != values[2])
    for move in moves:
        assert move.since is not None
        first = next(index for index in range(2) if values[index] != values[index + 1])
        assert move.since.versions[0].after == versions[first + 1]


def test_a_hybrid_lost_a_fifth_of_its_tokens() -> None:
    """Real logs of a tiny Qwen3-Next on a CPU: 762,600 tokens by 0.27.1, 599,186 by 0.32.0, from one GiB both times."""
    drift = compare(of_log(str(LOGS / "cpu/0.27.1-qwen3-next.log")), of_log(str(LOGS / "cpu/0.32.0-qwen3-next.log")))
    move, times = drift.beyond
    assert (move.line, move.before, move.after) == ("pool_tokens", 762_600, 599_186)
    # the same fifth, as the logs print it: 372.36x and 292.57x of 2,048 tokens a request
    assert (times.line, times.before, times.after) == ("pool_concurrency", 372_36, 292_57)
    assert all(any("prefix caching" in str(known) for known in item.changes) for item in drift.beyond)
    assert [str(item) for item in drift.named("version")] == ["version vllm: 0.27.1 -> 0.32.0"]


def test_a_log_of_another_version_than_said_is_refused() -> None:
    """LOG@VERSION is for logs that do not say it."""
    with pytest.raises(ValueError, match=r"the log itself says vLLM 0\.32\.0"):
        of_log(str(LOGS / "cpu" / "0.32.0-llama.log"), "0.31.0")
    with pytest.raises(ValueError, match="no line of a vLLM start-up"):
        of_log(str(Path(__file__)))


RUNS = [
    run(1, reference="first light"),
    run(2, verdict="failed"),
    run(3, {"transformers": "5.9.0"}),
    run(4, source="pytest -m math"),
    run(5, machine={"name": "other"}),
    run(6, verdict="failed"),
]


@pytest.mark.parametrize(
    ("ref", "day"),
    [
        ("last", 5),
        ("first", 1),
        ("last-green", 3),
        ("reference", 1),
        ("transformers==5.9.0", 3),
        ("transformers==5.8.0,torch==2.13.0", 5),
        ("2026-11-02", 2),
        ("20261104", 4),
        ("20261103-000000-000003", 3),
    ],
)
def test_which_run_is_meant(ref: str, day: int) -> None:
    """The words for runs; green ones and references are of the same machine and source."""
    assert select(ref, RUNS, RUNS[-1]).id == RUNS[day - 1].id


@pytest.mark.parametrize("ref", ["5.9.0", "transformers==1.0", "abc", "2026-12-01", "", "202"])
def test_no_such_run(ref: str) -> None:
    """What means no run is refused with what is there."""
    with pytest.raises(SelectError, match=r"5\.8\.0|is not a run"):
        select(ref, RUNS, RUNS[-1])


def test_a_version_means_the_run_of_the_same_kind() -> None:
    """Of a version's survey and its tier, the one that says most of the same budgets is meant."""
    other = {"tiny": Entry("passed", {})}
    runs = [
        run(1),
        run(2, budgets=other),
        run(3, {"transformers": "5.9.0"}),
        run(4, {"transformers": "5.9.0"}, budgets=other),
    ]
    assert select("transformers==5.8.0", runs, runs[2]).id == runs[0].id
    assert select("transformers==5.8.0", runs, runs[3]).id == runs[1].id
    assert select("transformers==5.9.0", runs).id == runs[3].id


def test_no_run_at_all() -> None:
    """An empty history says so, and what makes a run."""
    with pytest.raises(SelectError, match="no run is recorded; `pytest --membudget-record` makes one"):
        select("last", [])
    with pytest.raises(SelectError, match="without a failure"):
        select("last-green", [run(2, verdict="failed"), run(3)], run(3))


def test_last_green_is_found_budget_by_budget() -> None:
    """One budget that fails for days does not make the others' reference older."""
    both = {"a": Entry("passed", {}), "b": Entry("passed", {})}
    half = {"a": Entry("passed", {}), "b": Entry("failed", {})}
    runs = [run(1, budgets=both), run(2, budgets=half), run(3, budgets=half)]
    found = baseline("last-green", runs, runs[2])
    assert {name: record.id for name, record in found.items()} == {"a": runs[1].id, "b": runs[0].id}


def test_sparkline() -> None:
    """From the least to the most; flat is low, a gap is a gap, and ASCII where there is nothing else."""
    assert sparkline([0, 7, None, 14]) == f"{BARS[0]}{BARS[3]} {BARS[7]}"
    assert sparkline([5, 5]) == BARS[0] * 2
    assert sparkline([]) == sparkline([None]) == ""
    assert sparkline([0, 1], unicode=False) == "_@"


def test_series_have_one_value_a_run() -> None:
    """A line that a run does not have is a gap, and a side that none has is no row."""
    other = run(2, budgets={"other": Entry("passed", {"w": Line(1)})})
    found = series([run(1), other])
    assert found["mistral", "kv_cache", "measured"] == [GIB, None]
    assert found["other", "w", "predicted"] == [None, 1]
    assert ("other", "w", "measured") not in found


def test_a_clock_that_was_wrong_once() -> None:
    """A run that is dated in years to come is not the last one, for ever: the last one before now, or before a run."""
    ahead = run(3, id="21000101-000000-000003", time="2100-01-01T00:00:00.000000Z")
    runs = [run(1), run(2), ahead]
    assert select("last", runs) == run(2)
    assert select("last", runs, run(2)) == run(1)
    assert baseline("last", runs, run(2)) == {"mistral": run(1)}
    assert select("last", [ahead]) == ahead
    assert select("2100-01-01", runs) == ahead
