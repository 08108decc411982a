"""The rehearsal turns red: each fault is committed for real, and its failure names it."""

from __future__ import annotations

import os
import sys

import pytest

from membudget.budgets.budget import Budget
from membudget.host import system
from membudget.measure import guard
from membudget.measure.child import Child
from membudget.measure.comparison import Comparison, Row
from membudget.measure.plan import plan
from membudget.measure.run import WORKER, Job, Settings, config_of, measure_all
from membudget.report.worksheet import failure
from membudget.units import GIB, MIB
from tests_hw.conftest import rehearsal

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def llama() -> Budget:
    """The dense tiny model."""
    return rehearsal("llama")[0]


#: What is broken, and the measurements that must notice.
FAULTS = {
    "doubled_cache": ("growth",),
    "upcast": ("weights",),
    "loaded_twice": ("weights",),
    "logits_kept": ("activations",),
    "leak": ("growth",),
}


@pytest.fixture(scope="module")
def broken(llama: Budget) -> dict[str, Comparison]:
    """The tiny model measured with each fault, each in its own process."""
    jobs = [Job(plan(llama, "cpu"), steps, f"tests_hw.faults:{fault}") for fault, steps in FAULTS.items()]
    settings = Settings(lock=f"/tmp/membudget.faults.{os.getpid()}")
    return dict(zip(FAULTS, measure_all(jobs, settings), strict=True))


def _row(comparison: Comparison, name: str) -> Row:
    return next(row for row in comparison.rows if row.name == name)


def test_doubled_cache_is_red(broken: dict[str, Comparison]) -> None:
    """A cache that is kept twice: twice the bytes a token, said in the first line."""
    comparison = broken["doubled_cache"]
    text = failure(comparison, comparison.rows)
    assert text.startswith("kv_growth is 2.00 KiB over: 4.00 KiB measured, 2.00 KiB predicted (allowed exact)")
    assert "kv_growth: 2.00x" in text
    assert _row(comparison, "kv_cache").verdict == "over"


def test_upcast_weight_is_red(broken: dict[str, Comparison]) -> None:
    """A weight in fp32: over by its size, and named."""
    comparison = broken["upcast"]
    text = failure(comparison, comparison.rows)
    assert text.startswith("weights is 128.00 KiB over:")
    assert "model.layers.1.mlp.up_proj.weight is float32, not bf16: 256.00 KiB" in text


def test_weight_loaded_twice_is_red(broken: dict[str, Comparison]) -> None:
    """A second copy of a weight: over by its size, and named by whose shape it has."""
    comparison = broken["loaded_twice"]
    text = failure(comparison, comparison.rows)
    assert text.startswith("weights is 128.00 KiB over:")
    assert "(bfloat16, 128.00 KiB) lies there a second time" in text


def test_kept_logits_are_red(broken: dict[str, Comparison]) -> None:
    """A model that computes every logit although the last is asked for: the peak says so."""
    comparison = broken["logits_kept"]
    row = _row(comparison, "prefill_last")
    assert row.verdict == "over"
    assert row.measured == _row(comparison, "prefill_every").predicted
    assert "prefill_last is 1.18 MiB over" in failure(comparison, comparison.rows)


def test_leak_is_red(broken: dict[str, Comparison]) -> None:
    """What stays allocated after the cache is gone is red, to the byte."""
    comparison = broken["leak"]
    assert _row(comparison, "freed").verdict == "over"


def _hog(llama: Budget, floor: int, seconds: float) -> guard.Outcome:
    request = {
        "config": config_of(llama),
        "dtype": "bf16",
        "device": "cpu",
        "hook": "tests_hw.faults:memory_hog",
        "steps": [{"do": "weights"}],
    }
    limits = guard.Limits(peak=0, reserve=0, floor=floor, seconds=seconds)
    return guard.run([sys.executable, *WORKER], request, limits)


def _assert_stopped(outcome: guard.Outcome) -> None:
    """What the suite demands of a measurement that takes too much."""
    assert outcome.status == "killed", f"not stopped by the watchdog: {outcome.why}"
    assert "under the floor" in outcome.why


def test_watchdog_stops_a_measurement(llama: Budget) -> None:
    """A worker that takes more than predicted is killed at the floor, with its last stage and readings."""
    for _ in range(3):
        available = system.available()
        assert available is not None
        # Others on this machine come and go; 1.5 GiB is mostly more than they move, and less than the hog takes.
        # Where somebody else reached the floor the worker was stopped before it took anything, and where somebody
        # else ended there was room for it: once more.
        outcome = _hog(llama, available - 3 * GIB // 2, 120.0)
        if outcome.status == "killed" and outcome.last_stage != "start":
            break
    _assert_stopped(outcome)
    assert outcome.last_stage == "weights"
    assert any("readings" in stage for stage in outcome.stages)


def test_disabled_watchdog_is_red(llama: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the watchdog blind the same worker is not stopped, and the test above would fail."""
    available = system.available()
    assert available is not None

    def sleepy(child: Child, limits: guard.Limits, *_: object) -> tuple[guard.Ended, None, None]:
        assert child.ended(limits.seconds)
        return guard.Ended.EXIT, None, None

    monkeypatch.setattr(guard, "_watch", sleepy)
    outcome = _hog(llama, available - 600 * MIB, 240.0)
    with pytest.raises(AssertionError, match="not stopped by the watchdog"):
        _assert_stopped(outcome)
