"""A budget, measured: guarded processes, their figures, and the comparison with what was predicted.

    comparison = measure(plan(budget, "cpu"))

No torch here: it is only ever loaded by the workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from membudget.budgets.budget import Budget
from membudget.errors import MembudgetError
from membudget.host import shared as host
from membudget.host import system
from membudget.host.limits import default_floor
from membudget.measure import guard, lock
from membudget.measure.comparison import Comparison
from membudget.measure.device import (
    available_on,
    because,
    device_environment,
    free_on_card,
    needs_on_card,
    refused_on_card,
)  # fmt: skip
from membudget.measure.edge import informed
from membudget.measure.plan import PROCESS
from membudget.measure.planned import Plan
from membudget.measure.results import rows
from membudget.measure.status import Status

#: Seconds that one process may take.
SECONDS = 3600.0
SECONDS_CPU = 600.0
#: What the proof of the ceiling and two contexts take of a device at most: 1 GiB under the cap, and a context each.
SMALL = 3 * PROCESS
WORKER = ("-u", "-m", "membudget.measure.worker")


@dataclass(frozen=True)
class Settings:
    """How to measure.

    floor: available memory under which a process is killed; None for the machine's default.
    checkpoint: a local folder with weights; random ones from the config without it.
    hook: ``module:function`` that the worker calls after loading, for tests that break things.
    lock: the machine's lock file, None for the default.  wait: seconds to wait for it.
    """

    floor: int | None = None
    checkpoint: str | None = None
    hook: str | None = None
    lock: str | None = None
    wait: float = 0.0
    available: Callable[[], int | None] = system.available
    report: Callable[[dict[str, Any]], None] | None = None
    python: str = sys.executable


def limits(plan: Plan, settings: Settings | None = None) -> guard.Limits:
    """What a process of this plan may do."""
    settings, machine = settings or Settings(), plan.budget.machine
    # The CPU is this machine's own memory, and but for a Spark no driver hangs when it runs out.
    shared = (machine.unified and plan.device != "cpu") or host.shares_memory()
    floor = default_floor(shared) if settings.floor is None else settings.floor
    seconds = SECONDS_CPU if plan.device == "cpu" else SECONDS
    return guard.Limits(plan.peak + PROCESS, floor, floor, seconds, process=PROCESS)


def refused(plan: Plan, settings: Settings | None = None) -> str | None:
    """Why this plan must not start now, with both numbers and what the peak is of; None where it may.

    A plan that was not traced is held to an upper bound: the trace that is made first may say less.
    """
    settings = settings or Settings()
    if why := host.thrashing():
        return why
    if plan.device == "cuda" and not plan.budget.machine.unified:
        return refused_on_card(plan)
    return because(guard.refusal(limits(plan, settings), settings.available()), plan.peak_why)


def outlook(plan: Plan, settings: Settings | None = None) -> tuple[bool, str]:
    """Whether this plan would start here and now, and why, in words with both numbers either way."""
    from membudget.host.available import missing

    settings = settings or Settings()
    why = refused(plan, settings)
    if why is not None:
        return False, why
    card = plan.device == "cuda" and not plan.budget.machine.unified
    there = free_on_card() if card else settings.available()
    room = needs_on_card(plan, there or 0) if card else guard.needs(limits(plan, settings), there or 0)
    lacks = missing("cuda" if plan.device == "cuda" else "cpu")
    if lacks is not None:
        return False, f"the memory is there, but it would not start: {lacks}; it {room}"
    return True, f"it would start: {room}"


def measure(plan: Plan, settings: Settings | None = None, steps: Iterable[str] | None = None) -> Comparison:
    """Run a plan and compare.  steps: only these measurements (names of groups of lines), all if None.

    Raises `membudget.measure.lock.Busy` when someone else measures on this machine.
    """
    settings = settings or Settings()
    kept, chosen = _chosen(plan, steps)
    found: dict[str, dict[str, Any]] = {}
    ended: list[guard.Outcome] = []
    pool = available_on(kept.budget.machine) if settings.available is system.available else settings.available
    with lock.machine_lock(settings.lock, settings.wait):
        for part in _processes(kept, chosen):
            if _unproven(part, found):
                found.update({_name(step): {"error": UNPROVEN} for step in part})
                continue
            before = pool()
            outcome = _run(kept, [informed(step, found) for step in part], settings, found)
            found.update(_found(outcome))
            missing = guard.wait_until_back(before, pool) if outcome.status is not Status.REFUSED else 0
            if missing:
                outcome = replace(
                    outcome, status=_worse(outcome.status), why=f"{outcome.why}; {guard.not_back(missing)}"
                )
            ended.append(outcome)
            if outcome.status not in (Status.DONE, Status.REFUSED):
                break  # a machine in trouble is left alone; one that is only too small for this runs the others
            kept = kept.traced(found)  # what comes next is loaded for real
    return _compared(kept, found, ended)


#: Why a breakage and an edge do not run where the ceiling does not hold.
UNPROVEN = "not started: the ceiling was not held when it was tried with little memory, so nothing relies on it"


def _unproven(part: Sequence[Mapping[str, Any]], found: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a process would rely on a ceiling that did not hold, or was not tried."""
    relies = any(_group(step) in ("break", "edge", "sandwich") and not step["do"].startswith("trace") for step in part)
    early = any(step["do"] == "preflight" for step in part)
    return relies and not early and found.get("preflight", {}).get("outcome") != "held"


