"""The known model_type whose config is most similar to an unknown one's."""

from __future__ import annotations

from membudget.model.config import Config
from membudget.model.defaults import class_defaults
from membudget.model.families import all_families

#: Keys that say nothing about how a model is built.
COMMON = {"vocab_size", "hidden_size", "max_position_embeddings", "tie_word_embeddings", "is_encoder_decoder"}


def closest(config: Config) -> str | None:
    """The model_type whose config class shares the most keys with this config, or None if hardly any."""
    own = set(config.text) - COMMON
    named = _by_architecture(config)
    if named:
        return named
    llama = {*class_defaults("llama")[0], "num_key_value_heads", "head_dim"}
    written = set(config.text)
    if {"hidden_size", "intermediate_size"} <= written and {key for key in written if _structural(key)} <= llama:
        return "llama"  # nothing in it that Llama has not: the plainest reading
    best, best_score = None, 0.25
    for model_type in sorted(all_families(), key=lambda name: (len(name), name)):
        values, _ = class_defaults(model_type)
        keys = set(values) - COMMON
        if not keys:
            continue
        score = len(own & keys) / len(keys | {key for key in own if _structural(key)})
        if score > best_score:
            best, best_score = model_type, score
    return best


#: Words of a key that shapes the model: `num_layers`, `n_heads`, `conv_kernel_size`; not `hidden_act`.
_STRUCTURAL = frozenset(
    (
        "num", "n", "size", "dim", "rank", "layers", "layer", "heads", "head", "experts", "expert", "width", "bias",
        "mamba", "conv", "state", "lora", "kernel", "window",
    )
)  # fmt: skip


def _structural(key: str) -> bool:
    """Whether a key looks like it shapes the model."""
    return not _STRUCTURAL.isdisjoint(key.split("_"))


def _by_architecture(config: Config) -> str | None:
    """DeepseekV3ForCausalLM under a model_type of its own is built like deepseek_v3."""
    for place in (config.text, config.raw):
        listed = place.get("architectures")
        if isinstance(listed, list) and listed and isinstance(listed[0], str):
            stem = listed[0].partition("For")[0].lower()
            for model_type in all_families():
                if model_type.replace("_", "").replace("-", "") == stem:
                    return model_type
    return None
