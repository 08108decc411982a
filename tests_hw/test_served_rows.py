"""What a served budget's log, /metrics and answers are held against: ranges, the log's own figures, all users at once.

The lines are vLLM 0.32.0's own (fixtures/logs/messages.json has their text), with figures put in.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from membudget.budgets.file import load
from membudget.engines.vllm.logs.log import parse
from membudget.measure import guard
from membudget.measure.comparison import Comparison
from membudget.measure.serve import Serving, compared, serving
from membudget.measure.status import Status
from membudget.units import GIB

pytestmark = pytest.mark.math

BUDGETS = Path(__file__).parents[1] / "budgets"


@pytest.fixture(scope="module")
def made() -> Serving:
    """Llama-3.1-8B on a DGX Spark at half of its memory."""
    (file,) = load([BUDGETS / "llama-3.1-8b-bf16.dgx-spark.yaml"])
    return serving(file.budgets[0], "python", version="0.32.0")


def _compared(
    made: Serving, *, available: float, blocks: int, version: str = "0.32.0", fell: int | None = None, **said: Any
) -> Comparison:
    weights = next(row.predicted for row in made.rows if row.name == "served.weights")
    log = (
        f"INFO 12-01 10:00:00 [core.py:100] Initializing a V1 LLM engine (v{version}) with config: model='x'\n"
        f"INFO 12-01 10:00:20 [gpu_model_runner.py:100] Model loading took {weights / GIB:.2f} GiB memory and 9.1 "
        "seconds\n"
        f"INFO 12-01 10:00:30 [gpu_worker.py:100] Available KV cache memory: {available:.2f} GiB\n"
    )
    result = {"metrics": {"num_gpu_blocks": str(blocks)}, "completion_tokens": 4, "together": made.together,
              "preemptions": 0, **said}  # fmt: skip
    outcome = guard.Outcome(Status.DONE, "done", result, (), "", None, 1.0, 0)
    return compared(made, outcome, parse(log.splitlines()), fell=made.claim if fell is None else fell)


def _row(found: Comparison, name: str) -> Any:
    return next(row for row in found.rows if row.name == name)


def _predicted(made: Serving) -> tuple[float, int]:
    found = {row.name: row.predicted for row in made.rows}
    size = round(found["available_kv"] / GIB, 2)
    return size, int(size * GIB) // (2 * 32 * 8 * 128 * 2 * 16)  # K and V, layers, heads, width, bytes, tokens


def test_what_was_predicted_holds(made: Serving) -> None:
    """Weights, memory for the pool, blocks and users as predicted: nothing is red, and all users were asked."""
    available, blocks = _predicted(made)
    found = _compared(made, available=available, blocks=blocks)
    assert found.broken == []
    assert made.together == made.budget.users == 8
    for name in ("served.weights", "available_kv", "num_blocks", "num_blocks_logged", "served.users", "served.memory"):
        assert _row(found, name).holds is True, name


def test_memory_beyond_the_range_is_red(made: Serving) -> None:
    """What is left for the pool is bounded by the version's rule: a GiB outside is red, on either side."""
    low, high = (end / GIB for end in made.ranges["available_kv"])
    assert low < high
    for outside in (low - 0.02, high + 0.02):
        found = _compared(made, available=outside, blocks=int(outside * GIB) // 2**21)
        assert "available_kv" in {row.name for row in found.broken}
        assert _row(found, "num_blocks_logged").holds is True  # of those bytes they are right
    inside = _compared(made, available=low + 0.02, blocks=int((low + 0.02) * GIB) // 2**21)
    assert inside.broken == []


def test_blocks_of_the_logs_own_bytes_are_exact(made: Serving) -> None:
    """The log's bytes say how many blocks there are, but for its rounding: ten more are red although within 2%."""
    available, blocks = _predicted(made)
    found = _compared(made, available=available, blocks=blocks + 10)
    assert [row.name for row in found.broken] == ["num_blocks_logged"]


@pytest.mark.parametrize(
    ("said", "name"),
    [({"together": 7}, "served.users"), ({"preemptions": 2}, "served.preemptions"), ({}, "served.memory")],
)
def test_a_load_that_does_not_hold_is_red(made: Serving, said: dict[str, Any], name: str) -> None:
    """A user without an answer, one that had to wait for blocks, and memory taken beyond the claim."""
    available, blocks = _predicted(made)
    fell = made.claim + 2 * GIB if name == "served.memory" else None
    found = _compared(made, available=available, blocks=blocks, fell=fell, **said)
    assert [row.name for row in found.broken] == [name]


def test_the_version_that_ran_decides(made: Serving) -> None:
    """A container may bring another vLLM than was thought: its own rules predict what its log is held against."""
    available, blocks = _predicted(made)
    now, before = (_compared(made, available=available, blocks=blocks, version=each) for each in ("0.32.0", "0.10.2"))
    assert _row(now, "available_kv").predicted != _row(before, "available_kv").predicted
    assert before.versions == {"vllm": "0.10.2"}


def test_the_logs_own_parts_add_up(made: Serving) -> None:
    """Claimed less what the log says was taken is what it says is left: the rule itself, whatever was predicted."""
    outcome = guard.Outcome(Status.DONE, "done", {"completion_tokens": 4}, (), "", None, 1.0, 0)
    for left, holds in ((41.5, True), (41.4, False)):
        text = (
            "INFO 12-01 10:00:00 [core.py:100] Initializing a V1 LLM engine (v0.20.0) with config: model='x'\n"
            "DEBUG 12-01 10:00:30 [gpu_worker.py:100] Initial free memory: 110.00 GiB; Requested memory: 0.50 (util), "
            "60.00 GiB\n"
            "DEBUG 12-01 10:00:31 [mem_utils.py:100] Total non KV cache memory: 18.50GiB; torch peak memory increase: "
            "2.00GiB; non-torch forward increase memory: 1.50GiB; weights memory: 15.00GiB\n"
            f"INFO 12-01 10:00:30 [gpu_worker.py:100] Available KV cache memory: {left:.2f} GiB\n"
        )
        row = _row(compared(made, outcome, parse(text.splitlines())), "available_kv_logged")
        assert (row.holds, row.predicted == int(41.5 * GIB)) == (holds, True)


def test_a_fixed_pool_is_exact(made: Serving) -> None:
    """Where the pool's size is given nothing is bounded: one block more is red."""
    options = {"kv_cache_memory_bytes": 8 * GIB}
    budget = replace(made.budget, engine=replace(made.budget.engine, options=options), measure={})
    fixed = serving(budget, "python", version="0.32.0")
    blocks = 8 * GIB // 2**21
    found = _compared(fixed, available=8.0, blocks=blocks + 1)
    assert {"num_blocks"} <= {row.name for row in found.broken}
    assert _row(_compared(fixed, available=8.0, blocks=blocks), "num_blocks").holds is True
