"""The worker and the trace, on real processes: known peaks, checkpoints, claims, parents that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from membudget.budget import Budget
from membudget.probe import guard, system
from membudget.probe.comparison import Comparison
from membudget.probe.measure import WORKER, Settings, config_of, limits, measure, refused, run_step, two_at_once
from membudget.probe.plan import plan
from membudget.units import GIB, MIB
from tests_hw.conftest import rehearsal

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[1]
LLAMA = ROOT / "fixtures" / "models" / "meta-llama--Llama-3.1-8B.json"
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
        "import sys, json, torch\nfrom membudget.probe import models\n"
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


def test_second_of_two_is_refused(llama: Budget) -> None:
    """While one process holds its claim, a second that fitted alone is refused, as predicted, with both numbers."""
    claim, held = 256 * MIB, threading.Event()
    pids: list[int] = []

    def hear(stage: dict[str, Any]) -> None:
        if stage["stage"] == "start":
            pids.append(stage["pid"])
        if stage["stage"] == "claimed":
            held.set()

    step = {"do": "claim", "bytes": claim, "seconds": 120}
    first = threading.Thread(
        target=run_step, args=(step, config_of(llama), "bf16", CALM, Settings(report=hear)), daemon=True
    )
    # A machine of fixed size with nobody else on it: what this very process really holds is missing from it.
    size, base = 4 * GIB, []

    def available() -> int:
        return size - max(0, _rss(pids[0]) - base[0]) if base else size

    second = plan(llama, "cpu")
    settings = Settings(floor=size - limits(second).peak - claim // 2, available=available)
    assert refused(second, settings) is None
    need, reserve = limits(second, settings).peak, limits(second, settings).reserve
    assert two_at_once(claim, need, reserve, size) == "second"
    first.start()
    try:
        assert _wait(lambda: bool(pids), 60)
        base.append(0)
        assert _wait(held.is_set, 120)
        reason = refused(second, settings)
        assert reason is not None
        assert "predicted peak" in reason
        assert "is available" in reason
    finally:
        if pids:
            os.kill(pids[0], signal.SIGKILL)
        first.join(timeout=30)
    assert not first.is_alive()


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
    started = system._stat(str(pid))
    assert started is not None
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert _wait(lambda: not system.is_running(pid, started[1]), 10)


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


def _rss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def _wait(done: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(0.05)
    return bool(done())
