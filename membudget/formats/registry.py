"""Every format by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from membudget.formats.base import Format, UnknownFormat


class Entry(NamedTuple):
    """A name, what it takes a layer weight, what it leaves alone, where the layout is from."""

    name: str
    bits: str
    dense: str
    source: str
    make: Callable[[str], Format]


def _dense(dtype: str) -> Callable[[str], Format]:
    def make(name: str) -> Format:
        from membudget.formats.safetensors import Safetensors

        return Safetensors(name, ("dense", dtype), None, dtype)

    return make


def _scheme(scheme: str, *options: object) -> Callable[[str], Format]:
    def make(name: str) -> Format:
        from membudget.formats import schemes
        from membudget.formats.safetensors import Safetensors, by_default

        made = getattr(schemes, scheme)(*options)
        return Safetensors(name, ("default", made.key), by_default(made))

    return make


def _gguf(mix: str) -> Callable[[str], Format]:
    def make(name: str) -> Format:
        from membudget.formats.gguf import gguf

        return gguf(name, mix)

    return make


_EMBED = "embedding, head, norms, router"
_ENTRIES = (
    Entry("fp32", "32", "-", "safetensors", _dense("F32")),
    Entry("bf16", "16", "-", "safetensors", _dense("BF16")),
    Entry("fp16", "16", "-", "safetensors", _dense("F16")),
    Entry("fp8", "8", _EMBED, "compressed-tensors FP8_DYNAMIC per tensor", _scheme("fp8_tensor")),
    Entry("awq", "4.15625", _EMBED, "AutoAWQ gemm.py", _scheme("awq", 128)),
    Entry("q8_0", "8.5", "norms, router", "llama-quant.cpp", _gguf("Q8_0")),
    Entry("q4_k_m", "4.5 and 6.5625", "norms, router", "llama-quant.cpp", _gguf("Q4_K_M")),
)
_BY_NAME = {entry.name: entry for entry in _ENTRIES}
_SYNONYMS = {
    "f32": "fp32", "float32": "fp32", "f16": "fp16", "float16": "fp16", "half": "fp16", "bfloat16": "bf16",
}  # fmt: skip
_made: dict[str, Format] = {}


def names() -> list[str]:
    """All names, in the order of the documentation."""
    return list(_BY_NAME)


def describe() -> list[tuple[str, str, str, str]]:
    """(name, bits a layer weight, what stays in 16 bits or more, source), one row a format."""
    return [entry[:4] for entry in _ENTRIES]


def get(name: str) -> Format:
    """The format of this name, in any case and common spelling; `UnknownFormat` says what is near."""
    found = _made.get(name)
    if found is None:
        plain = name.strip().lower()
        plain = _SYNONYMS.get(plain, plain)
        entry = _BY_NAME.get(plain)
        if entry is None:
            raise UnknownFormat(_unknown(name, plain))
        found = _made[name] = _made.get(plain) or entry.make(plain)
        _made[plain] = found
    return found


def _unknown(name: str, plain: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(plain, [*_BY_NAME, *_SYNONYMS], n=3)
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    return f"unknown format {name!r}{hint} Known are: {', '.join(_BY_NAME)}"
