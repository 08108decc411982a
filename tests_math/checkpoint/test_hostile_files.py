"""Files that would never end, divide by zero or hang: one clear error in under a second each."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from membudget.checkpoint import CheckpointError, compare, config_of, read_path
from membudget.checkpoint.entries import Checkpoint
from membudget.errors import MembudgetError
from membudget.model import ConfigError, build
from membudget.sources.locate import locate

pytestmark = pytest.mark.math

HOSTILE = Path(__file__).parents[2] / "fixtures" / "hostile"


@pytest.mark.parametrize("path", sorted(HOSTILE.glob("*.gguf")), ids=lambda path: path.stem)
def test_hostile_gguf(path: Path) -> None:
    """Counts are bounded by the file before anything loops over them."""
    before = time.process_time()
    with pytest.raises(ConfigError, match="block_count"):
        config_of(read_path(str(path)))
    assert time.process_time() - before < 1


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.gguf"])
def test_a_pipe_is_not_read(name: str, tmp_path: Path) -> None:
    """A FIFO in place of a file is refused, not waited for."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(MembudgetError):
        locate(str(tmp_path / name))
    with pytest.raises(MembudgetError):
        read_path(str(tmp_path))


def test_a_download_that_stopped(tmp_path: Path) -> None:
    """huggingface_hub's name for a part of a file."""
    path = tmp_path / "model.safetensors.incomplete"
    path.write_bytes(b"\0" * 100)
    with pytest.raises(ConfigError, match="a download that stopped"):
        locate(str(path))


def test_more_experts_than_any_checkpoint_has() -> None:
    """A billion experts in a config are not compared name by name."""
    raw = {
        "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 128, "intermediate_size": 64, "moe_intermediate_size": 64,
        "num_experts": 10**9, "num_experts_per_tok": 2,
    }  # fmt: skip
    with pytest.raises(CheckpointError, match="no checkpoint has more"):
        compare(Checkpoint("x", "safetensors", [], [], {}), build(raw))
