"""Runs that were recorded: a row for each, a row for each budget, and with --lines the course of every line.

--budget and --line choose lines and show them.  Records are made with `pytest --membudget-record` and by the nightly;
they lie in runs/, one file a machine.
Exit code 0: runs are there; 3: none is.
"""

from __future__ import annotations

from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import NotHere, count
from membudget.history import read_folder, runs_folder
from membudget.history.text import budgets_table, contradictions, lines_table, runs_table, series
from membudget.text.terminal import Terminal


def options(parser: Declares) -> None:
    """The arguments of `membudget history`."""
    add = parser.add_argument
    add("--runs", metavar="DIR", help="where the records lie; default: MEMBUDGET_RUNS, else runs/")
    add("--budget", metavar="TEXT", help="only budgets with this in their name")
    add("--line", metavar="TEXT", help="only lines with this in their name: kv_cache, pool_tokens")
    add("--lines", action="store_true", help="the course of every line of every budget, not one row a budget")
    add("--machine", metavar="NAME", help="only runs of this machine")
    add("--source", metavar="TEXT", help="only runs with this in their source: spark, survey")
    add("--last", metavar="N", default="20", help="only the last N runs; default: 20")


def run(args: Arguments) -> Result:
    """Read, choose, draw."""
    folder, most = runs_folder(args.runs), count("--last", args.last, 10**6)
    found = read_folder(folder)
    runs = [
        item
        for item in found.records
        if args.machine in (None, item.machine_name) and (args.source or "") in item.source
    ][-most:]
    problems = [str(problem) for problem in found.problems]
    if not runs:
        more = f" ({problems[0]})" if problems else ""
        raise NotHere(f"{folder}: no run of this kind is recorded{more}; `pytest --membudget-record` makes one")
    rows = series(runs, args.budget or "", args.line or "")
    document = {
        "folder": folder,
        "runs": [
            {
                "id": item.id,
                "time": item.time,
                "source": item.source,
                "machine": item.machine,
                "versions": item.versions,
                "flags": item.flags,
                "commit": item.commit,
                "green": item.green,
                "reference": item.reference or None,
                "skipped": item.skipped,
            }
            for item in runs
        ],
        "lines": [
            {"budget": budget, "line": line, "side": side, "values": values}
            for (budget, line, side), values in rows.items()
        ],
        "contradictions": contradictions(runs),
        "problems": problems,
    }

    def text() -> str:
        terminal = Terminal.of()
        lines = runs_table(runs)
        if args.lines or args.budget or args.line:
            drawn = lines_table(runs, args.budget or "", args.line or "", terminal.unicode)
        else:
            drawn = [*budgets_table(runs), "every line: --lines, or --budget NAME"]
        lines += ["", *drawn] if drawn else []
        lines += contradictions(runs)
        lines += [f"not read: {problem}" for problem in problems]
        return "\n".join(lines)

    return Result(0, document, text)
