"""Vision and audio towers: what multimodal models have beside their text model.

A recipe yields the tensors of one wrapper's towers and projectors, named as in published
checkpoints, roles ``vision`` and ``audio``; a token of text reads none of them (active 0).
A wrapper without a recipe has an unknown part, in words, in `Model.unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from membudget.model.config import Config
from membudget.model.tensors import Tensor

#: wrapper's model_type -> the module of this package that has its recipe.
MODULES = {
    "gemma3": "vit",
    "gemma4": "gemma4",
    "glm46v": "glm",
    "glm4v": "glm",
    "glm4v_moe": "glm",
    "idefics3": "vit",
    "internvl": "vit",
    "llama4": "llama",
    "llava": "vit",
    "llava_next": "vit",
    "mistral3": "vit",
    "mllama": "llama",
    "paligemma": "vit",
    "qwen2_5_vl": "qwen",
    "qwen2_vl": "qwen",
    "qwen3_5": "qwen",
    "qwen3_5_moe": "qwen",
    "qwen3_vl": "qwen",
    "qwen3_vl_moe": "qwen",
    "smolvlm": "vit",
    "vipllava": "vit",
}

#: A recipe: (role, its tensors) for every tower that the config describes and the recipe knows.
Recipe = Callable[[Config], Iterable[tuple[str, Iterator[Tensor]]]]


def towers(config: Config) -> tuple[list[Tensor], tuple[str, ...]]:
    """(tensors of all known towers, the words of `Model.unknown` that they settle)."""
    wrapper = config.raw.get("model_type")
    module = MODULES.get(wrapper) if isinstance(wrapper, str) else None
    if module is None:
        return [], ()
    imported = __import__(f"membudget.model.towers.{module}", fromlist=["RECIPES"])
    recipe: Recipe = imported.RECIPES[wrapper]
    tensors, settled = [], []
    for role, found in recipe(config):
        for tensor in found:
            if tensor.part == "params":
                tensors.append(tensor._replace(role=role, active=0))
            else:
                tensors.append(tensor._replace(role=role))
        settled.append(f"{role} tower")
    return tensors, tuple(settled)


__all__ = ["MODULES", "towers"]
