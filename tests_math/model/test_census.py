"""Every causal-LM model_type of transformers, torch-free: our counts against its own, written down by a script."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from membudget.model import UnknownModelType, build
from tests_math.model.family_reference import NAMES_DIFFER, TOWERS, UNBUILDABLE, beyond, inventory, raw
from tools.census import digest

pytestmark = pytest.mark.math

CENSUS = json.loads((Path(__file__).parents[2] / "fixtures" / "census.json").read_text(encoding="utf-8"))
TYPES: dict[str, dict[str, Any]] = CENSUS["types"]
COUNTED = [name for name in TYPES if name not in TOWERS and name not in UNBUILDABLE]


@cache
def _left_out() -> dict[str, str]:
    return {**UNBUILDABLE, **dict.fromkeys(TOWERS, "a tower beside the text model")}


def test_census_is_whole() -> None:
    """196 names; every one is counted, or named here with the reason why not."""
    assert len(TYPES) == 196
    assert {name for name in TYPES if name not in _left_out()} == set(COUNTED)
    assert sum("default" in TYPES[name] for name in COUNTED) >= 174
    assert all(len(TYPES[name]["random"]) >= 3 for name in COUNTED if name != "dots3_note")


@pytest.mark.parametrize("model_type", [name for name in COUNTED if "default" in TYPES[name]])
def test_default_config(model_type: str) -> None:
    """A config.json that says nothing but its model_type means the class's defaults."""
    model = build({"model_type": model_type})
    assert model.count.params + beyond(model) == TYPES[model_type]["default"]


@pytest.mark.parametrize("model_type", COUNTED)
def test_random_configs(model_type: str) -> None:
    """Configs that vary every width, rank, pattern and flag: parameters, and every tensor's name and shape."""
    for row in TYPES[model_type]["random"]:
        model = build(raw(model_type, row["config"], TYPES[model_type].get("under")))
        assert model.count.params + beyond(model) == row["params"], row["config"]
        if "tensors" in row and model_type not in NAMES_DIFFER:
            assert digest(inventory(model.tensors)) == row["tensors"], row["config"]


@pytest.mark.parametrize("model_type", sorted(set(UNBUILDABLE) - {"gemma4_assistant"}))
def test_left_out_types_fail_closed(model_type: str) -> None:
    """A type that has no recipe is refused by name, never counted as something else."""
    with pytest.raises(UnknownModelType, match=model_type):
        build({"model_type": model_type, "hidden_size": 64, "num_hidden_layers": 2})
