"""An HTML page of a run: a verdict for each budget, predicted beside measured, growth, fragmentation, drift.

RUN is a record file (runs/<machine>.jsonl), a folder of them, a run as `membudget diff` takes it (last, an id,
a date), a vLLM log; or budget files, which are then shown as predictions alone.
Exit code 0: the page is written and everything in it passed; 1: something in it failed; 2: RUN is not readable;
3: no run is recorded yet.
"""

from __future__ import annotations

import os

from membudget.budgets.file import Sources
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.history import read, read_folder, runs_folder, select
from membudget.host.detect import find_machine
from membudget.machines import UnknownMachine
from membudget.planning.check import check
from membudget.planning.load import load
from membudget.report import html, run_page
from membudget.report.story import Story, of_record, of_verdicts

DEFAULT_FILE = "report.html"


def options(parser: Declares) -> None:
    """The arguments of `membudget report`."""
    add = parser.add_argument
    add("run", metavar="RUN", nargs="?", default="last", help="a record, a run, or budgets; default: last")
    add("-o", "--output", metavar="FILE", default=DEFAULT_FILE, help=f"default: {DEFAULT_FILE}")
    add("--force", action="store_true", help="overwrite a file that membudget did not write")
    add("--runs", metavar="DIR", help="where the records lie; default: MEMBUDGET_RUNS, else runs/")
    add("--machines", metavar="FILE", action="append", help="a YAML file with machines of your own")


def run(args: Arguments) -> Result:
    """Read, write the page."""
    story = _of_budgets(args) if _holds_budgets(args.run) else _of_run(args)
    size = html.write(args.output, run_page.render(story), args.force)
    failed = sum(told.verdict == "failed" for told in story.told)
    unread = _holds_budgets(args.run) and bool(story.problems)
    code = 2 if unread else 1 if failed else 0
    document = {
        "file": args.output,
        "bytes": size,
        "budgets": {told.id: told.verdict for told in story.told},
        "failed": failed,
        "problems": list(story.problems),
    }
    return Result(code, document, lambda: _text(args.output, size, story, failed))


def _holds_budgets(path: str) -> bool:
    """Whether a path is budgets: YAML, or a folder without records in it."""
    if os.path.isdir(path):
        return not any(name.endswith(".jsonl") for name in os.listdir(path))
    return path.endswith((".yaml", ".yml"))


def _of_budgets(args: Arguments) -> Story:
    files = load([args.run], Sources(args.machines or ()))
    problems = [str(problem) for file in files for problem in file.problems]
    return of_verdicts((check(budget) for file in files for budget in file.budgets), problems)


def _of_run(args: Arguments) -> Story:
    ref = args.run
    if os.path.isdir(ref):
        found, ref = read_folder(ref), "last"
    elif ref.endswith(".jsonl"):
        found, ref = read(ref), "last"
    else:
        found = read_folder(runs_folder(args.runs))
    record = select(ref, found.records, problems=found.problems)

    def capacity(name: str) -> int | None:
        try:
            return find_machine(name, args.machines or ()).memory
        except UnknownMachine:
            return None

    return of_record(record, found.records, capacity, [str(problem) for problem in found.problems])


def _text(path: str, size: int, story: Story, failed: int) -> str:
    many = f"{len(story.told):,} budget{'s' if len(story.told) != 1 else ''}"
    state = f"{failed:,} failed" if failed else "none failed"
    line = f"{path}: {story.title}: {many}, {state}; {size / 1000:,.0f} kB; open it in any browser"
    return "\n".join([*(f"not read: {problem}" for problem in story.problems), line])
