"""How each safetensors format stores one matrix of (out, into): names, dtypes and shapes of what lies in the file.

Every scheme names its source.  A scheme is made once for its options and kept, so
equal options give the same object.
"""

from __future__ import annotations

import json
from functools import cache

from membudget.formats.base import FormatError, Piece, piece
from membudget.formats.safetensors import Scheme, divide, up

#: Bits that a packed integer format may have.
BITS = (2, 3, 4, 8)


def _check(bits: int, group: int = 128) -> None:
    if bits not in BITS:
        raise FormatError(f"{bits} bits is not packed; known are {', '.join(map(str, BITS))}")
    if group != -1 and group < 1:
        raise FormatError(f"group_size is {group}; allowed is a whole number >= 1, or -1 for a whole row")


def _groups(into: int, group: int) -> int:
    return 1 if group == -1 else divide(into, group, "in_features")


@cache
def awq(group: int = 128, zero: bool = True) -> Scheme:
    """AWQ GEMM, 4 bits: eight weights of neighbouring columns in an int32.

    Source: casper-hansen/AutoAWQ awq/modules/linear/gemm.py.
    """
    _check(4, group)

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        groups, packed = _groups(into, group), divide(out, 8, "out_features")
        made = (piece("qweight", "I32", into, packed), piece("scales", "F16", groups, out))
        return (*made, piece("qzeros", "I32", groups, packed)) if zero else made

    return Scheme(("awq", group, zero), pieces)


@cache
def gptq(bits: int = 4, group: int = 128) -> Scheme:
    """GPTQ: packed along the rows; g_idx is always stored, act-order only permutes it.

    Source: ModelCloud/GPTQModel gptqmodel/nn_modules/qlinear/__init__.py.
    """
    _check(bits, group)

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        groups = up(into, group) if group != -1 else 1
        return (
            piece("qweight", "I32", divide(into * bits, 32, "in_features x bits"), out),
            piece("qzeros", "I32", groups, divide(out * bits, 32, "out_features x bits")),
            piece("scales", "F16", groups, out),
            piece("g_idx", "I32", into),
        )

    return Scheme(("gptq", bits, group), pieces)


