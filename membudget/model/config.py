"""A published config.json, read: where the text model is, which name a key goes by.

Every value is checked where it is used and an error names the file and the key;
nothing is guessed.  No recipe reads the JSON directly.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from json import loads
from typing import Any

from membudget.errors import MembudgetError
from membudget.model.wrappers import TEXT_TIES, TEXT_TYPES, TOP_TIES, WHOLE

#: The same quantity under the names that published configs give it.
ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "embedding_dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_inner"),
    "num_experts": ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "dtype": ("dtype", "torch_dtype"),
}
#: Where a multimodal config keeps its text model.
TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
#: What a config.json that is whole says of itself; where it does not, the class's value is shown.
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
#: No published model comes near; larger is a broken file, not a large model.
MAX_INT = 10**9
MAX_LAYERS = 10_000
MAX_NAME = 100
MAX_CONFIG_BYTES = 16 * 2**20


class ConfigError(MembudgetError):
    """A config.json that cannot be read as a model: says the file, the key and what is allowed."""


class Config:
    """The text model of a config.json, its values checked as they are read.

    source: the file or id it came from, for error messages.
    raw: the whole document.  text: the mapping that describes the text model.
    model_type: of the text model.  wrapper: of the whole document, when it differs.
    asked: the keys that were looked up so far, under all their names.
    hf_quant_config: what ModelOpt's hf_quant_config.json beside it says, where there is one.
    defaults: the class's values for keys that the file leaves out altogether.
    """

    __slots__ = (
        "_aliases",
        "_memo",
        "asked",
        "defaults",
        "hf_quant_config",
        "model_type",
        "raw",
        "source",
        "text",
        "wrapper",
    )

    def __init__(self, raw: Mapping[str, Any], source: str = "config") -> None:
        if not isinstance(raw, Mapping):
            raise ConfigError(f"{source}: a config.json is a JSON object, this is {_type_name(raw)}")
        self.source = source
        self.raw = raw
        self.text, self.wrapper = _find_text(raw, source)
        model_type: Any = self.text.get("model_type") or raw.get("model_type")
        self.model_type: str = model_type
        self.defaults: Mapping[str, Any] = {}
        self._aliases: Mapping[str, tuple[str, ...]] = ALIASES
        self.asked: set[str] = set()
        self.hf_quant_config: Mapping[str, Any] | None = None
        self._memo: dict[Any, Any] = {}
        if any(isinstance(place.get("model_type", ""), (list, dict)) for place in (raw, self.text)):
            raise ConfigError(f'{source}: model_type must be a string, e.g. "llama"')
        if raw.get("model_type") in WHOLE:
            self.model_type = raw["model_type"]
        elif self.text is not raw and not self.text.get("model_type"):
            self.wrapper = self.model_type
            self.model_type = TEXT_TYPES.get(self.model_type, self.model_type)
        if not isinstance(self.model_type, str) or not self.model_type:
            raise ConfigError(f'{source}: no model_type; a config.json from the hub has one, for example "llama"')
        if len(self.model_type) > MAX_NAME:
            raise ConfigError(f"{source}: model_type has {len(self.model_type):,} letters; allowed is {MAX_NAME}")

    def with_defaults(self, defaults: Mapping[str, Any], aliases: Mapping[str, str] | None = None) -> Config:
        """The same config; keys it does not have at all are looked up in `defaults`.

        aliases: other names of a key, as a config class's attribute_map gives them.
        """
        config = self._copy(self.text)
        config.defaults = {**self.defaults, **defaults}
        if aliases:
            config._aliases = _merge_aliases(aliases)
        return config

    def overlay(self, values: Mapping[str, Any]) -> Config:
        """The same config with some of its values replaced: what one layer sees."""
        return self._copy({**self.text, **values})

    def _copy(self, text: Mapping[str, Any]) -> Config:
        config = object.__new__(Config)
        config.source, config.raw, config.text = self.source, self.raw, text
        config.wrapper, config.model_type = self.wrapper, self.model_type
        config.hf_quant_config, config.asked = self.hf_quant_config, self.asked
        config.defaults, config._aliases, config._memo = self.defaults, self._aliases, {}
        return config

    def names(self, key: str) -> tuple[str, ...]:
        """The names that `key` goes by, the canonical one first."""
        return self._aliases.get(key, (key,))

    def has(self, key: str) -> bool:
        """Whether the key is written in the file (null counts)."""
        self.asked.update(self.names(key))
        return any(name in self.text for name in self.names(key))

    def get(self, key: str, default: Any = None) -> Any:
        """The value as written, by any of its names; absent: the class default; else `default`."""
        try:
            value = self._memo[key]
        except KeyError:
            value = self._memo[key] = self._look_up(key)
        return default if value is None else value

    def _look_up(self, key: str) -> Any:
        names = self.names(key)
        self.asked.update(names)
        written = False
        for name in names:
            if name in self.text:
                written = True
                if self.text[name] is not None:
                    return self.text[name]
        if not written:
            for name in names:
                if self.defaults.get(name) is not None:
                    return self.defaults[name]
        return None

    def assumed(self) -> dict[str, Any]:
        """The sizes that decide the most and that the file leaves to its class: the key and the class's value."""
        return {key: value for key in SIZES if not self.has(key) and (value := self.get(key)) is not None}

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_INT) -> int:
        """A whole number in [minimum, maximum]; absent or null gives `default`, or an error if there is none."""
        memo = (key, minimum, maximum)
        checked = self._memo.get(memo)
        if checked is not None:
            return int(checked)
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.error(key, "is missing", f"a whole number >= {minimum}")
            return default
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"is {_show(value)}", f"a whole number >= {minimum}")
        if not minimum <= value <= maximum:
            raise self.error(key, f"is {_number(value)}", f"a whole number from {minimum:,} to {maximum:,}")
        self._memo[memo] = value
        return value

    def size(self, key: str, default: int = 0) -> int:
        """A whole number >= 0, `default` when absent or null."""
        return self.integer(key, default, minimum=0)

    def factor(self, key: str, default: float | None = None) -> float:
        """A finite number > 0 and at most 1000 (a multiplier of widths)."""
        value = self.get(key, default)
        if value is None:
            raise self.error(key, "is missing", "a number > 0")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1000:
            raise self.error(key, f"is {_show(value)}", "a number > 0, at most 1000")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false; absent gives the class's value, else `default`; null is false, as Python reads it there."""
        value = self.get(key)
        if value is None:
            return default and not self.has(key)
        if not isinstance(value, bool):
            raise self.error(key, f"is {_show(value)}", "true or false")
        return value

    def strings(self, key: str, length: int) -> list[str] | None:
        """A list of exactly `length` strings, one a layer, or None when absent."""
        found: list[str] | None = self._list(key, length, _is_text, "a list of strings, one a layer")
        return found

    def integers(self, key: str, length: int | None = None) -> list[int] | None:
        """A list of whole numbers >= 0 (of `length`, if given), or None when absent."""
        found: list[int] | None = self._list(key, length, _is_count, "a list of whole numbers >= 0")
        return found

    def _list(self, key: str, length: int | None, is_one: Callable[[Any], bool], allowed: str) -> Any:
        """The list under `key`, checked once: every layer asks for it again."""
        value = self.get(key)
        if value is None:
            return None
        memo = (key, length, is_one)
        if memo not in self._memo:
            if not isinstance(value, list) or not all(is_one(item) for item in value):
                raise self.error(key, f"is {_show(value)}", allowed)
            if length is not None and len(value) != length:
                raise self.error(key, f"has {len(value)} entries", f"{length}, one for each of num_hidden_layers")
            self._memo[memo] = value if is_one is _is_text else [int(item) for item in value]
        return self._memo[memo]

    def section(self, key: str) -> Config:
        """The object under `key`, read with the same checks; empty when absent."""
        value = self.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error(key, f"is {_show(value)}", "an object")
        config = self._copy(value)
        config.source, config.defaults, config.asked = f"{self.source}: {key}", {}, set()
        return config

    @property
    def rope(self) -> Mapping[str, Any]:
        """rope_parameters, or rope_scaling as it was called before; empty when absent."""
        for key in ("rope_parameters", "rope_scaling"):
            value = self.get(key)
            if value:
                if not isinstance(value, Mapping):
                    raise self.error(key, f"is {_show(value)}", "an object")
                return value
        return {}

    @property
    def layers(self) -> int:
        """num_hidden_layers."""
        return self.integer("num_hidden_layers", maximum=MAX_LAYERS)

    @property
    def heads(self) -> int:
        """num_attention_heads."""
        return self.integer("num_attention_heads")

    @property
    def kv_heads(self) -> int:
        """num_key_value_heads; absent or null means one a query head (MHA)."""
        heads = self.heads
        kv_heads = self.integer("num_key_value_heads", heads, maximum=heads)
        if heads % kv_heads:
            raise self.error(
                "num_key_value_heads", f"is {kv_heads}", f"a number that divides num_attention_heads {heads}"
            )
        return kv_heads

    @property
    def head_dim(self) -> int:
        """head_dim as written, else hidden_size / num_attention_heads, which must divide."""
        if self.get("head_dim") is not None:
            return self.integer("head_dim")
        hidden, heads = self.integer("hidden_size"), self.heads
        if hidden % heads:
            raise ConfigError(
                f"{self.source}: hidden_size {hidden} is not divisible by num_attention_heads {heads} "
                "and there is no head_dim: write head_dim"
            )
        return hidden // heads

    @property
    def tied(self) -> bool:
        """tie_word_embeddings: the whole document's word, else the text model's, else the class's."""
        places = (self.text, self.raw) if self.wrapper in TEXT_TIES else (self.raw, self.text)
        for place in places[:1] if self.wrapper in TOP_TIES else places:
            value = place.get("tie_word_embeddings")
            if value is not None:
                if not isinstance(value, bool):
                    raise self.error("tie_word_embeddings", f"is {_show(value)}", "true or false")
                return value
        default = self.defaults.get("tie_word_embeddings")
        return default if isinstance(default, bool) else False

    @property
    def dtype(self) -> str | None:
        """The dtype the checkpoint is published in (``bfloat16``), or None."""
        for place in (self.text, self.raw):
            for name in ALIASES["dtype"]:
                value = place.get(name)
                if isinstance(value, str) and value != "auto":
                    return value.removeprefix("torch.")
        return None

    def error(self, key: str, what: str, allowed: str) -> ConfigError:
        """A `ConfigError` that names the file, the key as the file spells it, and what is allowed."""
        shown = next((name for name in self.names(key) if name in self.text), key)
        return ConfigError(f"{self.source}: {shown} {what}; allowed is {allowed}")


