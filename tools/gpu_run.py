"""One run on an NVIDIA GPU, under 8 minutes: `python tools/gpu_run.py [--dry-run] [--out FILE] [--seconds 470]`.

Measures the budgets in tools/gpu_budgets with random weights: context, weights, growth,
static cache, prefills against the trace, both breakages, the edge.  Stops starting
measurements when its time is nearly over, and always writes what it has: one JSON document, for
fixtures/runs/ as a real reference.  --dry-run needs no GPU: it prints what would run.

Exit code 0: every line holds; 1: one does not; 3: no GPU to measure on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from membudget.budgets.file import Sources, load  # noqa: E402
from membudget.history.here import machine, own_versions  # noqa: E402
from membudget.host.available import gpus, missing  # noqa: E402
from membudget.host.detect import detect  # noqa: E402
from membudget.machines import get  # noqa: E402
from membudget.measure.plan import plan  # noqa: E402
from membudget.measure.planned import Plan  # noqa: E402
from membudget.measure.run import Settings, measure, refused  # noqa: E402
from membudget.report import samples  # noqa: E402
from membudget.report.worksheet import lines  # noqa: E402

#: Most telling first: what does not fit into the time is left out, and said.
ORDER = ("weights", "growth", "activations", "break", "edge", "context", "static", "fragmentation")
#: What a group of measurements took at most when it was tried, for deciding whether one more is started.
MARGIN = 60.0


def main() -> int:
    """Run, or say what would."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="print what would run; needs no GPU")
    parser.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "gpu-run.json"))
    parser.add_argument("--seconds", type=float, default=470.0, help="default: 470")
    asked = parser.parse_args()
    lacks = missing("cuda")
    if lacks and not asked.dry_run:
        print(lacks, file=sys.stderr)
        return 3
    plans = _plans(gpu=not lacks)
    if asked.dry_run:
        for item in plans:
            print(item.text())
            print(f"  now: {refused(item) or 'it would start'}")
        return 0
    return _run(plans, asked.out, time.monotonic() + asked.seconds)


def _plans(gpu: bool) -> list[Plan]:
    found = []
    for file in load(sorted(map(str, (HERE / "gpu_budgets").glob("*.yaml"))), Sources(), str(HERE.parent)):
        if file.problems:
            raise SystemExit(file.error)
        # without a GPU, a dry run is of the card that most people can borrow
        here = detect() if gpu else get("h100-80gb")
        found += [plan(replace(budget, machine=here), "cuda") for budget in file.budgets]
    return sorted(found, key=lambda item: item.peak)


def _run(plans: list[Plan], out: str, deadline: float) -> int:
    record: dict[str, Any] = {
        "schema": 1,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "gpus": list(gpus()),
        "machine": machine(),
        "versions": own_versions(),
        "budgets": {},
        "left_out": [],
    }
    broken = False
    for group in ORDER:
        for item in plans:
            name = item.budget.id
            if time.monotonic() > deadline - MARGIN:
                record["left_out"].append(f"{name}: {group}")
                continue
            found = measure(item, Settings(), [group])
            print(
                f"{name} {group}: {found.status} {found.why} ({found.seconds:.0f} s)",
                *lines(found.rows),
                *samples.lines(found.rows),
                sep="\n",
                flush=True,
            )
            broken |= bool(found.broken) or found.status != "done"
            kept = record["budgets"].setdefault(name, {"lines": [], "ended": {}})
            kept["lines"] += [row.as_json() for row in found.rows]
            kept["ended"][group] = {"status": found.status, "why": found.why, "seconds": round(found.seconds, 1)}
            kept.setdefault("versions", {}).update(found.versions)
            if found.detail:
                kept["ended"][group]["detail"] = found.detail
            Path(out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"left out: {', '.join(record['left_out']) or 'nothing'}; written: {out}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
