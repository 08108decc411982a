"""Estimators' published bugs about GGUF metadata and stored-but-unused weights, each with the right value.

The number of each case and its source are in the test's name and docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.checkpoint import by_role, compare, config_of, read_path
from membudget.model import Model, build
from tests_math.checkpoint_files import gguf_keys, gguf_tensors, write_gguf, write_model

pytestmark = pytest.mark.math
pytest.importorskip("gguf", reason="the gguf library is in the [test] extra")

Get = Callable[[str], Model]
MIB = 2**20


def from_gguf(tmp_path: Path, model: Model) -> Model:
    """The model as its GGUF file alone describes it."""
    return build(config_of(str(write_model(tmp_path / "m.gguf", model))))


def kinds(model: Model) -> dict[str, int]:
    """How many layers keep which kind of cache."""
    found = [spec.kind for spec in model.caches]
    return {kind: found.count(kind) for kind in dict.fromkeys(found)}


def per_token(model: Model, kind: str) -> int:
    """Elements a token that all layers of one kind keep."""
    return sum(spec.per_token for spec in model.caches if spec.kind == kind)


def test_eb07_gemma3_27b_slides(tmp_path: Path, model: Get) -> None:
    """gpustack#2101: 52 of Gemma 3 27B's 62 layers keep a window of 1,024, not the full context."""
    gemma = from_gguf(tmp_path, model("google/gemma-3-27b-it"))
    assert kinds(gemma) == {"sliding": 52, "full": 10}
    assert {spec.window for spec in gemma.caches if spec.kind == "sliding"} == {1024}


