"""How many requests run at once equals what an installed vLLM's scheduler runs, asked now: no GPU, no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from membudget.engines.vllm.admission import smallest_pool, users
from membudget.engines.vllm.oracle.asking import ENV, ask, find_python, text_only
from membudget.engines.vllm.pool.plan import PoolRequest, plan_pool
from membudget.engines.vllm.versions import DEFAULT, rules
from membudget.model import build

pytestmark = pytest.mark.cpu
MODELS = Path(__file__).parents[1] / "membudget" / "data" / "models"
CTX, AVAILABLE, ANSWER = 8_192, 24 * 2**30, 96


@pytest.mark.parametrize("name", ["meta-llama--Llama-3.1-8B", "google--gemma-3-27b-it", "Qwen--Qwen3.5-9B"])
def test_asked_now(name: str, request: pytest.FixtureRequest) -> None:
    """Full attention, windows and states; sync and async; at the edge of four requests."""
    python = find_python(request.config.getoption("membudget_vllm", None) or request.config.getoption("--vllm", None))
    if python is None:
        pytest.skip(f"no vLLM to ask: give --vllm PYTHON or {ENV}")
    config = text_only(json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8")))
    model = build(config, name)

    def pool_of(overlap: bool, version: str) -> Any:
        return plan_pool(
            PoolRequest(
                model,
                AVAILABLE,
                CTX,
                2_048,
                async_scheduling=overlap,
                version=version,
            )
        )

    asked = []
    for overlap in (False, True):
        setting: dict[str, Any] = {"max_num_seqs": 64, "max_num_batched_tokens": 2_048, "async_scheduling": overlap}
        blocks = smallest_pool(pool_of(overlap, DEFAULT), CTX, 4, rules=rules(DEFAULT), answer=ANSWER, **setting)
        asked += [{**setting, "answer": ANSWER, "start": 4, "num_blocks": each} for each in (blocks, blocks - 1)]
    case = {"max_model_len": CTX, "max_num_batched_tokens": 2_048}
    answer = ask(python, config, [case], available=AVAILABLE, users=asked)
    for found in answer.rows[0].users:
        pool = pool_of(found["async_scheduling"], answer.version)._replace(num_blocks=found["num_blocks"])
        ours = users(
            pool,
            CTX,
            rules=rules(answer.version),
            max_num_seqs=64,
            max_num_batched_tokens=2_048,
            async_scheduling=found["async_scheduling"],
            answer=ANSWER,
        )
        assert (found["users"], found["num_blocks"]) == (ours.users, pool.num_blocks)
