"""vLLM's KV pool against figures that vLLM printed, and against what must always hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget.engines.vllm.pool.plan import Pool, PoolError, PoolRequest, plan_pool
from membudget.engines.vllm.pool.text import lines
from membudget.model import CacheSpec, Model
from membudget.model.config import Config
from membudget.units import GIB
from tests_math.strategies import pool_caches

pytestmark = pytest.mark.math
Get = Callable[[str], Model]


def made(caches: tuple[CacheSpec, ...], **config: Any) -> Model:
    """A model of nothing but caches."""
    text = {"model_type": "llama", "dtype": "bfloat16", "max_position_embeddings": 131_072, **config}
    return cast("Model", SimpleNamespace(name="made", config=Config(text, "made"), caches=caches))


def plan(model: Model, available: float, length: int, **more: Any) -> Pool:
    """A pool of `available` GiB."""
    return plan_pool(PoolRequest(model, int(available * GIB), length, **more))


def test_uniform_model_is_the_textbook(model: Get) -> None:
    """Llama-3.1-8B in 60 GiB: 128 KiB a token, 30,720 blocks of 16, 60 requests of 8,192 (facts: oracle 0.32.0)."""
    pool = plan(model("meta-llama/Llama-3.1-8B"), 60, 8192)
    assert (pool.block_size, pool.page_size, pool.bytes_per_block) == (16, 65_536, 2_097_152)
    assert (pool.num_blocks, pool.tokens, pool.max_concurrency) == (30_720, 491_520, 60.0)
    assert pool.starts


def test_24x_of_llama_70b(model: Get) -> None:
    """The 24x of the docs: Llama-3.1-70B, 60 GiB, 8,192 tokens (facts: oracle 0.32.0)."""
    pool = plan(model("meta-llama/Llama-3.1-70B"), 60, 8192)
    assert (pool.num_blocks, pool.max_concurrency) == (12_288, 24.0)


@pytest.mark.parametrize(("batched", "gigabytes"), [(2048, 4.20), (8192, 7.22)])
def test_sliding_hybrid_depends_on_batched_tokens(model: Get, batched: int, gigabytes: float) -> None:
    """gemma-3-27b at 32K needs 4.20 GB at 2,048 batched tokens and 7.22 GB at 8,192, without async scheduling."""
    pool = plan(model("google/gemma-3-27b-it"), 60, 32_768, max_num_batched_tokens=batched, async_scheduling=False)
    assert round(pool.need / 1e9, 2) == gigabytes


def test_gdn_hybrid_without_prefix_caching(model: Get) -> None:
    """Qwen3.6-35B-A3B bf16, 47.55 GiB, 131,072, vLLM 0.19.2rc1 (djangodevreng/dgx-spark-benchmarks _bootlog.txt)."""
    pool = plan(model("nvidia/Qwen3.6-35B-A3B-NVFP4"), 47.55, 131_072, kv_cache_dtype="bfloat16", version="0.19.2rc1")
    assert (pool.block_size, pool.page_size) == (1056, 2_162_688)
    assert [each.layers for each in pool.groups] == [10, 10, 10, 10]
    assert (pool.num_blocks, pool.tokens, pool.blocks_per_request) == (2360, 623_040, 128)
    assert round(pool.max_concurrency, 2) == 18.44


@pytest.mark.parametrize(
    ("available", "blocks", "tokens", "concurrency"), [(5.98, 299, 567_978, 4.33), (6.01, 300, 569_878, 4.35)]
)
def test_gdn_hybrid_with_fp8_and_prefix_caching(
    model: Get, available: float, blocks: int, tokens: int, concurrency: float
) -> None:
    """The same in fp8 with prefix caching, vLLM 0.24.0 (noonghunna/club-3090 issues 612 and 652)."""
    pool = plan(
        model("nvidia/Qwen3.6-35B-A3B-NVFP4"),
        available,
        131_072,
        kv_cache_dtype="fp8",
        version="0.24.0",
        prefix_caching=True,
    )
    assert (pool.block_size, pool.page_size, pool.blocks_per_request) == (2096, 2_146_304, 69)
    assert (pool.num_blocks, pool.tokens, round(pool.max_concurrency, 2)) == (blocks, tokens, concurrency)


def test_sliding_hybrid_with_two_head_widths(model: Get) -> None:
    """gemma-4-26B-A4B, 40.61 GiB, vLLM 0.20.0: 35.75x although tokens / length is 21.7 (jethac/dgx-spark-hijinks)."""
    pool = plan(model("google/gemma-4-26B-A4B"), 40.61, 8192, max_num_batched_tokens=4096, version="0.20.0")
    assert pool.bytes_per_block == 655_360
    assert abs(pool.num_blocks - 66_535) <= 8  # 40.61 GiB is rounded: 5 MiB are 8 blocks
    assert pool.blocks_per_request == 256 + 5 * 321
    assert round(pool.max_concurrency, 2) == 35.75
    assert abs(pool.tokens - 177_440) <= 32


def test_gpt_oss_under_tensor_parallelism(model: Get) -> None:
    """gpt-oss-120b TP 4, 45.32 GiB a rank, vLLM 0.10.1.1: 284.25x (dennislee22/vLLM-benchmarking)."""
    pool = plan(model("openai/gpt-oss-120b"), 45.32, 16_384, max_num_batched_tokens=2048, tp=4, version="0.10.1.1")
    assert abs(pool.num_blocks - 330_018) <= 40
    assert abs(pool.tokens - 2_640_144) <= 320
    assert pool.blocks_per_request == 1024 + 137
    assert round(pool.max_concurrency, 1) == 284.2


@pytest.mark.parametrize(("dcp", "tokens"), [(1, 715_072), (8, 5_721_088)])
def test_latent_cache_is_replicated_and_dcp_shards_it(model: Get, dcp: int, tokens: int) -> None:
    """Kimi-K2 TP 8, 46.80 GiB a rank: 70,272 B a token on every rank, not an eighth (vllm-project/recipes)."""
    pool = plan(model("moonshotai/Kimi-K2-Instruct"), 46.80, 65_536, tp=8, dcp=dcp, version="0.11.0")
    assert pool.block_size == 64
    assert pool.bytes_per_block == 64 * 70_272
    assert abs(pool.tokens - tokens) <= 2 * 64 * dcp


@pytest.mark.parametrize(
    ("name", "available", "length", "version", "more", "needed", "longest"),
    [
        ("meta-llama/Llama-3.1-8B", 0.95, 8192, "0.16.0", {}, 1.0, 7760),
        ("Qwen/Qwen2.5-7B", 0.41, 8192, "0.16.0", {}, 0.4375, 7760),
        ("MiniMaxAI/MiniMax-M2.5", 22.5, 196_608, "0.29.1rc1", {"tp": 2}, 23.25, 190_272),
    ],
)
def test_refusals_with_their_figures(
    model: Get,
    name: str,
    available: float,
    length: int,
    version: str,
    more: dict[str, Any],
    needed: float,
    longest: int,
) -> None:
    """vLLM's refusals: what is needed, and the estimate within the rounding of the printed GiB (TheBuccaneer logs)."""
    pool = plan(model(name), available, length, version=version, **more)
    assert not pool.starts
    assert pool.need == int(needed * GIB)
    per_token = pool.bytes_per_block // pool.block_size
    slack = int(0.005 * GIB) // per_token + pool.block_size
    assert abs(pool.max_model_len - longest) <= slack
    assert pool.error is not None
    assert f"estimated maximum model length is {pool.max_model_len}." in pool.error


