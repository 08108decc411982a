"""The settings an engine prints at start: arguments, and the config of "Initializing a V1 LLM engine"."""

from __future__ import annotations

import re
from typing import Any

#: What may be a secret never leaves the parser: keys are kept, their values are not.
_SECRET = re.compile(
    r"((?<![\w-])(?:[\w-]*api[_-]?key|(?:[\w-]*[_-])?token|[\w-]*secret|[\w-]*password)['\"]?\s*[:=]\s*)"
    r"(?!None\b)(\[[^\]]*\]|'[^']*'|\"[^\"]*\"|[^\s,})]+)",
    re.IGNORECASE,
)
_ACCESS = re.compile(r"\b(?:hf|api_org|sk)[_-][A-Za-z0-9_-]{8,}")

#: Entries worth keeping of the two long dumps.
_KEYS = """
    model model_tag tokenizer dtype kv_cache_dtype quantization max_model_len max_seq_len gpu_memory_utilization
    kv_cache_memory_bytes tensor_parallel_size pipeline_parallel_size data_parallel_size decode_context_parallel_size
    prefill_context_parallel_size max_num_batched_tokens max_num_seqs block_size enforce_eager enable_prefix_caching
    enable_chunked_prefill chunked_prefill_enabled num_gpu_blocks_override load_format speculative_config
    cpu_offload_gb disable_hybrid_kv_cache_manager async_scheduling enable_expert_parallel device_config
    mamba_cache_mode mamba_ssm_cache_dtype mamba_cache_dtype skip_mm_profiling limit_mm_per_prompt swap_space
    attention_backend language_model_only cp_kv_cache_interleave_size
"""
KEYS = frozenset(_KEYS.split())
#: A value longer than this is a nested config: it is left out, not cut.
_LONGEST = 500

_NAMED = re.compile(r"(?:^|[,({]\s*)'?(\w+)'?\s*[=:]\s*")
#: Nested settings that are read as such: ``{'method': 'mtp', ...}`` and ``SpeculativeConfig(method='mtp', ...)``.
NESTED = frozenset({"speculative_config"})
_NESTED_TEXT = re.compile(r"(?:\w+\(([^()]{1,400})\)|(\{[^{}]{1,400}\}))")
_WORDS = {"None": None, "True": True, "False": False}


def redact(text: str) -> str:
    """The text without the values of keys and tokens."""
    low = text.lower()
    if any(word in low for word in ("key", "token", "secret", "password")):
        text = _SECRET.sub(r"\1<not shown>", text)
    return _ACCESS.sub("<access token>", text)


def without_secrets(value: Any) -> Any:
    """A setting's value, its texts redacted."""
    if isinstance(value, str):
        return redact(value)
    return {key: without_secrets(each) for key, each in value.items()} if isinstance(value, dict) else value


def read_args(text: str) -> dict[str, Any]:
    """The known settings of ``non-default args: {...}`` or ``args: Namespace(...)``.

    A dump with values Python cannot read (enums, objects) is read entry by entry; what
    cannot be read is left out.
    """
    if text.lstrip().startswith("{") and (end := text.rfind("}")) > 0 and not _DEEP.search(text):
        import ast

        try:
            parsed = ast.literal_eval(text[: end + 1].strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            parsed = None
        if isinstance(parsed, dict):
            return {key: value for key, value in parsed.items() if key in KEYS and len(repr(value)) <= _LONGEST}
    return read_config(text)


def read_config(text: str) -> dict[str, Any]:
    """The known settings of ``model='..', dtype=torch.bfloat16, ...``: the first of each name, as printed."""
    found: dict[str, Any] = {}
    inside = 0  # where a nested object that was read ends: its entries are not the engine's
    for match in _NAMED.finditer(text):
        name = match[1]
        if match.start() < inside:
            continue
        if name in NESTED and (object_ := _NESTED_TEXT.match(text, match.end())) is not None:
            inside = object_.end()
            if name not in found and (nested := _entries(object_[1] or object_[2])):
                found[name] = nested
        elif name in KEYS and name not in found:
            value = _value(text[match.end() : match.end() + _LONGEST])
            if value is not _UNREAD:
                found[name] = value
    return found


#: Brackets or signs in a row, as no dump of arguments has them: Python's own reader may not survive those.
_DEEP = re.compile(r"(?:[\[({~+-]\s*){20,}")
_UNREAD = object()
#: A nested value of which only that there is one is known.
SET = "<set>"
_VALUE = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|([\w./+:-]+)(?=\s*[,)}\]]|\s*$)")


def _entries(text: str) -> dict[str, Any]:
    """The plain entries of a printed object or dict."""
    found = {entry[1]: _value(text[entry.end() :]) for entry in _NAMED.finditer(text)}
    return {name: value for name, value in found.items() if value is not _UNREAD and value != SET}


def _value(text: str) -> Any:
    match = _VALUE.match(text)
    if match is None:
        # a nested object: only that there is one
        return SET if text[:1] in "{[" or re.match(r"\w+\(", text) else _UNREAD
    word = match[3]
    if word is None:
        return match[1] if match[1] is not None else match[2]
    if word in _WORDS:
        return _WORDS[word]
    if re.fullmatch(r"-?\d{1,18}", word):
        return int(word)
    if re.fullmatch(r"-?\d{1,18}\.\d{1,18}(?:e-?\d{1,3})?", word):
        return float(word)
    return word.removeprefix("torch.")
