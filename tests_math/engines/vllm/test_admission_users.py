"""How many requests run at once: equal to vLLM's own scheduler, step by step, on pools at the edge.

fixtures/oracle/users.json: tools/golden_users.py.  fixtures/oracle/users_pools.json: pools of public machines.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget.engines.vllm.admission import Binds, Holding, Run, Users, UsersError, smallest_pool, users
from membudget.engines.vllm.admission.schedule import serves, steps
from membudget.engines.vllm.admission.users import question
from membudget.engines.vllm.oracle.asking import text_only
from membudget.engines.vllm.pool.plan import PoolRequest, plan_pool
from membudget.engines.vllm.pool.result import Pool
from membudget.engines.vllm.versions import rules
from membudget.model import Model, build

pytestmark = pytest.mark.math
FIXTURES = Path(__file__).parents[3] / "fixtures"
GIB = 2**30
GOLDEN = json.loads((FIXTURES / "oracle" / "users.json").read_text(encoding="utf-8"))
POOLS = json.loads((FIXTURES / "oracle" / "users_pools.json").read_text(encoding="utf-8"))["rows"]


@cache
def model_of(name: str) -> Model:
    """The text model that vLLM was asked about."""
    folders = (FIXTURES.parent / "membudget" / "data" / "models", FIXTURES / "oracle" / "configs")
    path = next(folder / f"{name}.json" for folder in folders if (folder / f"{name}.json").exists())
    return build(text_only(json.loads(path.read_text(encoding="utf-8"))), name)


@cache
def pool_of(name: str, ctx: int, batched: int, overlap: bool, version: str, available: int = 60 * GIB) -> Pool:
    """The pool that the scheduler was given, but for its number of blocks."""
    return plan_pool(
        PoolRequest(
            model_of(name),
            available,
            max_model_len=ctx,
            max_num_batched_tokens=batched,
            async_scheduling=overlap,
            version=version,
        )
    )


@pytest.mark.parametrize("asked", GOLDEN["asked"], ids=lambda each: f"{each['version']}-{each['model']}")
def test_equal_to_the_scheduler(asked: dict[str, Any]) -> None:
    """Served or not, the number of steps, and the free blocks after every one of them."""
    for batched, overlap, blocks, runs in asked["rows"]:
        pool = pool_of(asked["model"], GOLDEN["max_model_len"], batched, overlap, asked["version"])
        holdings, run = question(
            pool,
            asked["ctx"],
            rules=rules(asked["version"]),
            max_num_seqs=256,
            max_num_batched_tokens=batched,
            async_scheduling=overlap,
            answer=asked["answer"],
        )
        for n, served, count, digest in runs:
            assert serves(holdings, blocks - 1, n, run) is served, (batched, overlap, blocks, n)
            if served:
                free = [each for each, _ in steps(holdings, blocks - 1, n, run)]
                assert len(free) == count
                assert hashlib.sha256(json.dumps(free).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("row", POOLS, ids=lambda row: f"{row[0]}-{row[2]}")
def test_pools_of_public_machines(row: list[Any]) -> None:
    """The whole way from bytes to users."""
    name, ctx, batched, available, blocks, expected = row
    pool = pool_of(name, ctx, batched, True, "0.32.0", available)
    assert pool.num_blocks == blocks
    found = users(pool, ctx, rules=rules("0.32.0"), max_num_seqs=256, max_num_batched_tokens=batched)
    assert (found.users, found.exact) == (expected, True)


def test_what_binds_is_said() -> None:
    """Blocks of the requests, blocks of one more prompt, or max_num_seqs."""
    gemma = pool_of("google--gemma-3-27b-it", 32_768, 8_192, True, "0.32.0", 20_367_639_001)
    llama = pool_of("meta-llama--Llama-3.1-8B", 32_768, 8_192, True, "0.32.0")

    def asked(pool: Pool, seqs: int = 256, batched: int = 8_192) -> Users:
        return users(pool, 32_768, rules=rules("0.32.0"), max_num_seqs=seqs, max_num_batched_tokens=batched)

    assert asked(gemma).binds is Binds.PREFILL
    assert "8,582 for the prompt of one more" in asked(gemma).why
    assert asked(llama).binds is Binds.BLOCKS
    assert asked(llama, seqs=4).binds is Binds.SEQUENCES
    assert asked(llama, seqs=4).users == 4
    assert asked(llama, batched=4).binds is Binds.TOKENS


def test_a_pool_that_does_not_start_serves_nobody() -> None:
    """Zero, whatever is asked."""
    pool = pool_of("meta-llama--Llama-3.1-8B", 131_072, 8_192, True, "0.32.0", GIB)
    found = users(pool, 1_024, rules=rules("0.32.0"), max_num_seqs=256, max_num_batched_tokens=8_192)
    assert (found.users, found.binds) == (0, Binds.START)


def test_pipeline_stages_and_drafters_are_the_worst_case() -> None:
    """What was not run against the scheduler is bounded from below, and says so."""
    pool = pool_of("google--gemma-3-27b-it", 32_768, 8_192, True, "0.32.0")
    alone = users(pool, 32_768, rules=rules("0.32.0"), max_num_seqs=256, max_num_batched_tokens=8_192)
    for more in ({"pp": 2}, {"draft_tokens": 2}):
        found = users(pool, 32_768, rules=rules("0.32.0"), max_num_seqs=256, max_num_batched_tokens=8_192, **more)
        assert not found.exact
        assert 0 < found.users <= alone.users


def test_a_context_beyond_the_pool_is_refused() -> None:
    """ctx is at most max_model_len."""
    pool = pool_of("meta-llama--Llama-3.1-8B", 8_192, 8_192, True, "0.32.0")
    for ctx in (0, 8_193):
        with pytest.raises(UsersError):
            users(pool, ctx, rules=rules("0.32.0"), max_num_seqs=256, max_num_batched_tokens=8_192)


@st.composite
def runs(draw: st.DrawFn) -> tuple[tuple[Holding, ...], Run, int]:
    """Groups of any kinds, settings, and a number of requests."""
    block = draw(st.sampled_from((16, 32, 272)))
    kinds = draw(st.lists(st.sampled_from(("full", "sliding", "chunked", "align", "fixed")), min_size=1, max_size=3))
    holdings = tuple(
        Holding(
            draw(st.integers(1, 4)),
            kind,
            block,
            window=draw(st.sampled_from((64, 512, 1_000))) if kind in ("sliding", "chunked") else 0,
            fixed=1 if kind == "fixed" else 0,
        )
        for kind in kinds
    )
    overlap = draw(st.booleans())
    run = Run(
        ctx=draw(st.integers(600, 3_000)),
        batched=draw(st.sampled_from((512, 2_048))),
        seqs=256,
        overlap=overlap,
        settled=True,
        aligned=block if "align" in kinds else 0,
        gaps=True,
        replay=True,
    )
    return holdings, run, draw(st.integers(1, 5))


@given(runs(), st.integers(1, 60))
def test_more_blocks_never_hurt_much(asked: tuple[tuple[Holding, ...], Run, int], more: int) -> None:
    """Free blocks are never more than the pool's; a pool that holds every request whole serves them."""
    holdings, run, n = asked
    whole = n * sum(each.count * (-(-run.ctx // each.block) + 2) for each in holdings) + more
    seen = [free for free, _ in steps(holdings, whole, n, run)]
    assert max(seen) < whole
    assert min(seen) >= more - sum(each.count for each in holdings) * n
    assert serves(holdings, whole, n, run)


def test_the_smallest_pool_is_an_edge() -> None:
    """One block less and they do not run."""
    pool = pool_of("Qwen--Qwen3.5-9B", 8_192, 2_048, True, "0.32.0")
    settings: dict[str, Any] = {"rules": rules("0.32.0"), "max_num_seqs": 256, "max_num_batched_tokens": 2_048}
    blocks = smallest_pool(pool, 8_192, 5, **settings)
    assert users(pool._replace(num_blocks=blocks), 8_192, **settings).users == 5
    assert users(pool._replace(num_blocks=blocks - 1), 8_192, **settings).users == 4
