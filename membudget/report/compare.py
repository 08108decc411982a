"""Several machines beside each other: a line each, what serves the most users first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from membudget.planning.ledger import Ledger
from membudget.report.plan import headline
from membudget.text.terminal import Terminal, table
from membudget.units import short

_ALIGN = "<<>>>>"
_HEAD = ("machine", "", "users", "concurrency", "tokens/s a user", "a device needs")


def render(ledgers: Sequence[Ledger], refused: Sequence[tuple[str, str]], asked: str, terminal: Terminal) -> str:
    """The plan's headline, the table, what to type for the first that fits, and where each bucket is shown.

    refused: machines that have no plan, and why.  asked: the model as it was typed.
    """
    ordered = sorted(ledgers, key=_order)
    rows = [_HEAD, *map(_row, ordered), *((name, "no plan", "", "", "", "") for name, _ in refused)]
    lines = [*headline(ordered[0], terminal), "", *table(rows, _ALIGN)]
    for name, why in refused:
        lines += terminal.wrap(f"{name}: {why}", "  ", "- ")
    first = ordered[0]
    budget = first.budget
    lines.append("")
    if first.fits and first.answer.command:
        lines += [f"on {budget.machine_name}:", f"  {first.answer.command}"]
    elif not first.fits:
        lines += terminal.wrap(f"{budget.machine_name}: {first.verdict}", "")
    again = f"membudget plan {shlex.quote(asked)} --machine {shlex.quote(budget.machine_name)}"
    lines += terminal.wrap(f"each bucket, and what would fit: {again} --ctx {budget.ctx} --users {budget.users}", "")
    return "\n".join(lines)


def _order(ledger: Ledger) -> tuple[bool, int, int]:
    """What fits first, then by the most users, then by what is free."""
    return not ledger.fits, -(ledger.max_users or 0), -ledger.headroom


def _row(ledger: Ledger) -> tuple[str, ...]:
    answer, step = ledger.answer, ledger.step_seconds
    verdict = "fits" if ledger.fits else "does not start" if answer.starts else "does not fit"
    times = "" if answer.concurrency is None else f"{answer.concurrency:.2f}x"
    speed = f"{1 / step:.1f}" if step else ""
    needs = f"{short(ledger.total)} of {short(ledger.capacity)}"
    return ledger.budget.machine_name, verdict, f"{ledger.max_users:,}", times, speed, needs
