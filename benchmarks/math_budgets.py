"""How long `pytest -m math` takes for 200 budgets in files of their own, as a whole process.

    python benchmarks/math_budgets.py [--budgets 200] [--limit 10]

The budgets are written for the occasion: every shipped model in turn, formats, machines,
contexts and users changing at different paces.  Prints the seconds and pytest's last line;
with --limit, exit code 1 says that it took longer.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

FORMATS = ("bf16", "fp8", "awq", "q8_0", "q4_k_m")
MACHINES = ("dgx-spark", "h100-80gb", "rtx-4090", "h200-141gb", "apple-m4-max-128gb", "l40s", "mi300x")
CONTEXTS, USERS = ("4Ki", "8Ki", "32Ki", "128Ki"), (1, 2, 8, 32, 100)


def write(folder: Path, wanted: int) -> None:
    """That many budgets, each with whether it fits typed in."""
    from membudget import formats, machines
    from membudget.budgets.budget import Budget
    from membudget.model import ConfigError, Model, build
    from membudget.planning.ledger import predict
    from membudget.sources.locate import fixture_ids, locate
    from membudget.units import parse_count

    models: list[tuple[str, Model]] = []
    for name in fixture_ids():
        try:
            config = locate(name, offline=True).config
            if config is not None:
                models.append((name, build(config, name)))
        except ConfigError:
            continue  # a model that is refused makes no budget
    turns = zip(cycle(models), cycle(FORMATS), cycle(MACHINES), cycle(CONTEXTS), cycle(USERS), strict=False)
    written = 0
    for number, ((name, model), form, machine, ctx, users) in enumerate(turns):
        if written == wanted:
            break
        try:
            plan = Budget("", model, formats.get(form), "bf16", parse_count(ctx), users, machines.get(machine))
            fits = predict(plan).fits
        except ValueError:
            continue  # a format that does not apply to this model
        text = f"model: {name}\nformat: {form}\nkv_cache_dtype: bf16\nctx: {ctx}\nusers: {users}\nmachine: {machine}\n"
        story = f"why: one of many\n{text}expect: {{fits: {str(fits).lower()}}}\n"
        (folder / f"budget-{number:04}.yaml").write_text(story, encoding="utf-8")
        written += 1


def main() -> int:
    """Write, run, judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--budgets", type=int, default=200, help="how many; default: 200")
    parser.add_argument("--limit", type=float, help="exit with 1 where it took more seconds")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as budgets, tempfile.TemporaryDirectory() as bytecode:
        write(Path(budgets), args.budgets)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "pytest", "-q", "-m", "math", "--budgets", budgets, "-p", "no:cacheprovider"]
        command.append(str(ROOT / "tests_math" / "test_budgets.py"))
        # pytest compiles what it imports once and keeps it; that is not what is measured.
        subprocess.run([*command, "--collect-only"], cwd=ROOT, env=environment, capture_output=True, check=False)
        before, start = os.times(), time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        seconds, after = time.perf_counter() - start, os.times()
        # of the processor: what remains of the seconds where the machine does nothing else
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
    last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1:]
    print(f"{seconds:.2f} s ({cpu:.2f} s of CPU) for {args.budgets} budgets; pytest: {''.join(last)}")
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
        return 1
    return 1 if args.limit is not None and seconds > args.limit else 0


if __name__ == "__main__":
    sys.exit(main())
