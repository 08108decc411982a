"""How long `membudget plan` takes as a whole process: the installed console script, beside a bare interpreter.

    python benchmarks/startup.py [--runs 60] [--limit 8.0]

Both are started in turn, in one run, so that whatever else the machine does falls on both.  Prints medians and
their ratio; with --limit, exit code 1 says the ratio is above it.  A plan may take 100 ms on an idle machine, which
is about 8 bare interpreters.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time

PLAN = ["plan", "Qwen/Qwen3-8B", "--machine", "dgx-spark", "--ctx", "32k", "--users", "8"]


def console_script() -> str:
    """The `membudget` of this Python's environment."""
    found = shutil.which("membudget", path=sysconfig.get_path("scripts"))
    if found is None:
        raise SystemExit("membudget is not installed in this Python's environment: pip install .")
    return found


def commands() -> dict[str, list[str]]:
    """What is compared with the first: the command as people type it, and its JSON."""
    script = console_script()
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "membudget plan": [script, *PLAN],
        "membudget plan --json": [script, *PLAN, "--json"],
    }


def measure(command: list[str]) -> float:
    """Seconds from start to exit."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    return time.perf_counter() - start


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=60, help="starts of each command; default: 60")
    parser.add_argument("--limit", type=float, help="exit with 1 where `membudget plan` is above this ratio")
    args = parser.parse_args()
    if args.runs < 1:
        parser.error("--runs is a whole number >= 1")
    started = commands()
    times: dict[str, list[float]] = {name: [] for name in started}
    for command in started.values():
        measure(command)  # writes the bytecode, fills the page cache
    for _ in range(args.runs):
        for name, command in started.items():
            times[name].append(measure(command))
    bare = statistics.median(times["python -c pass"])
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        print(f"{name:<24} {middle * 1000:7.1f} ms  (least {min(seconds) * 1000:.1f})  {middle / bare:5.2f}x")
    ratio = statistics.median(times["membudget plan"]) / bare
    print(f"ratio {ratio:.2f}, medians of {args.runs} interleaved starts, Python {sys.version.split()[0]}")
    return 1 if args.limit is not None and ratio > args.limit else 0


if __name__ == "__main__":
    sys.exit(main())
