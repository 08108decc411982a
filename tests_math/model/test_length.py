"""The longest sequence of a model, as vLLM derives it (expected values: vLLM's own function, 0.29.0 and 0.32.0)."""

from __future__ import annotations

from typing import Any

import pytest

from membudget.model import ConfigError, build
from membudget.model.config import Config
from membudget.model.length import longest
from tests_math.conftest import MODELS

pytestmark = pytest.mark.math

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LONG = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("more", "old", "new"),
    [
        ({"max_position_embeddings": 4096}, 4096, 4096),
        ({"max_position_embeddings": 4096, "seq_length": 2048}, 2048, 2048),
        ({"n_positions": 1024}, 1024, 1024),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072, 131072),
        ({"max_position_embeddings": 16384, "rope_scaling": {"type": "linear", "factor": 4.0}}, 65536, 65536),
        ({"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 8192, 8192),
        ({"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "linear", "factor": None}}, 8192, 8192),
        # yarn multiplied the original length, and since 0.30.0 takes max_position_embeddings as scaled already
        ({"max_position_embeddings": 32768, "rope_scaling": YARN}, 16384, 32768),
        # longrope is served at its original length, and may be served longer
        ({**LONG, "rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, 4096, 4096),
        ({}, 2048, 2048),
    ],
)
def test_longest(more: dict[str, Any], old: int, new: int) -> None:
    """One key and one scaling at a time, before and after vLLM 0.30.0."""
    config = Config({"model_type": "llama", **more})
    assert longest(config, (0, 29, 0)).tokens == old
    assert longest(config, (0, 32, 0)).tokens == new


def test_longrope_may_be_served_longer() -> None:
    """The default is the original length, the most is what the positions allow."""
    found = longest(Config({"model_type": "phi3", **LONG, "rope_scaling": {"type": "longrope"}}))
    assert (found.tokens, found.most, found.assumed) == (4096, 131072, False)


def test_nothing_said_is_assumed() -> None:
    """vLLM warns and takes 2048."""
    assert longest(Config({"model_type": "llama"})).assumed


def test_the_class_says_what_the_file_leaves_out() -> None:
    """Gemma 3's published config has no max_position_embeddings; its class has 131,072."""
    assert build(str(MODELS / "google--gemma-3-27b-it.json")).longest.tokens == 131072


def test_a_length_that_is_none_is_refused() -> None:
    """A text or a negative number names the key."""
    with pytest.raises(ConfigError, match="max_position_embeddings"):
        longest(Config({"model_type": "llama", "max_position_embeddings": -1}))
