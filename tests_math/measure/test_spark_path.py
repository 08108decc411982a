"""The Spark's path as far as it goes without one: GB10's real numbers put in at the probe's edge.

Numbers: MemTotal of nvitop/pull/208; MemAvailable of unslothai/unsloth/pull/10704; a torch process's device
bytes of vllm-project/vllm/pull/55828; the fall from 23.8 to 6.3 GiB in 5 s of vllm-project/vllm/issues/56824.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from membudget.budgets.budget import Budget
from membudget.budgets.file import load
from membudget.engines import activations
from membudget.measure import guard
from membudget.measure.comparison import Comparison, Row
from membudget.measure.plan import EDGE_PARTS, plan
from membudget.measure.planned import CannotMeasure
from membudget.measure.run import Settings, limits, measure, refused
from membudget.measure.status import Status
from membudget.report.worksheet import failure
from membudget.units import GIB, MIB
from tests_math.measure.spark import CONTEXT, IDLE, TOKEN, WEIGHTS, Spark, edge

pytestmark = pytest.mark.suite

BUDGETS = Path(__file__).parents[2] / "budgets"


def _budgets(name: str) -> list[Budget]:
    (file,) = load([BUDGETS / f"{name}.dgx-spark.yaml"])
    assert not file.problems, file.error
    return list(file.budgets)


@pytest.fixture(scope="module")
def llama() -> Budget:
    """Eight users at 8Ki on a Spark."""
    return next(item for item in _budgets("llama-3.1-8b-bf16") if item.ctx == 8192)


def _measured(budget: Budget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spark: Spark) -> Comparison:
    monkeypatch.setattr(guard, "run", spark)
    settings = Settings(lock=str(tmp_path / "lock"), available=lambda: IDLE)
    return measure(plan(budget, "cuda"), settings)


def _row(comparison: Comparison, name: str) -> Row:
    return next(row for row in comparison.rows if row.name == name)


def test_a_sparks_answers_hold(llama: Budget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Allocator rounding, a context of 707 MiB and 300 MiB reserved are within what a budget allows."""
    spark = Spark()
    comparison = _measured(llama, monkeypatch, tmp_path, spark)
    assert comparison.broken == []
    assert _row(comparison, "weights").off == 0
    assert _row(comparison, "kv_growth").measured == TOKEN
    assert _row(comparison, "cuda_context").measured == CONTEXT
    assert _row(comparison, "logits").measured == 8192 * 128_256 * 2
    assert _row(comparison, "break[0].outcome").verdict == "ok"
    assert _row(comparison, "fragmentation_dynamic").measured == 200 * MIB
    assert _row(comparison, "spare_dynamic").off == 0