def test_the_same_flags_pass_four_minutes_earlier(model: Get) -> None:
    """Qwen2.5-7B with 0.49 GiB starts where 0.41 GiB is refused (TheBuccaneer logs, 16:19 and 16:23)."""
    pool = plan(model("Qwen/Qwen2.5-7B"), 0.49, 8192, version="0.16.0")
    assert pool.starts
    assert abs(pool.tokens - 9_088) <= int(0.005 * GIB) // 57_344 + 16


def test_token_figure_changes_its_meaning_not_the_pool(model: Get) -> None:
    """One pool, two figures: gemma-3-27b prints 112,336 up to 0.20.0 and 292,307 from 0.20.1 (facts: oracle)."""
    both = [
        plan(model("google/gemma-3-27b-it"), 60, 32_768, max_num_batched_tokens=8192, version=version)
        for version in ("0.20.0", "0.20.1")
    ]
    assert [pool.tokens for pool in both] == [112_336, 292_307]
    assert both[0].max_concurrency == both[1].max_concurrency
    assert round(both[0].max_concurrency, 4) == 8.9205
    assert both[0].tokens_concurrent == both[1].tokens


def test_kv_heads_are_replicated_when_there_are_fewer_than_ranks(model: Get) -> None:
    """Llama-70B has 8 KV heads: TP 8 and TP 16 give the same block (facts: oracle)."""
    llama = model("meta-llama/Llama-3.1-70B")
    assert [plan(llama, 60, 8192, tp=tp).bytes_per_block for tp in (8, 16)] == [655_360, 655_360]