def _worse(status: Status) -> Status:
    return Status.CRASHED if status is Status.DONE else status


def _name(step: Mapping[str, Any]) -> str:
    return str(step.get("name", step["do"]))


@dataclass(frozen=True)
class Job:
    """One plan among several: its steps (groups of lines, all if None), and a hook of its own."""

    plan: Plan
    steps: tuple[str, ...] | None = None
    hook: str | None = None


def measure_all(jobs: Sequence[Job], settings: Settings | None = None) -> list[Comparison]:
    """Several plans for the CPU, one after the other, each in a process forked from one that has loaded torch."""
    settings = settings or Settings()
    kept, requests, allowed = [], [], []
    for job in jobs:
        if job.plan.device != "cpu":
            raise MembudgetError(f"{job.plan.budget.id} is for {job.plan.device}: only the CPU's are measured together")
        plan, chosen = _chosen(job.plan, job.steps)
        kept.append(plan)
        requests.append(_request(plan, chosen, replace(settings, hook=job.hook or settings.hook), plan.ceiling))
        allowed.append(_first(plan, chosen, limits(plan, settings)))
    most = guard.Limits(
        max(item.peak for item in allowed),
        max(item.reserve for item in allowed),
        max(item.floor for item in allowed),
        sum(item.seconds for item in allowed),
    )
    with lock.machine_lock(settings.lock, settings.wait):
        outcome = guard.run(
            [settings.python, *WORKER],
            {"jobs": requests},
            most,
            available=settings.available,
            report=settings.report,
        )
    codes = (outcome.result or {}).get("codes", [])
    done = []
    for number, plan in enumerate(kept):
        own = replace(outcome, stages=tuple(stage for stage in outcome.stages if stage.get("job") == number))
        if outcome.status == Status.DONE and codes[number] != 0:
            why = f"crashed at {own.last_stage!r}: exit code {codes[number]}"
            own = replace(own, status=Status.CRASHED, why=why)
        own = _refusal_of(own)
        seconds = sum(float(stage.get("seconds", 0)) for stage in own.stages)
        done.append(_compared(plan, _found(own), [replace(own, seconds=seconds)]))
    return done


