"""--record, --compare and --accept-drift in projects of somebody's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.budgets.file import Sources, parse
from membudget.history import Record, read_folder
from membudget.planning.ledger import predict

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.suite

FITS = (
    "model: meta-llama/Llama-3.2-1B\nformat: bf16\nkv_cache_dtype: bf16\nctx: 8Ki\nusers: 4\nmachine: rtx-4090\n"
    "engine: {arithmetic: {}}\n"
)
#: A test that measures: it says what a file beside it says.
MEASURES = """
from pathlib import Path
from membudget.measure.comparison import Row
from membudget.budgets.tolerance import parse

def test_measured(budget, membudget_measured):
    size = int((Path(__file__).parent / "size").read_text())
    membudget_measured([Row("kv_cache", "growth", 1000, size, "bytes", parse("within 1%"), True)])
"""
Run = Callable[..., pytest.RunResult]


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """All that a budget needs is imported once: pytester forgets what its runs import."""
    budgets, problems = parse(FITS.encode(), "warm-up", "warm-up", ".", Sources())
    assert not problems
    predict(budgets[0])


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run pytest in this project with the plugin, on a machine called box, outside CI."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("MEMBUDGET_MACHINE", "box")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("MEMBUDGET_RUNS", raising=False)
    (pytester.path / "budgets").mkdir()
    (pytester.path / "budgets" / "chat.yaml").write_text(FITS, encoding="utf-8")
    pytester.makepyfile(MEASURES)

    def run(*arguments: str, size: int = 1000) -> pytest.RunResult:
        (pytester.path / "size").write_text(str(size), encoding="utf-8")
        return pytester.runpytest("-p", "membudget.pytest_plugin.plugin", "-p", "no:cacheprovider", *arguments)

    return run


def runs(pytester: pytest.Pytester, folder: str = "runs") -> list[Record]:
    """What was recorded."""
    found = read_folder(str(pytester.path / folder))
    assert not found.problems
    return list(found.records)


def test_nothing_is_recorded_unless_asked(pytester: pytest.Pytester, run: Run) -> None:
    """An ordinary run leaves no trace, not even where runs/ is."""
    (pytester.path / "runs").mkdir()
    run().assert_outcomes(passed=1)
    assert runs(pytester) == []


def test_one_record_a_run(pytester: pytest.Pytester, run: Run) -> None:
    """Every line predicted by the ledger, those that were measured beside them, and what was asked."""
    result = run("--record")
    result.stdout.fnmatch_lines(["*memory history*", "recorded 2*"])
    (record,) = runs(pytester)
    assert (record.machine_name, record.green, record.source) == ("box", True, "pytest")
    entry = record.budgets["chat"]
    assert entry.lines["weights"].predicted == 2_471_628_800
    assert entry.lines["weights"].measured is None
    assert (entry.lines["kv_cache"].measured, entry.lines["kv_cache"].allowed) == (1000, "within 1%")
    assert entry.settings["ctx"] == 8192


@pytest.mark.parametrize("where", ["option", "variable"])
def test_where_records_lie(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch, where: str, tmp_path: Path
) -> None:
    """--runs, or MEMBUDGET_RUNS."""
    if where == "variable":
        monkeypatch.setenv("MEMBUDGET_RUNS", str(tmp_path / "kept"))
        run("--record")
    else:
        run("--record", f"--runs={tmp_path / 'kept'}")
    assert len(read_folder(str(tmp_path / "kept")).records) == 1
    assert not (pytester.path / "runs").exists()


def test_a_record_that_cannot_be_written_hides_nothing(pytester: pytest.Pytester, run: Run) -> None:
    """A folder that is a file: the tests' own outcome is there, the run is red, and what to do is said."""
    (pytester.path / "runs").write_text("", encoding="utf-8")
    result = run("--record")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["NOT recorded: *runs: *; name a folder that can be written with --runs=DIR"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_failed_test_is_a_failed_budget(pytester: pytest.Pytester, run: Run) -> None:
    """The first line of the failure is kept; a second test that passes does not make it green."""
    pytester.makepyfile(
        test_more="import pytest\n\ndef test_it(budget):\n    pytest.fail('kv_cache is over', pytrace=False)"
    )
    run("--record").assert_outcomes(passed=1, failed=1)
    (record,) = runs(pytester)
    assert not record.green
    assert record.budgets["chat"].why == "kv_cache is over"


def test_skipped_tests_record_nothing(pytester: pytest.Pytester, run: Run) -> None:
    """A skip says nothing about memory."""
    pytester.makepyfile("import pytest\n\ndef test_it(budget):\n    pytest.skip('no')")
    result = run("--record")
    result.stdout.fnmatch_lines(["nothing recorded: no test reported a budget"])
    assert runs(pytester) == []


def test_drift_fails_the_run(pytester: pytest.Pytester, run: Run) -> None:
    """A cache twice its size that no test noticed: a failed test of its own, with bytes, percent and versions."""
    run("--record")
    result = run("--compare=last-green", "--record", size=2000)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*UNEXPLAINED: kv_cache of chat measured: 1,000 B -> 1.95 KiB, +1,000 B (+100%, 2x more)",
            "*FAILED drift::chat*",  # pytest 9 also says why
        ]
    )
    assert [record.green for record in runs(pytester)] == [True, False]
    # what drifted is no reference: the next night says the same
    assert run("--compare=last-green", "--record", size=2000).ret == pytest.ExitCode.TESTS_FAILED
    assert run("--compare=last-green", "--record").ret == pytest.ExitCode.OK


