"""63 published start-ups: parsed as printed, the identity closed, the pool equal to the arithmetic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.engines.vllm.logs.checks import checks, identity
from membudget.engines.vllm.logs.compare import compare
from membudget.engines.vllm.logs.log import parse
from membudget.engines.vllm.logs.record import EngineLog
from membudget.engines.vllm.logs.verdict import verdict
from membudget.engines.vllm.pool.plan import PoolRequest, plan_pool
from membudget.model import Model

pytestmark = pytest.mark.suite

GIB = 2**30
PUBLIC = Path(__file__).parents[4] / "fixtures" / "logs" / "public.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in PUBLIC.read_text(encoding="utf-8").splitlines()]
LOGS = [row for row in ROWS if row["kind"] == "log"]
DECIDED = [row for row in ROWS if "arithmetic" in row]

#: A row's key and the figure it is.
FIGURES = {
    "weights_gib": "weights",
    "peak_activation_gib": "peak_activation",
    "non_torch_gib": "non_torch",
    "cudagraph_gib": "cudagraph",
    "available_kv_gib": "available_kv",
    "kv_tokens": "kv_tokens",
    "gpu_blocks": "num_blocks",
    "max_concurrency": "max_concurrency",
}
#: Figures of a row that stand in no line of its excerpt.
NOT_IN_THE_LINES = {
    ("VL10", "weights_gib"), ("VL11", "weights_gib"), ("VL11", "cudagraph_gib"), ("VL47", "cudagraph_gib"),
    ("VL50", "cudagraph_gib"), ("VL89", "kv_tokens"),
}  # fmt: skip
#: Prose of two runs in one row: the smaller is read, the row has the other.
TWO_RUNS = {("VL106", "available_kv_gib")}

REFUSED = {"VL28": "max_model_len", "VL79": "max_model_len", "VL83": "max_model_len", "VL89": "max_model_len"}
REFUSED |= {"VL94": "max_model_len", "VL95": "free_memory"}


def by_id(row: dict[str, Any]) -> str:
    """The row's id, for test names."""
    return str(row["id"])


def the_log(row: dict[str, Any]) -> EngineLog:
    """The one engine of an excerpt."""
    found = parse(row["log_lines"])
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("row", ROWS, ids=by_id)
def test_figures_equal_the_rows(row: dict[str, Any]) -> None:
    """What is read from the lines is what a person read; prose yields the same or nothing."""
    found = parse(row["log_lines"])
    assert len(found) <= 1
    for key, name in FIGURES.items():
        wanted = row["figures"].get(key)
        figure = found[0].get(name) if found else None
        if (row["id"], key) in TWO_RUNS:
            continue
        if figure is None:
            printed = row["kind"] == "log" and wanted is not None and (row["id"], key) not in NOT_IN_THE_LINES
            assert not printed, f"{name} was not found"
            continue
        value = float(figure.value) / GIB if figure.unit == "B" else float(figure.value)
        if wanted is None:
            # the row left a printed figure out
            assert row["id"] == "VL99"
        else:
            assert round(value, len(str(wanted).partition(".")[2])) == wanted


@pytest.mark.parametrize("row", LOGS, ids=by_id)
def test_verdicts(row: dict[str, Any]) -> None:
    """A refusal is recognised as which; an excerpt that has no end is not called a start."""
    ended = verdict(the_log(row))
    if row["id"] in REFUSED:
        assert (ended.status, ended.kind) == ("refused", REFUSED[row["id"]])
    else:
        assert ended.status == ("failed" if row["id"] == "VL101" else "truncated")


@pytest.mark.parametrize("row", LOGS, ids=by_id)
def test_no_published_excerpt_contradicts_itself(row: dict[str, Any]) -> None:
    """Every relation between the printed figures holds or cannot be decided."""
    assert [check for check in checks(the_log(row)) if check.holds is False] == []


@pytest.mark.parametrize("row", DECIDED, ids=by_id)
def test_the_arithmetic_gives_the_printed_pool(row: dict[str, Any], model: Callable[[str], Model]) -> None:
    """Tokens, concurrency, block size and refusals equal the arithmetic within the rounding of the printed GiB."""
    known = dict(row["arithmetic"])
    shipped = model(known.pop("config"))
    if row["max_model_len"]:
        known.setdefault("max_model_len", row["max_model_len"])
    log = parse(lines_of(row))[0]
    compared = compare(log, shipped, known)
    names = {check.name for check in compared.checks}
    assert names >= ({"kv_tokens"} if "kv_tokens" in row["figures"] else {"needed_kv", "refusal"})
    if row["id"] in OTHER_RANK:
        assert [check.name for check in compared.checks if not check.holds] == OTHER_RANK[row["id"]]
        assert all(check.holds is None for check in compared.checks if not check.holds)
    else:
        assert [check for check in compared.checks if not check.holds] == []


#: Under tensor parallelism only rank 0 prints its memory, and another one had less.
OTHER_RANK = {"VL72": ["kv_tokens"], "VL82": ["kv_tokens", "max_concurrency"]}