def _chosen(plan: Plan, steps: Iterable[str] | None) -> tuple[Plan, list[dict[str, Any]]]:
    """The plan with only the lines of some measurements, and the steps for them."""
    wanted = None if steps is None else set(steps)
    if wanted is not None and wanted & {"break", "edge", "sandwich"}:
        wanted |= {"preflight"}
    if wanted is not None and "sandwich" in wanted:
        wanted |= {"activations"}  # its trace says what is needed
    chosen = [step for step in plan.steps if wanted is None or _group(step) in wanted]
    return (plan if wanted is None else plan.only(wanted)), chosen


def _first(plan: Plan, steps: Sequence[Mapping[str, Any]], allowed: guard.Limits) -> guard.Limits:
    """What a process needs to start that traces before it loads anything, and then looks again (`_request`)."""
    if any(step["do"].startswith("trace") for step in steps):
        return replace(allowed, peak=min(allowed.peak, plan.weights + PROCESS))
    return allowed


def _refusal_of(outcome: guard.Outcome) -> guard.Outcome:
    """A worker that traced and then did not load anything was refused."""
    why = next((stage["refused"] for stage in outcome.stages if "refused" in stage), None)
    return outcome if why is None else replace(outcome, status=Status.REFUSED, why=f"not started: {why}")


def run_step(
    step: Mapping[str, Any],
    config: Mapping[str, Any],
    dtype: str,
    allowed: guard.Limits,
    settings: Settings | None = None,
    device: str = "cpu",
    ceiling: int | None = None,
) -> guard.Outcome:
    """One step of a worker on its own: a trace, a claim."""
    settings = settings or Settings()
    request = {"config": dict(config), "dtype": dtype, "device": device, "ceiling": ceiling, "steps": [dict(step)]}
    command = [settings.python, *WORKER]
    return guard.run(command, request, allowed, available=settings.available, report=settings.report)


def small_limits(seconds: float = 300.0) -> guard.Limits:
    """What a step that loads no model may do on this machine's device."""
    floor = default_floor(host.shares_memory())
    return guard.Limits(SMALL, floor, floor, seconds)


def config_of(budget: Budget) -> dict[str, Any]:
    """The config.json that the worker builds: what the budget's model was read from."""
    return dict(budget.model.config.raw)


