"""Every format by name: one row a format, and how options are spelled.

A name is a base and options, joined by dashes: ``awq-g64``, ``gptq-8bit-g32``,
``w4a16-asym``, ``nf4-dq``, ``exl3-4.0``, ``q4_k_m-imatrix``.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, NamedTuple

from membudget.formats import schemes
from membudget.formats.base import Format, FormatError, UnknownFormat
from membudget.formats.gguf import gguf
from membudget.formats.named import dense, exl3, mxfp4
from membudget.formats.safetensors import Safetensors, Scheme, by_default


class Entry(NamedTuple):
    """One row.

    bits: of one layer weight, scales included.  dense: what stays in 16 bits or more.
    make(name, options): the format.  options: what may stand behind the base, in words.
    """

    name: str
    bits: str
    dense: str
    source: str
    make: Callable[[str, dict[str, Any]], Format]
    options: tuple[str, ...] = ()


def _dense(dtype: str) -> Callable[[str, dict[str, Any]], Format]:
    return lambda name, options: dense(name, dtype)


def _scheme(function: Callable[..., Scheme], **fixed: Any) -> Callable[[str, dict[str, Any]], Format]:
    def make(name: str, options: dict[str, Any]) -> Format:
        scheme = function(**{**fixed, **options})
        return Safetensors(name, ("by default", scheme.key), by_default(scheme))

    return make


def _mxfp4(name: str, options: dict[str, Any]) -> Format:
    return mxfp4(name)


def _exl3(name: str, options: dict[str, Any]) -> Format:
    return exl3(name, options.get("bits", 4), 6)


def _gguf(mix: str) -> Callable[[str, dict[str, Any]], Format]:
    return lambda name, options: gguf(name, mix, **options)


_KEPT = "embedding, head, norms, router"
_CT = "vllm-project/compressed-tensors"
_BNB = "bitsandbytes functional.py"
_ENTRIES: tuple[Entry, ...] = (
    Entry("fp32", "32", "-", "safetensors", _dense("F32")),
    Entry("bf16", "16", "-", "safetensors", _dense("BF16")),
    Entry("fp16", "16", "-", "safetensors", _dense("F16")),
    Entry("fp8", "8", _KEPT, "vLLM Fp8LinearMethod", _scheme(schemes.fp8_tensor), ("static",)),
    Entry("fp8-channel", "8 + 16/in", _KEPT, f"{_CT} FP8_DYNAMIC", _scheme(schemes.fp8_channel)),
    Entry("fp8-block", "8.002", _KEPT, "DeepSeek-V3", _scheme(schemes.fp8_block)),
    Entry("mxfp8", "8.25", _KEPT, f"{_CT} mxfp8", _scheme(schemes.mxfp8)),
    Entry("w8a8", "8 + 16/in", _KEPT, f"{_CT} naive_quantized", _scheme(schemes.int8), ("static", "asym")),
    Entry("w8a16", "8.125", _KEPT, f"{_CT} pack_quantized", _scheme(schemes.packed, bits=8), ("g", "asym", "actorder")),
    Entry("w4a16", "4.125", _KEPT, f"{_CT} pack_quantized", _scheme(schemes.packed), ("g", "asym", "actorder")),
    Entry("awq", "4.15625", _KEPT, "AutoAWQ gemm.py", _scheme(schemes.awq), ("g",)),
    Entry("gptq", "4.15625 + 32/out", _KEPT, "GPTQModel qlinear", _scheme(schemes.gptq), ("bit", "g")),
    Entry("nvfp4", "4.5", _KEPT, "NVIDIA Model-Optimizer", _scheme(schemes.nvfp4)),
    Entry("mxfp4", "4.25", f"{_KEPT}; gpt-oss: all but experts", f"{_CT} mxfp4, gpt-oss", _mxfp4),
    Entry("nf4", "4.5", _KEPT, _BNB, _scheme(schemes.bnb4), ("dq",)),
    Entry("fp4", "4.5", _KEPT, _BNB, _scheme(schemes.bnb4, kind="fp4"), ("dq",)),
    Entry("int8-bnb", "8 + 32/in", _KEPT, "bitsandbytes nn/modules.py", _scheme(schemes.bnb8)),
    Entry("hqq", "4.5", _KEPT, "hqq core/quantize.py", _scheme(schemes.hqq), ("bit", "g")),
    Entry("int4-torchao", "4.25", _KEPT, "torchao int4_tensor.py", _scheme(schemes.torchao_int4), ("g",)),
    Entry("int8-torchao", "8 + 32/in", _KEPT, "torchao int8_tensor.py", _scheme(schemes.torchao_int8)),
    Entry("exl3", "4 + 16/in + 16/out", "embedding, norms, router; head 6 bits", "exllamav3 exl3.py", _exl3, ("bits",)),
    *(
        Entry(mix.lower(), bits, "norms, router", "llama.cpp llama-quant.cpp", _gguf(mix), ("imatrix", "output"))
        for mix, bits in (
            ("F32", "32"), ("F16", "16"), ("BF16", "16"), ("Q8_0", "8.5"), ("Q6_K", "6.5625"),
            ("Q5_K_M", "5.5 to 6.6"), ("Q5_K_S", "5.5"), ("Q5_1", "6"), ("Q5_0", "5.5"),
            ("Q4_K_M", "4.5 to 6.6"), ("Q4_K_S", "4.5 to 5.5"), ("Q4_1", "5"), ("Q4_0", "4.5"),
            ("IQ4_NL", "4.5 to 4.6"), ("IQ4_XS", "4.25 to 4.4"), ("Q3_K_L", "3.4 to 5.5"), ("Q3_K_M", "3.4 to 5.5"),
            ("Q3_K_S", "3.4375"), ("IQ3_M", "3.4 to 4.5"), ("IQ3_S", "3.4 to 3.5"), ("IQ3_XS", "3.1 to 4.5"),
            ("IQ3_XXS", "3.0625"), ("Q2_K", "2.625 to 4.5"), ("Q2_K_S", "2.6 to 2.8"), ("IQ2_M", "2.6 to 4.5"),
            ("IQ2_S", "2.3 to 4.5"), ("IQ2_XS", "2.3 to 4.5"), ("IQ2_XXS", "2.1 to 4.5"), ("IQ1_M", "1.75 to 4.5"),
            ("IQ1_S", "1.6 to 4.5"), ("TQ1_0", "1.6875"), ("TQ2_0", "2.0625"), ("Q2_0", "2.25"),
            ("MXFP4_MOE", "4.25 experts, 8.5 others"),
        )
        if mix not in ("F32", "F16", "BF16")
    ),
    Entry("gguf-f32", "32", "-", "llama.cpp", _gguf("F32")),
    Entry("gguf-f16", "16", "norms, router in fp32", "llama.cpp", _gguf("F16"), ("output",)),
    Entry("gguf-bf16", "16", "norms, router in fp32", "llama.cpp", _gguf("BF16"), ("output",)),
)  # fmt: skip
#: What is published most of a model in 16 bits: the layouts of safetensors that hub pages carry, and one mix of
#: bartowski's and unsloth's uploads for each size of a file.
_COMMON = frozenset(
    (
        "bf16", "fp8", "fp8-block", "w8a8", "w4a16", "awq", "gptq", "nvfp4", "nf4", "exl3", "gguf-f16", "q8_0", "q6_k",
        "q5_k_m", "q4_k_m", "iq4_xs", "q3_k_m", "iq3_xxs", "q2_k", "iq2_m", "iq2_xxs", "iq1_m", "iq1_s",
    )
)  # fmt: skip
_BY_NAME = {entry.name: entry for entry in _ENTRIES}
_SYNONYMS = {
    "f32": "fp32", "float32": "fp32", "float": "fp32",
    "f16": "fp16", "float16": "fp16", "half": "fp16",
    "bfloat16": "bf16",
    "fp8-tensor": "fp8", "fp8_e4m3": "fp8", "float8": "fp8", "fp8-dynamic": "fp8-channel", "fp8_dynamic": "fp8-channel",
    "fp8_channel": "fp8-channel", "fp8_block": "fp8-block", "fp8-static": "fp8-static",
    "int8": "w8a8", "int8-w8a8": "w8a8", "int4-w4a16": "w4a16",
    "awq-int4": "awq", "awq-4bit": "awq", "gptq-int4": "gptq", "gptq-int8": "gptq-8bit",
    "fp4-nvidia": "nvfp4", "modelopt-fp4": "nvfp4",
    "bnb-nf4": "nf4", "nf4-bnb": "nf4", "bnb-4bit": "nf4", "bnb-int8": "int8-bnb", "bnb-8bit": "int8-bnb",
    "llm-int8": "int8-bnb", "llm.int8": "int8-bnb",
    "torchao-int4": "int4-torchao", "torchao-int8": "int8-torchao",
    "q4_k": "q4_k_m", "q5_k": "q5_k_m", "q3_k": "q3_k_m",
}  # fmt: skip
_made: dict[str, Format] = {}


def names() -> list[str]:
    """All base names, in the order of the documentation."""
    return list(_BY_NAME)


def common(name: str, declared: str | None = None) -> bool:
    """Whether this is one of the formats that are published most.

    declared: the quantization of a model that is published quantized, else None.  One in MXFP4 keeps its experts so in
    every GGUF (ggml-org/gpt-oss-20b-GGUF): a mix that makes them anew is not published.
    """
    if declared is not None and declared.startswith("mxfp4"):
        return name in (declared, "mxfp4", "mxfp4_moe")
    return name in _COMMON


class Row(NamedTuple):
    """A format in words: see `Entry`."""

    name: str
    bits: str
    dense: str
    source: str
    options: str


_OPTIONS = {
    "g": "-gN: N weights a group",
    "bit": "-Nbit: N bits",
    "bits": "-N.0: N bits",
    "static": "-static: scales for activations too",
    "asym": "-asym: zero points",
    "actorder": "-actorder: g_idx",
    "dq": "-dq: double quantization",
    "imatrix": "-imatrix: made with an importance matrix",
    "output": "-output: a separate output.weight",
}


def describe() -> list[Row]:
    """One row a format: name, bits a layer weight, what stays in 16 bits or more, source, options."""
    return [Row(*entry[:4], "; ".join(_OPTIONS[option] for option in entry.options)) for entry in _ENTRIES]


def get(name: str) -> Format:
    """The format of this name, in any case and common spelling; `UnknownFormat` says what is near."""
    found = _made.get(name) if isinstance(name, str) else None
    if found is None:
        if not isinstance(name, str):
            raise UnknownFormat(f"a format is named by a string, not {name!r}; known are {', '.join(_BY_NAME)}")
        entry, options, plain = _read(name)
        found = _made.get(plain) or entry.make(plain, options)
        if len(_made) > 1_000:
            _made.clear()
        _made[name] = _made[plain] = found
    return found


def _read(name: str) -> tuple[Entry, dict[str, Any], str]:
    plain = name.strip().lower()
    if len(plain) > 60:
        raise UnknownFormat(_unknown(name[:57] + "...", plain[:60]))
    candidates = [plain, plain.replace("_", "-"), plain.replace("-", "_")]
    for spelled in candidates:
        spelled = _SYNONYMS.get(spelled, spelled)
        parts = spelled.split("-")
        for count in range(len(parts), 0, -1):
            base = "-".join(parts[:count])
            base = _SYNONYMS.get(base, base)
            entry = _BY_NAME.get(base)
            if entry is None:
                continue
            options: dict[str, Any] = {}
            words = []
            for word in parts[count:]:
                words.append(word)
                _option(name, entry, word, options)
            return entry, options, "-".join([base, *words])
    raise UnknownFormat(_unknown(name, plain))


def _option(name: str, entry: Entry, word: str, options: dict[str, Any]) -> None:
    key: str | None = None
    value: Any = True
    number = word.removesuffix("bit").removesuffix("bpw")
    whole, point, fraction = number.partition(".")
    if word in entry.options and word not in ("g", "bit", "bits"):
        key = {"asym": "asymmetric", "actorder": "g_idx", "dq": "double", "output": "separate_output"}.get(word, word)
    elif word[:1] == "g" and "g" in entry.options and _is_number(word[1:], 6):
        key, value = "group", int(word[1:])
    elif ("bit" in entry.options or "bits" in entry.options) and _is_number(whole, 1):
        if not point:
            key, value = "bits", int(whole)
        elif "bits" in entry.options and _is_number(fraction, 2):
            if int(fraction):
                raise FormatError(
                    f"format {name!r}: {number} bits is an average; which matrix has how many is not in the name: "
                    f"read the checkpoint, or name {entry.name}-{whole}.0 and -{int(whole) + 1}.0"
                )
            key, value = "bits", int(whole)
    if key is None or key in options:
        allowed = "; ".join(_OPTIONS[option] for option in entry.options) or "no options"
        what = "is given twice" if key in options else "is not known"
        raise UnknownFormat(f"format {name!r}: option {word!r} {what}; {entry.name} takes {allowed}")
    options[key] = value


def _is_number(text: str, digits: int) -> bool:
    return 0 < len(text) <= digits and text.isascii() and text.isdigit()


def _unknown(name: str, plain: str) -> str:
    matches = get_close_matches(plain, [*_BY_NAME, *_SYNONYMS], n=3)
    near = list(dict.fromkeys(_SYNONYMS.get(match, match) for match in matches))
    hint = f": did you mean {', '.join(near)}?" if near else "."
    return f"unknown format {name!r}{hint} Known are {', '.join(_BY_NAME)}"
