"""Which run is meant: last, last-green, a version, a date, the beginning of an id, a file of records or a vLLM log."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence

from membudget.errors import NotAvailableError
from membudget.history.record import Record

ALLOWED = (
    "last, first, last-green, reference, PACKAGE==VERSION[,PACKAGE==VERSION], a date (2026-11-20), "
    "the beginning of a run's id, a .jsonl file of runs or a vLLM log (LOG@VERSION where the log does not say it)"
)


#: By how much the clocks of two machines may differ.
AHEAD = datetime.timedelta(hours=1)


class SelectError(NotAvailableError):
    """No run, or none of that kind: says which there are."""


class NoRuns(SelectError):
    """Nothing is recorded yet: says how a run is."""


def select(ref: str, runs: Sequence[Record], against: Record | None = None, problems: Sequence[object] = ()) -> Record:
    """The run that `ref` means; the latest where there are several.

    runs: in the order of time.  against: the run it will be compared with: it is left out, and
    ``last-green`` and ``reference`` are looked for among earlier runs of the same machine and source.
    problems: records that could not be read; a run that is not found may be one of them, so they are named.
    """
    try:
        return _select(ref, runs, against, unread=bool(problems))
    except SelectError as error:
        raise type(error)(f"{error}{unread(problems)}") from None


def unread(problems: Sequence[object]) -> str:
    """``; not read: runs/x.jsonl:1: schema 99 is newer ...``; "" for none."""
    if not problems:
        return ""
    more = f" (and {len(problems) - 2:,} more)" if len(problems) > 2 else ""
    return f"; not read: {'; '.join(map(str, problems[:2]))}{more}"


def _select(ref: str, runs: Sequence[Record], against: Record | None, *, unread: bool) -> Record:
    path, _, version = ref.rpartition("@")
    if os.path.isfile(ref) or os.path.isfile(path):
        return of_file(ref) if os.path.isfile(ref) else of_file(path, version)
    others = [run for run in runs if against is None or run.id != against.id]
    if not others:
        which = "other " if against else ""
        if unread:
            raise NoRuns(f"{ref}: no {which}record could be read")
        raise NoRuns(f"{ref}: no {which}run is recorded; `pytest --membudget-record` makes one")
    if ref == "last":
        return _dated(others, against)[-1]
    if ref == "first":
        return others[0]
    if ref in ("last-green", "reference"):
        found = [run for run in others if against is None or _comparable(run, against)]
        found = [run for run in found if (run.green if ref == "last-green" else run.reference)]
        if not found:
            what = "without a failure" if ref == "last-green" else "accepted as a reference"
            where = f" of {against.source!r} on {against.machine_name}" if against else ""
            raise SelectError(f"{ref}: no earlier run{where} is {what}")
        return found[-1]
    if "==" in ref:
        return _of_versions(ref, others, against)
    found = [run for run in others if run.id == ref or (len(ref) >= 4 and run.id.startswith(ref))]
    found = found or [run for run in others if len(ref) >= 10 and run.time.startswith(ref)]
    if not found:
        known = ", ".join(run.id for run in others[-5:])
        raise SelectError(f"{ref!r} is not a run; allowed are {ALLOWED}; the latest are {known}")
    return found[-1]


def baseline(ref: str, runs: Sequence[Record], new: Record) -> dict[str, Record]:
    """For each budget of `new` the run to hold it against; budgets without one are left out.

    ``last-green`` is looked for budget by budget: one failing budget must not make the others' reference older.
    """
    if ref != "last-green":
        run = select(ref, runs, new)
        return {name: run for name in new.budgets if name in run.budgets}
    found: dict[str, Record] = {}
    for run in runs:
        if run.id != new.id and _comparable(run, new):
            found |= {name: run for name, entry in run.budgets.items() if entry.verdict != "failed"}
    return {name: found[name] for name in new.budgets if name in found}


def since_green(budget: str, runs: Sequence[Record], versions: Mapping[str, str], commit: str = "") -> str:
    """What changed since a budget last passed: ``transformers 5.23.0 -> 5.24.0 (last passed 2026-11-20)``; "" if never.

    runs: of this machine, in the order of time.  versions, commit: of now.
    """
    green = [run for run in runs if budget in run.budgets and run.budgets[budget].verdict == "passed"]
    if not green:
        return ""
    last = green[-1]
    changed = [
        f"{name} {last.versions.get(name, 'none')} -> {versions.get(name, 'none')}"
        for name in dict.fromkeys((*last.versions, *versions))
        if last.versions.get(name) != versions.get(name)
    ]
    if last.commit and commit and last.commit != commit:
        changed.append(f"commit {last.commit} -> {commit}")
    return f"{', '.join(changed) or 'no version and no commit differs'} (last passed {last.time[:10]})"


def of_file(path: str, version: str = "") -> Record:
    """The last run of a .jsonl file, or the one of a vLLM log; version: of vLLM, where the log does not say it."""
    if path.endswith(".jsonl"):
        from membudget.history.store import read

        found = read(path)
        if not found.records:
            why = f": {found.problems[0]}" if found.problems else ""
            raise SelectError(f"{path}: no run in it{why}")
        return found.records[-1]
    from membudget.history.logs import of_log

    return of_log(path, version)


def _comparable(run: Record, other: Record) -> bool:
    alike = run.machine_name == other.machine_name and run.source == other.source
    return alike and (run.time, run.id) < (other.time, other.id)


def _dated(runs: Sequence[Record], against: Record | None) -> Sequence[Record]:
    """Without runs that a wrong clock dated later than `against`, or than now; all of them where no other is left."""
    now = datetime.datetime.now(datetime.UTC) + AHEAD
    latest = against.time if against else now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return [run for run in runs if run.time <= latest] or runs


def _of_versions(ref: str, runs: Sequence[Record], against: Record | None) -> Record:
    """The last run of these versions; of several kinds of run the one that says most of the same budgets."""
    wanted = dict(part.strip().split("==", 1) for part in ref.split(",") if "==" in part)
    found = [run for run in runs if all(run.versions.get(name) == version for name, version in wanted.items())]
    if not found:
        name = next(iter(wanted))
        known = sorted({run.versions[name] for run in runs if name in run.versions})
        raise SelectError(f"{ref}: no such run; runs of {name}: {', '.join(known) or 'none'}")
    if against is None:
        return found[-1]
    return max(found, key=lambda run: (len(run.budgets.keys() & against.budgets.keys()), run.time))
