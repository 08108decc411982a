"""Check budget files: the arithmetic of every budget against what it expects, without pytest.

Exit code 0: all are as expected; 1: one is not; 2: a file cannot be read (the others are still checked).
"""

from __future__ import annotations

from membudget.budget_file import BudgetFile, Sources, load
from membudget.commands import Result
from membudget.ledger import Ledger, predict
from membudget.report.expectations import Unmet, unmet
from membudget.units import short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from membudget.budget import Budget
    from membudget.commands.arguments import Arguments, Declares


def options(parser: Declares) -> None:
    """The arguments of `membudget check`."""
    parser.add_argument("paths", metavar="PATH", nargs="*", help="budget files and folders of them; default: budgets/")
    parser.add_argument("--machines", metavar="FILE", action="append", help="a YAML file with machines of your own")
    parser.add_argument("--models", metavar="DIR", help="a folder of checkpoints to look ids up in")


def run(args: Arguments) -> Result:
    """Check every budget of every file."""
    files = load(args.paths or ["budgets"], Sources(args.machines or (), args.models))
    checked = [(file, [_Checked(budget) for budget in file.budgets]) for file in files]
    every = [item for _, items in checked for item in items]
    failed = sum(1 for item in every if item.problems)
    unread = sum(1 for file in files if file.problems)
    code = 2 if unread else 1 if failed else 0
    document = {
        "ok": code == 0,
        "budgets": [item.as_json() for item in every],
        "problems": [_problem(file, number) for file in files for number in range(len(file.problems))],
        "passed": len(every) - failed,
        "failed": failed,
        "files": len(files),
        "unreadable_files": unread,
    }
    return Result(code, document, lambda: _text(checked, failed, unread))


class _Checked:
    """One budget, predicted and held against its `expect`."""

    __slots__ = ("budget", "ledger", "problems")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.ledger: Ledger | None = None
        try:
            self.ledger = predict(budget)
            self.problems = unmet(self.ledger)
        except ValueError as error:
            # a format that does not apply to this model, say: this budget's failure, not the run's end
            self.problems = [Unmet("budget", "nothing", "a ledger", budget.line, str(error))]

    def as_json(self) -> dict[str, Any]:
        budget, ledger = self.budget, self.ledger
        return {
            "id": budget.id,
            "file": budget.file,
            "line": budget.line,
            "ok": not self.problems,
            "total": ledger.total if ledger else None,
            "capacity": budget.capacity,
            "headroom": ledger.headroom if ledger else None,
            "fits": ledger.fits if ledger else None,
            "verdict": ledger.verdict if ledger else None,
            "problems": [problem._asdict() for problem in self.problems],
        }


def _problem(file: BudgetFile, number: int) -> dict[str, Any]:
    problem = file.problems[number]
    return {"file": file.path, "line": problem.line, "message": str(problem)}


def _text(checked: list[tuple[BudgetFile, list[_Checked]]], failed: int, unread: int) -> str:
    from membudget.report.terminal import Terminal

    terminal = Terminal.of()
    names = [item.budget.id for _, items in checked for item in items]
    wide = min(max(map(len, names), default=0), 60)
    lines: list[str] = []
    for file, items in checked:
        for problem in file.problems:
            lines += terminal.wrap(str(problem), "", terminal.paint("ERROR", "bad") + "  ")
        for item in items:
            word = terminal.paint("FAIL ", "bad", "bold") if item.problems else terminal.paint("ok   ", "good")
            lines.append(f"{word}  {item.budget.id:<{wide}}  {_told(item)}".rstrip())
            for bad in item.problems:
                lines += terminal.wrap(f"{bad} ({file.path}:{bad.line})", "       ")
    text = f"{_plural(len(names), 'budget')} in {_plural(len(checked), 'file')}"
    parts = [f"{len(names) - failed:,} as expected"]
    if failed:
        parts.append(f"{failed:,} not")
    if unread:
        parts.append(f"{_plural(unread, 'file')} could not be read")
    return "\n".join([*lines, f"{text}: {', '.join(parts)}"])


def _told(item: _Checked) -> str:
    if item.ledger is None:
        return ""
    left = item.ledger.headroom
    free = f"{short(left)} free" if left >= 0 else f"{short(-left)} over"
    return f"{short(item.ledger.total)} of {short(item.ledger.capacity)}, {free}"


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"
