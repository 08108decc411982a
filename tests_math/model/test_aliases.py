"""Other names of a key, as its config class maps them (attribute_map): the same file under either name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from membudget.model import build
from membudget.model.defaults import class_defaults
from tests_math.model.family_reference import TOWERS, UNBUILDABLE, raw
from tests_math.model.random_special import DROP, DROPPED, SPECIAL, Draw

pytestmark = pytest.mark.math

CENSUS = json.loads((Path(__file__).parents[2] / "fixtures" / "census.json").read_text(encoding="utf-8"))["types"]
TYPES = sorted(name for name, row in CENSUS.items() if row.get("random") and name not in TOWERS | UNBUILDABLE.keys())
#: Names that older classes pop from their arguments (transformers 4.57.6), and hub files have.
OLDER = {
    "bloom": {"n_embed": "hidden_size"},
    "falcon": {"n_embed": "hidden_size"},
    "lfm2": {"block_ff_dim": "intermediate_size"},
}


def renamed(model_type: str, config: dict[str, Any]) -> list[dict[str, Any]]:
    """The config with one key under its other name, for each key that has one."""
    aliases = class_defaults(model_type)[1]
    pairs = [pair for one, other in aliases.items() for pair in ((one, other), (other, one))]
    pairs += OLDER.get(model_type, {}).items()
    out = []
    for name, key in pairs:
        if key in config and name not in config:
            other = dict(config)
            other[name] = other.pop(key)
            out.append(other)
    return out


@pytest.mark.parametrize("model_type", TYPES)
def test_either_name(model_type: str) -> None:
    """Every tensor and every cache is the same."""
    row = CENSUS[model_type]
    for one in row["random"][:2]:
        known = build(raw(model_type, one["config"], row.get("under")))
        for other in renamed(model_type, one["config"]):
            model = build(raw(model_type, other, row.get("under")))
            assert model.tensors == known.tensors, sorted(set(other) - set(one["config"]))
            assert model.caches == known.caches, sorted(set(other) - set(one["config"]))


def test_types_with_other_names() -> None:
    """The test above is not empty: 40 types and more have other names for a size."""
    some = [name for name in TYPES if renamed(name, CENSUS[name]["random"][0]["config"])]
    assert len(some) > 40
    assert {"bloom", "gpt2", "falcon", "mpt", "dbrx", "bart", "xlnet", "lfm2"} <= set(some)


def test_what_draws_leave_out_has_a_reason() -> None:
    """Each key that a random config drops is named, since what is never drawn is never compared there."""
    dropped = set()
    for name, special in SPECIAL.items():
        draw = Draw(random.Random(0), {"hidden_size_per_layer_input": 1, "block_auto_adjust_ff_dim": True})
        out = special(draw, {"qk_rope_head_dim": 16, "hidden_size": 64})
        dropped |= {name} if any(value is DROP for value in out.values()) else set()
    assert dropped - {"zamba", "zamba2"} <= DROPPED.keys()
    assert {"mamba", "falcon_mamba"} <= dropped