def test_within_tolerance_passes(pytester: pytest.Pytester, run: Run) -> None:
    """One percent is allowed and a half is there."""
    run("--record")
    assert run("--compare=last-green", size=1005).ret == pytest.ExitCode.OK
    assert len(runs(pytester)) == 1


def test_accepting_makes_a_reference(pytester: pytest.Pytester, run: Run) -> None:
    """A person says why: recorded, green, and what later runs are held against."""
    run("--record")
    result = run("--compare=last-green", "--accept-drift=prefix caching is on now", size=2000)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*accepted: kv_cache of chat*"])
    assert [record.reference for record in runs(pytester)] == ["", "prefix caching is on now"]
    assert run("--compare=reference", size=2000).ret == pytest.ExitCode.OK
    assert run("--compare=reference", size=1000).ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(("value", "refused"), [("true", True), ("1", True), ("false", False), ("", False)])
def test_nothing_is_accepted_in_ci(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch, value: str, refused: bool
) -> None:
    """References are never rewritten where no person looks on."""
    monkeypatch.setenv("CI", value)
    result = run("--accept-drift=whatever")
    assert (result.ret == pytest.ExitCode.USAGE_ERROR) is refused
    assert len(runs(pytester)) == (not refused)
    if refused:
        result.stderr.fnmatch_lines(["*--accept-drift: refused where CI is set*"])


def test_the_first_run_has_nothing_to_compare(pytester: pytest.Pytester, run: Run) -> None:
    """It passes and says so; a reference that is not there is said too."""
    result = run("--compare=last-green", "--record")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["no earlier run of chat: not compared"])
    result = run("--compare=transformers==1.0")
    result.stdout.fnmatch_lines(["nothing compared: transformers==1.0: no such run*"])


def test_another_question_is_named_and_not_compared(pytester: pytest.Pytester, run: Run) -> None:
    """The budget's context changed: its numbers are another question's."""
    run("--record")
    (pytester.path / "budgets" / "chat.yaml").write_text(FITS.replace("8Ki", "16Ki"), encoding="utf-8")
    result = run("--compare=last-green", size=2000)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*not compared: chat: settings changed: setting ctx: 8,192 -> 16,384"])


def test_a_torn_record_is_named(pytester: pytest.Pytester, run: Run) -> None:
    """A crash of an earlier run is said, and keeps nothing from being compared."""
    run("--record")
    with (pytester.path / "runs" / "box.jsonl").open("ab") as file:
        file.write(b'{"schema":1,"id"')
    result = run("--compare=last-green", size=2000)
    result.stdout.fnmatch_lines(["not read: *box.jsonl:2: cut off by a crash*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_bad_record_stops_nothing(pytester: pytest.Pytester, run: Run) -> None:
    """A record without versions, and a pipe: the run is compared, recorded, and says what it could not read."""
    run("--record", "--runs=runs")
    place = next((pytester.path / "runs").glob("*.jsonl"))
    bad = json.loads(place.read_text(encoding="utf-8"))
    del bad["versions"]
    with place.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**bad, "id": "20990101-bad"}) + "\n")
    if hasattr(os, "mkfifo"):
        os.mkfifo(pytester.path / "runs" / "pipe.jsonl")
    result = run("--record", "--compare=last", "--runs=runs")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*not read: *versions is not a table*", "*recorded *"])
    assert len(read_folder(str(pytester.path / "runs")).records) == 2


def test_xdist_makes_one_record_of_the_same(pytester: pytest.Pytester, run: Run) -> None:
    """-n 2: one record, with the same budgets and lines as without."""
    pytest.importorskip("xdist")
    for number in range(4):
        (pytester.path / "budgets" / f"more{number}.yaml").write_text(FITS, encoding="utf-8")
    run("--record")
    result = pytester.runpytest_subprocess(
        "-p", "membudget.pytest_plugin.plugin", "-p", "xdist.plugin", "-n", "2", "--record", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=5)
    one, two = runs(pytester)
    assert {name: entry._replace(settings={}) for name, entry in two.budgets.items()} == {
        name: entry._replace(settings={}) for name, entry in one.budgets.items()
    }


def test_a_failure_says_since_when(pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changed since a budget last passed stands in its message; nothing where it never did."""
    pytester.makepyfile(
        "import pytest\n\ndef test_it(budget, membudget_since):\n"
        "    if budget.ctx > 8192:\n        pytest.fail('since ' + membudget_since(), pytrace=False)"
    )
    run("--record")
    (pytester.path / "budgets" / "chat.yaml").write_text(FITS.replace("8Ki", "16Ki"), encoding="utf-8")
    monkeypatch.setattr("membudget.history.here.packages", lambda: {"transformers": "9.9.9"})
    run().stdout.re_match_lines([r"since .*transformers \S+ -> 9\.9\.9.* \(last passed 20\d\d-\d\d-\d\d\)"])
    (pytester.path / "runs" / "box.jsonl").unlink()
    run().stdout.re_match_lines([r"since $"])


def test_junit_has_the_drift(pytester: pytest.Pytester, run: Run) -> None:
    """Reports of continuous integration show it as a test that failed."""
    run("--record")
    run("--compare=last-green", "--junitxml=out.xml", size=2000)
    assert 'name="chat"' in (pytester.path / "out.xml").read_text(encoding="utf-8")


def test_records_are_json_lines(pytester: pytest.Pytester, run: Run) -> None:
    """A record is one line that any tool reads, with its schema's number first."""
    run("--record")
    text = (pytester.path / "runs" / "box.jsonl").read_text(encoding="utf-8")
    raw: dict[str, Any] = json.loads(text)
    assert text.count("\n") == 1
    assert next(iter(raw)) == "schema"
