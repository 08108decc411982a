"""Everything worth having from an NVIDIA GPU, in at most 25 minutes: `python tools/gpu_day.py [--out FOLDER]`.

Four parts, each of which says what it does and is left out where its time would not suffice:

    1 proof     the ceiling, every reading, two contexts, the caching allocator's stages          2 min
    2 small     every measurement of a 1B                                                         6 min
    3 large     every measurement of an 8B                                                       12 min
    4 beside    two at once, and a served vLLM where MEMBUDGET_VLLM names one                     5 min

Each writes its JSON document into the folder at once, and summary.json has them all: for fixtures/runs/.
--rehearse runs the same parts on the CPU with tiny models; --dry-run loads nothing and prints what would run.

Exit code 0: every line holds; 1: one does not; 3: no GPU to measure on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from membudget.budgets.budget import Budget  # noqa: E402
from membudget.budgets.file import Sources, load  # noqa: E402
from membudget.engines.vllm.oracle.asking import find_python  # noqa: E402
from membudget.history.here import machine, own_versions  # noqa: E402
from membudget.host import system  # noqa: E402
from membudget.host.available import gpus, missing  # noqa: E402
from membudget.host.detect import detect  # noqa: E402
from membudget.machines import get  # noqa: E402
from membudget.measure import guard  # noqa: E402
from membudget.measure.comparison import Comparison  # noqa: E402
from membudget.measure.device import available_on, device_environment  # noqa: E402
from membudget.measure.experiment import PIECE, PIECE_CPU, differences, expected  # noqa: E402
from membudget.measure.pairs import Claim, Kind, predict, show  # noqa: E402
from membudget.measure.plan import PREFLIGHT, PREFLIGHT_CPU, plan  # noqa: E402
from membudget.measure.planned import Plan  # noqa: E402
from membudget.measure.run import Settings, measure, refused, run_step, small_limits  # noqa: E402
from membudget.measure.serve import CannotServe, serve, serving, version_of  # noqa: E402
from membudget.measure.status import Status  # noqa: E402
from membudget.report.worksheet import lines  # noqa: E402
from membudget.units import GIB, MIB  # noqa: E402

#: Seconds of each part.
PARTS = {"proof": 120.0, "small": 360.0, "large": 720.0, "beside": 300.0}


class Day:
    """One run: where it writes, what it measures, and whether something did not hold."""

    def __init__(self, folder: Path, device: str, plans: list[Plan]) -> None:
        self.folder, self.device, self.plans = folder, device, plans
        self.broken: list[str] = []
        self.summary: dict[str, Any] = {
            "schema": 1, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "device": device,
            "gpus": list(gpus()), "machine": machine(), "versions": own_versions(), "parts": {}, "left_out": [],
        }  # fmt: skip

    def part(self, name: str, run: Callable[[], dict[str, Any]], deadline: float) -> None:
        """Run a part and write what it found; what breaks in it is its result too."""
        if time.monotonic() + PARTS[name] > deadline:
            self.summary["left_out"].append(name)
            print(f"{name}: left out, {PARTS[name]:.0f} s are not left", flush=True)
            return
        began = time.monotonic()
        try:
            found = run()
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
            self.broken.append(f"{name}: {found['error']}")
        found["seconds"] = round(time.monotonic() - began, 1)
        self.write(f"{name}.json", found)
        self.summary["parts"][name] = found["seconds"]
        self.summary["broken"] = self.broken
        self.write("summary.json", self.summary)
        print(f"{name}: {found['seconds']:.0f} s", flush=True)

    def write(self, name: str, what: dict[str, Any]) -> None:
        """One JSON document of the folder."""
        (self.folder / name).write_text(json.dumps(what, indent=1, default=str) + "\n", encoding="utf-8")

    def step(self, **step: Any) -> dict[str, Any]:
        """One step without a model: its figures and readings."""
        limits = small_limits()
        if self.device == "cpu":
            limits = guard.Limits(peak=GIB, reserve=GIB // 2, floor=GIB // 2, seconds=120.0)
        os.environ.update(device_environment(self.device))
        outcome = run_step(step, {}, "bf16", limits, device=self.device)
        figures = (outcome.result or {}).get("steps", {}).get(step["do"], {})
        if outcome.status is not Status.DONE or "error" in figures:
            self.broken.append(f"{step['do']}: {figures.get('error', outcome.why)}")
        return {"figures": figures, "status": outcome.status, "why": outcome.why, "stages": list(outcome.stages)}

    def proof(self) -> dict[str, Any]:
        """The ceiling, contexts, and the allocator stage by stage."""
        cpu = self.device == "cpu"
        found = {"preflight": self.step(do="preflight", **(PREFLIGHT_CPU if cpu else PREFLIGHT))}
        if found["preflight"]["figures"].get("outcome") != "held":
            self.broken.append("the ceiling is not held")
        for name in () if cpu else ("context", "second_context"):
            found[name] = self.step(do=name)
        piece = PIECE_CPU if cpu else PIECE
        found["experiment"] = self.step(do="experiment", piece=piece)
        stages = found["experiment"]["figures"].get("stages", [])
        off = differences(stages, expected(piece), piece) if stages else ["the allocator was not seen"]
        self.broken += off
        asked = ["nvidia-smi", "-q"]
        said = "" if cpu else system.System().run(asked)
        return {**found, "differences": off, "nvidia_smi": said}

    def measured(self, item: Plan) -> dict[str, Any]:
        """Every measurement of a budget."""
        settings = Settings(lock=str(self.folder / "lock")) if self.device == "cpu" else Settings()
        found = measure(item, settings)
        return self.kept(found)

    def kept(self, found: Comparison) -> dict[str, Any]:
        """A comparison for the folder, printed too."""
        print(f"{found.budget}: {found.status} {found.why}", *lines(found.rows), sep="\n", flush=True)
        self.broken += [f"{found.budget}: {row.name}" for row in found.broken]
        if found.status not in (Status.DONE, Status.REFUSED):
            self.broken.append(f"{found.budget}: {found.why}")
        return {
            "budget": found.budget, "status": found.status, "why": found.why, "versions": dict(found.versions),
            "lines": [row.as_json() for row in found.rows], "readings": list(found.readings), "detail": found.detail,
            "lowest": found.lowest,
        }  # fmt: skip

    def beside(self) -> dict[str, Any]:
        """Two claims in both orders, and a served vLLM."""
        here = self.plans[0].budget.machine
        available = available_on(here)
        found: dict[str, Any] = {"pairs": []}
        size = 256 * MIB if self.device == "cpu" else 4 * GIB
        for kind in (Kind.ENGINE, Kind.NOTEBOOK):
            now = available() or 0
            first, second, reserve = Claim("chat", size), Claim("embed", size, kind), now - size * 3 // 2
            wanted = predict(first, second, reserve, now)
            shown = show(first, second, reserve, available=available, device=self.device)
            found["pairs"].append({"kind": kind, "predicted": vars(wanted), "shown": vars(shown)})
            # on a CPU others move what is available; the tests have a machine of their own
            if shown.fails != wanted.fails and self.device != "cpu":
                self.broken.append(f"two at once: {wanted.fails} was to fail, {shown.fails or 'nobody'} did")
        python = find_python()
        if python is None:
            return {**found, "served": "MEMBUDGET_VLLM names no vLLM"}
        try:
            made = serving(served(self.device, here), python, version=version_of(python))
        except CannotServe as error:
            return {**found, "served": str(error)}
        lock = str(self.folder / "lock") if self.device == "cpu" else None
        done = serve(made, lock_file=lock, keep=str(self.folder / "vllm.log"))
        return {**found, "served": self.kept(done), "command": list(made.command)}


def served(device: str, here: Any) -> Budget:
    """What vLLM is started with: the small model at a share that leaves room for others, or the rehearsal's."""
    if device == "cpu":
        (file,) = load([HERE.parent / "tests_hw" / "served"], machines(), str(HERE.parent))
        return file.budgets[0]
    budget = budgets("cuda")[0]
    engine = replace(budget.engine, name="vllm", gpu_memory_utilization=0.4, max_num_batched_tokens=8192, options={})
    return replace(budget, machine=here, engine=engine, breaks=(), measure={})


