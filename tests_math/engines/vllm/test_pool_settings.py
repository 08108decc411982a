"""Settings of vLLM's KV pool one at a time, on caches small enough for arithmetic by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from membudget.engines.vllm.pool.derive import kv_dtype
from membudget.engines.vllm.pool.plan import Pool, PoolError, PoolRequest, plan_pool
from membudget.engines.vllm.pool.specs import Spec, heads_per_rank
from membudget.formats import kv
from membudget.model import CacheSpec, build
from membudget.model.config import Config
from tests_math.conftest import MODELS
from tests_math.engines.vllm.test_pool import made

pytestmark = pytest.mark.math

#: One KV head of 64 and 64 in 16 bits: 256 bytes a token and layer, 4,096 a block of 16.
PAGE = 16 * 256
FULL = tuple(CacheSpec(layer, "full", 1, 64, 64) for layer in range(4))
SLIDING = tuple(CacheSpec(layer, "sliding", 1, 64, 64, 100) for layer in range(4))


def plan(
    caches: tuple[CacheSpec, ...], length: int = 1000, available: int | tuple[int, ...] = 2**30, **more: Any
) -> Pool:
    """A pool for these caches; a model of 4 heads."""
    return plan_pool(PoolRequest(made(caches, num_attention_heads=4), available, length, **more))


@pytest.mark.parametrize(
    ("version", "pp", "more", "batches"),
    [
        # config/vllm.py max_concurrent_batches: the pipeline's stages; one more where steps overlap
        ("0.32.0", 1, {}, 2),
        ("0.32.0", 4, {}, 5),
        ("0.32.0", 4, {"async_scheduling": False}, 4),
        ("0.32.0", 1, {"async_scheduling": False}, 1),
        ("0.32.0", 1, {"platform": "cpu"}, 1),
        ("0.32.0", 1, {"platform": "cpu", "async_scheduling": True}, 2),
        # before the second model runner steps overlap on one stage only
        ("0.28.0", 1, {}, 2),
        ("0.28.0", 4, {}, 4),
        ("0.26.0", 3, {"async_scheduling": True}, 3),
        # before 0.26.0 one step was reserved, whatever overlaps
        ("0.25.0", 4, {}, 1),
    ],
)
def test_steps_in_flight(version: str, pp: int, more: dict[str, Any], batches: int) -> None:
    """A window reserves a step's tokens for every batch that may be scheduled and not settled."""
    pool = plan(SLIDING, max_num_batched_tokens=512, version=version, pp=pp, **more)
    assert pool.in_flight_tokens == batches * 512
    block = pool.groups[0].block_size
    assert pool.groups[0].blocks_per_request == -(-min(99 + batches * 512, 1000) // block) + 1


@pytest.mark.parametrize(
    ("version", "multi", "tokens", "extra"),
    [
        ("0.28.0", True, 49, 48), ("0.28.0", True, 1, 0), ("0.28.0", True, 0, 0), ("0.28.0", False, 49, 0),
        ("0.27.1", True, 49, 0), ("0.32.0", True, 49, 48),
    ],
)  # fmt: skip
def test_a_drafter_of_several_modules_keeps_more_below_a_window(
    version: str, multi: bool, tokens: int, extra: int
) -> None:
    """Since 0.28.0 one MTP module a draft token keeps tokens - 1 below the window."""
    more = {"speculative_tokens": tokens, "multi_module": multi, "async_scheduling": False}
    pool = plan(SLIDING, max_num_batched_tokens=512, version=version, **more)
    block = pool.groups[0].block_size
    assert pool.groups[0].blocks_per_request == -(-(99 + extra + 512) // block) + 1


@pytest.mark.parametrize(("tp", "pp", "tokens"), [(1, 1, 2048), (4, 1, 8192), (1, 3, 6144), (4, 3, 24_576)])
def test_default_step_on_the_cpu(tp: int, pp: int, tokens: int) -> None:
    """2,048 tokens a rank, tensor and pipeline parallel (engine/arg_utils.py)."""
    pool = plan(SLIDING, 2**18, platform="cpu", async_scheduling=False, tp=tp, pp=pp)
    assert pool.in_flight_tokens == pp * tokens


@pytest.mark.parametrize(
    ("memory", "name", "tokens"),
    [
        (160 * 2**30, "", 16_384), (160 * 2**30 - 1, "", 8192), (70 * 2**30, "H100", 8192),
        (70 * 2**30, "NVIDIA A100-SXM4-80GB", 2048), (70 * 2**30 - 1, "", 2048), (160 * 2**30, "A100", 16_384),
    ],
)  # fmt: skip
def test_default_step_by_device(memory: int, name: str, tokens: int) -> None:
    """16,384 tokens from 160 GiB on, 8,192 from 70 GiB on but for an A100, else 2,048 (engine/arg_utils.py)."""
    pool = plan(SLIDING, 2**18, device_memory=memory, device_name=name, async_scheduling=False)
    assert pool.in_flight_tokens == tokens


def test_an_override_replaces_the_blocks() -> None:
    """num_gpu_blocks_override 1 is a pool of one block; 0 is none, and the reason has both numbers."""
    pool = plan(FULL, 16, num_gpu_blocks_override=1, version="0.28.0")
    assert (pool.num_blocks, pool.bytes_per_block) == (1, 4 * PAGE)
    assert pool.starts
    with pytest.raises(PoolError, match="1 block or more"):
        plan(FULL, 16, num_gpu_blocks_override=0)
    # two stages of unequal layers: what was asked replaces the fewest
    two = plan(FULL, 16, (40 * PAGE, 40 * PAGE), pp=2, pp_layers=(1, 3), num_gpu_blocks_override=7, version="0.28.0")
    assert any("7 blocks instead of 13" in line for line in two.why)
    assert any("the fewest of 40, 13" in line for line in two.why)


def test_a_drafter_is_on_the_last_stage() -> None:
    """Two stages of two layers and a drafter of two: 2 and 4 pages a block; on one stage six."""
    pool = plan(FULL, pp=2, speculative_tokens=3, draft_layers=2)
    assert pool.stages == (2 * PAGE, 4 * PAGE)
    assert pool.bytes_per_block == 4 * PAGE
    assert plan(FULL, speculative_tokens=3, draft_layers=2).stages == (6 * PAGE,)
    # a drafter of its own shape: its two sliding layers and its full one stand behind the last stage's layers
    own = made((*SLIDING[:2], CacheSpec(2, "full", 1, 64, 64)), num_attention_heads=4)
    both = plan(FULL, pp=2, speculative_tokens=1, draft_model=own, max_num_batched_tokens=64)
    assert sum(each.layers for each in both.groups) >= 7
    assert both.stages[0] < both.stages[1]


def test_a_stage_without_a_cache_is_refused() -> None:
    """Layers that read other layers' keys keep nothing: a stage of them alone has no pages."""
    caches = (*FULL[:2], CacheSpec(2, "shared"), CacheSpec(3, "shared"))
    with pytest.raises(PoolError, match="pipeline stage 1 has no layer with a cache"):
        plan(caches, pp=2)


def test_a_model_without_any_cache() -> None:
    """vLLM keeps one block, the null block, and whatever length was asked fits."""
    caches = tuple(CacheSpec(layer, "none") for layer in range(2))
    pool = plan(caches, 4096, 12_345, max_num_batched_tokens=512)
    assert pool._replace(why=()) == Pool(
        version="0.32.0",
        platform="cuda",
        available=12_345,
        request_len=4096,
        max_num_batched_tokens=512,
        in_flight_tokens=0,
        kv_cache_dtype="auto",
        block_size=16,
        page_size=0,
        groups=(),
        bytes_per_block=0,
        stages=(0,),
        num_blocks=1,
        tokens=0,
        tokens_legacy=0,
        tokens_concurrent=0,
        max_concurrency=0.0,
        blocks_per_request=0,
        need=0,
        max_model_len=4096,
        longest=4096,
        starts=True,
        error=None,
        why=(),
    )
    assert any("no layer keeps a cache" in line for line in pool.why)


def test_the_words_of_one_group_and_of_two() -> None:
    """The widest of 1 group; of 2 groups."""
    assert f"{4 * PAGE:,} B a block: the widest of 1 group (kv_cache_utils.py)" in plan(FULL).why
    mixed = plan((*FULL[:2], *(spec._replace(layer=spec.layer) for spec in SLIDING[2:])), max_num_batched_tokens=64)
    assert f"{2 * PAGE:,} B a block: the widest of 2 groups (kv_cache_utils.py)" in mixed.why


@pytest.mark.parametrize(
    ("spec", "blocks"),
    [
        # 1,000 tokens in blocks of 16; over 3 ranks 334
        (Spec("full", 16, PAGE, 256), 63),
        (Spec("mla", 16, PAGE, 256), 63),
        # 99 + 7 + 300 tokens, and one block for the window's cut
        (Spec("sliding", 16, PAGE, 256, 100), 27),
        (Spec("sliding", 16, PAGE, 256, 5000), 64),
        (Spec("chunked", 16, PAGE, 256, 100), 25),
        (Spec("chunked", 16, PAGE, 256, 5000), 63),
        (Spec("cross", 16, PAGE, 256), 4),
        (Spec("mamba", 16, PAGE, 0), 63),
        (Spec("mamba", 16, PAGE, 0, fixed=3), 3),
    ],
)
def test_blocks_of_a_request(spec: Spec, blocks: int) -> None:
    """1,000 tokens, 300 in flight, 7 below the window, 50 of an encoder (v1/kv_cache_interface.py)."""
    assert spec.blocks(1000, 300, 7, 1, 50) == blocks
    if spec.kind in ("full", "mla"):
        assert spec.blocks(1000, 300, 7, 3, 50) == 21


@pytest.mark.parametrize(
    ("dtype", "side", "latent"),
    [
        ("auto", 256, 1152), ("float32", 512, 2304), ("bfloat16", 256, 1152), ("fp8", 128, 576),
        # an fp32 scale a token and head; two for a latent
        ("fp8_per_token_head", 132, 584), ("int8_per_token_head", 132, 584), ("int4_per_token_head", 68, 296),
    ],
)  # fmt: skip
def test_bytes_of_a_token(dtype: str, side: int, latent: int) -> None:
    """One side of a head of 128, and a latent of 512 + 64."""
    stored = kv_dtype(dtype, "bfloat16")
    assert stored.side_bytes(128) == side
    assert stored.latent_bytes(512, 64) == latent


def test_bytes_of_a_token_in_nvfp4() -> None:
    """4 bits and an fp8 scale a 16; latents have layouts of their own, 656 and 352 bytes (flashmla_sparse.py)."""
    assert kv_dtype("nvfp4", "bfloat16").side_bytes(128) == 64 + 8
    assert kv_dtype("fp8_ds_mla", "bfloat16").latent_bytes(512, 64) == 656
    assert kv_dtype("nvfp4_ds_mla", "bfloat16").latent_bytes(512, 64) == 352


@pytest.mark.parametrize(("heads", "tp", "own"), [(8, 1, 8), (8, 2, 4), (8, 8, 1), (8, 16, 1), (1, 4, 1), (6, 3, 2)])
def test_heads_of_a_rank(heads: int, tp: int, own: int) -> None:
    """Divided while there are enough, replicated where there are fewer than ranks (config/model.py)."""
    assert heads_per_rank(heads, tp, "m") == own


@pytest.mark.parametrize(("heads", "tp"), [(8, 3), (6, 4), (3, 4), (8, 12)])
def test_heads_that_cannot_be_shared(heads: int, tp: int) -> None:
    """Neither divides the other."""
    with pytest.raises(ValueError, match="KV heads"):
        heads_per_rank(heads, tp, "m")


def test_available_by_stage_or_rank() -> None:
    """One number for all, one a stage, or one a rank: the smallest of a stage's ranks counts."""
    for given, expected in (
        (64 * PAGE, 16),
        ((64 * PAGE, 32 * PAGE), 8),
        ((64 * PAGE, 32 * PAGE, 16 * PAGE, 64 * PAGE), 4),
    ):
        assert plan(FULL, 16, given, tp=2, pp=2, pp_layers=(2, 2)).num_blocks == expected * 2
    with pytest.raises(PoolError, match="3 numbers of available bytes for 2 pipeline stages of 2 ranks"):
        plan(FULL, 16, (1, 2, 3), tp=2, pp=2)
    assert plan(FULL, 16, kv_cache_memory_bytes=8 * PAGE).num_blocks == 2


@pytest.mark.parametrize(("version", "page"), [("0.14.0", 65_536), ("0.15.0", 32_768), ("0.32.0", 32_768)])
def test_auto_follows_a_declared_cache_of_compressed_tensors(version: str, page: int) -> None:
    """Llama-3.1-8B with an FP8 kv_cache_scheme: vLLM 0.32 says 1,048,576 B a block of 16 tokens, 64 KiB a token."""
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    declared = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}
    raw = json.loads((MODELS / "meta-llama--Llama-3.1-8B.json").read_text(encoding="utf-8"))
    model = build(Config({**raw, "quantization_config": declared}))
    pool = plan_pool(PoolRequest(model, 2**34, 1000, max_num_batched_tokens=512, version=version))
    assert pool.groups[0].page_size == page
    assert pool.bytes_per_block == 32 * page
    if version != "0.14.0":
        assert kv.auto(model.config, engine="vllm").of(model).per_token() == 64 * 1024 == pool.bytes_per_block // 16
