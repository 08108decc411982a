"""Vision and audio towers against transformers on the meta device: defaults, random configs, real configs."""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import pytest

from membudget.model import build
from membudget.model.towers import MODULES
from tests_math.model import family_reference as ref
from tests_math.model.random_configs import draw
from tests_math.model.random_towers import draw_towers

pytestmark = pytest.mark.transformers

pytest.importorskip("torch", reason="torch is not installed; `pip install membudget[transformers]`")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
if int(transformers.__version__.split(".")[0]) < 5:
    pytest.skip("configs are dataclasses since transformers 5", allow_module_level=True)

DRAWS = 3


def _real(model_type: str, given: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        return AutoModelForImageTextToText.from_config(AutoConfig.for_model(model_type, **copy.deepcopy(given)))


def _small_text(model_type: str, seed: int) -> dict[str, Any]:
    from transformers import AutoConfig

    text = AutoConfig.for_model(model_type).get_text_config()
    found = draw(text.model_type, text.to_dict(), random.Random(f"{model_type} {seed}"))
    tied = found.get("tie_word_embeddings", False)
    return {"text_config": {"model_type": text.model_type, **found}, "tie_word_embeddings": tied}


def _compare(model_type: str, seed: int, towers: dict[str, Any]) -> None:
    for attempt in range(8):
        given = {**_small_text(model_type, seed + 10 * attempt), **towers}
        try:
            real = _real(model_type, given)
            break
        except ref.refusals() as error:  # the class refuses this text model
            why = f"{type(error).__name__}: {str(error)[:160]}"
    else:
        pytest.fail(f"not buildable: {why}")
    ours = build({"model_type": model_type, **given})
    assert ours.unknown == ()
    text = sum(t.elements for t in ours.tensors if t.part == "params" and not _tower(t.role))
    beside = ours.count.by_role.get("vision", 0) + ours.count.by_role.get("audio", 0)
    assert text + beside == ours.count.params == sum(p.numel() for p in real.parameters())
    names = {_plain(name): shape for name, shape in ref.inventory(t for t in ours.tensors if _tower(t.role)).items()}
    saved = {_plain(name): shape for name, shape in ref._saved(real).items()}
    assert names == {name: saved.get(name) for name in names}
    assert not any(t.active_elements for t in ours.tensors if _tower(t.role) and t.part == "params")


def _tower(role: str) -> bool:
    return role.startswith(("vision", "audio"))


def _plain(name: str) -> str:
    """transformers 5 saves SigLIP and CLIP without the ``vision_model.`` that published files have."""
    return name.replace("vision_tower.vision_model.", "vision_tower.")


@pytest.mark.parametrize("model_type", MODULES)
def test_default_tower(model_type: str) -> None:
    """The class's default tower beside a small text model."""
    _compare(model_type, 0, {"vision_config": {}})


@pytest.mark.parametrize("seed", range(DRAWS))
@pytest.mark.parametrize("model_type", MODULES)
def test_random_tower(model_type: str, seed: int) -> None:
    """Random towers: parameters to the one, every tensor's name and shape."""
    _compare(model_type, seed, draw_towers(model_type, random.Random(f"{model_type} towers {seed}")))