def lines_of(row: dict[str, Any]) -> list[str]:
    """The excerpt; figures that the row has in prose, or cut with "...", as the lines they were."""
    lines = list(row["log_lines"]) if row["kind"] == "log" else []
    figures, length = row["figures"], row["max_model_len"]
    if row["kind"] == "prose":
        lines.append(f"Available KV cache memory: {figures['available_kv_gib']} GiB")
        lines.append(f"GPU KV cache size: {figures['kv_tokens']:,} tokens")
        lines.append(f"Maximum concurrency for {length:,} tokens per request: {figures['max_concurrency']:.2f}x")
    if row["id"] in ("VL57", "VL60"):
        need, have = {"VL57": ("1.0", "0.95"), "VL60": ("0.44", "0.41")}[row["id"]]
        lines.append(
            f"To serve at least one request with the models's max seq len (8192), ({need} GiB KV cache is needed, "
            f"which is larger than the available KV cache memory ({have} GiB). Based on the available memory, the "
            "estimated maximum model length is 7760. Try increasing `gpu_memory_utilization`"
        )
    return lines


@pytest.mark.parametrize("row", [row for row in ROWS if "arithmetic" not in row], ids=by_id)
def test_rows_that_cannot_be_decided_say_why(row: dict[str, Any]) -> None:
    """Each row is compared with the arithmetic or has a reason why not, and its source."""
    assert len(row["undecided"]) > 10
    assert row["url"]


def test_one_pool_two_lengths(model: Callable[[str], Model]) -> None:
    """VL70 and VL71: the same bytes print 198,529 tokens at 150,000 a request and 200,826 at 180,000."""
    rows = {row["id"]: row for row in ROWS}
    request = PoolRequest(
        model=model("Qwen/Qwen3.5-27B"),
        available=8 * GIB,
        kv_cache_dtype="fp8",
        version="0.27.0",
        num_gpu_blocks_override=135,
        prefix_caching=True,
        max_num_batched_tokens=2048,
    )
    for name in ("VL70", "VL71"):
        length = rows[name]["max_model_len"]
        assert plan_pool(request._replace(max_model_len=length)).tokens == rows[name]["figures"]["kv_tokens"]


#: weights, activation peak, non-torch, available KV; GiB, at gpu_memory_utilization 0.9 of 79.18 GiB (H100).
#: https://github.com/llm-d-incubation/llm-d-planner, docs/empirical-vllm-memory-results.md, vLLM 0.11.0
H100 = {
    "gpt-oss-20b": ("13.47", "7.38", "0.13", "50.28"),
    "Llama-3.3-70B FP8 TP2": ("33.88", "4.84", "0.55", "32.0"),
    "Qwen3-0.6B": ("1.12", "5.56", "0.13", "64.45"),
    "Qwen3-32B TP2": ("30.59", "5.64", "0.54", "34.49"),
    "Llama-3.1-8B": ("14.99", "4.76", "0.13", "51.38"),
    "Llama-3.3-70B FP8 TP1": ("67.72", "4.84", "0.13", "-1.44"),
}


def profiled(weights: str, peak: str, non_torch: str, available: str, utilization: float) -> EngineLog:
    """A log of 0.11 at debug level with these figures."""
    return parse(
        [
            "INFO 05-04 09:12:11 [api_server.py:1839] vLLM API server version 0.11.0\n",
            f"INFO 05-04 09:12:11 [utils.py:233] non-default args: {{'gpu_memory_utilization': {utilization}}}\n",
            "DEBUG 05-04 09:12:12 [gpu_worker.py:272] Memory profiling takes 3.20 seconds. Total non KV cache memory: "
            f"20.0GiB; torch peak memory increase: {peak}GiB; non-torch forward increase memory: {non_torch}GiB; "
            f"weights memory: {weights}GiB.\n",
            f"INFO 05-04 09:12:12 [gpu_worker.py:298] Available KV cache memory: {available} GiB\n",
        ]
    )[0]


@pytest.mark.parametrize("name", H100)
def test_the_identity_closes(name: str) -> None:
    """utilization x total - weights - activations - non-torch = KV, within 0.02 GiB, refusals included."""
    found = identity(profiled(*H100[name], 0.9), total=round(79.18 * GIB))
    assert found.holds is True
    assert abs(found.off) <= 0.02 * GIB


def test_an_impossible_reference_is_rejected() -> None:
    """The same table's gpt-oss-120b row has 3.33 GiB where 0.9 leaves less than nothing; at 0.95 it is exact."""
    figures = ("64.38", "7.38", "0.13", "3.33")
    found = identity(profiled(*figures, 0.9), total=round(79.18 * GIB))
    assert found.holds is False
    assert "0.95" in found.text
    assert found.line == 2
    assert identity(profiled(*figures, 0.95), total=round(79.18 * GIB)).holds is True


def test_a_whole_closing_line_closes() -> None:
    """VL80 prints every term: requested, identity and the suggested --kv-cache-memory all agree."""
    row = next(row for row in ROWS if row["id"] == "VL80")
    found = {check.name: check.holds for check in checks(the_log(row))}
    assert found == {"requested": True, "identity": True, "suggestion": True}
