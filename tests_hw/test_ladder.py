"""Three levels on whatever NVIDIA card there is, shortest first: `pytest -m cuda` runs them without any option.

L0, 30 s: the ceiling is proven and everything that can be read is read.  L1, 2 min: one 1B model.  L2, 15 min: every
measurement of what fits.  Each says what it does before it does it, as DCGM's diagnostics do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from membudget.budgets.budget import Budget
from membudget.budgets.file import Sources, load
from membudget.host.detect import detect
from membudget.measure.comparison import Comparison
from membudget.measure.plan import PREFLIGHT, plan
from membudget.measure.planned import Plan
from membudget.measure.run import Settings, measure, run_step, small_limits
from membudget.report.worksheet import failure, lines
from membudget.units import GIB

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.cuda
#: What L1 measures of its model.
L1 = ("preflight", "context", "weights", "growth", "activations", "sandwich", "total")


def ladder() -> list[Budget]:
    """The budgets for any card, the smallest first."""
    files = load(sorted(map(str, (ROOT / "tools" / "gpu_budgets").glob("*.yaml"))), Sources(), str(ROOT))
    problems = [file.error for file in files if file.problems]
    assert not problems, "\n".join(problems)
    found = [budget for file in files for budget in file.budgets]
    return sorted(found, key=lambda budget: budget.format.weigh(budget.model).total)


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Prints at once, whatever is captured."""
    reporter: Any = request.config.pluginmanager.getplugin("terminalreporter")
    return lambda text: reporter.write_line(text)


def _here(budget: Budget) -> Plan:
    here = detect()
    return plan(replace(budget, machine=here), "cuda")


def _hold(comparison: Comparison, say: Callable[[str], None]) -> None:
    if comparison.broken or comparison.status not in ("done", "refused"):
        pytest.fail(failure(comparison, comparison.rows), pytrace=False)
    if comparison.status == "refused":
        measured = {row.group for row in comparison.rows if row.measured is not None}
        if not measured - {"preflight", "context"}:
            pytest.skip(comparison.why)
        missing = {row.group for row in comparison.rows} - measured
        say(f"  without {', '.join(sorted(missing))}: {comparison.why}")


def test_l0_the_ceiling_and_the_readings(say: Callable[[str], None]) -> None:
    """A cap of 1 GiB lets 0.5 through and refuses 0.75 more; what is usable falls by no more than that."""
    say("L0: allocates 0.5 GiB under a cap of 1 GiB and reads every counter; 30 s")
    outcome = run_step({"do": "preflight", **PREFLIGHT}, {}, "bf16", small_limits(), device="cuda")
    assert outcome.status == "done", f"{outcome.why}\n{outcome.stderr}"
    assert outcome.result is not None
    figures = outcome.result["steps"]["preflight"]
    assert figures["outcome"] == "held", figures["said"]
    readings = [stage["readings"] for stage in outcome.stages if "readings" in stage][-1]
    known = [name for name, value in readings.items() if isinstance(value, int)]
    say(f"L0: {', '.join(known)}")
    assert {"cuda_total", "cuda_free"} & set(known) or "mem_available" in known


def test_l1_one_small_model(say: Callable[[str], None]) -> None:
    """A 1B with random weights: weights and cache to the byte, its peak, and out of memory where it must be."""
    made = _here(ladder()[0])
    say(f"L1: {made.budget.model.name}, {', '.join(L1)}; at most {made.only(L1).peak / GIB:.1f} GiB, 2 min")
    comparison = measure(made, Settings(), L1)
    for text in lines(comparison.rows):
        say("  " + text)
    _hold(comparison, say)


@pytest.mark.parametrize("budget", ladder(), ids=lambda budget: budget.id)
def test_l2_everything_that_fits(budget: Budget, say: Callable[[str], None]) -> None:
    """Every measurement that this card has room for: traces say which, before anything is loaded."""
    made = _here(budget)
    say(f"L2: {made.budget.model.name}, {len(made.steps)} steps; at most {made.peak / GIB:.1f} GiB, 15 min in all")
    began = time.monotonic()
    comparison = measure(made)
    for text in lines(comparison.rows):
        say("  " + text)
    say(f"L2: {time.monotonic() - began:.0f} s")
    _hold(comparison, say)