def test_the_smallest_stage_decides(model: Get) -> None:
    """Pipeline stages with different memory: the one with the fewest blocks decides for all."""
    llama = model("meta-llama/Llama-3.1-8B")
    pool = plan_pool(PoolRequest(llama, [60 * GIB, 20 * GIB], 8192, pp=2))
    assert pool.stages == (1_048_576, 1_048_576)
    assert pool.num_blocks == 20 * GIB // 1_048_576


def test_null_block_is_kept_back_by_the_check_only(model: Get) -> None:
    """num_gpu_blocks_override 8 of 128 tokens: the estimate is 896 since 0.29, 1,024 before (facts: error runs)."""
    llama = model("meta-llama/Llama-3.1-8B")
    new, old = (
        plan(llama, 1, 2048, version=version, platform="cpu", num_gpu_blocks_override=8)
        for version in ("0.32.0", "0.28.0")
    )
    assert (new.num_blocks, new.max_model_len) == (8, 896)
    assert (old.num_blocks, old.max_model_len) == (8, 1024)


def test_auto_fit_finds_the_longest_request(model: Get) -> None:
    """max_model_len -1 with 5 blocks of 128 gives 512 and 1.25x (facts: error runs 0.32.0)."""
    llama = model("meta-llama/Llama-3.1-8B")
    pool = plan(llama, 1, -1, platform="cpu", num_gpu_blocks_override=5)
    assert (pool.request_len, pool.max_concurrency, pool.starts) == (512, 1.25, True)


def test_nothing_for_the_pool_is_refused_in_vllms_words(model: Get) -> None:
    """An empty or negative pool is the refusal that every version has."""
    for available in (0, -GIB):
        pool = plan_pool(PoolRequest(model("meta-llama/Llama-3.1-8B"), available, 8192))
        assert pool.error is not None
        assert pool.error.startswith("No available memory for the cache blocks.")
        assert pool.num_blocks == 0


def test_drafter_is_charged_like_the_target(model: Get) -> None:
    """A 36-layer model with a one-layer drafter needs 37 layers' bytes (vLLM 0.30.0 on an L4: 0.58 GiB, est. 3,280)."""
    caches = tuple(CacheSpec(i, "full", 8, 128, 128) for i in range(36))
    pool = plan(made(caches), 0.47, 4096, version="0.30.0", draft_layers=1, speculative_tokens=1)
    assert round(pool.need / GIB, 2) == 0.58
    assert abs(pool.max_model_len - 3_280) <= 40


def test_mtp_hybrid_keeps_states_of_draft_tokens(model: Get) -> None:
    """Qwen3.5-35B-A3B with 3 draft tokens: 1 + 3 state blocks a group without prefix caching."""
    qwen = model("Qwen/Qwen3.5-35B-A3B")
    pool = plan(qwen, 40, 131_072, prefix_caching=False, speculative_tokens=3, draft_layers=1)
    assert {each.blocks_per_request for each in pool.groups if each.kind == "mamba"} == {4}


def test_packed_pages_of_deepseek_v4(model: Get) -> None:
    """DeepSeek-V4-Flash in 60 GiB: five groups of unequal pages, 1,002,240 B a block (asked of vLLM 0.32.0)."""
    pool = plan(model("deepseek-ai/DeepSeek-V4-Flash"), 60, 8192, max_num_batched_tokens=2048)
    assert [each.blocks_per_request for each in pool.groups] == [67, 67, 32, 1027, 529]
    assert (pool.block_size, pool.bytes_per_block, pool.num_blocks) == (256, 1_002_240, 64_280)
    assert pool.tokens == 305_796


