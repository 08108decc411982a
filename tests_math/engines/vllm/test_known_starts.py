"""Pools of public starts with drafters and several ranks, to the token: what they printed is the reference.

fixtures/known_starts has their config.json as the hub has it.  Sources: a GB10 start of vLLM 0.23.1rc1 of 2026-07-02;
github.com/noonghunna/club-3090 issues 642 (0.24.0), 446 (0.22.0) and 1084 (0.28.0, DFlash); a DeepSeek-R1 start.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from membudget.cli.main import main

pytestmark = pytest.mark.math

CONFIGS = Path(__file__).parents[3] / "fixtures" / "known_starts"
FLASH = {"method": "dflash", "model": str(CONFIGS / "dflash2.json"), "num_speculative_tokens": 7}


def mtp(tokens: int) -> str:
    """A model's own MTP layers as the drafter."""
    return json.dumps({"method": "mtp", "num_speculative_tokens": tokens})


#: config, flags, the drafter, and the printed tokens, concurrency and block size.  Bytes are within the log's rounding.
STARTS: list[tuple[str, str, str, int, str, int]] = [
    (
        "q36-27b-nvfp4.json",
        "--available-kv 48.6GiB --kv-cache-dtype fp8 --max-model-len 262144 --vllm-version 0.23.0",
        mtp(2),
        1_394_129,
        "5.32",
        1600,
    ),
    (
        "q36-27b-autoround.json",  # 11.05 GiB as printed: 11.045 to 11.055
        "--available-kv 11.054GiB --kv-cache-dtype fp8_e5m2 --max-model-len 262144 --tp 2 --vllm-version 0.24.0",
        mtp(3),
        623_873,
        "2.38",
        1600,
    ),
    (
        "q36-27b-autoround.json",
        "--available-kv 15.73GiB --kv-cache-dtype int8_per_token_head --max-model-len 262144 --tp 4 "
        "--vllm-version 0.22.0",
        mtp(3),
        1_746_661,
        "6.66",
        1584,
    ),
    (
        "q35-27b.json",  # Qwen3.8-27B has its shapes; the log prints 1,018 blocks
        "--available-kv 20GiB --num-gpu-blocks-override 1018 --max-model-len 4096 --max-num-batched-tokens 8192 "
        "--vllm-version 0.28.0",
        json.dumps(FLASH),
        35_945,
        "8.78",
        832,
    ),
]


@pytest.mark.parametrize("start", STARTS, ids=lambda start: f"{start[3]:,}")
def test_a_public_start(start: tuple[str, str, str, int, str, int], capsys: pytest.CaptureFixture[str]) -> None:
    """The tokens, the concurrency and the block size that vLLM printed."""
    config, flags, drafter, tokens, times, block = start
    more = ["--enable-prefix-caching", "--speculative-config", drafter]
    pool = _asked(capsys, "pool", str(CONFIGS / config), *flags.split(), *more)
    assert (pool["tokens"], f"{pool['max_concurrency']:.2f}", pool["block_size"]) == (tokens, times, block)


def test_deepseek_r1_on_eight(capsys: pytest.CaptureFixture[str]) -> None:
    """MLA's latent is on every rank: 635,584 or 635,648 tokens were printed for 41.60 GiB, a block of 64 or of 16."""
    flags = ["--available-kv", "41.60GiB", "--tp", "8", "--max-model-len", "8192"]
    pool = _asked(capsys, "pool", "deepseek-ai/DeepSeek-R1", *flags)
    assert 635_584 <= pool["tokens"] <= 635_648
    assert f"{pool['max_concurrency']:.2f}" == "77.59"


def _asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main([*words, "--offline", "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found