def machines() -> Sources:
    """The rehearsal's machine."""
    return Sources([str(HERE.parent / "tests_hw" / "machines.yaml")])


def budgets(device: str) -> list[Budget]:
    """A small and a large budget of a device, the small one first."""
    if device == "cpu":
        names = ("llama-tiny.cpu.yaml", "gemma3-tiny.cpu.yaml")
        files = load([str(HERE.parent / "tests_hw" / "budgets" / name) for name in names], machines(), str(HERE.parent))
    else:
        files = load(sorted(map(str, (HERE / "gpu_budgets").glob("*.yaml"))), Sources(), str(HERE.parent))
    for file in files:
        if file.problems:
            raise SystemExit(file.error)
    found = [budget for file in files for budget in file.budgets]
    return sorted(found, key=lambda budget: budget.format.weigh(budget.model).total)


def main() -> int:
    """Run, or say what would."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="print what would run; needs no GPU")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny models")
    parser.add_argument("--out", default=os.environ.get("OUT", "gpu-day"), help="a folder; default: $OUT, else gpu-day")
    parser.add_argument("--seconds", type=float, default=sum(PARTS.values()), help="default: 1500")
    asked = parser.parse_args()
    lacks = missing("cpu" if asked.rehearse else "cuda")
    if lacks and not asked.dry_run:
        print(lacks, file=sys.stderr)
        return 3
    device = "cpu" if asked.rehearse else "cuda"
    found = budgets(device)
    if device == "cuda":  # without a GPU, a dry run is of the card that most people can borrow
        here = get("h100-80gb") if lacks else detect()
        found = [replace(budget, machine=here) for budget in found]
    plans = [plan(budget, device) for budget in found]
    if asked.dry_run:
        for item in plans:
            print(item.text())
            print(f"  now: {refused(item) or 'it would start'}")
        return 0
    folder = Path(asked.out)
    folder.mkdir(parents=True, exist_ok=True)
    day, deadline = Day(folder, device, plans), time.monotonic() + asked.seconds
    day.part("proof", day.proof, deadline)
    if "the ceiling is not held" not in day.broken:
        day.part("small", lambda: day.measured(plans[0]), deadline)
        day.part("large", lambda: day.measured(plans[-1]), deadline)
        day.part("beside", day.beside, deadline)
    day.summary["broken"] = day.broken
    day.write("summary.json", day.summary)
    print(*day.broken, f"written: {folder}", sep="\n")
    return 1 if day.broken else 0


if __name__ == "__main__":
    sys.exit(main())