def test_what_is_wrong_says_what_is_allowed(model: Get) -> None:
    """Impossible questions are errors that name the setting."""
    llama = model("meta-llama/Llama-3.1-8B")
    for more, words in (
        ({"tp": 3}, "not divisible by tensor_parallel_size 3"),
        ({"kv_cache_dtype": "int3"}, "Known are auto"),
        ({"version": "0.6.6"}, "0.8.5"),
        ({"block_size": 20}, "multiples of 16"),
        ({"platform": "tpu"}, "cuda or cpu"),
        ({"pp": 64}, "64 pipeline stages for 32 layers"),
        ({"kv_cache_dtype": "fp8_ds_mla"}, "MLA"),
    ):
        with pytest.raises(PoolError, match=words):
            plan(llama, 60, 8192, **more)
    with pytest.raises(PoolError, match="available"):
        plan_pool(PoolRequest(llama, None, 8192))
    with pytest.raises(PoolError, match="max_num_batched_tokens"):
        plan(model("google/gemma-3-27b-it"), 60, 8192)
    flash = model("deepseek-ai/DeepSeek-V4-Flash")
    with pytest.raises(PoolError, match=r"since 0\.29\.0"):
        plan(flash, 60, 8192, max_num_batched_tokens=2048, version="0.26.0")
    with pytest.raises(PoolError, match="oracle"):
        plan(flash, 60, 8192, max_num_batched_tokens=2048, capability=(12, 1))
    with pytest.raises(PoolError, match="drafter"):
        plan(flash, 60, 8192, max_num_batched_tokens=2048, draft_layers=1)


def test_json_is_plain_and_complete(model: Get) -> None:
    """as_json survives json.dumps and has the documented keys."""
    pool = plan(model("google/gemma-3-27b-it"), 60, 8192, max_num_batched_tokens=2048)
    out = json.loads(json.dumps(pool.as_json()))
    for key in (
        "block_size",
        "page_size",
        "groups",
        "bytes_per_block",
        "num_blocks",
        "tokens",
        "max_concurrency",
        "max_model_len",
    ):
        assert key in out
    assert out["groups"][0]["kind"] == "sliding"
    assert lines(pool)


@given(pool_caches, st.integers(1, 2**38), st.integers(1, 2**18), st.sampled_from([512, 2048, 8192]))
def test_pool_properties(caches: tuple[CacheSpec, ...], available: int, length: int, batched: int) -> None:
    """Blocks fill the bytes to less than one block; a request fits exactly up to max_model_len; more bytes help."""
    request = PoolRequest(made(caches), available, length, batched)
    pool = plan_pool(request)
    assert 0 <= available - pool.num_blocks * pool.bytes_per_block < pool.bytes_per_block
    assert pool.max_model_len <= length
    assert pool.starts == (pool.max_model_len == length)
    assert sum(each.layers for each in pool.groups) == len(caches)
    assert sum(each.blocks_per_request for each in pool.groups) == pool.blocks_per_request
    assert pool.need == pool.blocks_per_request * pool.bytes_per_block
    assert pool.tokens == int(pool.num_blocks / pool.blocks_per_request * length)
    assert plan_pool(request._replace(available=available + GIB)).num_blocks >= pool.num_blocks
    if 0 < pool.max_model_len < length:
        assert plan_pool(request._replace(max_model_len=pool.max_model_len)).starts
        assert not plan_pool(request._replace(max_model_len=pool.max_model_len + 1)).starts


@given(pool_caches, st.integers(1, 2**17), st.integers(1, 3))
def test_window_never_needs_less_than_it_keeps(caches: tuple[CacheSpec, ...], length: int, pp: int) -> None:
    """The blocks of a request hold every token its layers keep."""
    pool = plan_pool(PoolRequest(made(caches), 2**40, length, 2048))
    for each in pool.groups:
        kept = min(length, each.window) if each.window else length
        assert each.blocks_per_request * each.block_size >= kept


@pytest.mark.parametrize(
    "version", ["0.8.5", "0.9.2", "0.11.2", "0.14.0", "0.19.1", "0.20.2", "0.26.0", "0.29.0", "0.33.0"]
)
def test_every_version_has_an_answer(model: Get, version: str) -> None:
    """Uniform, sliding and latent models have a pool in every version; its reasons name the version."""
    for name in ("meta-llama/Llama-3.1-8B", "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V3"):
        pool = plan(model(name), 60, 8192, max_num_batched_tokens=8192, version=version)
        assert pool.num_blocks > 0
        assert pool.version == version
        assert any("py" in line for line in pool.why)
