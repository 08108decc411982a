"""The JSON Schema of a budget file, for editors: `membudget schema > budget.schema.json`."""

from __future__ import annotations

from membudget.budgets.schema import json_schema, schema_text
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares


def options(parser: Declares) -> None:
    """`membudget schema` takes nothing of its own."""


def run(args: Arguments) -> Result:
    """Print it; with and without --json the same document."""
    return Result(0, json_schema(), lambda: schema_text().rstrip("\n"))
