"""Measure budgets on this machine, or, without one, show what this machine's memory looks like now.

Exit code 0: every line holds; 1: a line differs; 3: it cannot be measured here, or did not start;
with --dry-run: 0, all would start; 3, one would not.
"""

from __future__ import annotations

from typing import Any

from membudget.budgets.file import NoBudgets, Sources
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import InputError, NotHere, context, folder, short_repr, size_with_unit
from membudget.data.defaults import MAX_CTX
from membudget.history.here import machine, packages
from membudget.host import shared as host
from membudget.host.available import missing
from membudget.host.limits import LEAST_UNIFIED_FLOOR
from membudget.host.readings import FIELDS, Unknown
from membudget.host.sources import snap
from membudget.machines.measured import add
from membudget.measure.comparison import Comparison
from membudget.measure.device import device_of
from membudget.measure.plan import plan
from membudget.measure.planned import CannotMeasure
from membudget.measure.progress import Progress
from membudget.measure.run import Settings, measure, outlook
from membudget.measure.stages import stage_table, stages
from membudget.planning.load import load
from membudget.report import samples
from membudget.report.worksheet import lines
from membudget.text.terminal import Terminal, table
from membudget.units import both, gib

#: The groups of lines that a plan may have.
GROUPS = (
    "preflight", "context", "weights", "growth", "static", "activations", "sandwich", "total", "break", "fragmentation",
    "edge",
)  # fmt: skip


def options(parser: Declares) -> None:
    """The arguments of `membudget probe`."""
    add = parser.add_argument
    add("paths", metavar="BUDGET", nargs="*", help="budget files; without one: the machine's readings")
    add("--machines", metavar="FILE", action="append", help="a YAML table of your own machines (repeatable)")
    add("--models", metavar="DIR", help="where checkpoints lie; without one weights are random, which takes as much")
    add("--only", metavar="LINES", action="append", help=f"{', '.join(GROUPS)}; repeatable")
    add("--floor", metavar="SIZE", help="kill what takes available memory below this; default: 20 GiB where unified")
    add(
        "--chunk",
        metavar="N",
        help="the capacity search prefills N tokens of each prompt at a time; default: all at once",
    )
    add("--learn", action="store_true", help="keep what was measured with its machine, for the next plan")
    add("--dry-run", action="store_true", help="load nothing: show what would be, and whether it would start")


def run(args: Arguments) -> Result:
    """Measure, or look."""
    if not args.paths:
        return _look()
    models = folder("--models", args.models)
    floor = size_with_unit("--floor", args.floor) if args.floor is not None else None
    chunk = context("--chunk", args.chunk, MAX_CTX) if args.chunk else 0
    odd = sorted(set(args.only or ()) - set(GROUPS))
    if odd:
        raise InputError(f"--only: {short_repr(odd[0])} is refused; allowed is {', '.join(GROUPS)}")
    try:
        files = load(args.paths, Sources(args.machines or (), models))
    except NoBudgets as error:
        raise InputError(str(error)) from None
    problems = [file.error for file in files if file.problems]
    if problems:
        raise InputError("\n".join(problems))
    settings = Settings(floor=floor, report=Progress.on().hear)
    done: list[Comparison] = []
    plans, reasons = [], []
    for budget in (budget for file in files for budget in file.budgets):
        try:
            made = plan(budget, device_of(budget.machine), chunk)
        except CannotMeasure as error:
            reasons.append(f"{budget.id}: {error}")
            continue
        shared = (made.device != "cpu" and budget.machine.unified) or host.shares_memory()
        if floor is not None and floor < LEAST_UNIFIED_FLOOR and shared:
            where = "here" if host.shares_memory() else f"on {budget.machine.name}"
            raise InputError(
                f"--floor: {short_repr(args.floor)} is refused; allowed is {gib(LEAST_UNIFIED_FLOOR)} or more where "
                f"CPU and GPU share the memory, as {where}: available memory was seen to fall by 14 GiB a second, and "
                "a host that runs out hangs. Leave --floor out for 20 GiB"
            )
        if args.dry_run:
            starts, now = outlook(made, settings)
            plans.append({"budget": budget.id, "refused": None if starts else now, "now": now, "text": made.text()})
            continue
        _needs(made.device)
        comparison = measure(made, settings, args.only)
        done.append(comparison)
        if args.learn:
            reasons += _learn(budget.machine.name, comparison)
    return _answer(done, plans, reasons)


#: The kind of `membudget.machines.measured` that --learn writes.
OVERHEAD = "overhead"


def _learn(machine: str, comparison: Comparison) -> list[str]:
    """Keep what this machine takes beside weights, cache and steps; a sentence where nothing was measured."""
    rows = {row.name: row.measured for row in comparison.rows}
    found = {"cuda_context": rows.get("cuda_context"), "fragmentation": rows.get("spare_dynamic")}
    known = {name: size for name, size in found.items() if isinstance(size, int)}
    if not known:
        return [f"{comparison.budget}: nothing to learn, neither a context nor fragmentation was measured"]
    add(machine, OVERHEAD, {**known, "budget": comparison.budget, "versions": dict(comparison.versions)})
    return []


def _answer(done: list[Comparison], plans: list[dict[str, Any]], reasons: list[str]) -> Result:
    document = {
        "budgets": [
            {
                "budget": item.budget,
                "status": item.status,
                "why": item.why,
                "lines": [row.as_json() for row in item.rows],
                "stages": stages(item.readings),
                "seconds": round(item.seconds, 1),
                "lowest_available": item.lowest,
            }
            for item in done
        ],
        "plans": plans,
        "not_measured": reasons,
    }
    blocks = Terminal.of().unicode
    text = [f"{item['text']}\n  now: {item['now']}" for item in plans]
    for item in done:
        text += [f"{item.budget}: {item.status}{': ' + item.why if item.why else ''}", *lines(item.rows)]
        text += samples.lines(item.rows, blocks)
        text += [f"  {row.name}: {row.note}" for row in item.broken]
        text += stage_table(item.readings)
        text += [item.detail] if item.detail else []
    text += [f"not measured: {reason}" for reason in reasons]
    code = 0
    if any(item.broken or item.status in ("killed", "crashed", "timeout") for item in done):
        code = 1
    elif (
        any(item.status == "refused" for item in done)
        or any(item["refused"] for item in plans)
        or (reasons and not done and not plans)
    ):
        code = 3
    return Result(code, document, lambda: "\n".join(text))


def _look() -> Result:
    found = snap("now")
    here, versions = machine(), packages()
    rows = [(name, str(here[name]), "") for name in ("title", "driver", "cuda", "kernel") if here.get(name)]
    rows += [(name, version, "") for name, version in versions.items() if name in ("torch", "transformers", "vllm")]
    for name in (*FIELDS, "usable", "reclaimable"):
        item = getattr(found, name) if name in ("usable", "reclaimable") else found.fields[name]
        if isinstance(item, Unknown):
            rows.append((name, "unknown", item.reason))
        elif name == "gpu_temperature":
            rows.append((name, f"{item} degrees C", ""))
        elif name == "memory_pressure":
            rows.append((name, f"{item / 1000:.2f} %", "of the last 10 s some task waited for memory"))
        else:
            rows.append((name, f"{item:,} B", both(item)))
    document = {"machine": here, "versions": versions, **found.as_json()}
    return Result(0, document, lambda: "\n".join(table(rows, "<><")))


def _needs(device: str) -> None:
    """`NotHere` where something must be installed before this can be measured."""
    lacks = missing("cuda" if device == "cuda" else "cpu")
    if lacks:
        raise NotHere(str(lacks), code=lacks.code)
