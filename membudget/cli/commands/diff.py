"""What moved between two runs: which line, by how much, since which version, and likely why.

A and B are runs: last, last-green, first, reference, transformers==5.8.0, a date, the beginning of an id, a
.jsonl file of runs, or a vLLM log. Without them the last green run is compared with the last one.
Exit code 0: nothing moved beyond its tolerance; 1: something did; 3: there is no such run, or the two have no
line in common.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import NotHere
from membudget.history import Drift, Move, Problem, Record, SelectError, compare, read, read_folder, runs_folder, select
from membudget.history.select import unread
from membudget.history.text import drift_lines
from membudget.text.terminal import Terminal


def options(parser: Declares) -> None:
    """The arguments of `membudget diff`."""
    add = parser.add_argument
    add("before", metavar="A", nargs="?", help="the run before; default: last-green")
    add("after", metavar="B", nargs="?", help="the run after; default: last")
    add("--runs", metavar="DIR", help="where the records lie; default: MEMBUDGET_RUNS, else runs/")
    add("--budget", metavar="TEXT", help="only budgets with this in their name")
    add("--source", metavar="TEXT", help="only runs with this in their source: spark, survey")
    add("--each", action="store_true", help="the last run of every machine and source, each against its last green one")
    add("--markdown", action="store_true", help="as Markdown, for a comment on a commit or a pull request")


def run(args: Arguments) -> Result:
    """Find both runs, compare."""
    found = read_folder(runs_folder(args.runs))
    runs = [item for item in found.records if (args.source or "") in item.source]
    if args.budget:  # a run that says nothing of it is not meant
        runs = [item for item in runs if any(args.budget in name for name in item.budgets)]
    problems = [str(problem) for problem in (*found.problems, *_of_files(args.before, args.after))]
    try:
        if args.each:
            pairs = _each(runs, problems)
        else:
            after = select(args.after or "last", runs, problems=problems)
            pairs = [(select(args.before or "last-green", runs, after, problems), after)]
    except SelectError as error:
        raise NotHere(str(error)) from None
    drifts = []
    for before, after in pairs:
        wanted = [name for name in (*before.budgets, *after.budgets) if (args.budget or "") in name]
        drifts.append(compare(before, after, runs, budgets=wanted))
    documents = [as_json(drift, problems) for drift in drifts]
    code = 1 if any(drift.beyond for drift in drifts) else 0 if any(drift.compared for drift in drifts) else 3
    document = {"each": documents, "moved": code == 1} if args.each else documents[0]
    return Result(code, document, lambda: _text(drifts, problems, args.markdown))


def _of_files(*refs: str | None) -> list[Problem]:
    """What could not be read of files of runs that are named: their last run may be another one."""
    return [
        item for ref in refs if ref and ref.endswith(".jsonl") and os.path.isfile(ref) for item in read(ref).problems
    ]


def _each(runs: Sequence[Record], problems: Sequence[str]) -> list[tuple[Record, Record]]:
    """The last run of every machine and source, behind its last green one; without the first of its kind."""
    found = []
    for after in {(run.machine_name, run.source): run for run in runs}.values():
        try:
            found.append((select("last-green", runs, after), after))
        except SelectError:
            continue
    if not found:
        raise SelectError(f"no run has an earlier green one of its kind{unread(problems)}")
    return found


def as_json(drift: Drift, problems: list[str]) -> dict[str, Any]:
    """The comparison as documented JSON."""
    return {
        "before": drift.old.id,
        "after": drift.new.id,
        "differences": [item._asdict() for item in drift.differences],
        "moved": bool(drift.beyond),
        "unexplained": len(drift.unexplained),
        "moves": [_move(move) for move in drift.moves],
        "same": drift.same,
        "changed": {name: [item._asdict() for item in items] for name, items in drift.changed.items()},
        "lost": list(drift.lost),
        "only_before": list(drift.only_before),
        "only_after": list(drift.only_after),
        "problems": problems,
    }


def _move(move: Move) -> dict[str, Any]:
    since = move.since
    return {
        "budget": move.budget,
        "line": move.line,
        "side": move.side,
        "before": move.before,
        "after": move.after,
        "unit": move.unit,
        "off": move.off,
        "share": move.share,
        "beyond": move.beyond,
        "explained": move.explained,
        "since": None
        if since is None
        else {
            "before": since.before.id,
            "after": since.after.id,
            "versions": [item._asdict() for item in since.versions],
        },
        "changes": [{**known.change._asdict(), "certain": known.certain} for known in move.changes],
    }


def _text(drifts: Sequence[Drift], problems: list[str], markdown: bool) -> str:
    blocks = ["\n".join(drift_lines(drift, Terminal() if markdown else Terminal.of())) for drift in drifts]
    blocks += [f"not read: {problem}" for problem in problems]
    if not markdown:
        return "\n\n".join(blocks)
    number = sum(len(drift.beyond) for drift in drifts)
    title = f"{number} line{'s' if number != 1 else ''} moved" if number else "nothing moved"
    return "\n".join([f"### membudget: {title}", *(f"\n```\n{block}\n```" for block in blocks)])