def _processes(plan: Plan, steps: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """On the CPU one process for all; on a device one for each, and its traces in one before them."""
    if plan.device == "cpu":
        return [steps] if steps else []
    first = [step for step in steps if step["do"] == "preflight"]
    traces = [step for step in steps if step["do"].startswith("trace")]
    rest = [[step] for step in steps if step not in first and step not in traces]
    return ([first] if first else []) + ([traces] if traces else []) + rest


def _run(
    plan: Plan, steps: list[dict[str, Any]], settings: Settings, found: Mapping[str, Mapping[str, Any]]
) -> guard.Outcome:
    fake = all(step["do"].startswith("trace") for step in steps)
    groups = {_group(step) for step in steps}
    # What must break breaks at the budget's ceiling; everything else stays under what it is predicted to take.
    breaks = plan.device == "cpu" or bool(groups & {"break", "edge"})
    small = all(step["do"] in ("preflight", "context", "second_context") for step in steps)
    environment = {name: value for step in steps for name, value in step.get("environment", {}).items()}
    environment |= device_environment(plan.device)
    ceiling, whole = plan.ceiling, plan
    if plan.device != "cpu":  # a process is held to what its own steps take
        plan = plan.only(groups).traced(found)
    request = _request(plan, steps, settings, ceiling if breaks else _roomy(whole, plan.peak, settings), found)
    allowed = limits(plan, settings)
    card = plan.device == "cuda" and not plan.budget.machine.unified
    if fake:
        allowed = replace(allowed, peak=PROCESS)
    elif small and plan.device != "cpu" and not card:
        allowed = replace(allowed, peak=SMALL)
    elif plan.device == "cpu":
        allowed = _first(plan, steps, allowed)
    elif card:
        # what proves the ceiling needs none of the model's memory, so the model's upper bound does not refuse it
        why = refused_on_card(replace(plan, peak=SMALL - PROCESS, peak_why="what loads no model") if small else plan)
        if why is not None:
            return guard.Outcome(Status.REFUSED, f"not started: {why}", None, (), "", None, 0.0, None)
        allowed = replace(allowed, peak=2 * PROCESS)  # of the host's memory
    outcome = guard.run(
        [settings.python, *WORKER],
        request,
        allowed,
        available=settings.available,
        report=settings.report,
        environment={**os.environ, **environment} if environment else None,
    )
    if outcome.status == Status.REFUSED:
        return replace(outcome, why=because(outcome.why, "" if fake else plan.peak_why) or "")
    return _refusal_of(outcome)


def _roomy(plan: Plan, own: int, settings: Settings) -> int:
    """A ceiling that a healthy measurement never meets: a quarter over the peak, for what the allocator reserves.

    Never more than leaves the floor where CPU and GPU share the memory.  own: the peak of what runs under it, in bytes.
    """
    ceiling = plan.peak * 5 // 4 + PROCESS
    free = settings.available()
    if plan.budget.machine.unified and free is not None:
        ceiling = min(ceiling, free - limits(plan, settings).floor)
    return max(ceiling, own + PROCESS)


def _request(
    plan: Plan,
    steps: list[dict[str, Any]],
    settings: Settings,
    ceiling: int,
    found: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    allowed = limits(plan, settings)
    start = {
        "weights": plan.weights,
        "moments": [astuple(moment) for moment in plan.moments],
        "beside": max(allowed.reserve, allowed.floor),
    }
    figures = ("peak", "weights", "buffers")
    start["traced"] = {
        name: {key: item[key] for key in figures if key in item}
        for name, item in (found or {}).items()
        if name.startswith("trace") and "peak" in item
    }
    if plan.device == "cuda" and not plan.budget.machine.unified:
        start |= {"pool": "card", "beside": PROCESS}
    if settings.available is not system.available:
        start["available"] = settings.available()
    return {
        "start": start,
        "config": config_of(plan.budget),
        "dtype": plan.dtype,
        "device": plan.device,
        "ceiling": ceiling,
        "checkpoint": settings.checkpoint,
        "hook": settings.hook,
        "steps": steps,
    }


def _found(outcome: guard.Outcome) -> dict[str, dict[str, Any]]:
    """Figures by step; from the stages, so that those of a killed process are not lost."""
    return {str(stage["stage"]): stage["found"] for stage in outcome.stages if isinstance(stage.get("found"), dict)}


def _compared(plan: Plan, found: dict[str, dict[str, Any]], ended: list[guard.Outcome]) -> Comparison:
    bad = next((outcome for outcome in ended if outcome.status != Status.DONE), None)
    readings = [stage["readings"] for outcome in ended for stage in outcome.stages if "readings" in stage]
    versions: dict[str, str] = {}
    for outcome in ended:
        for stage in outcome.stages:
            versions.update(stage.get("versions", {}))
    lowest = [outcome.lowest for outcome in ended if outcome.lowest is not None]
    detail = ""
    if bad is not None and bad.status != Status.REFUSED:
        at = readings[-1] if readings else {}
        figures = {name: at.get(name) for name in ("mem_available", "cuda_free", "torch_allocated", "rss")}
        detail = f"last stage  {bad.last_stage}\nreadings    {figures}\nstderr      {bad.stderr[-3000:]}"
    return Comparison(
        plan.budget.id,
        rows(plan, found),
        Status.DONE if bad is None else bad.status,
        "" if bad is None else bad.why,
        detail,
        versions,
        tuple(readings),
        sum(outcome.seconds for outcome in ended),
        min(lowest) if lowest else None,
    )


def _group(step: Mapping[str, Any]) -> str:
    """The group of lines that a step is for."""
    name = str(step.get("name", step["do"])).removeprefix("trace_")
    if name.startswith("break"):
        return "break"
    if name.startswith("prefill"):
        return "activations"
    if name.endswith("context"):
        return "context"
    return "fragmentation" if name.startswith(("steps_", "long_")) else name
