"""Check budget files: the arithmetic of every budget against what it expects, without pytest.

Exit code 0: all are as expected; 1: one is not; 2: a file cannot be read (the others are still checked).
"""

from __future__ import annotations

from typing import Any

from membudget.budgets.file import BudgetFile, Sources
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import folder
from membudget.planning.check import Finding, Verdict
from membudget.planning.check import check as judged_of
from membudget.planning.load import load
from membudget.text.terminal import Terminal, table
from membudget.units import both, short


def options(parser: Declares) -> None:
    """The arguments of `membudget check`."""
    parser.add_argument("paths", metavar="PATH", nargs="*", help="budget files and folders of them; default: budgets/")
    parser.add_argument("--machines", metavar="FILE", action="append", help="a YAML file with machines of your own")
    parser.add_argument("--models", metavar="DIR", help="a folder of checkpoints to look ids up in")


def run(args: Arguments) -> Result:
    """Check every budget of every file."""
    files = load(args.paths or ["budgets"], Sources(args.machines or (), folder("--models", args.models)))
    judged = [(file, [judged_of(budget) for budget in file.budgets]) for file in files]
    every = [verdict for _, verdicts in judged for verdict in verdicts]
    failed = sum(1 for verdict in every if not verdict.passed)
    unread = sum(1 for file in files if file.problems)
    code = 2 if unread else 1 if failed else 0
    document = {
        "ok": code == 0,
        "passed": len(every) - failed,
        "failed": failed,
        "files": len(files),
        "unreadable_files": unread,
        "budgets": [_as_json(verdict) for verdict in every],
        "problems": [
            {"file": file.path, "line": problem.line, "message": str(problem)}
            for file in files
            for problem in file.problems
        ],
    }
    return Result(code, document, lambda: _text(judged, failed, unread))


def _as_json(verdict: Verdict) -> dict[str, Any]:
    budget, ledger = verdict.budget, verdict.ledger
    return {
        "id": budget.id,
        "file": budget.file,
        "line": budget.line,
        "ok": verdict.passed,
        "total": ledger.total if ledger else None,
        "capacity": budget.capacity,
        "headroom": ledger.headroom if ledger else None,
        "fits": ledger.fits if ledger else None,
        "verdict": ledger.verdict if ledger else None,
        "error": verdict.error or None,
        "notes": budget.model.notes,
        "broken": [
            {
                "field": finding.field,
                "predicted": finding.predicted,
                "expected": finding.expected if isinstance(finding.expected, (bool, str)) else str(finding.expected),
                "why": finding.why,
                "line": finding.line,
            }
            for finding in verdict.broken
        ],
    }


def _text(judged: list[tuple[BudgetFile, list[Verdict]]], failed: int, unread: int) -> str:
    """What is wrong first, then one table of all, failures first in it."""
    terminal = Terminal.of()
    every = [verdict for _, verdicts in judged for verdict in verdicts]
    lines: list[str] = []
    for file, verdicts in judged:
        for problem in file.problems:
            lines.append(f"{terminal.paint('ERROR', 'bad', 'bold')}  {problem}")
        for verdict in verdicts:
            if verdict.error:
                lines += terminal.wrap(f"{file.path}:{verdict.budget.line}: {verdict.error}", "       ")
            for finding in verdict.broken:
                lines += terminal.wrap(f"{file.path}:{finding.line}: {_broken(finding)}", "       ")
    if lines and every:
        lines.append("")
    if every:
        shown = sorted(every, key=lambda verdict: verdict.passed)
        head, *rows = table([("", "budget", "total", "memory", "headroom", ""), *map(_row, shown)], "<<>>><")
        lines.append(head)
        for row, verdict in zip(rows, shown, strict=True):
            word = terminal.paint(row[:4], "good") if verdict.passed else terminal.paint(row[:4], "bad", "bold")
            lines.append(f"{word}{row[4:]}")
    parts = [f"{len(every) - failed:,} as expected"]
    if failed:
        parts.append(f"{failed:,} not")
    if unread:
        parts.append(f"{_plural(unread, 'file')} could not be read")
    text = f"{_plural(len(every), 'budget')} in {_plural(len(judged), 'file')}: {', '.join(parts)}"
    said = {f"{verdict.budget.model.name}: {note}": None for verdict in every for note in verdict.budget.model.notes}
    return "\n".join([*lines, text, *(line for note in said for line in terminal.wrap(note))])


def _row(verdict: Verdict) -> tuple[str, ...]:
    word, ledger = "ok" if verdict.passed else "FAIL", verdict.ledger
    if ledger is None:
        return word, verdict.budget.id, "", "", "", "cannot be predicted"
    fits = "fits" if ledger.fits else "does not fit"
    return word, verdict.budget.id, short(ledger.total), short(ledger.capacity), short(ledger.headroom), fits


def _broken(finding: Finding) -> str:
    predicted, expected = finding.predicted, finding.expected
    if isinstance(predicted, bool):
        return f"{finding.field}: {str(predicted).lower()} predicted, {str(expected).lower()} expected: {finding.why}"
    unit = getattr(expected, "unit", "")
    if unit == "bytes":
        shown = f"{both(predicted).partition(' (')[0]} ({predicted:,} B)"
    else:
        shown = f"{predicted:,}" if isinstance(predicted, int) else str(predicted)
    return f"{finding.field}: {shown} predicted, {expected} expected: {finding.why}"


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"