def load(path: str | os.PathLike[str], source: str | None = None) -> Config:
    """Read a config.json, or the one in a folder."""
    path = os.fspath(path)
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    source = source or path
    if os.path.exists(path) and not os.path.isfile(path):
        raise ConfigError(f"{source}: not a regular file: pipes and devices are not read")
    try:
        size = os.path.getsize(path)
        if size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{source}: {size:,} bytes exceed the limit of a config.json ({MAX_CONFIG_BYTES:,})")
        with open(path, encoding="utf-8-sig") as file:
            content = loads(file.read())
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply for a config.json") from None
    except ValueError as error:  # of json, or of the encoding
        line = getattr(error, "lineno", None)  # of a JSONDecodeError
        raise ConfigError(f"{source}:{line}: not JSON: {error}" if line else f"{source}: not JSON: {error}") from None
    return Config(content, source)


def _find_text(raw: Mapping[str, Any], source: str) -> tuple[Mapping[str, Any], str | None]:
    wrapper = raw.get("model_type")
    text: Mapping[str, Any] = raw
    for _ in range(4):
        nested = next((text[key] for key in TEXT_KEYS if isinstance(text.get(key), Mapping)), None)
        if nested is None:
            break
        text = nested
    else:
        raise ConfigError(f"{source}: text_config nested more than 3 deep")
    if text is raw or wrapper == text.get("model_type"):
        return text, None
    return text, wrapper if isinstance(wrapper, str) else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= MAX_INT


def _merge_aliases(aliases: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    merged = dict(ALIASES)
    for attribute, key in aliases.items():
        for one, other in ((attribute, key), (key, attribute)):
            names = merged.get(one, (one,))
            if other not in names:
                merged[one] = (*names, other)
    return merged


def _number(value: int) -> str:
    return f"{value:,}" if abs(value) < 10**30 else "a number of more than 30 digits"


def _show(value: object) -> str:

    text = json.dumps(value) if isinstance(value, (str, int, float, bool)) else f"{_type_name(value)}"
    return text if len(text) <= 60 else text[:57] + "..."


def _type_name(value: object) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a list of {len(value)}"
    return {str: "a string", bool: "true or false", int: "a number", float: "a number"}.get(type(value), "null")