@pytest.mark.parametrize(
    ("name", "full", "layers", "block_of_64"),
    [("Qwen/Qwen3.5-27B", 16, 64, 4 * MIB), ("Qwen/Qwen3.5-35B-A3B", 10, 40, 5 * MIB // 4)],
)
def test_eb08_eb13_eb49_one_layer_in_four_has_a_cache(
    name: str, full: int, layers: int, block_of_64: int, tmp_path: Path, model: Get
) -> None:
    """gpustack gguf-parser, omlx#2725: full_attention_interval is respected; 4.00 and 1.25 MiB a 64-token block."""
    qwen = from_gguf(tmp_path, model(name))
    assert kinds(qwen) == {"recurrent": layers - full, "full": full}
    assert per_token(qwen, "full") * 2 * 64 == block_of_64


def test_eb49_recurrent_state(tmp_path: Path, model: Get) -> None:
    """lmstudio#1862: 48 recurrent layers of Qwen3.6-27B hold 48 heads x 128 x 128 in fp32 a sequence."""
    qwen = from_gguf(tmp_path, model("Qwen/Qwen3.5-27B"))
    assert qwen.cache_shape.states_fp32 == 48 * 48 * 128 * 128
    assert per_token(qwen, "full") * 2 * 262_144 == 16_384 * MIB


@pytest.mark.parametrize("case", ["EB11 unsloth/pull/4623", "EB12 llmfit/pull/203", "EB61 llmfit/issues/302"])
def test_eb11_eb12_eb61_qwen_9b(case: str, tmp_path: Path, model: Get) -> None:
    """8 of Qwen3.5-9B's 32 layers have a KV cache: 8 GiB at 262,144 tokens in 16 bits, not 20 or 40."""
    qwen = from_gguf(tmp_path, model("Qwen/Qwen3.5-9B"))
    assert kinds(qwen) == {"recurrent": 24, "full": 8}, case
    assert per_token(qwen, "full") * 2 * 262_144 == 8 * 2**30


def test_eb48_gemma4_26b_head_widths(tmp_path: Path, model: Get) -> None:
    """ollama/pull/16958: 20,480 B a token of context and 204,800 B a token of window, not the global width for all."""
    gemma = from_gguf(tmp_path, model("google/gemma-4-26B-A4B"))
    assert per_token(gemma, "full") * 2 == 20_480
    assert per_token(gemma, "sliding") * 2 == 204_800
    assert {spec.window for spec in gemma.caches if spec.kind == "sliding"} == {1024}


def gemma4_12b(tmp_path: Path) -> Model:
    """Gemma-4-12B's attention as llama-toolchest/pull/58 and unsloth#10489 give it; the MLP's width is made up."""
    slides = [(layer + 1) % 6 != 0 for layer in range(48)]
    heads = [8 if slide else 1 for slide in slides]
    keys = {
        ".block_count": 48,
        ".context_length": 262_144,
        ".embedding_length": 3840,
        ".feed_forward_length": 64,
        ".attention.head_count": 16,
        ".attention.head_count_kv": heads,
        ".attention.key_length": 512,
        ".attention.value_length": 512,
        ".attention.key_length_swa": 256,
        ".attention.value_length_swa": 256,
        ".attention.sliding_window": 1024,
        ".attention.sliding_window_pattern": slides,
        ".embedding_length_per_layer_input": 0,
    }
    path = write_gguf(tmp_path / "m.gguf", "gemma4", keys, {"token_embd.weight": ("F16", (262_144, 3840))})
    return build(config_of(str(path)))


def test_eb09_eb50_per_layer_kv_heads(tmp_path: Path) -> None:
    """unsloth#10489: q8_0 caches of 2,176.00 MiB (8 layers, 262,144 cells) and 255.00 MiB (40 layers, 1,536 cells)."""
    gemma = gemma4_12b(tmp_path)
    assert kinds(gemma) == {"sliding": 40, "full": 8}
    assert per_token(gemma, "full") * 262_144 * 34 // 32 == 2176 * MIB
    assert per_token(gemma, "sliding") * 1536 * 34 // 32 == 255 * MIB


def test_eb08_lfm2_has_a_cache(tmp_path: Path) -> None:
    """gguf-parser-go: LFM2's head_count_kv is a list with 0 for convolutions; its cache is not 0."""
    attends = (2, 5, 8, 10, 12, 14)
    keys = {
        ".block_count": 16,
        ".context_length": 128_000,
        ".embedding_length": 2048,
        ".feed_forward_length": 8192,
        ".attention.head_count": 32,
        ".attention.head_count_kv": [8 if layer in attends else 0 for layer in range(16)],
        ".shortconv.l_cache": 3,
    }
    path = write_gguf(tmp_path / "m.gguf", "lfm2", keys, {"token_embd.weight": ("F16", (65_536, 2048))})
    lfm = build(config_of(str(path)))
    assert kinds(lfm) == {"recurrent": 10, "full": 6}
    assert per_token(lfm, "full") == 6 * 2 * 8 * 64
    assert lfm.count.params == 1_170_340_608  # the model card's 1.17 B; LiquidAI/LFM2-1.2B


def test_eb59_prediction_layers_are_named(tmp_path: Path, model: Get) -> None:
    """llama.cpp#23472: the built-in MTP layer is in the file, named as such, and not a layer of the model."""
    qwen = model("Qwen/Qwen3.5-9B")
    layers = qwen.config.layers
    keys = {**gguf_keys(qwen), ".block_count": layers + 1, ".nextn_predict_layers": 1}
    mtp: dict[str, Any] = {
        f"blk.{layers}.nextn.eh_proj.weight": ("F16", (4096, 8192)),
        f"blk.{layers}.attn_q.weight": ("F16", (8192, 4096)),
        f"blk.{layers}.attn_norm.weight": ("F32", (4096,)),
    }
    checkpoint = read_path(str(write_gguf(tmp_path / "m.gguf", "qwen35", keys, {**gguf_tensors(qwen), **mtp})))
    again = build(config_of(checkpoint))
    assert again.config.layers == layers
    assert again.caches == qwen.caches
    differences = compare(checkpoint, again)
    assert differences.ok
    assert {entry.name for entry in differences.unused["mtp"]} == set(mtp)
    assert by_role(checkpoint, again)["mtp"] == differences.unused_bytes == 2 * 4096 * 8192 * 2 + 4 * 4096


def test_eb60_projector_has_its_own_bytes(tmp_path: Path) -> None:
    """llama.cpp/pull/21489: the multimodal projector is a file of its own whose bytes are counted as vision."""
    tensors: dict[str, Any] = {"v.blk.0.attn_q.weight": ("F16", (1280, 1280)), "mm.0.weight": ("F16", (2048, 5120))}
    path = write_gguf(tmp_path / "mmproj.gguf", "clip", {"general.type": "mmproj"}, tensors)
    assert by_role(read_path(str(path))) == {"vision": 2 * (1280 * 1280 + 2048 * 5120)}


def test_eb55_qwen_27b_weights(tmp_path: Path, model: Get) -> None:
    """ollama#16310: bf16 weights of Qwen3.6-27B are 54 GB, its cache at 262,144 tokens 16 GiB: not 85 GB."""
    checkpoint = read_path(str(write_model(tmp_path / "m.gguf", model("Qwen/Qwen3.5-27B"), "BF16")))
    assert round(checkpoint.nbytes / 10**9) == 54
