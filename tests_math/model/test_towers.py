"""Towers without torch: whole wrappers' totals, the three totals, and configs that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membudget.model import ConfigError, Model, build
from membudget.model.towers import MODULES
from tests_math.model.random_towers import draw_towers

pytestmark = pytest.mark.math
FIXTURES = Path(__file__).parents[2] / "fixtures"
COUNTED: dict[str, dict[str, Any]] = json.loads((FIXTURES / "models_params.json").read_text(encoding="utf-8"))["models"]


def _type(name: str) -> str:
    path = FIXTURES.parent / "membudget" / "data" / "models" / f"{name.replace('/', '--')}.json"
    return str(json.loads(path.read_text(encoding="utf-8"))["model_type"]) if path.exists() else ""


WRAPPED = [name for name in COUNTED if _type(name) in MODULES and name != "liuhaotian/llava-v1.5-7b"]
TEXT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 100,
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPED)
def test_whole_wrapper(name: str, model: Callable[[str], Model]) -> None:
    """Text model, tower and projector together are what transformers builds on the meta device."""
    count, known = model(name).count, COUNTED[name]
    assert count.params == known["total"]
    assert model(name).unknown == ()
    assert count.by_role["vision"] == known["total"] - known["text"] or count.by_role["lm_head"] > 0


def test_siglip_by_hand(model: Callable[[str], Model]) -> None:
    """Gemma-3-27B: SigLIP-so400m without a head (27 layers of 1,152 and 4,304, 4,096 patches), norm and projector."""
    h, inner = 1152, 4304
    layer = 4 * (h * h + h) + 2 * h * inner + inner + h + 4 * h
    tower = 27 * layer + h * 3 * 14 * 14 + h + 4096 * h + 2 * h
    assert model("google/gemma-3-27b-it").count.by_role["vision"] == tower + h + h * 5376 == 423_060_336


def test_three_totals(model: Callable[[str], Model]) -> None:
    """A token of text reads no tower: active leaves it out, params and checkpoint count it."""
    gemma = model("google/gemma-3-27b-it").count
    assert gemma.active == gemma.params - gemma.by_role["vision"]
    assert gemma.checkpoint >= gemma.params


def _config(wrapper: str, towers: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": wrapper, "text_config": {"model_type": "llama", **TEXT}, **towers}


@pytest.mark.parametrize("wrapper", MODULES)
def test_a_tower_that_is_not_described(wrapper: str) -> None:
    """Without vision_config the text model is counted and the tower is an explicit unknown, or optional."""
    ours = build(_config(wrapper, {}))
    assert ours.unknown == (() if wrapper == "gemma4" else ("vision tower",))
    assert "vision" not in ours.count.by_role


@pytest.mark.parametrize("wrapper", ["aria", "kimi_k25", "ovis2", "deepseek_vl_v2"])
def test_a_tower_without_a_recipe(wrapper: str) -> None:
    """A tower that no recipe knows is named, never silently left out."""
    assert build(_config(wrapper, {"vision_config": {"hidden_size": 64}})).unknown == ("vision tower",)


@pytest.mark.parametrize("wrapper", ["llava", "mistral3", "internvl"])
def test_another_encoder(wrapper: str) -> None:
    """A wrapper around an encoder that no recipe knows: unknown, too."""
    assert build(_config(wrapper, {"vision_config": {"model_type": "sam_vision_model"}})).unknown == ("vision tower",)


@pytest.mark.parametrize(
    ("wrapper", "key", "value", "message"),
    [
        ("gemma3", "hidden_size", -1, "vision_config: hidden_size is -1"),
        ("gemma3", "num_hidden_layers", 10**6, "vision_config: num_hidden_layers is 1,000,000; .* 0 to 1,000"),
        ("llava", "image_size", "large", 'vision_config: image_size is "large"'),
        ("llava", "patch_size", 4096, "vision_config: patch_size is 4096 x 4096; allowed is from 1 to image_size"),
        ("qwen2_vl", "mlp_ratio", None, None),
        ("mllama", "supported_aspect_ratios", 3, "supported_aspect_ratios is not a list of pairs"),
        ("qwen3_vl", "deepstack_visual_indexes", "all", "deepstack_visual_indexes"),
    ],
)
def test_wrong_towers(wrapper: str, key: str, value: Any, message: str | None) -> None:
    """An error names vision_config and the key; null is the class's default where it has one."""
    kind = {"llava": "clip_vision_model", "gemma3": "siglip_vision_model"}.get(wrapper)
    config = _config(wrapper, {"vision_config": {**({"model_type": kind} if kind else {}), key: value}})
    with pytest.raises(ConfigError, match=message or key):
        build(config)


BAD = st.one_of(st.none(), st.booleans(), st.integers(-(10**18), 10**18), st.floats(), st.text(max_size=3), st.just([]))


@settings(deadline=None)
@given(st.sampled_from(sorted(MODULES)), st.integers(0, 99), st.data())
def test_mutated_towers(wrapper: str, seed: int, data: st.DataObject) -> None:
    """Any value under any key: a model of positive sizes, or one ConfigError."""
    towers = draw_towers(wrapper, Random(f"{wrapper} {seed}"))
    vision = dict(towers["vision_config"])
    vision[data.draw(st.sampled_from(sorted(vision)))] = data.draw(BAD)
    try:
        ours = build(_config(wrapper, {**towers, "vision_config": vision}))
    except ConfigError as error:
        said = str(error)
    else:
        assert all(extent > 0 for tensor in ours.tensors for extent in tensor.shape)
        return
    assert "vision_config" in said