@cache
def packed(
    bits: int = 4, group: int = 128, asymmetric: bool = False, g_idx: bool = False, scale: str = "BF16"
) -> Scheme:
    """compressed-tensors pack-quantized: W4A16 and W8A16.  group -1: one scale a row; 0: one a matrix.

    Source: vllm-project/compressed-tensors compressors/pack_quantized.
    """
    if group != 0:
        _check(bits, group)

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        rows, groups = (1, 1) if group == 0 else (out, 1 if group == -1 else up(into, group))
        made = [
            piece("weight_packed", "I32", out, up(into, 32 // bits)),
            piece("weight_scale", scale, *((1,) if group == 0 else (out, groups))),
            piece("weight_shape", "I64", 2),
        ]
        if asymmetric:
            made.append(piece("weight_zero_point", "I32", up(rows, 32 // bits), groups))
        if g_idx:
            made.append(piece("weight_g_idx", "I32", into))
        return tuple(made)

    return Scheme(("packed", bits, group, asymmetric, g_idx, scale), pieces)


def _static(static: bool, scale: str, integer: bool = False) -> tuple[Piece, ...]:
    if not static:
        return ()
    made = (piece("input_scale", scale, 1),)
    return (*made, piece("input_zero_point", "I8", 1)) if integer else made


@cache
def int8(group: int = -1, static: bool = False, asymmetric: bool = False, scale: str = "BF16") -> Scheme:
    """compressed-tensors int-quantized (W8A8): int8 with a scale a row (-1), a matrix (0) or a group.

    Source: vllm-project/compressed-tensors compressors/naive_quantized.
    """

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        shape = (1,) if group == 0 else (out, 1 if group == -1 else up(into, group))
        made = [piece("weight", "I8", out, into), piece("weight_scale", scale, *shape)]
        if asymmetric:
            made.append(piece("weight_zero_point", "I8", *shape))
        return (*made, *_static(static, scale, asymmetric))

    return Scheme(("int8", group, static, asymmetric, scale), pieces)


@cache
def fp8_tensor(static: bool = False, scale: str = "F32", shape: tuple[int, ...] = (1,)) -> Scheme:
    """FP8 with one scale a matrix, and one for the activations where those are static.

    Source: vllm-project/compressed-tensors quantization/quant_scheme.py FP8; vLLM's Fp8LinearMethod.
    """

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        made = (piece("weight", "F8_E4M3", out, into), piece("weight_scale", scale, *shape))
        return (*made, piece("input_scale", scale, *shape)) if static else made

    return Scheme(("fp8", static, scale, shape), pieces)


@cache
def fp8_channel(scale: str = "BF16", static: bool = False) -> Scheme:
    """FP8 with a scale for every row.  Source: compressed-tensors FP8_DYNAMIC; fbgemm_fp8 has fp32 scales."""

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        made = (piece("weight", "F8_E4M3", out, into), piece("weight_scale", scale, out, 1))
        return (*made, *_static(static, scale))

    return Scheme(("fp8 channel", scale, static), pieces)


@cache
def fp8_block(rows: int = 128, columns: int = 128, scale: str = "F32", name: str = "weight_scale_inv") -> Scheme:
    """FP8 with a scale for every block.  Source: DeepSeek-V3's files; transformers' FP8Linear."""
    if rows < 1 or columns < 1:
        raise FormatError(f"weight_block_size is [{rows}, {columns}]; allowed are two whole numbers >= 1")

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        return (piece("weight", "F8_E4M3", out, into), piece(name, scale, up(out, rows), up(into, columns)))

    return Scheme(("fp8 block", rows, columns, scale, name), pieces)


@cache
def nvfp4(maker: str = "modelopt", group: int = 16, activations: bool = True) -> Scheme:
    """NVFP4: two weights a byte, an fp8 scale for 16, an fp32 scale a matrix (and one for the activations).

    Source: NVIDIA/Model-Optimizer's exported names; compressed-tensors compressors/nvfp4.
    """
    modelopt = maker == "modelopt"

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        one = () if modelopt else (1,)
        made = (
            piece("weight" if modelopt else "weight_packed", "U8", out, divide(into, 2, "in_features")),
            piece("weight_scale", "F8_E4M3", out, divide(into, group, "in_features")),
            piece("weight_scale_2" if modelopt else "weight_global_scale", "F32", *one),
        )
        more = piece("input_scale" if modelopt else "input_global_scale", "F32", *one)
        return (*made, more) if activations else made

    return Scheme(("nvfp4", maker, group, activations), pieces)


@cache
def mxfp8(maker: str = "compressed-tensors") -> Scheme:
    """MXFP8: fp8 and an e8m0 scale for 32.  Source: compressed-tensors compressors/mxfp8."""

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        scales = piece("weight_scale", "U8", out, divide(into, 32, "in_features"))
        return (piece("weight", "F8_E4M3", out, into), scales)

    return Scheme(("mxfp8", maker), pieces)


@cache
def mxfp4(maker: str = "compressed-tensors") -> Scheme:
    """MXFP4: two weights a byte and an e8m0 scale for 32.  ``gpt-oss``: stacked blocks and scales.

    Source: compressed-tensors compressors/mxfp4; openai/gpt-oss's files.
    """

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        groups = divide(into, 32, "in_features")
        if maker == "gpt-oss":
            return (piece("blocks", "U8", out, groups, 16), piece("scales", "U8", out, groups))
        return (piece("weight_packed", "U8", out, groups * 16), piece("weight_scale", "U8", out, groups))

    return Scheme(("mxfp4", maker), pieces, stacked=maker == "gpt-oss")


@cache
def fp4_ue8m0() -> Scheme:
    """DeepSeek-V4's experts: two fp4 weights in an int8 and an e8m0 scale for 32.

    Source: transformers integrations/finegrained_fp8.py (FP8Experts, expert_dtype fp4); the published headers.
    """

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        groups = divide(into, 32, "in_features")
        return (piece("weight", "I8", out, groups * 16), piece("scale", "F8_E8M0", out, groups))

    return Scheme(("fp4 ue8m0",), pieces)


@cache
def bnb4(double: bool = False, kind: str = "nf4", block: int = 64) -> Scheme:
    """bitsandbytes 4 bits: nf4 or fp4, an fp32 absmax for 64; `double` stores those in 8 bits.

    Beside them lie the code tables and a JSON of the state; those are counted as a checkpoint's, not
    as weights.  Source: bitsandbytes functional.py, QuantState.as_dict(packed=True).
    """

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        weights = out * into
        blocks = up(weights, block)
        state = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": [out, into]}
        made = [piece("weight", "U8", up(weights, 2), 1), piece("weight.absmax", "U8" if double else "F32", blocks)]
        beside = [piece("weight.quant_map", "F32", 16)]
        if double:
            made.append(piece("weight.nested_absmax", "F32", up(blocks, 256)))
            beside.append(piece("weight.nested_quant_map", "F32", 256))
            # the offset is a float of 17 to 22 digits, which the config does not tell
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.012345678901234567}

        beside.append(piece(f"weight.quant_state.bitsandbytes__{kind}", "U8", len(json.dumps(state))))
        return (*made, *(item._replace(beside=True) for item in beside))

    return Scheme(("bnb4", double, kind, block), pieces)


@cache
def bnb8() -> Scheme:
    """bitsandbytes LLM.int8(): int8 and an fp32 scale a row.  Source: bitsandbytes nn/modules.py Linear8bitLt."""

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        return (
            piece("weight", "I8", out, into),
            piece("SCB", "F32", out),
            piece("weight_format", "U8")._replace(beside=True),
        )

    return Scheme(("bnb8",), pieces)


@cache
def hqq(bits: int = 4, group: int = 64, dtype: str = "BF16") -> Scheme:
    """HQQ: packed weights, scale and zero point in the compute dtype.  Source: mobiusml/hqq core/quantize.py."""
    _check(bits, group)

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        groups = divide(out * into, group if group != -1 else into, "out_features x in_features")
        width = out * into // groups
        if bits == 3:  # ten weights an int32, along the groups
            weights = piece("W_q", "I32", up(width, 10), groups)
        else:
            weights = piece("W_q", "U8", divide(width * bits, 8, "a group's bits"), groups)
        return (weights, piece("scale", dtype, 1, groups), piece("zero", dtype, 1, groups))

    return Scheme(("hqq", bits, group, dtype), pieces)


@cache
def torchao_int4(group: int = 128) -> Scheme:
    """torchao Int4WeightOnly: two weights a byte, bf16 scale and zero point a group.

    Source: pytorch/ao torchao/quantization/quantize_/workflows/int4/int4_tensor.py.
    """
    _check(4, group)

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        groups = _groups(into, group)
        return (
            piece("weight_qdata", "U8", out, divide(into, 2, "in_features")),
            piece("weight_scale", "BF16", groups, out),
            piece("weight_zero_point", "BF16", groups, out),
        )

    return Scheme(("torchao int4", group), pieces)


@cache
def torchao_int8() -> Scheme:
    """torchao Int8WeightOnly: int8 and an fp32 scale a row.  Source: torchao 0.18 Int8Tensor."""

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        return (piece("weight_qdata", "I8", out, into), piece("weight_scale", "F32", out, 1))

    return Scheme(("torchao int8",), pieces)


@cache
def exl3(bits: int) -> Scheme:
    """EXL3 at a whole number of bits: a trellis for 16 x 16 weights, and signs for both sides.

    Source: turboderp-org/exllamav3 exllamav3/modules/quant/exl3.py.
    """
    if not 1 <= bits <= 8:
        raise FormatError(f"EXL3 has 1 to 8 bits, not {bits}")

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        tiles = divide(into, 16, "in_features"), divide(out, 16, "out_features")
        return (piece("trellis", "I16", *tiles, 16 * bits), piece("suh", "F16", into), piece("svh", "F16", out))

    return Scheme(("exl3", bits), pieces)


@cache
def mlx(bits: int = 4, group: int = 64, mode: str = "affine", dtype: str = "BF16") -> Scheme:
    """mlx: rows of 32-bit words, a scale and a bias a group in the model's dtype; scales of a byte in other modes.

    Source: ml-explore/mlx python/mlx/nn/layers/quantized.py, mlx/ops.cpp (quantize).
    """
    if bits not in (2, 3, 4, 5, 6, 8):
        raise FormatError(f"{bits} bits: mlx packs 2, 3, 4, 5, 6 or 8")
    if mode not in ("affine", "mxfp4", "mxfp8", "nvfp4"):
        raise FormatError(f"mode is {mode[:40]!r}; known are affine, mxfp4, mxfp8 and nvfp4")
    if group < 1:
        raise FormatError(f"group_size is {group}; allowed is a whole number >= 1")

    def pieces(out: int, into: int) -> tuple[Piece, ...]:
        groups = divide(into, group, "in_features")
        weight = piece("weight", "U32", out, divide(into * bits, 32, "in_features x bits"))
        if mode != "affine":
            return (weight, piece("scales", "U8", out, groups))
        return (weight, piece("scales", dtype, out, groups), piece("biases", dtype, out, groups))

    return Scheme(("mlx", bits, group, mode, dtype), pieces)