def test_every_measurement_has_a_process_under_a_floor(
    llama: Budget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On unified memory each step runs alone, with the 20 GiB floor and the budget's own ceiling."""
    spark = Spark()
    _measured(llama, monkeypatch, tmp_path, spark)
    real = [request for request in spark.requests if not request["steps"][0]["do"].startswith("trace")]
    assert len(real) > 6
    assert all(len(request["steps"]) == 1 for request in real)
    broken = [request for request in real if request["steps"][0].get("name", "").startswith("break")]
    assert {request["ceiling"] for request in broken} == {40 * GIB}
    assert all(request["ceiling"] >= 40 * GIB for request in real)
    expandable = [request for request in real if "environment" in request["steps"][0]]
    assert len(expandable) == 1
    assert {allowed.floor for allowed in spark.limits} == {20 * GIB}


def test_doubled_cache_on_a_spark(llama: Budget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of twice the bytes: the first line says it, the table and the reason follow."""
    first, last = 4 * 2048, 4 * 8192
    points = [
        {
            "batch": 4,
            "tokens": 2048,
            "held": 2 * first * TOKEN,
            "storages": 2 * first * TOKEN,
            "counters": 0,
            "left": 0,
        },
        {"batch": 4, "tokens": 8192, "held": 2 * last * TOKEN, "storages": 2 * last * TOKEN, "counters": 0, "left": 0},
    ]
    spark = Spark(growth={"points": points, "weights": WEIGHTS, "left": WEIGHTS})
    comparison = _measured(llama, monkeypatch, tmp_path, spark)
    text = failure(comparison, comparison.of("growth"), rerun="pytest -m spark")
    assert text.startswith("kv_growth is 128.00 KiB over: 256.00 KiB measured, 128.00 KiB predicted (allowed exact)")
    assert "kv_growth: 2.00x" in text
    assert "rerun    pytest -m spark" in text


def test_unexpected_pass_is_red(llama: Budget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eager attention at 16Ki under 40 GiB that runs: the ceiling was not held, and the test fails."""
    spark = Spark(**{"break[0]": {"outcome": "fits", "peak": 89_397_526_528, "left": 0, "logits": 0, "cache": 0}})
    comparison = _measured(llama, monkeypatch, tmp_path, spark)
    row = _row(comparison, "break[0].outcome")
    assert row.verdict == "differs"
    assert "an unexpected pass: the peak was 83.26 GiB over the weights" in row.note


def test_more_users_than_predicted_is_suspicious(
    llama: Budget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Twice the predicted users under the same ceiling: is the cache quantized?"""
    more = edge(40, 39 * GIB, tried=[[40, True], [41, False]])
    comparison = _measured(llama, monkeypatch, tmp_path, Spark(edge=more))
    row = _row(comparison, "max_users")
    assert row.verdict == "over"
    assert "more than predicted is suspicious" in row.note


def test_starts_on_an_idle_spark_only(llama: Budget) -> None:
    """115.65 GiB available: it may start; 40 GiB: it may not, and both numbers are said."""
    made = plan(llama, "cuda")
    assert limits(made).floor == 20 * GIB
    assert refused(made, Settings(available=lambda: IDLE)) is None
    reason = refused(made, Settings(available=lambda: 40 * GIB))
    assert reason == (
        "needs 61.00 GiB (40.00 GiB predicted peak + 1.00 GiB process + 20.00 GiB reserve), 40.00 GiB is available; "
        "the peak is of the break lines, up to their ceiling"
    )


#: Qwen3-30B-A3B at 8,192 tokens: one forward of transformers 5.24 on fake tensors, the cache included, weights not.
MIXTURE_PEAK, MIXTURE_WEIGHTS = 2_022_245_376, 61_064_245_248


@pytest.fixture
def mixture(tmp_path: Path) -> Budget:
    """A mixture in bf16 on a Spark, one user at 8Ki."""
    words = {"model": "Qwen/Qwen3-30B-A3B", "format": "bf16", "kv_cache_dtype": "bf16", "ctx": 8192, "users": 1}
    file = tmp_path / "mixture.yaml"
    text = "\n".join(f"{name}: {value}" for name, value in {**words, "machine": "dgx-spark"}.items())
    file.write_text(text + "\n", encoding="utf-8")
    (found,) = load([file])
    assert not found.problems, found.error
    return found.budgets[0]


def test_the_trace_refuses_what_the_closed_form_lets_start(
    mixture: Budget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A mixture's temporaries are 2.8 times the closed form: what the formula would start is refused, untraced too."""
    made = plan(mixture, "cuda")
    form = activations.prefill(mixture.model, 8192, width=2).bytes
    cache = 8192 * 98_304  # 48 layers x 2 x 4 heads x 128 x 2 bytes
    closed = MIXTURE_WEIGHTS + cache + form
    assert made.weights == MIXTURE_WEIGHTS
    available = closed + GIB + 20 * GIB + 256 * MIB
    assert guard.refusal(guard.Limits(closed + GIB, 20 * GIB, 20 * GIB, 1.0), available) is None

    traced = {"peak": MIXTURE_PEAK, "weights": MIXTURE_WEIGHTS, "buffers": 512}
    spark = Spark(trace_growth=traced)
    monkeypatch.setattr(guard, "run", _guarded(spark))
    settings = Settings(lock=str(tmp_path / "lock"), available=lambda: available)
    comparison = measure(made, settings, ["growth"])
    assert comparison.status == "refused"
    assert "the growth lines, traced: 1.88 GiB over the weights" in comparison.why
    assert [request["steps"][0]["do"] for request in spark.requests] == ["trace_served"]  # nothing else was started

    roomy = replace(settings, available=lambda: available + GIB)
    assert measure(made, roomy, ["growth"]).status == "done"
    # without a trace (its class is not in this transformers) an upper bound decides, and it is above the trace
    untraced = made.only(["growth"])
    assert untraced.peak > MIXTURE_WEIGHTS + MIXTURE_PEAK
    assert "not traced: an upper bound" in str(refused(untraced, settings))


def _guarded(spark: Spark) -> Any:
    """The stand-in behind the guard's own refusal."""

    def run(command: Sequence[str], request: Mapping[str, Any], allowed: guard.Limits, **more: Any) -> guard.Outcome:
        reason = guard.refusal(allowed, more["available"]())
        if reason is not None:
            return guard.Outcome(Status.REFUSED, f"not started: {reason}", None, (), "", None, 0.0, None)
        return spark(command, request, allowed, **more)

    return run


def test_the_gap_at_the_edge_is_told_by_line(llama: Budget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two users fewer than predicted: the prefill's workspace, then fragmentation, with their sizes; all adds up."""
    made = plan(llama, "cuda")
    users = next(step["near"] for step in made.steps if step["do"] == "edge")
    fewer, kept = users - 2, WEIGHTS + 512
    traced = 38 * GIB - kept  # with `fewer` users
    trace = {
        "users": users,
        "peaks": {str(fewer): traced},
        "caches": {str(fewer): fewer * 8184 * TOKEN},
        "weights": kept,
        "tried": [],
    }
    found = edge(fewer, 38 * GIB + 700 * MIB, tried=[[users, False], [fewer, True]])
    comparison = _measured(llama, monkeypatch, tmp_path, Spark(edge=found, trace_edge=trace))
    row = _row(comparison, "max_users")
    assert row.verdict == "under"
    assert (
        "2 below the prediction: the prefill spike 700.00 MiB more than on fake tensors, fragmentation 200.00 MiB"
        in (row.note)
    )
    parts = {name: _row(comparison, name).measured for name in EDGE_PARTS}
    assert sum(parts.values()) + kept == 40 * GIB
    assert _row(comparison, "edge_spike").off == 700 * MIB


def test_falling_memory_kills_in_time() -> None:
    """MemAvailable falls from 23.8 to 6.3 GiB in 5 s: the child is ended as soon as a look sees less than 12 GiB."""
    seen = iter([23.8, 23.8, 20.3, 16.8, 13.3, 9.8, 6.3])
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    allowed = guard.Limits(peak=0, reserve=0, floor=12 * GIB, seconds=60.0)
    outcome = guard.run(command, {}, allowed, available=lambda: int(next(seen) * GIB))
    assert outcome.status == "killed"
    assert "9.80 GiB available, under the floor of 12.00 GiB" in outcome.why
    assert outcome.seconds < 5


def test_what_transformers_cannot_hold_is_said() -> None:
    """A Q4_K_M budget is llama.cpp's, not a failure."""
    with pytest.raises(CannotMeasure, match="q4_k_m weights need an engine of their own"):
        plan(_budgets("llama-3.1-70b-q4_k_m")[0], "cuda")


def test_dry_run_says_what_and_how_much(llama: Budget) -> None:
    """Every step, every prediction, and the most it would take; nothing is loaded."""
    text = plan(llama, "cuda").text()
    for part in ("40.00 GiB", "weights 14.96 GiB", "kv_growth 128.00 KiB", "break[0].outcome out_of_memory", "edge: "):
        assert part in text


def test_gpu_script_has_a_dry_run() -> None:
    """The prepared run for an NVIDIA GPU says what it would load without one, and refuses to measure."""
    script = str(Path(__file__).parents[2] / "tools" / "gpu_day.py")
    said = subprocess.run([sys.executable, script, "--dry-run"], capture_output=True, text=True, check=True).stdout
    for part in ("Llama-3.2-1B", "Llama-3.1-8B", "break[0].outcome out_of_memory", "breakages stop at 60.00 GiB"):
        assert part in said


def test_dry_run_speaks_on_any_machine() -> None:
    """Without a GPU and without torch: what would be loaded, line by line, and that it would not start here."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "tests_hw/test_budgets.py", "-m", "spark", "--dry-run", "-q"]
    command += ["-p", "no:cacheprovider", "-k", "qwen3-8b-bf16.dgx-spark and weights"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "qwen3-8b-bf16.dgx-spark: Qwen/Qwen3-8B, bf16, on cuda" in done.stdout
    assert "would take at most" in done.stdout
    assert "weights 15.26 GiB" in done.stdout


def test_a_ceiling_bounds_what_is_reserved(llama: Budget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the algorithm would keep more than the ceiling, it gives back under it; over the ceiling is red."""
    live = WEIGHTS + 512 + 2_051_080_192
    traced = {"weights": WEIGHTS, "buffers": 512, "peak": 2_051_080_192, "cache": 2**30, "reserved": 99 * GIB}
    for reserved, holds in ((70 * GIB, True), (72 * GIB, False)):
        total = {
            "allocator": live,
            "reserved": reserved,
            "ceiling": 71 * GIB,
            "process": None,
            "fell": None,
            "cache": 0,
        }
        found = _measured(llama, monkeypatch, tmp_path, Spark(total=total, trace_total=traced))
        row = _row(found, "total_reserved")
        assert (row.predicted, row.holds) == (None, holds)
        assert "without a ceiling 99.00 GiB" in row.note
