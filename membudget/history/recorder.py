"""What pytest keeps of a run: the lines its tests report, one record at the end, and drift as failures.

Tests report through user properties, which xdist's workers send home: one record a run,
however many processes took part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from membudget.history import here
from membudget.history.changes import known_changes
from membudget.history.drift import Drift, compare
from membudget.history.record import Entry, Line, Record, RecordError, Samples
from membudget.history.select import SelectError, baseline
from membudget.history.store import append, read_folder
from membudget.history.text import explain, headline

#: The name under which a report carries lines.
PROPERTY = "membudget-lines"


class Recorder:
    """Collects lines, writes the record, holds it against an earlier one."""

    def __init__(self, config: pytest.Config, *, folder: str, write: bool, ref: str = "", reason: str = "") -> None:
        self.config, self.folder, self.write, self.ref, self.reason = config, folder, write, ref, reason
        self.budgets: dict[str, Entry] = {}
        self.told: list[str] = []
        self.failed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test reports; a budget failed if one of its tests did."""
        if report.when != "call" or (report.skipped and not hasattr(report, "wasxfail")):
            return
        for name, value in report.user_properties:
            if name == PROPERTY:
                self._keep(json.loads(str(value)), report)

    def _keep(self, found: dict[str, Any], report: pytest.TestReport) -> None:
        budget, lines = found["budget"], {name: Line(**line) for name, line in found["lines"].items()}
        samples = found.get("samples", {})
        old = self.budgets.get(budget)
        text = str(report.longrepr).strip().splitlines() if report.failed else []
        verdict, why = ("failed", text[0] if text else "failed") if report.failed else ("passed", "")
        if old is not None:
            lines, samples = merged(old.lines, lines), {**old.samples, **samples}
            if old.verdict == "failed":
                verdict, why = "failed", old.why
        self.budgets[budget] = Entry(verdict, lines, found["settings"], why, samples)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compare, then write: a budget that drifted is not recorded as green."""
        if hasattr(self.config, "workerinput"):
            return
        if not self.budgets:
            self.told.append("nothing recorded: no test reported a budget")
            return
        record = here.make(self._source(), self.budgets, reference=self.reason, root=str(self.config.rootpath))
        if self.ref:
            record = self._compared(record, session)
        if self.write:
            self._write(record, session)

    def _write(self, record: Record, session: pytest.Session) -> None:
        """A record that cannot be written fails the run, and hides nothing of it."""
        try:
            self.told.append(f"recorded {record.id} in {append(record, self.folder)}")
        except (OSError, RecordError) as error:
            do = "name a folder that can be written with --runs=DIR"
            why = f"{error.strerror or error}; {do}" if isinstance(error, OSError) else str(error)
            self.told.append(f"NOT recorded: {self.folder}: {why}")
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """What was written and what moved."""
        if self.told and self.config.get_verbosity() > -2:
            terminalreporter.section("memory history")
            for line in self.told:
                terminalreporter.line(line)

    def _source(self) -> str:
        marks = str(self.config.getoption("markexpr", "") or "")
        return f"pytest -m {marks}" if marks else "pytest"

    def _compared(self, record: Record, session: pytest.Session) -> Record:
        runs = read_folder(self.folder)
        self.told += [f"not read: {problem}" for problem in runs.problems]
        try:
            earlier = baseline(self.ref, runs.records, record)
        except SelectError as error:
            self.told.append(f"nothing compared: {error}")
            return record
        missing = [name for name in record.budgets if name not in earlier]
        if missing:
            self.told.append(f"no earlier run of {', '.join(missing[:5])}{', ...' * (len(missing) > 5)}: not compared")
        budgets, changes = dict(record.budgets), known_changes()
        for old in {run.id: run for run in earlier.values()}.values():
            names = [name for name, run in earlier.items() if run.id == old.id]
            drift = compare(old, record, runs.records, changes, names)
            self._tell(drift)
            for name in dict.fromkeys(move.budget for move in drift.unexplained):
                if self.reason:
                    continue
                text = self._failure(drift, name)
                budgets[name] = budgets[name]._replace(verdict="failed", why=text.splitlines()[0])
                self._fail(name, text, session)
        return record._replace(budgets=budgets)

    def _tell(self, drift: Drift) -> None:
        if drift.beyond or drift.changed or drift.named("machine", "flag"):
            self.told.append(f"against {drift.old.id} of {drift.old.time[:10]}")
            self.told += [f"  {item}" for item in drift.differences]
        for name, settings in drift.changed.items():
            self.told.append(f"  not compared: {name}: settings changed: {', '.join(map(str, settings))}")
        for move in drift.beyond:
            state = "explained" if move.explained else "accepted" if self.reason else "UNEXPLAINED"
            first, *rest = explain(move, "      ")
            self.told += [f"  {state}: {first}", *rest]

    def _failure(self, drift: Drift, budget: str) -> str:
        moves = [move for move in drift.unexplained if move.budget == budget]
        lines = [f"drift: {headline(moves[0])}", ""]
        for move in moves:
            lines += explain(move)
        lines += ["", *(str(item) for item in drift.differences)]
        lines.append(f"against  {drift.old.id} of {drift.old.time[:16]}Z, {self.ref}")
        lines.append('accept   run again with --record --accept-drift "why this is right"')
        return "\n".join(lines)

    def _fail(self, budget: str, text: str, session: pytest.Session) -> None:
        """A failed test of its own: it counts in every report, and in the exit code."""
        self.failed += 1
        report = pytest.TestReport(
            nodeid=f"drift::{budget}",
            location=("drift", 0, budget),
            keywords={},
            outcome="failed",
            longrepr=text,
            when="call",
        )
        self.config.hook.pytest_runtest_logreport(report=report)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def merged(old: Mapping[str, Line], new: Mapping[str, Line]) -> dict[str, Line]:
    """Lines of several tests of one budget: what was measured counts over what was not.

    A prediction belongs to the measurement that it was made for: the bare ledger's does not replace it.
    """
    out = dict(old)
    for name, line in new.items():
        before = out.get(name)
        if before is None:
            out[name] = line
            continue
        first, second = (before, line) if line.measured is not None or before.measured is None else (line, before)
        out[name] = Line(
            first.predicted if second.predicted is None else second.predicted,
            before.measured if line.measured is None else line.measured,
            line.unit,
            line.allowed or before.allowed,
        )
    return out


def prop(
    budget: str,
    settings: Mapping[str, Any],
    lines: Mapping[str, Line],
    samples: Mapping[str, Samples] | None = None,
) -> tuple[str, str]:
    """The user property by which a test reports lines of a budget, and what they were measured at."""
    found: dict[str, Any] = {"budget": budget, "settings": dict(settings)}
    found["lines"] = {name: line._asdict() for name, line in lines.items()}
    if samples:
        found["samples"] = dict(samples)
    return PROPERTY, json.dumps(found)


def refusal(environment: Mapping[str, str] | None = None) -> str | None:
    """Why a drift is not accepted here; None where it may be."""
    if here.in_ci(environment):
        return "--accept-drift: refused where CI is set: a person accepts a new reference, on the machine that made it"
    return None


def rows_to_lines(rows: Iterable[Any]) -> dict[str, Line]:
    """Rows of `membudget.measure.comparison` as lines."""
    out: dict[str, Line] = {}
    for row in rows:
        unit = row.unit if row.unit in ("bytes", "count") else "word"
        values = [_value(value, unit) for value in (row.predicted, row.measured)]
        out[row.name] = Line(values[0], values[1], unit, "" if row.allowed is None else str(row.allowed))
    return out


def _value(value: Any, unit: str) -> int | str | None:
    """A word for a word, a whole number for the rest; None for what is neither."""
    if unit == "word":
        return None if value is None else str(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None
