"""Hybrids by hand: bytes at a length, and what one more token adds beyond every window; public bug reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from membudget import formats, machines
from membudget.engines.transformers.caches import cache_bytes, growth_per_token
from membudget.model import Model, build
from membudget.planning.ledger import Ledger, predict
from tests_math.planning.buckets import summed

pytestmark = pytest.mark.math
Get = Callable[[str], Model]
MIB, GIB = 2**20, 2**30
ORACLE = Path(__file__).parents[2] / "fixtures" / "oracle" / "configs"


def plan(model: Model, ctx: int, kv: str = "bf16") -> Ledger:
    """One user on a machine that is large enough."""
    return predict(summed("test", model, formats.get("bf16"), kv, ctx, 1, machines.get("b200-180gb")))


def check(model: Model, ctx: int, first: int, beyond: int, at_ctx: int) -> None:
    """The ledger's growth at the first token, beyond every window, and its bytes at `ctx` tokens."""
    ledger = plan(model, ctx)
    assert ledger.kv_per_token == first
    assert ledger.kv_per_token_at_ctx == beyond == growth_per_token(model)
    assert ledger.kv_cache == at_ctx


def test_gemma3_27b(model: Get) -> None:
    """10 of 62 layers grow without bound; 52 keep 1,024 tokens: 2 x 16 heads x 128 x 2 bytes a layer and token."""
    token = 2 * 16 * 128 * 2
    check(model("google/gemma-3-27b-it"), 131072, 62 * token, 10 * token, (10 * 131072 + 52 * 1024) * token)


def test_gpt_oss_20b(model: Get) -> None:
    """12 of 24 layers slide over 128 tokens: 48 KiB a token at first, 24 KiB beyond."""
    token = 2 * 8 * 64 * 2
    gpt = model("openai/gpt-oss-20b")
    check(gpt, 131072, 24 * token, 12 * token, 12 * (131072 + 128) * token)
    assert (24 * token, 12 * token) == (48 * 1024, 24 * 1024)


def test_qwen3_next_80b() -> None:
    """12 of 48 layers attend; 36 delta nets keep 8,192 x 4 inputs in 16 bits and 32 x 128 x 128 states in fp32."""
    text = (ORACLE / "Qwen--Qwen3-Next-80B-A3B-Instruct.json").read_text(encoding="utf-8")
    model = build(json.loads(text), "Qwen/Qwen3-Next-80B-A3B-Instruct")
    token = 12 * 2 * 2 * 256 * 2
    state = 36 * ((2 * 16 * 128 + 32 * 128) * 4 * 2 + 32 * 128 * 128 * 4)
    check(model, 262144, token, token, 262144 * token + state)
    assert token == 24576


def test_nemotron_3_nano(model: Get) -> None:
    """6 of 52 layers attend with 2 heads: 6,144 bytes a token; 23 Mamba-2 layers keep their state in fp32."""
    token = 6 * 2 * 2 * 128 * 2
    state = 23 * ((64 * 64 + 2 * 8 * 128) * 4 * 2 + 64 * 64 * 128 * 4)
    check(model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"), 1048576, token, token, 1048576 * token + state)
    assert token == 6144


def test_nemotron_h_56b(model: Get) -> None:
    """10 of 118 layers attend (NVIDIA/TensorRT-LLM#5371 counted all)."""
    token = 10 * 2 * 8 * 128 * 2
    state = 54 * ((256 * 64 + 2 * 8 * 256) * 4 * 2 + 256 * 64 * 256 * 4)
    check(model("nvidia/Nemotron-H-56B-Base-8K"), 8192, token, token, 8192 * token + state)


def test_deepseek_v3(model: Get) -> None:
    """61 layers of one 512 + 64 wide vector: 70,272 bytes a token, where 128 heads would take 4,997,120."""
    check(model("deepseek-ai/DeepSeek-V3"), 163840, 70_272, 70_272, 163840 * 61 * 576 * 2)
    assert growth_per_token(model("deepseek-ai/DeepSeek-V3"), version=(4, 57)) == 61 * 128 * (128 + 64 + 128) * 2


def test_deepseek_v4_flash(model: Get) -> None:
    """Windows of 128 in 43 layers; 21 of them add 640 elements every 4 tokens, 20 add 512 every 128."""
    flash = model("deepseek-ai/DeepSeek-V4-Flash")
    kinds = [(spec.rate, spec.entry, spec.window) for spec in flash.caches]
    assert kinds == [(0, 0, 128)] * 2 + [(4, 640, 128), (128, 512, 128)] * 20 + [(4, 640, 128)]
    windows, ctx = (2 * 2 + 41) * 512 * 2, 65536
    entries = 21 * 640 * 2 * (ctx // 4) + 20 * 512 * 2 * (ctx // 128)
    beyond = 21 * 640 * 2 // 4 + 20 * 512 * 2 // 128
    check(flash, ctx, windows + beyond, beyond, 128 * windows + entries)


def test_gemma4_31b(model: Get) -> None:
    """flashinfer#3327: 10 x 4 x 512 and 50 x 16 x 256 elements of K and of V: 225,280 bytes a GPU of four."""
    first, beyond = 4 * 225_280, 10 * 2 * 4 * 512 * 2
    check(model("nvidia/Gemma-4-31B-IT-NVFP4"), 262144, first, beyond, 262144 * beyond + 1024 * (first - beyond))


def test_window_layers_are_not_free(model: Get) -> None:
    """alvarobartt/hf-mem#60 counted Gemma 4's 25 sliding layers as nothing: they hold 1,024 tokens each."""
    held = cache_bytes(model("google/gemma-4-26B-A4B"), 32768, stage="decode")
    sliding = [layer for layer in held.by_layer if layer.kind == "sliding"]
    assert len(sliding) == 25
    assert {(layer.tensors, layer.storage) for layer in sliding} == {(1023 * 8192, 1024 * 8192)}


@pytest.mark.parametrize(
    ("name", "layers", "block"),
    [("Qwen/Qwen3.5-27B", 16, 4 * MIB), ("nvidia/Qwen3.6-35B-A3B-NVFP4", 10, 5 * MIB // 4)],
)
def test_blocks_of_64_tokens(name: str, layers: int, block: int, model: Get) -> None:
    """jundot/omlx#2725: 4.00 and 1.25 MiB a block of 64 tokens, for the 16 and 10 layers that keep keys.

    The first report is on Qwen3.8-27B, whose attention has Qwen3.5-27B's shapes.
    """
    hybrid = model(name)
    assert sum(spec.kind == "full" for spec in hybrid.caches) == layers
    assert 64 * growth_per_token(hybrid) == block


def test_qwen35_9b(model: Get) -> None:
    """8 of 32 layers: 8 GiB at 262,144 tokens and 256 MiB at 8,192 (unsloth#4623, llmfit#203, llmfit#302)."""
    state = 24 * ((2 * 16 * 128 + 32 * 128) * 4 * 2 + 32 * 128 * 128 * 4)
    for ctx, bytes_ in ((262144, 8 * GIB), (8192, 256 * MIB)):
        assert plan(model("Qwen/Qwen3.5-9B"), ctx).kv_cache - state == bytes_


def test_one_figure_lies_for_hybrids(model: Get) -> None:
    """Bytes a token times tokens over-counts Gemma-3-27B at 131,072 tokens six times."""
    ledger = plan(model("google/gemma-3-27b-it"), 131072)
    assert round(ledger.kv_per_token * 131072 / ledger.kv_cache) == 6
