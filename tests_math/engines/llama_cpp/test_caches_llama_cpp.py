"""llama.cpp's cells against what llama-server and others' bug reports print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membudget.engines.llama_cpp import cells as llama_cpp
from membudget.engines.llama_cpp.cells import CacheCellsError, cache_bytes, cache_parts, window_cells
from membudget.formats import FormatError
from membudget.model import Model, build

pytestmark = pytest.mark.math
MIB = 2**20

#: Gemma-4-12B by the shapes in unslothai/unsloth#10489 and tmac1973/llama-toolchest#58: 8 layers of one
#: 512-wide head, 40 of 8 256-wide heads with a window of 1,024.
GEMMA4_12B: dict[str, Any] = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 48,
    "hidden_size": 3840,
    "intermediate_size": 15360,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 0,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
    "vocab_size": 262144,
}


#: Four layers with a window of 1,000.
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 99,
    "sliding_window": 1000,
    "num_local_experts": 2,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
}


def test_gemma4_12b() -> None:
    """2176.00 MiB in 262,144 cells and 255.00 MiB in 1,536 cells, as llama-server printed (unsloth#10489)."""
    full, window = cache_parts(build(GEMMA4_12B), 262144, type_k="q8_0", type_v="q8_0")
    assert (full.layers, full.cells, full.bytes) == (8, 262144, 2176 * MIB)
    assert (window.layers, window.cells, window.bytes) == (40, 1536, 255 * MIB)


@pytest.mark.parametrize(("ctx", "gigabytes"), [(4096, "0.40"), (8192, "0.48"), (32768, "0.99"), (131072, "3.00")])
def test_gemma4_26b(model: Callable[[str], Model], ctx: int, gigabytes: str) -> None:
    """20,480 B x ctx + 204,800 B x 1,536 cells (ollama#16958, whose own estimate said 56.37 GB at 128k)."""
    found = cache_bytes(model("google/gemma-4-26B-A4B"), ctx)
    assert found == 20480 * ctx + 204800 * 1536
    assert f"{found / 1e9:.2f}" == gigabytes


def test_hybrid_recurrent_state(model: Callable[[str], Model]) -> None:
    """16384.00 MiB of KV in 16 of 64 layers and 598.50 MiB of state for 4 slots (lmstudio-bug-tracker#1862).

    The report is on Qwen3.6-27B, whose text shapes are Qwen3.5-27B's.
    """
    full, states = cache_parts(model("Qwen/Qwen3.5-27B"), 262144, slots=4, unified=True)
    assert (full.layers, full.bytes) == (16, 16384 * MIB)
    assert (states.layers, states.bytes) == (48, int(598.5 * MIB))


def test_hybrid_9b(model: Callable[[str], Model]) -> None:
    """8 of 32 layers have keys and values: 8 GiB at 262,144 tokens (unsloth#4623, llmfit#302)."""
    full, _ = cache_parts(model("Qwen/Qwen3.5-9B"), 262144)
    assert (full.layers, full.bytes) == (8, 8 * 2**30)


def test_gemma3_27b(model: Callable[[str], Model]) -> None:
    """52 of 62 layers keep 1,536 cells of an 85,000-token context (gpustack#2101 charged them in full)."""
    full, window = cache_parts(model("google/gemma-3-27b-it"), 85000)
    assert (full.layers, full.cells) == (10, 85248)
    assert (window.layers, window.cells) == (52, 1536)
    assert window.bytes == 52 * 2 * 16 * 128 * 2 * 1536


def test_latent_has_no_values(model: Callable[[str], Model]) -> None:
    """DeepSeek-V3 in q8_0: 1,166.62 MiB at 32,768 tokens, as ik_llama.cpp printed for one c^KV row (its #259)."""
    (full,) = cache_parts(model("deepseek-ai/DeepSeek-V3"), 32768, type_k="q8_0", type_v="q8_0")
    assert full.values == 0
    assert f"{full.bytes / MIB:.2f}" == "1166.62"


@pytest.mark.parametrize(
    ("window", "ctx", "options", "cells"),
    [
        (1024, 131072, {}, 1536),
        (1024, 131072, {"slots": 4}, 1536),
        (1024, 131072, {"slots": 4, "unified": True}, 4608),
        (1024, 1024, {}, 1024),
        (1024, 131072, {"ubatch": 2048}, 3072),
        (128, 131072, {}, 768),
        (4096, 131072, {}, 4608),
    ],
)
def test_window_cells(window: int, ctx: int, options: dict[str, Any], cells: int) -> None:
    """pad(min(ctx, window x slots + ubatch), 256), slots counting when one cache serves all."""
    assert window_cells(window, ctx, **options) == cells


def test_swa_full(model: Callable[[str], Model]) -> None:
    """--swa-full keeps every token in windowed layers."""
    full, window = cache_parts(model("google/gemma-3-27b-it"), 8192, swa_full=True)
    assert full.cells == window.cells == 8192


def test_ignored_window(model: Callable[[str], Model]) -> None:
    """llama.cpp has no window for Mistral: 32 layers of every token."""
    (full,) = cache_parts(model("mistralai/Mistral-7B-v0.1"), 8192)
    assert (full.name, full.bytes) == ("full", 32 * 2 * 8 * 128 * 2 * 8192)


@pytest.mark.parametrize("model_type", ["mistral", "mixtral", "phi3", "phimoe", "starcoder2", "qwen2", "qwen3_moe"])
def test_windows_that_llama_cpp_has_not(model_type: str) -> None:
    """Families whose window llama.cpp ignores: every layer keeps every token."""
    (full,) = cache_parts(build({**SMALL, "model_type": model_type, "use_sliding_window": True}), 8192)
    assert (full.name, full.layers, full.cells) == ("full", 4, 8192)


@pytest.mark.parametrize("model_type", ["olmo3", "gemma2", "cohere2", "gpt_oss", "exaone4"])
def test_windows_that_llama_cpp_keeps_apart(model_type: str) -> None:
    """Interleaved windows have cells of their own: pad(1,000 + 512) = 1,536 of 8,192."""
    kinds = ["sliding_attention", "full_attention"] * 2
    full, window = cache_parts(build({**SMALL, "model_type": model_type, "layer_types": kinds}), 8192)
    assert (full.name, full.layers, full.cells) == ("full", 2, 8192)
    assert (window.name, window.layers, window.cells) == ("window", 2, 1536)


def test_windows_alone() -> None:
    """Where every layer slides there is no cache of every token."""
    model = build({**SMALL, "model_type": "olmo3", "layer_types": ["sliding_attention"] * 4})
    (window,) = cache_parts(model, 8192)
    assert (window.name, window.layers, window.cells) == ("window", 4, 1536)
    # a ubatch of one: pad(1,001)
    assert cache_parts(model, 8192, ubatch=1)[0].cells == 1024


def test_one_cache_for_all_slots(model: Callable[[str], Model]) -> None:
    """Unified, 4 slots of a window of 1,024 share pad(4,096 + 512) cells; apart, each has pad(1,024 + 512)."""
    gemma = model("google/gemma-3-27b-it")
    full, window = cache_parts(gemma, 131_072, slots=4, unified=True)
    assert (full.cells, window.cells) == (131_072, 4608)
    assert window.bytes == 52 * 2 * 16 * 128 * 2 * 4608
    full, window = cache_parts(gemma, 131_072, slots=4)
    assert (full.cells, window.cells) == (32_768, 1536)
    assert window.bytes == 4 * 52 * 2 * 16 * 128 * 2 * 1536


@pytest.mark.parametrize(
    ("model_type", "words"),
    [("cwm", "whether llama.cpp keeps the window of cwm apart"), ("smollm3", "keeps the window of smollm3 apart")],
)
def test_a_window_that_is_not_known_is_refused(model_type: str, words: str) -> None:
    """A family whose window nobody looked up is an error, and names those that are known."""
    layers = {"layer_types": ["sliding_attention", "full_attention"] * 2, "use_sliding_window": True}
    with pytest.raises(CacheCellsError, match=words):
        cache_parts(build({**SMALL, **layers, "model_type": model_type}), 4096)


def test_a_state_that_is_not_known_is_refused() -> None:
    """RWKV's states are not Mamba's: how llama.cpp keeps them is not known here."""
    config = {"model_type": "rwkv", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 99}
    with pytest.raises(CacheCellsError, match=r"how llama\.cpp keeps the state 'shift' of rwkv"):
        cache_parts(build(config), 4096)


def test_unknown_is_refused(model: Callable[[str], Model]) -> None:
    """A cache that llama.cpp keeps in a way not known here is an error, not a guess."""
    with pytest.raises(CacheCellsError, match="is not supported"):
        cache_parts(model("deepseek-ai/DeepSeek-V4-Flash"), 4096)


def test_encoders_and_indexers_are_refused(model: Callable[[str], Model]) -> None:
    """Cross attention and sparse indexers are kept in ways not known here."""
    bart = {"model_type": "bart", "d_model": 64, "decoder_layers": 2, "decoder_attention_heads": 4,
            "decoder_ffn_dim": 64, "vocab_size": 99, "is_encoder_decoder": True}  # fmt: skip
    for refused in (build(bart), model("deepseek-ai/DeepSeek-V3.2")):
        with pytest.raises(CacheCellsError, match=r"how llama\.cpp keeps layer 0"):
            cache_parts(refused, 4096)


def test_states_are_one_cell_a_slot(model: Callable[[str], Model]) -> None:
    """24 of Qwen3.5-9B's layers: 3 columns of 8,192 channels and 32 states of 128 x 128, fp32, for each of 3 slots."""
    _, states = cache_parts(model("Qwen/Qwen3.5-9B"), 4096, slots=3)
    assert (states.name, states.layers, states.cells) == ("recurrent", 24, 1)
    # channels: 32 x 128 values, 16 x 128 keys and as many queries
    assert states.keys == 3 * 4 * 24 * 3 * (32 * 128 + 2 * 16 * 128)
    assert states.values == 3 * 4 * 24 * 32 * 128 * 128


def test_arguments(model: Callable[[str], Model]) -> None:
    """Arguments out of range and blocks that do not divide a row are refused."""
    with pytest.raises(CacheCellsError, match="at least 1"):
        cache_parts(model("Qwen/Qwen3-8B"), 0)
    for nothing in ({"slots": 0}, {"ubatch": 0}):
        with pytest.raises(CacheCellsError, match="must be at least 1"):
            cache_parts(model("Qwen/Qwen3-8B"), 4096, **nothing)
    for side in ("type_k", "type_v"):
        with pytest.raises(FormatError):
            cache_parts(model("Qwen/Qwen3-8B"), 4096, **{side: "fp8"})


@settings(deadline=None)
@given(ctx=st.integers(1, 10**6), slots=st.integers(1, 64), unified=st.booleans())
def test_cells_never_fewer_than_asked(ctx: int, slots: int, unified: bool) -> None:
    """All streams together hold the context, and never a window more than pad(ctx)."""
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
              "intermediate_size": 64, "vocab_size": 10}  # fmt: skip
    (full,) = cache_parts(build(config), ctx, slots=slots, unified=unified)
    streams = 1 if unified else slots
    assert full.cells * streams >= ctx
    assert full.cells % llama_cpp.PAD == 0
    assert full.bytes == full.cells * streams * 2 * 2 * 64 * 2
