"""Tables of cosines and sines that vLLM's rotary embeddings keep: one for each kind of rotary embedding of a model.

vLLM: model_executor/layers/rotary_embedding, get_rope and each class's _compute_cos_sin_cache (0.19.1, 0.32.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from membudget.model.config import Config

#: Without rotary embeddings: learned or no positions.
_NONE = frozenset((
    "gpt2", "gpt_bigcode", "opt", "bloom", "mpt", "mamba", "mamba2", "falcon_mamba", "nemotron_h", "jamba", "t5",
    "bart",
))  # fmt: skip
#: Multimodal rotary embeddings keep four times as many positions (mrope.py: max_position_embeddings * 4).
_MROPE = 4
#: Keys that say how much of a head is rotated.
_PARTIAL = ("partial_rotary_factor", "rotary_pct", "rope_pct")


def tables(config: Config, width: int) -> list[int]:
    """Bytes of every table, in the model's dtype of `width` bytes an element."""
    if config.model_type in _NONE:
        return []
    longest = _integer(config.get("max_position_embeddings"))
    if longest is None:
        return []
    found = []
    for scaling, local in _kinds(config):
        head = _head(config, local)
        part = scaling.get("partial_rotary_factor")
        if part is None:
            part = next((config.get(key) for key in _PARTIAL if config.get(key) is not None), 1.0)
        rotated = int(head * part) if isinstance(part, (int, float)) else head
        if scaling.get("rope_type") == "proportional":  # gemma4_rope.py: the rest of the head is rotated by 0
            rotated = head
        if _integer(config.get("rotary_dim")):
            rotated = config.integer("rotary_dim")
        found.append(_positions(longest, scaling) * rotated * width)
    return found


def _kinds(config: Config) -> list[tuple[Mapping[str, Any], bool]]:
    """(scaling, of windowed layers) of each kind of rotary embedding."""
    written = config.rope
    nested = [value for value in written.values() if isinstance(value, Mapping)]
    if nested:  # a kind for each kind of layer: full_attention, sliding_attention
        return [(value, key == "sliding_attention") for key, value in written.items() if isinstance(value, Mapping)]
    kinds: list[tuple[Mapping[str, Any], bool]] = [(written, False)]
    if config.get("rope_local_base_freq") is not None or config.model_type.startswith("gemma3"):
        kinds.append(({}, True))
    return kinds


def _head(config: Config, local: bool) -> int:
    latent = _integer(config.get("qk_rope_head_dim"))
    if latent:
        return latent
    wide = None if local else _integer(config.get("global_head_dim"))
    return wide or config.head_dim


def _positions(longest: int, scaling: Mapping[str, Any]) -> int:
    """Rows of a table: scaled positions count where the class makes them itself."""
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    factor = scaling.get("factor")
    factor = factor if isinstance(factor, (int, float)) and factor > 0 else 1
    original = _integer(scaling.get("original_max_position_embeddings"))
    if "mrope_section" in scaling:
        return (original if kind == "yarn" and original else longest) * _MROPE
    if kind in ("yarn", "deepseek_yarn") and original:
        return int(original * factor)
    if kind in ("linear", "ntk", "dynamic") and "alpha" not in scaling:
        return int(longest * factor)
    if kind in ("longrope", "su") and original:
        return longest + original
    return longest


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
