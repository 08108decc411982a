"""The JSON Schema of a budget file, for editors, or of what a command prints with --json, for scripts.

membudget schema > budgets.schema.json      a budget file
membudget schema plan                       `membudget plan --json`; also: error, the document of every refusal
"""

from __future__ import annotations

import json
import os

from membudget.budgets.schema import json_schema, schema_text
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.data import data_path

BUDGET = "budget"


def options(parser: Declares) -> None:
    """The arguments of `membudget schema`."""
    parser.add_argument(
        "document", metavar="DOCUMENT", nargs="?", default=BUDGET, choices=documents(), help="default: budget"
    )


def documents() -> tuple[str, ...]:
    """What there is a schema of: budget files, commands by name, errors."""
    names = sorted(name.removesuffix(".json") for name in os.listdir(data_path("json")))
    return (BUDGET, *names)


def run(args: Arguments) -> Result:
    """Print it; with and without --json the same document."""
    if args.document == BUDGET:
        return Result(0, json_schema(), lambda: schema_text().rstrip("\n"))
    with open(os.path.join(data_path("json"), f"{args.document}.json"), encoding="utf-8") as file:
        found = json.load(file)
    return Result(0, found, lambda: json.dumps(found, indent=2))
