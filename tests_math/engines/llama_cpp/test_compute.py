"""Compute buffers built here against a real llama.cpp's, now."""

from __future__ import annotations

from typing import Any

import pytest

from membudget.checkpoint.gguf_header import tensors
from membudget.checkpoint.gguf_header_keys import metadata
from membudget.engines.llama_cpp.compute import ComputeError, Header, compute_buffer
from membudget.engines.llama_cpp.compute.graphs import split_buffers
from membudget.engines.llama_cpp.memory import caches
from membudget.engines.llama_cpp.oracle import ask
from membudget.engines.llama_cpp.settings import FlashAttention, Settings
from membudget.formats.gguf import gguf
from membudget.model import Model, build
from tests_math.engines.llama_cpp.library import LIBRARY, needs_library

LAYOUT = gguf("q4_k_m", "Q4_K_M")
MIB = 2**20
GRID = [
    Settings(8192, 1, flash_attn=FlashAttention.ON),
    Settings(4096, 2, flash_attn=FlashAttention.OFF, ubatch_size=128),
    Settings(16384, None, ubatch_size=1024, cache_type_k="q8_0", cache_type_v="q8_0"),
    Settings(6000, 3, outputs_max=None, swa_full=True),
]
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_hidden_layers": 3},
    "qwen3_moe": {"model_type": "qwen3_moe", "num_hidden_layers": 3},
    "gemma3_text": {"model_type": "gemma3_text", "num_hidden_layers": 6},
    "deepseek_v3": {"model_type": "deepseek_v3", "num_hidden_layers": 4},
    "mamba2": {"model_type": "mamba2", "num_hidden_layers": 2},
    "qwen3_5_text": {"model_type": "qwen3_5_text", "num_hidden_layers": 4},
    "gpt_oss": {"model_type": "gpt_oss", "num_hidden_layers": 2},
}


def header(model: Model) -> Header:
    """What llama.cpp's converter would write."""
    entries = tensors(LAYOUT, model)
    shapes = {entry.name: entry.shape for entry in entries}
    return Header(metadata(model, shapes), shapes)


@needs_library
@pytest.mark.cpu
@pytest.mark.parametrize("name", MODELS)
def test_a_real_llama_cpp_says_the_same(name: str) -> None:
    """Attention, windows, experts, MLA, states, linear attention: caches exact, buffers within 0.5%."""
    model = build(MODELS[name], name=name)
    ours = header(model)
    for answer in ask(model, LAYOUT, GRID, LIBRARY):
        if answer.error:
            continue
        parts = caches(ours, answer.settings)
        kept = sum(part.bytes for part in parts if part.name != "recurrent")
        assert kept == pytest.approx(answer.prints.cache_bytes, abs=0.02 * MIB)
        assert sum(part.bytes for part in parts) - kept == pytest.approx(answer.prints.state_bytes, abs=0.02 * MIB)
        asked = sum(answer.prints.compute.values())
        assert compute_buffer(ours, answer.settings) == pytest.approx(asked, rel=0.005, abs=0.01 * MIB)


@pytest.mark.math
@pytest.mark.parametrize(
    ("name", "settings", "device", "host"),
    [
        # a Llama-3.1-8B on one CUDA device
        ("meta-llama--Llama-3.1-8B", Settings(4096, 1), 258.5, None),
        # github.com/ggml-org/llama.cpp/issues/11337: a Qwen2.5-32B on ROCm, before masks were halved
        ("Qwen--Qwen2.5-32B", Settings(32768, 1), 307.0, None),
    ],
)
def test_all_layers_on_one_device(name: str, settings: Settings, device: float, host: float | None) -> None:
    """Public prints of CUDA and ROCm builds."""
    found, beside = split_buffers(header(build(f"membudget/data/models/{name}.json")), settings)
    assert found == pytest.approx(device * MIB, rel=0.002)
    assert host is None or beside == pytest.approx(host * MIB, rel=0.002)


@pytest.mark.math
def test_an_unknown_graph_is_refused() -> None:
    """Never a wrong figure in silence: the oracle is named."""
    with pytest.raises(ComputeError, match="oracle"):
        compute_buffer(Header({"general.architecture": "deepseek4", "deepseek4.block_count": 1}, {}), Settings(512))
