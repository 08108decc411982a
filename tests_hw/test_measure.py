"""The worker and the trace, on real processes: known peaks, checkpoints, claims, parents that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from membudget.budgets.budget import Budget
from membudget.engines import activations
from membudget.host import processes
from membudget.measure import guard
from membudget.measure.comparison import Comparison
from membudget.measure.plan import plan
from membudget.measure.run import WORKER, Job, Settings, config_of, limits, measure, measure_all
from membudget.units import GIB, MIB
from tests_hw.conftest import rehearsal

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[1]
LLAMA = ROOT / "membudget" / "data" / "models" / "meta-llama--Llama-3.1-8B.json"
CALM = guard.Limits(peak=2 * GIB, reserve=GIB // 2, floor=GIB // 2, seconds=300.0)


@pytest.fixture(scope="module")
def llama() -> Budget:
    """The dense tiny model."""
    return rehearsal("llama")[0]


def _figures(outcome: guard.Outcome) -> dict[str, Any]:
    assert outcome.status == "done", f"{outcome.why}\n{outcome.stderr}"
    assert outcome.result is not None
    found: dict[str, Any] = outcome.result["steps"]
    return found


def test_known_peaks_of_a_full_size_model() -> None:
    """Llama-3.1-8B at 8,192 tokens, bf16, KV cache included: peaks published with transformers 5.24, to the byte."""
    known = {("sdpa", "last"): 2_051_080_192, ("sdpa", "every"): 3_242_196_992, ("eager", "last"): 23_089_709_056}
    steps = [
        {"do": "trace", "name": f"{attention} {logits}", "tokens": 8192, "attention": attention, "logits": logits}
        for attention, logits in known
    ]
    request = {"config": json.loads(LLAMA.read_text("utf-8")), "dtype": "bf16", "device": "cpu", "steps": steps}
    found = _figures(guard.run([sys.executable, *WORKER], request, CALM))
    assert {tuple(name.split()): figures["peak"] for name, figures in found.items()} == known
    assert {figures["weights"] for figures in found.values()} == {16_060_522_496}


def test_weights_of_a_checkpoint(llama: Budget, tmp_path: Path) -> None:
    """A checkpoint on disk, loaded by from_pretrained: the same weights, and no second copy while loading."""
    code = (
        "import sys, json, torch\nfrom membudget.measure import models\n"
        "config = models.read_config(json.load(open(sys.argv[1])))\n"
        "models.random_model(config, 'bf16', 'cpu', 'sdpa').save_pretrained(sys.argv[2])"
    )
    config = ROOT / "fixtures" / "tiny" / "llama.json"
    subprocess.run([sys.executable, "-c", code, str(config), str(tmp_path)], check=True, capture_output=True, cwd=ROOT)
    assert any(name.endswith(".safetensors") for name in os.listdir(tmp_path))
    settings = Settings(checkpoint=str(tmp_path), lock=str(tmp_path / "lock"))
    rows = {row.name: row for row in measure(plan(llama, "cpu"), settings, ["weights"]).rows}
    assert rows["weights"].verdict == "ok"
    assert rows["weights"].measured == 2 * 2_623_744
    assert rows["loading_peak"].measured <= rows["weights"].measured * 1.1


@pytest.fixture(scope="module")
def traces() -> dict[str, dict[str, Any]]:
    """What the trace finds for every budget of the rehearsal, by its id and step: one process loads torch for all."""
    budgets, jobs = rehearsal(), []
    for budget in budgets:
        wanted = ("trace_growth", "trace_prefill_last", "trace_prefill_every")
        steps = [step for step in plan(budget, "cpu").steps if step.get("name") in wanted]
        jobs.append({"config": config_of(budget), "dtype": "bf16", "device": "cpu", "steps": steps})
    outcome = guard.run([sys.executable, *WORKER], {"jobs": jobs}, CALM)
    assert outcome.status == "done", f"{outcome.why}\n{outcome.stderr}"
    found: dict[str, dict[str, Any]] = {budget.id: {} for budget in budgets}
    for stage in outcome.stages:
        if "found" in stage:
            found[budgets[stage["job"]].id][stage["stage"]] = stage["found"]
    return found


@pytest.mark.parametrize("budget", rehearsal(), ids=lambda budget: budget.id)
def test_bound_without_a_trace_is_above_it(budget: Budget, traces: dict[str, dict[str, Any]]) -> None:
    """Where no trace can be made an upper bound decides: for every family it is above what the trace finds."""
    for moment in plan(budget, "cpu").moments:
        if moment.trace in traces[budget.id]:
            assert moment.held + moment.temporary >= traces[budget.id][moment.trace]["peak"], moment


def test_the_trace_decides_before_anything_is_loaded(traces: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """MLA's scores are not in the closed form: what that would start, the trace in the worker refuses.

    Available is between what the closed form needs and what the trace found: the weights are not even loaded.
    With as much as the trace asks for it runs.
    """
    budget = rehearsal("deepseek")[0]
    made = plan(budget, "cpu")
    found = traces[budget.id]
    traced = max(found[name]["peak"] for name in ("trace_prefill_last", "trace_prefill_every"))
    cache = found["trace_prefill_last"]["cache"]
    closed = cache + activations.prefill(budget.model, budget.ctx, logits="every").bytes
    assert traced > closed
    beside = limits(made, Settings()).reserve
    answers = iter([made.weights + room + beside for room in ((closed + traced) // 2, traced + MIB)])
    settings = Settings(lock=str(tmp_path / "lock"), available=lambda: next(answers, 8 * GIB))
    refusal, done = measure_all([Job(made, ("activations",)), Job(made, ("activations",))], settings)
    assert refusal.status == "refused"
    assert "the activations lines, traced" in refusal.why
    assert "is available" in refusal.why
    assert all(row.measured is None for row in refusal.rows if row.name in ("prefill_last", "prefill_every"))
    assert done.status == "done"
    assert all(row.measured is not None for row in done.rows)


def test_worker_ends_with_its_parent(llama: Budget) -> None:
    """A worker whose parent is killed is gone within a second, although nobody ended it."""
    request = {
        "config": config_of(llama),
        "dtype": "bf16",
        "device": "cpu",
        "steps": [{"do": "claim", "bytes": MIB, "seconds": 300}],
    }
    code = (
        "import json, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, *sys.argv[2:]], stdin=subprocess.PIPE, start_new_session=True,"
        " stdout=subprocess.PIPE)\n"
        "child.stdin.write(sys.argv[1].encode() + b'\\n'); child.stdin.flush(); child.stdout.readline()\n"
        "print(child.pid, flush=True); time.sleep(300)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(request), *WORKER], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    started = processes.started(pid)
    assert started is not None
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert _wait(lambda: not processes.is_running(pid, started), 10)


def test_lost_measurement_keeps_what_it_found(llama: Budget) -> None:
    """A worker that is killed half-way: its lines so far, its last stage and its readings are in the comparison."""
    made = plan(llama, "cpu")
    pids: list[int] = []

    def kill(stage: dict[str, Any]) -> None:
        pids.extend([stage["pid"]] if "pid" in stage else [])
        if stage["stage"] == "growth":
            os.kill(pids[0], signal.SIGKILL)

    settings = Settings(report=kill, lock=f"/tmp/membudget.lost.{os.getpid()}")
    found: Comparison = measure(made, settings, ["weights", "growth", "static"])
    assert found.status == "crashed"
    assert "crashed at 'growth': signal SIGKILL" in found.why
    rows = {row.name: row for row in found.rows}
    assert rows["weights"].verdict == "ok"
    assert rows["static_cache"].verdict == "not measured"
    assert "mem_available" in found.detail


def _wait(done: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(0.05)
    return bool(done())


def test_edge_with_chunks_is_the_traces(tmp_path: Path) -> None:
    """Prefill in chunks of 48 tokens: as many users as on fake tensors, and the parts add up to the ceiling."""
    budgets = [rehearsal(name)[0] for name in ("llama", "gemma3", "deepseek")]
    plans = [plan(budget, "cpu", chunk=48) for budget in budgets]
    done = measure_all([Job(made, ("edge",)) for made in plans], Settings(lock=str(tmp_path / "lock")))
    names = ("edge_cache", "edge_spike", "edge_unused")
    for made, comparison in zip(plans, done, strict=True):
        rows = {row.name: row for row in comparison.rows}
        users = rows["max_users"]
        assert users.verdict == "ok", f"{comparison.budget}: {users.note}"
        assert users.measured > 0
        assert [rows[name].off for name in names] == [0, 0, 0]
        assert (
            0 < made.ceiling - sum(rows[name].measured for name in names) - made.weights < MIB
        )  # buffers, wide routers
        assert users.samples[0] == {"users": users.measured, "fits": 1}


def test_a_chunk_is_given_to_pytest() -> None:
    """--membudget-chunk is `membudget probe --chunk`: a number of tokens, and anything else is refused by name."""
    from tests_hw.conftest import chunk_of

    def config(said: str | None) -> Any:
        return SimpleNamespace(getoption=lambda *_: said)

    assert [chunk_of(config(said)) for said in (None, "2048", "2k")] == [0, 2048, 2048]
    with pytest.raises(pytest.UsageError, match="--membudget-chunk"):
        chunk_of(config("x"))
