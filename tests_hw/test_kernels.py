"""The attention kernel that torch chooses on CUDA, by the rules of its sdp_utils, and its memory on fake tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.transformers
MODELS = Path(__file__).parents[1] / "membudget" / "data" / "models"


@pytest.mark.parametrize(
    ("heads", "sizes", "dtype", "mask", "causal", "lengths", "gqa", "kernel"),
    [
        ((32, 32), (128, 128), "bfloat16", False, True, (64, 64), False, "FLASH_ATTENTION"),
        ((32, 8), (128, 128), "bfloat16", False, True, (64, 64), True, "FLASH_ATTENTION"),
        ((32, 8), (128, 128), "float32", False, True, (64, 64), True, "MATH"),
        ((32, 32), (128, 128), "bfloat16", True, False, (64, 64), False, "EFFICIENT_ATTENTION"),
        ((32, 8), (128, 128), "bfloat16", True, False, (64, 64), True, "MATH"),
        ((16, 16), (192, 128), "bfloat16", False, True, (64, 64), False, "EFFICIENT_ATTENTION"),
        ((16, 16), (512, 512), "bfloat16", False, True, (64, 64), False, "EFFICIENT_ATTENTION"),
        ((16, 16), (128, 128), "bfloat16", False, True, (4, 64), False, "EFFICIENT_ATTENTION"),
        ((16, 16), (100, 100), "float16", True, False, (64, 64), False, "MATH"),
    ],
)
def test_which_kernel(
    heads: tuple[int, int], sizes: tuple[int, int], dtype: str, mask: bool, causal: bool, lengths: tuple[int, int],
    gqa: bool, kernel: str,
) -> None:  # fmt: skip
    """A mask, unlike heads, unlike sizes, a prompt behind a cache: aten/native/transformers/cuda/sdp_utils.cpp."""
    torch = pytest.importorskip("torch")
    from membudget.measure.kernels import choose

    kind = getattr(torch, dtype)
    query = torch.empty(1, heads[0], lengths[0], sizes[0], dtype=kind, device="meta")
    key = torch.empty(1, heads[1], lengths[1], sizes[0], dtype=kind, device="meta")
    value = torch.empty(1, heads[1], lengths[1], sizes[1], dtype=kind, device="meta")
    given = torch.empty(1, 1, *lengths, dtype=torch.bool, device="meta") if mask else None
    assert choose(query, key, value, given, causal, gqa) == kernel


def test_mla_on_cuda_has_no_scores() -> None:
    """DeepSeek-V2-Lite at 8,192 tokens: 1.60 GB with CUDA's kernel, 9.83 with the CPU's, which keeps every score."""
    pytest.importorskip("transformers")
    from membudget.measure.fakes import Target
    from membudget.measure.trace import trace

    raw: dict[str, Any] = json.loads((MODELS / "deepseek-ai--DeepSeek-V2-Lite.json").read_text("utf-8"))
    cuda = trace(raw, tokens=8192, target=Target("cuda", (12, 1)))
    assert set(cuda["kernels"]) == {"EFFICIENT_ATTENTION"}
    assert cuda["peak"] < trace(raw, tokens=8192)["peak"] / 5
