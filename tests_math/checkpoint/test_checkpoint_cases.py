"""Estimators' published bugs about GGUF metadata and stored-but-unused weights, each with the right value.

The public issue of each case is in the test's docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.checkpoint import by_role, compare, config_of, read_path
from membudget.model import Model, build
from tests_math.checkpoint.checkpoint_files import gguf_keys, gguf_tensors, write_gguf, write_model

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


def test_gemma3_27b_slides(tmp_path: Path, model: Get) -> None:
    """52 of Gemma 3 27B's 62 layers keep a window of 1,024, not the full context.

    https://github.com/gpustack/gpustack/issues/2101
    """
    gemma = from_gguf(tmp_path, model("google/gemma-3-27b-it"))
    assert kinds(gemma) == {"sliding": 52, "full": 10}
    assert {spec.window for spec in gemma.caches if spec.kind == "sliding"} == {1024}


@pytest.mark.parametrize(
    ("name", "full", "layers", "block_of_64"),
    [("Qwen/Qwen3.5-27B", 16, 64, 4 * MIB), ("Qwen/Qwen3.5-35B-A3B", 10, 40, 5 * MIB // 4)],
)
def test_one_layer_in_four_has_a_cache(
    name: str, full: int, layers: int, block_of_64: int, tmp_path: Path, model: Get
) -> None:
    """The full_attention_interval is respected; 4.00 and 1.25 MiB a 64-token block.

    https://github.com/jundot/omlx/issues/2725 and https://github.com/tobocop2/lilbee/pull/721
    """
    qwen = from_gguf(tmp_path, model(name))
    assert kinds(qwen) == {"recurrent": layers - full, "full": full}
    assert per_token(qwen, "full") * 2 * 64 == block_of_64


def test_recurrent_state_in_fp32(tmp_path: Path, model: Get) -> None:
    """48 recurrent layers of Qwen3.6-27B hold 48 heads x 128 x 128 in fp32 a sequence.

    https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1862
    """
    qwen = from_gguf(tmp_path, model("Qwen/Qwen3.5-27B"))
    assert qwen.cache_shape.states_fp32 == 48 * 48 * 128 * 128
    assert per_token(qwen, "full") * 2 * 262_144 == 16_384 * MIB


def test_one_qwen_layer_in_four_has_a_kv_cache(tmp_path: Path, model: Get) -> None:
    """8 of Qwen3.5-9B's 32 layers have a KV cache: 8 GiB at 262,144 tokens in 16 bits, not 20 or 40.

    https://github.com/unslothai/unsloth/pull/4623 and https://github.com/AlexsJones/llmfit/issues/302
    """
    qwen = from_gguf(tmp_path, model("Qwen/Qwen3.5-9B"))
    assert kinds(qwen) == {"recurrent": 24, "full": 8}
    assert per_token(qwen, "full") * 2 * 262_144 == 8 * 2**30


def test_gemma4_26b_head_widths(tmp_path: Path, model: Get) -> None:
    """20,480 B a token of context and 204,800 B a token of window, not the global width for all.

    https://github.com/ollama/ollama/pull/16958
    """
    gemma = from_gguf(tmp_path, model("google/gemma-4-26B-A4B"))
    assert per_token(gemma, "full") * 2 == 20_480
    assert per_token(gemma, "sliding") * 2 == 204_800
    assert {spec.window for spec in gemma.caches if spec.kind == "sliding"} == {1024}


def _norms(layers: int, width: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """A tensor of every layer: block_count may not exceed what the file stores."""
    return {f"blk.{layer}.attn_norm.weight": ("F32", (width,)) for layer in range(layers)}


def gemma4_12b(tmp_path: Path) -> Model:
    """Gemma-4-12B's attention as two reports give it; the MLP's width is made up."""
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
    tensors = {"token_embd.weight": ("F16", (262_144, 3840)), **_norms(48, 3840)}
    path = write_gguf(tmp_path / "m.gguf", "gemma4", keys, tensors)
    return build(config_of(str(path)))


def test_per_layer_kv_heads(tmp_path: Path) -> None:
    """q8_0 caches of 2,176.00 MiB (8 layers, 262,144 cells) and 255.00 MiB (40 layers, 1,536 cells).

    https://github.com/unslothai/unsloth/issues/10489 and https://github.com/tmac1973/llama-toolchest/pull/58
    """
    gemma = gemma4_12b(tmp_path)
    assert kinds(gemma) == {"sliding": 40, "full": 8}
    assert per_token(gemma, "full") * 262_144 * 34 // 32 == 2176 * MIB
    assert per_token(gemma, "sliding") * 1536 * 34 // 32 == 255 * MIB


def test_lfm2_has_a_cache(tmp_path: Path) -> None:
    """LFM2's head_count_kv is a list with 0 for convolutions; its cache is not 0.

    https://github.com/tobocop2/lilbee/pull/721
    """
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
    tensors = {"token_embd.weight": ("F16", (65_536, 2048)), **_norms(16, 2048)}
    path = write_gguf(tmp_path / "m.gguf", "lfm2", keys, tensors)
    lfm = build(config_of(str(path)))
    assert kinds(lfm) == {"recurrent": 10, "full": 6}
    assert per_token(lfm, "full") == 6 * 2 * 8 * 64
    assert lfm.count.params == 1_170_340_608  # the model card's 1.17 B; LiquidAI/LFM2-1.2B


def test_prediction_layers_are_named(tmp_path: Path, model: Get) -> None:
    """The built-in MTP layer is in the file, named as such, and not a layer of the model.

    https://github.com/ggml-org/llama.cpp/issues/23472
    """
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


def test_projector_has_its_own_bytes(tmp_path: Path) -> None:
    """The multimodal projector is a file of its own whose bytes are counted as vision.

    https://github.com/ggml-org/llama.cpp/pull/21489
    """
    tensors: dict[str, Any] = {"v.blk.0.attn_q.weight": ("F16", (1280, 1280)), "mm.0.weight": ("F16", (2048, 5120))}
    path = write_gguf(tmp_path / "mmproj.gguf", "clip", {"general.type": "mmproj"}, tensors)
    assert by_role(read_path(str(path))) == {"vision": 2 * (1280 * 1280 + 2048 * 5120)}


def test_qwen_27b_weights_and_cache(tmp_path: Path, model: Get) -> None:
    """bf16 weights of Qwen3.6-27B are 54 GB, its cache at 262,144 tokens 16 GiB: not 85 GB.

    https://github.com/ollama/ollama/issues/16310
    """
    checkpoint = read_path(str(write_model(tmp_path / "m.gguf", model("Qwen/Qwen3.5-27B"), "BF16")))
    assert round(checkpoint.nbytes / 10**9) == 54
