"""The text model inside multimodal wrappers against transformers: parameters, names and shapes."""

from __future__ import annotations

import copy
import json
import random
import warnings
from typing import Any

import pytest

from membudget.model import UnknownModelType, build
from tests_math.model import family_reference as ref
from tests_math.model.random_configs import draw

pytestmark = pytest.mark.transformers

pytest.importorskip("torch", reason="torch is not installed; `pip install membudget[transformers]`")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
if int(transformers.__version__.split(".")[0]) < 5:
    pytest.skip("configs are dataclasses since transformers 5", allow_module_level=True)

#: The text model is ours to count, but saved under other names than the hub's: counted, not compared by name.
OTHER_NAMES = {
    "kimi_k25": "layers are saved as blocks",
    "inkling2": "the head is stored with padding rows",
    "inkling2_loop": "the head is stored with padding rows",
    "inkling_mm_model": "names of its own",
    "hy_v4_vl": "the head's mixer is saved under another name",
    "shieldgemma2": "a classifier around Gemma 3",
    "cosmos3_omni": "names of its own",
    "qianfan_ocr": "layers are saved inside an encoder",
}
#: What is around the text model is no language model of the kind we count.
NOT_OURS = {"florence2", "vision-encoder-decoder", "t5gemma2", "pi0"}


def _wrappers() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return [name for name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES if name not in NOT_OURS]


def _built(model_type: str, seed: str) -> tuple[Any, Any]:
    """(config, model on the meta device) with a small random text model."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    transformers.logging.set_verbosity_error()
    base = AutoConfig.for_model(model_type)
    text = base.get_text_config()
    overrides = draw(text.model_type, text.to_dict(), random.Random(model_type + seed))
    under = next((key for key, value in vars(base).items() if value is text), None)
    given = copy.deepcopy(overrides)
    config = AutoConfig.for_model(model_type, **({under: given} if under else given))
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        return config, AutoModelForImageTextToText.from_config(config)


@pytest.mark.parametrize("model_type", _wrappers())
def test_text_model_of_a_wrapper(model_type: str) -> None:
    """Every tensor of our text model is in what the wrapper saves, and the text module holds no other parameters."""
    config = model = None
    for attempt in range(3):
        try:
            config, model = _built(model_type, str(attempt))
            break
        except ref.refusals() as error:
            why = f"{type(error).__name__}: {str(error)[:120]}"
    if model is None or config is None:
        pytest.skip(f"not buildable: {why}")
    saved = json.loads(config.to_json_string(use_diff=False))
    try:
        ours = build(saved)
    except UnknownModelType as error:
        pytest.skip(str(error)[:160])
    text = [
        tensor for tensor in ours.tensors if tensor.part == "params" and not tensor.role.startswith(("vision", "audio"))
    ]
    assert sum(tensor.elements for tensor in text) == _text_params(model, config)
    if model_type not in OTHER_NAMES:
        state = ref._saved(model)
        for name, shape in ref.inventory(text).items():
            assert state.get(name) == shape, name


def _text_params(model: Any, config: Any) -> int:
    """Parameters of the module that has the text config, and of a head outside it."""
    text = config.get_text_config()
    inside = [module for _, module in model.named_modules() if getattr(module, "config", None) is text]
    assert inside, "no module has the text config"
    found = {id(p): p.numel() for p in max(inside, key=_size).parameters()}
    head = model.get_output_embeddings()
    if head is not None:
        found.update({id(p): p.numel() for p in head.parameters()})
    return sum(found.values())


def _size(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())
