"""How each safetensors format stores one matrix of (out, into): names, dtypes and shapes of what lies in the file.

Every scheme names its source.  A scheme is made once for its options and kept.
"""

from __future__ import annotations

from functools import cache

from membudget.formats.base import Piece, piece
from membudget.formats.safetensors import Scheme, divide, up


def _groups(into: int, group: int) -> int:
    return 1 if group == -1 else divide(into, group, "in_features")


@cache
def awq(group: int = 128, zero: bool = True) -> Scheme:
    """AWQ GEMM, 4 bits: eight weights of neighbouring columns in an int32.

    Source: casper-hansen/AutoAWQ awq/modules/linear/gemm.py.
    """

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        groups, packed = _groups(into, group), divide(out, 8, "out_features")
        made = (piece("qweight", "I32", into, packed), piece("scales", "F16", groups, out))
        return (*made, piece("qzeros", "I32", groups, packed)) if zero else made

    return Scheme(("awq", group, zero), pieces)


@cache
def fp8_tensor(static: bool = False, scale: str = "F32") -> Scheme:
    """FP8 with one scale a matrix, and one for the activations where those are static.

    Source: vllm-project/compressed-tensors quant_scheme.py FP8; vLLM's Fp8LinearMethod.
    """

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        made = (piece("weight", "F8_E4M3", out, into), piece("weight_scale", scale, 1))
        return (*made, piece("input_scale", scale, 1)) if static else made

    return Scheme(("fp8", static, scale), pieces)


_ = up
