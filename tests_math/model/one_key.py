"""One config with one key changed, for every model_type and every key that its config class knows.

Needs no transformers: the class's keys and values come from outside, as `text_defaults` gives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

#: In a change: the file does not have this key.
ABSENT = "(absent)"
#: Keys that name files, classes and versions: no value of theirs is one key's change.
NOT_A_KEY = {
    "architectures", "auto_map", "model_type", "transformers_version", "_name_or_path", "id2label", "label2id", "dtype",
    "torch_dtype", "quantization_config", "_attn_implementation", "attn_implementation", "return_dict",
    "use_return_dict", "output_attentions", "output_hidden_states", "torchscript", "task_specific_params",
    "problem_type", "tokenizer_class", "is_encoder_decoder", "tf_legacy_loss", "pruned_heads", "per_layer_config",
}  # fmt: skip

#: Words that a key may have instead, where that makes tensors.
WORDS: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("relative_key",),
    "time_step_rank": (7,),
    "mamba_dt_rank": (7,),
}


class Change(NamedTuple):
    """key: of the text config.  value: what the file has there, or `ABSENT`."""

    key: str
    value: Any

    def apply(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """The base config with this key changed."""
        changed = dict(base)
        changed.pop(self.key, None)
        return changed if self.value is ABSENT else {**changed, self.key: self.value}


def changes(base: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[Change]:
    """Every key of the class and of the base config: doubled, zero, flipped, null, absent.

    base: a config that both sides build.  defaults: the class's own keys and values.
    """
    for key in sorted({*base, *defaults} - NOT_A_KEY):
        before = base.get(key, defaults.get(key))
        for value in _values(key, before):
            yield Change(key, value)
        if before is not None:
            yield Change(key, None)
        if key in base:
            yield Change(key, ABSENT)


def _values(key: str, before: Any) -> tuple[Any, ...]:
    if isinstance(before, bool):
        return (not before,)
    if isinstance(before, int):
        if key.endswith(("_token_id", "_token_index")):
            return (before + 1,)
        return (2 * before, 0) if before else (1, 2)
    if isinstance(before, float):
        return (2 * before + 0.5,)
    if before is None:
        return () if key.endswith(("_token_id", "_types", "_ids")) else (16, 2, True)
    if isinstance(before, str):
        return WORDS.get(key, ())
    if isinstance(before, list) and len(before) > 1:
        return (before[::-1], before[:1] * len(before))
    return ()
