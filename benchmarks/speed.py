"""How fast membudget is: its commands in this process, as ratios to a reference loop of the same run.

    python benchmarks/speed.py [--baseline speed.json] [--save] [--limit 0.30]

A ratio does not move when the machine is slower tonight: the reference loop (integer arithmetic, dictionaries, text)
is slower then too.  Every command and the loop take turns, and the least CPU time of several rounds counts.  With
--baseline a command whose ratio is more than --limit above the saved one, three times over, is a regression: exit code
1.  --save writes the ratios, where there is no regression; the first night saves them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from membudget.cli.main import main as membudget

ROOT = Path(__file__).parents[1]
LOG = str(ROOT / "fixtures" / "logs" / "cpu" / "0.32.0-llama.log")
MODEL = "Qwen/Qwen3-8B"
TRIES = 3
COMMANDS = {
    "count": ["count", MODEL],
    "plan": ["plan", MODEL, "--machine", "dgx-spark", "--ctx", "32k", "--users", "8"],
    "pool": ["pool", MODEL, "--machine", "h100-80gb"],
    "log": ["log", LOG],
    "check": ["check", str(ROOT / "budgets" / "qwen3-8b-bf16.dgx-spark.yaml")],
    "fleet": ["fleet", MODEL],
}


def reference() -> None:
    """The loop that everything is compared with: about 20 ms of plain Python."""
    found: dict[str, int] = {}
    for number in range(40_000):
        key = f"layer.{number % 97}"
        found[key] = found.get(key, 0) + number * 4096 // 3
    assert len(found) == 97


def command(words: list[str]) -> Callable[[], None]:
    """One command line, its output thrown away."""

    def call() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = membudget(words)
        if code not in (0, 1):
            raise SystemExit(f"membudget {' '.join(words)}: exit code {code}")

    return call


def measure(rounds: int) -> dict[str, float]:
    """The ratio of each command to the reference loop, each the least of so many rounds in turn."""
    calls = {"reference": reference, **{name: command(words) for name, words in COMMANDS.items()}}
    least: dict[str, float] = {}
    for _ in range(rounds + 1):  # the first fills caches
        for name, call in calls.items():
            start = time.process_time()  # not the clock's: another process may have the core
            call()
            least[name] = min(least.get(name, float("inf")), time.process_time() - start)
    return {name: least[name] / least["reference"] for name in COMMANDS}


def regressions(ratios: dict[str, float], before: dict[str, float], limit: float) -> dict[str, float]:
    """By how much each command is slower than it was, as a part of that; only those beyond the limit."""
    slower = {name: ratio / before[name] - 1 for name, ratio in ratios.items() if before.get(name)}
    return {name: part for name, part in slower.items() if part > limit}


def main(words: list[str] | None = None) -> int:
    """Measure, compare, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--baseline", type=Path, metavar="FILE")
    parser.add_argument("--limit", type=float, default=0.30)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args(words)
    saved = args.baseline is not None and args.baseline.exists()
    before: dict[str, float] = json.loads(args.baseline.read_text(encoding="utf-8")) if saved else {}
    ratios = measure(args.rounds)
    for _ in range(TRIES - 1):  # a machine that is busy elsewhere is slow once
        if not regressions(ratios, before, args.limit):
            break
        ratios = {name: min(ratio, ratios[name]) for name, ratio in measure(args.rounds).items()}
    slow = regressions(ratios, before, args.limit)
    for name, ratio in ratios.items():
        then = f"  was {before[name]:7.3f}" if name in before else ""
        mark = f"  {slow[name]:+.0%}: slower than {args.limit:.0%} allows" if name in slow else ""
        print(f"{name:<8} {ratio:7.3f} x the reference loop{then}{mark}")
    if args.save and args.baseline is not None and not slow:
        args.baseline.parent.mkdir(parents=True, exist_ok=True)
        kept = {name: min(ratio, before.get(name, ratio)) for name, ratio in ratios.items()}
        args.baseline.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
