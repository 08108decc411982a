"""The message of a failed budget: which bucket, by how much, why, where, and how to run it again.

Pure text.  The first line says it all; the rest is for who wants to know more.
"""

from __future__ import annotations

from typing import Any

from membudget.budgets.tolerance import Expectation
from membudget.engines.base import Bucket
from membudget.planning.check import Finding, Verdict, bucket_why
from membudget.planning.ledger import BUCKETS, Ledger
from membudget.planning.suggestions import nothing_helps
from membudget.planning.words import limit_text
from membudget.report.ranks import plain_table
from membudget.text.terminal import table
from membudget.units import GIB, MIB, short

_SIZES = (*BUCKETS, "total", "headroom")


def failure(verdict: Verdict, rerun: str = "", since: str = "") -> str:
    """The message of a verdict that did not pass.

    rerun: the command that runs this budget again.  since: what changed since it last passed.
    """
    ledger = verdict.ledger
    if ledger is None:
        return "\n".join(
            [f"cannot be predicted: {verdict.error}", "", *_where(verdict, verdict.budget.line, rerun, since)]
        )
    broken = verdict.broken
    more = [item.field for item in broken[1:]]
    parts = [
        [headline(broken[0], ledger) + (f" (also: {', '.join(more)})" if more else "")],
        [subject(ledger)],
        _table(verdict, ledger),
        _reasons(broken, ledger),
        _where(verdict, broken[0].line, rerun, since),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def headline(finding: Finding, ledger: Ledger) -> str:
    """What is wrong, in one line."""
    if finding.field == "fits":
        if finding.expected:
            return f"does not fit: {ledger.short_text}"
        return f"the budget fits and must not: {short(ledger.headroom)} of {limit_text(ledger.budget)} are left"
    if not isinstance(finding.expected, Expectation):
        return f"{finding.field} is {finding.predicted}: {finding.expected} expected"
    expected, unit = finding.expected, finding.expected.unit
    limit = expected.tolerance.amount if expected.value is None else expected.value
    off = finding.predicted - limit
    predicted, shown = _pair(finding.predicted, limit, unit)
    side = "over" if off >= 0 else "under"
    if expected.value is None:
        return f"{finding.field} is {_amount(abs(off), unit)} {side}: {predicted} predicted, below {shown} expected"
    by = f"{_amount(abs(off), unit)} {side}"
    return f"{finding.field} is {by}: {predicted} predicted, {shown} expected (allowed {expected.tolerance})"


def subject(ledger: Ledger) -> str:
    """The model, who uses it and where, in one line."""
    budget = ledger.budget
    users = f"{budget.users:,} user{'s' if budget.users != 1 else ''} x {budget.ctx:,} tokens"
    each = " each" if ledger.budget.machines > 1 else ""
    memory = f"{short(ledger.capacity)}{each}" + (", unified" if budget.machine.unified else "")
    if budget.convention != "reported":
        memory += f", {budget.convention}"
    kind = budget.format.name
    if budget.kv_cache_dtype != kind:
        kind += f", {budget.kv_cache_dtype} KV cache"
    return " · ".join([budget.model.name, kind, users, f"{budget.machine_name} ({memory})"])


def _table(verdict: Verdict, ledger: Ledger) -> list[str]:
    found = {item.field: item for item in verdict.findings if isinstance(item.expected, Expectation)}
    over = None if ledger.fits or not verdict.budget.expect.get("fits", True) else ledger.limiting_bucket
    rows = [("bucket", "predicted", "expected", "off by", "allowed", "")]
    for field in (*_SIZES, *(field for field in found if field not in _SIZES)):
        item = found.get(field)
        if item is None:
            size = ledger.sums.get(field, ledger.total if field == "total" else ledger.headroom)
            rows.append((field, _size(size), "", "", "", "<- does not fit" if field == over else ""))
            continue
        expected = item.expected
        limit = expected.tolerance.amount if expected.value is None else expected.value
        predicted, shown = _pair(item.predicted, limit, expected.unit, _size)
        off = item.predicted - limit
        mark = "" if item.holds else "<- over" if off > 0 or expected.value is None else "<- under"
        if expected.value is None:
            shown = ""
        rows.append((field, predicted, shown, _off(off, expected.unit), str(expected.tolerance), mark))
    return table(rows, "<>>><<") + (plain_table(ledger) if ledger.ranks else [])


def _reasons(broken: list[Finding], ledger: Ledger) -> list[str]:
    lines = []
    for item in broken:
        if item.field == "fits" and item.expected:
            bucket = ledger.answer.limiting
            if isinstance(bucket, Bucket):  # of anything else the headline has said it
                lines.append(f"{bucket.value}: {bucket_why(ledger, bucket.value)}")
            changes = [change.text for change in ledger.suggestions]
            if changes:
                lines.append(f"smallest change: {changes[0]}")
                lines += [f"or: {text}" for text in changes[1:]]
            else:
                lines.append(f"{nothing_helps(ledger.budget)} fits")
        elif item.field == "fits":
            lines.append(f"fits: {item.why}")
        else:
            lines.append(f"{item.field}: {item.why}")
    lines += [f"not counted: {part}" for part in ledger.budget.model.unknown]
    return lines


def _where(verdict: Verdict, line: int, rerun: str, since: str) -> list[str]:
    budget = verdict.budget
    rows = []
    if budget.file:
        rows.append(f"budget   {budget.file}:{line}")
    if since:
        rows.append(f"since    {since}")
    if rerun:
        rows.append(f"rerun    {rerun}")
    return rows


def _pair(one: int, other: int, unit: str, show: Any = None) -> tuple[str, str]:
    """Two values so that unlike ones look unlike."""
    show = show or short
    if unit == "count":
        return f"{one:,}", f"{other:,}"
    first, second = show(one), show(other)
    return (f"{one:,} B", f"{other:,} B") if first == second and one != other else (first, second)


def _size(size: int) -> str:
    return f"{size / GIB:,.3f} GiB" if abs(size) >= MIB or size == 0 else f"{size:,} B"


def _amount(size: int, unit: str) -> str:
    return f"{size:,}" if unit == "count" else short(size)


def _off(off: int, unit: str) -> str:
    if unit == "count":
        return f"{off:+,}"
    return f"{off / MIB:+,.1f} MiB" if abs(off) >= MIB or off == 0 else f"{off:+,} B"
