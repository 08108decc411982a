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


#: Wrappers that may do without a vision tower.
OPTIONAL = frozenset({"gemma4"})


def towers(config: Config, described: tuple[str, ...]) -> tuple[list[Tensor], tuple[str, ...]]:
    """(tensors of all known towers, parts that are not counted, in words).

    described: the parts that the config describes, in words (`membudget.model.wrappers.parts`).
    """
    wrapper = config.raw.get("model_type")
    module = MODULES.get(wrapper) if isinstance(wrapper, str) else None
    if module is None:
        return [], described
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
    unknown = tuple(part for part in described if part not in settled)
    if not settled and not unknown and wrapper not in OPTIONAL:
        # The class has one all the same, of a size that the file does not say.
        unknown = ("vision tower",)
    return tensors, unknown


__all__ = ["MODULES", "towers"]
