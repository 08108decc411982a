"""The one table of dtypes: bits of one element, by the name in a safetensors header and by torch's names."""

from __future__ import annotations

#: Bits of one element, by the dtype's name in a safetensors header.
DTYPE_BITS: dict[str, int] = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "C64": 64,
}  # fmt: skip

#: The dtypes that a model is served in: torch's names, as configs and ``--dtype`` have them -> a header's.
TORCH_DTYPES: dict[str, str] = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float": "F32", "half": "F16",
}  # fmt: skip

#: The formats that store every weight in one of these: a header's name -> the format's.
DENSE_FORMATS: dict[str, str] = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


def torch_bytes(name: str) -> int:
    """Bytes of one element of a dtype by torch's name; `KeyError` for one that no model is served in."""
    return DTYPE_BITS[TORCH_DTYPES[name]] // 8
