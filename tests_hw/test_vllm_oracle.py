"""The arithmetic equals what an installed vLLM answers, asked now: three full-size models, no GPU, no weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from membudget.engines.vllm.oracle.asking import ENV, OracleError, ask, find_python, text_only
from membudget.engines.vllm.pool.plan import PoolRequest, plan_pool
from membudget.model import build

pytestmark = pytest.mark.cpu
MODELS = Path(__file__).parents[1] / "membudget" / "data" / "models"
CASES = [
    {"max_model_len": length, "max_num_batched_tokens": batched}
    for batched in (2_048, 8_192)
    for length in (8_192, 131_072)
]
AVAILABLE = 24 * 2**30


@pytest.mark.parametrize(
    "name", ["meta-llama--Llama-3.1-8B", "google--gemma-3-27b-it", "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"]
)
def test_asked_now(name: str, request: pytest.FixtureRequest) -> None:
    """A uniform model, a sliding hybrid and a recurrent hybrid, in two cache dtypes, refusals included."""
    python = find_python(request.config.getoption("membudget_vllm", None) or request.config.getoption("--vllm", None))
    if python is None:
        pytest.skip(f"no vLLM to ask: give --vllm PYTHON or {ENV}")
    config = text_only(json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8")))
    answer = ask(python, config, CASES, available=AVAILABLE, kv_cache_dtypes=("auto", "fp8"))
    model = build(config, name)
    for row in answer.rows:
        pool = plan_pool(
            PoolRequest(
                model,
                AVAILABLE,
                row.max_model_len,
                row.max_num_batched_tokens,
                row.kv_cache_dtype,
                version=answer.version,
            )
        )
        assert row.differences(pool) == [], pool.why


def test_what_cannot_be_asked_says_why(tmp_path: Path) -> None:
    """A python without vLLM, or none at all, is an error with its own words."""
    import sys

    with pytest.raises(OracleError, match="cannot be started"):
        ask(str(tmp_path / "python"), {"model_type": "llama"}, CASES, available=AVAILABLE)
    with pytest.raises(OracleError, match="No module named"):
        ask(sys.executable, {"model_type": "llama"}, CASES, available=AVAILABLE)
