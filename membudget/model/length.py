"""A model's longest sequence, as vLLM derives it from config.json.

Sources: vLLM transformers_utils/model_arch_config_convertor.py (derive_max_model_len_and_key) and
config/model.py (_get_and_verify_max_len), 0.8.5 to 0.32.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from membudget.model.config import Config

#: The names of a model's longest sequence; the smallest of those that are there decides.
_KEYS = (
    "max_position_embeddings",  # OPT
    "n_positions",  # GPT-2
    "max_seq_len",  # MPT
    "seq_length",  # ChatGLM2
    "model_max_length",  # Command-R
    "max_target_positions",  # Whisper
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
#: RoPE scaling that max_position_embeddings already has in it.
_SCALED = ("su", "longrope", "llama3", "default", "mrope")
#: Those since vLLM 0.30.0; before, yarn's factor multiplied original_max_position_embeddings.
_SCALED_YARN = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")
#: What vLLM assumes where a config says nothing.
ASSUMED = 2048


@dataclass(frozen=True)
class Length:
    """How many tokens a sequence of the model may have."""

    #: What a server takes that is given no ``--max-model-len``.
    tokens: int
    #: What the positions allow: the most that ``--max-model-len`` may be.  Larger than `tokens` for longrope.
    most: int
    #: The key that decides, and the factor of its RoPE scaling.
    source: str
    #: Whether the config says nothing, so that vLLM assumes `ASSUMED`.
    assumed: bool = False


def longest(config: Config, version: tuple[int, ...] = (0, 32, 0)) -> Length:
    """The model's longest sequence in tokens, as this version of vLLM derives it; keys of the class count too.

    Raises `ConfigError` for a length that is not a whole number.
    """
    found: list[tuple[int, str]] = []
    for key in _KEYS:
        if key in config.text and config.text[key] is not None:
            found.append((config.integer(key), key))
        elif key not in config.text and isinstance(config.defaults.get(key), int) and not _other_name(config, key):
            found.append((int(config.defaults[key]), f"{key} of the class {config.model_type}"))
    if not found:
        return Length(ASSUMED, ASSUMED, "no key of the config says it", True)
    length, key = min(found)
    if config.text.get("model_max_length"):
        length, key = config.integer("model_max_length"), "model_max_length"
    factor: float = 1
    long_rope = False
    if not config.model_type.startswith("gemma3"):
        for scaling in _scalings(config):
            kind = scaling.get("rope_type") or scaling.get("type") or "default"
            long_rope = long_rope or kind in ("longrope", "su")
            if kind in _SCALED or (version >= (0, 30, 0) and kind in _SCALED_YARN):
                continue
            value = scaling.get("factor", 1)
            if isinstance(value, (int, float)) and 0 < value <= 10_000:
                factor = value
            original = scaling.get("original_max_position_embeddings")
            if kind == "yarn" and isinstance(original, int) and 0 < original <= 10**9:
                length, key = original, "original_max_position_embeddings"
    most = int(length * factor)
    source = key if factor == 1 else f"{key} {length:,} x {factor:g} ({kind} RoPE)"
    # "to avoid performance degradation for shorter sequences", since 0.12.0
    short = config.get("original_max_position_embeddings")
    if long_rope and version >= (0, 12, 0) and isinstance(short, int) and 0 < short < most:
        return Length(short, most, f"original_max_position_embeddings of longrope; {source} allows {most:,}")
    return Length(most, most, source)


def _other_name(config: Config, key: str) -> bool:
    """Whether the file writes this quantity under another of its names, so that the class's value is not used."""
    return any(name in config.text for name in config.names(key))


def _scalings(config: Config) -> Iterator[Mapping[str, Any]]:
    """RoPE settings: of the model, or one a kind of layer."""
    nested = [item for item in config.rope.values() if isinstance(item, Mapping) and item]
    yield from nested or [config.rope]
