"""What lies in the file for one matrix, by the libraries' own layouts: names, dtypes and shapes, written by hand.

The sources are named at each scheme.  A matrix is (out 64, into 288) unless a layout needs other multiples; 288 is no
multiple of 128, so that a rounding shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from membudget import formats
from membudget.formats import FormatError, schemes
from membudget.formats.safetensors import Scheme
from membudget.model import build

pytestmark = pytest.mark.math

#: (scheme, out, into): "suffix dtype shape" of each part; ~ before what is not counted as a weight.
LAYOUTS: list[tuple[Scheme, int, int, str]] = [
    (schemes.awq(), 64, 256, "qweight I32 256x8, scales F16 2x64, qzeros I32 2x8"),
    (schemes.awq(32, False), 64, 256, "qweight I32 256x8, scales F16 8x64"),
    (schemes.awq(-1), 64, 256, "qweight I32 256x8, scales F16 1x64, qzeros I32 1x8"),
    (schemes.gptq(), 64, 288, "qweight I32 36x64, qzeros I32 3x8, scales F16 3x64, g_idx I32 288"),
    (schemes.gptq(8, -1), 64, 288, "qweight I32 72x64, qzeros I32 1x16, scales F16 1x64, g_idx I32 288"),
    (schemes.gptq(3, 32), 64, 288, "qweight I32 27x64, qzeros I32 9x6, scales F16 9x64, g_idx I32 288"),
    (schemes.packed(), 64, 288, "weight_packed I32 64x36, weight_scale BF16 64x3, weight_shape I64 2"),
    (schemes.packed(8, -1, scale="F16"), 64, 288, "weight_packed I32 64x72, weight_scale F16 64x1, weight_shape I64 2"),
    (
        schemes.packed(4, 0, True),
        64,
        288,
        "weight_packed I32 64x36, weight_scale BF16 1, weight_shape I64 2, weight_zero_point I32 1x1",
    ),
    (
        schemes.packed(4, -1, True),
        60,
        288,
        "weight_packed I32 60x36, weight_scale BF16 60x1, weight_shape I64 2, weight_zero_point I32 8x1",
    ),
    (
        schemes.packed(4, 128, True, True),
        60,
        290,
        "weight_packed I32 60x37, weight_scale BF16 60x3, weight_shape I64 2, weight_zero_point I32 8x3, "
        "weight_g_idx I32 290",
    ),
    (schemes.int8(), 64, 288, "weight I8 64x288, weight_scale BF16 64x1"),
    (schemes.int8(0, True), 64, 288, "weight I8 64x288, weight_scale BF16 1, input_scale BF16 1"),
    (
        schemes.int8(128, True, True, "F32"),
        64,
        288,
        "weight I8 64x288, weight_scale F32 64x3, weight_zero_point I8 64x3, input_scale F32 1, input_zero_point I8 1",
    ),
    (schemes.fp8_tensor(), 64, 288, "weight F8_E4M3 64x288, weight_scale F32 1"),
    (schemes.fp8_tensor(True, "BF16", ()), 64, 288, "weight F8_E4M3 64x288, weight_scale BF16 , input_scale BF16 "),
    (schemes.fp8_channel(), 64, 288, "weight F8_E4M3 64x288, weight_scale BF16 64x1"),
    (schemes.fp8_channel("F32", True), 64, 288, "weight F8_E4M3 64x288, weight_scale F32 64x1, input_scale F32 1"),
    (schemes.fp8_block(), 192, 288, "weight F8_E4M3 192x288, weight_scale_inv F32 2x3"),
    (schemes.fp8_block(1, 1, "BF16", "weight_scale"), 2, 3, "weight F8_E4M3 2x3, weight_scale BF16 2x3"),
    (
        schemes.nvfp4(),
        64,
        288,
        "weight U8 64x144, weight_scale F8_E4M3 64x18, weight_scale_2 F32 , input_scale F32 ",
    ),
    (
        schemes.nvfp4("compressed-tensors", 32, False),
        64,
        288,
        "weight_packed U8 64x144, weight_scale F8_E4M3 64x9, weight_global_scale F32 1",
    ),
    (
        schemes.nvfp4("compressed-tensors"),
        64,
        288,
        "weight_packed U8 64x144, weight_scale F8_E4M3 64x18, weight_global_scale F32 1, input_global_scale F32 1",
    ),
    (schemes.mxfp8(), 64, 288, "weight F8_E4M3 64x288, weight_scale U8 64x9"),
    (schemes.mxfp4(), 64, 288, "weight_packed U8 64x144, weight_scale U8 64x9"),
    (schemes.mxfp4("gpt-oss"), 64, 288, "blocks U8 64x9x16, scales U8 64x9"),
    (schemes.fp4_ue8m0(), 64, 288, "weight I8 64x144, scale F8_E8M0 64x9"),
    (schemes.bnb8(), 64, 288, "weight I8 64x288, SCB F32 64, ~weight_format U8 "),
    (schemes.hqq(), 64, 288, "W_q U8 32x288, scale BF16 1x288, zero BF16 1x288"),
    (schemes.hqq(3, 64, "F16"), 64, 288, "W_q I32 7x288, scale F16 1x288, zero F16 1x288"),
    (schemes.hqq(2, -1), 64, 288, "W_q U8 72x64, scale BF16 1x64, zero BF16 1x64"),
    (
        schemes.torchao_int4(),
        64,
        256,
        "weight_qdata U8 64x128, weight_scale BF16 2x64, weight_zero_point BF16 2x64",
    ),
    (schemes.torchao_int8(), 64, 288, "weight_qdata I8 64x288, weight_scale F32 64x1"),
    (schemes.exl3(4), 64, 288, "trellis I16 18x4x64, suh F16 288, svh F16 64"),
    (schemes.mlx(), 64, 320, "weight U32 64x40, scales BF16 64x5, biases BF16 64x5"),
    (schemes.mlx(5, 32, "affine", "F16"), 64, 320, "weight U32 64x50, scales F16 64x10, biases F16 64x10"),
    (schemes.mlx(4, 32, "mxfp4"), 64, 320, "weight U32 64x40, scales U8 64x10"),
]


def shown(scheme: Scheme, out: int, into: int) -> str:
    """The parts as `LAYOUTS` writes them."""
    return ", ".join(
        f"{'~' * item.beside}{item.suffix} {item.dtype} {'x'.join(map(str, item.shape))}"
        for item in scheme.pieces(out, into)
    )


@pytest.mark.parametrize(("scheme", "out", "into", "parts"), LAYOUTS, ids=lambda item: str(getattr(item, "key", item)))
def test_layout(scheme: Scheme, out: int, into: int, parts: str) -> None:
    """Every part, in the file's order."""
    assert shown(scheme, out, into) == parts


def test_bitsandbytes() -> None:
    """absmax for 64 weights, in fp32 or nested by 256; the state is JSON beside them (QuantState.as_dict)."""
    plain, double = (shown(schemes.bnb4(double), 64, 288) for double in (False, True))
    assert plain.startswith("weight U8 9216x1, weight.absmax F32 288, ~weight.quant_map F32 16, ~weight.quant_state.")
    assert double.startswith(
        "weight U8 9216x1, weight.absmax U8 288, weight.nested_absmax F32 2, ~weight.quant_map F32 16, "
        "~weight.nested_quant_map F32 256, ~weight.quant_state.bitsandbytes__nf4 U8 "
    )
    state = len('{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [64, 288]}')
    nested = len(', "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.012345678901234567')
    assert plain.endswith(f" {state}")
    assert double.endswith(f" {state + nested}")


@pytest.mark.parametrize(
    ("make", "good", "bad"),
    [
        (schemes.awq, [(1,), (-1,)], [(0,), (-2,)]),
        (schemes.gptq, [(2, 1), (8, -1)], [(4, 0), (5, 128), (1, 128)]),
        (schemes.packed, [(4, 0), (4, 1)], [(4, -2), (5, 128)]),
        (schemes.fp8_block, [(1, 128), (128, 1)], [(0, 128), (128, 0)]),
        (schemes.exl3, [(1,), (8,)], [(0,), (9,)]),
        (schemes.mlx, [(8, 1), (6, 32)], [(4, 0), (7, 64), (1, 64), (4, 32, "fp8")]),
        (schemes.hqq, [(3, 1)], [(5, 64), (4, 0)]),
        (schemes.torchao_int4, [(1,)], [(0,)]),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_options_at_their_limits(make: Callable[..., Scheme], good: list[Any], bad: list[Any]) -> None:
    """The least and the most that a layout can have, and one beyond."""
    for options in good:
        assert make(*options).pieces
    for options in bad:
        with pytest.raises(FormatError):
            make(*options)


LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 512,
    "intermediate_size": 512, "num_key_value_heads": 4, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
UP = "model.layers.0.mlp.up_proj.weight"
FP8 = {"type": "float", "num_bits": 8}
FP4 = {"type": "float", "num_bits": 4}
INT8 = {"type": "int", "num_bits": 8}
INT4 = {"type": "int", "num_bits": 4}


def stored(dtype: str = "bfloat16", **quantization: Any) -> str:
    """What lies in the file for up_proj (512, 256): "name dtype shape" of each part."""
    model = build({**LLAMA, "torch_dtype": dtype, "quantization_config": quantization})
    form = formats.of_config(model.config)
    parts = next(form.stored(tensor, model) for tensor in model.tensors if tensor.name == UP)
    stem = UP.removesuffix("weight")
    return ", ".join(f"{p.name.removeprefix(stem)} {p.dtype} {'x'.join(map(str, p.shape))}" for p in parts)


def grouped(weights: dict[str, Any], inputs: Any = None, **more: Any) -> dict[str, Any]:
    """compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


@pytest.mark.parametrize(
    ("weights", "inputs", "parts"),
    [
        ({**FP8, "strategy": "tensor"}, None, "weight F8_E4M3 512x256, weight_scale BF16 1"),
        (FP8, {"dynamic": False}, "weight F8_E4M3 512x256, weight_scale BF16 1, input_scale BF16 1"),
        (FP8, {"dynamic": True}, "weight F8_E4M3 512x256, weight_scale BF16 1"),
        (FP8, {}, "weight F8_E4M3 512x256, weight_scale BF16 1"),
        ({**FP8, "strategy": "channel"}, None, "weight F8_E4M3 512x256, weight_scale BF16 512x1"),
        (
            {**FP8, "strategy": "channel"},
            {"dynamic": False},
            "weight F8_E4M3 512x256, weight_scale BF16 512x1, input_scale BF16 1",
        ),
        ({**FP8, "strategy": "group", "group_size": 32}, None, "weight F8_E4M3 512x256, weight_scale U8 512x8"),
        ({**FP8, "group_size": 32}, None, "weight F8_E4M3 512x256, weight_scale U8 512x8"),
        (
            {**FP8, "strategy": "block", "block_structure": [128, 64]},
            None,
            "weight F8_E4M3 512x256, weight_scale BF16 4x4",
        ),
        (
            {**FP8, "strategy": "block", "block_structure": "64x128"},
            None,
            "weight F8_E4M3 512x256, weight_scale BF16 8x2",
        ),
        (
            {**FP4, "strategy": "group", "group_size": 32},
            None,
            "weight_packed U8 512x128, weight_scale U8 512x8",
        ),
        (
            {**FP4, "strategy": "tensor_group", "group_size": 16},
            None,
            "weight_packed U8 512x128, weight_scale F8_E4M3 512x16, weight_global_scale F32 1",
        ),
        (
            {**FP4, "strategy": "tensor_group", "group_size": 16},
            {"dynamic": "local"},
            "weight_packed U8 512x128, weight_scale F8_E4M3 512x16, weight_global_scale F32 1, "
            "input_global_scale F32 1",
        ),
        (
            {**FP4, "strategy": "tensor_group", "group_size": 16},
            {"dynamic": True},
            "weight_packed U8 512x128, weight_scale F8_E4M3 512x16, weight_global_scale F32 1",
        ),
        ({**FP4}, None, "weight_packed U8 512x128, weight_scale F8_E4M3 512x16, weight_global_scale F32 1"),
        (
            {**INT8, "strategy": "channel"},
            None,
            "weight_packed I32 512x64, weight_scale BF16 512x1, weight_shape I64 2",
        ),
        (
            {**INT4, "strategy": "group", "group_size": 128, "actorder": "group"},
            None,
            "weight_packed I32 512x32, weight_scale BF16 512x2, weight_shape I64 2, weight_g_idx I32 256",
        ),
        (
            {**INT4, "strategy": "group", "group_size": 128, "actorder": True},
            None,
            "weight_packed I32 512x32, weight_scale BF16 512x2, weight_shape I64 2, weight_g_idx I32 256",
        ),
        (
            {**INT4, "strategy": "group", "group_size": 128, "actorder": "weight", "symmetric": False},
            None,
            "weight_packed I32 512x32, weight_scale BF16 512x2, weight_shape I64 2, weight_zero_point I32 64x2",
        ),
        (None, {"dynamic": True, **INT8}, "weight BF16 512x256"),
    ],
)
def test_compressed_tensors(weights: Any, inputs: Any, parts: str) -> None:
    """Strategies, symmetric or not, static or dynamic activations."""
    assert stored(**grouped(weights, inputs)) == parts


@pytest.mark.parametrize(("dtype", "scale"), [("float16", "F16"), ("float32", "F32"), ("bfloat16", "BF16")])
def test_scales_have_the_models_dtype(dtype: str, scale: str) -> None:
    """compressed-tensors writes scales in the dtype of the weights that it compressed."""
    assert stored(dtype, **grouped({**FP8, "strategy": "channel"})).endswith(f"weight_scale {scale} 512x1")


def test_int_quantized() -> None:
    """Eight bits that are not packed are one int8 a weight."""
    more = {"format": "int-quantized"}
    found = stored(**grouped({**INT8, "strategy": "tensor"}, {"dynamic": False}, **more))
    assert found == "weight I8 512x256, weight_scale BF16 1, input_scale BF16 1"
    found = stored(**grouped({**INT8, "strategy": "channel", "symmetric": False}, None, **more))
    assert found == "weight I8 512x256, weight_scale BF16 512x1, weight_zero_point I8 512x1"
    with pytest.raises(FormatError, match="num_bits is 4"):
        stored(**grouped({**INT4, "strategy": "channel"}, None, **more))


@pytest.mark.parametrize(
    "block",
    [None, [128], [128, 128, 1], [0, 128], [128, 0], [1.5, 128], [True, 128], "128", "128x", "axb", "128x128x1", "٣x٣"],
)
def test_bad_blocks(block: Any) -> None:
    """Two whole numbers from 1; anything else is refused by its key."""
    with pytest.raises(FormatError, match="block_structure"):
        stored(**grouped({**FP8, "strategy": "block", "block_structure": block}))
    if block is not None:
        with pytest.raises(FormatError, match="weight_block_size"):
            stored(quant_method="fp8", weight_block_size=block)


def test_unknown_strategies() -> None:
    """What has no known layout is refused."""
    for weights in ({**FP8, "strategy": "group", "group_size": 64}, {**FP8, "strategy": "rows"}):
        with pytest.raises(FormatError, match="strategy"):
            stored(**grouped(weights))
    with pytest.raises(FormatError, match="2:4"):
        stored(**grouped(FP8, format="marlin-24"))


@pytest.mark.parametrize(
    ("algorithm", "parts"),
    [
        ("FP8", "weight F8_E4M3 512x256, weight_scale F32 , input_scale F32 "),
        ("FP8_PER_CHANNEL_PER_TOKEN", "weight F8_E4M3 512x256, weight_scale F32 512x1"),
        ("FP8_PB_WO", "weight F8_E4M3 512x256, weight_scale F32 4x2"),
        ("FP8_PB", "weight F8_E4M3 512x256, weight_scale F32 4x2"),
        ("NVFP4", "weight U8 512x128, weight_scale F8_E4M3 512x16, weight_scale_2 F32 , input_scale F32 "),
        ("NVFP4_AWQ", "weight U8 512x128, weight_scale F8_E4M3 512x16, weight_scale_2 F32 , input_scale F32 "),
        ("W4A16_NVFP4", "weight U8 512x128, weight_scale F8_E4M3 512x16, weight_scale_2 F32 "),
        ("MXFP8", "weight F8_E4M3 512x256, weight_scale U8 512x8"),
        ("NONE", "weight BF16 512x256"),
    ],
)
def test_modelopt(algorithm: str, parts: str) -> None:
    """NVIDIA ModelOpt's algorithms, of a whole model and of one layer."""
    assert stored(quant_method="modelopt", quant_algo=algorithm) == parts
    layers = {UP.removesuffix(".weight"): {"quant_algo": algorithm}}
    assert stored(quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers) == parts


@pytest.mark.parametrize(("group", "scales"), [(16, "512x16"), (32, "512x8")])
def test_modelopts_group(group: int, scales: str) -> None:
    """group_size of NVFP4 where it is another one than 16."""
    found = stored(quant_method="modelopt", quant_algo="NVFP4", group_size=group)
    assert f"weight_scale F8_E4M3 {scales}" in found


@pytest.mark.parametrize(
    ("raw", "parts"),
    [
        ({"quant_method": "fp8"}, "weight F8_E4M3 512x256, weight_scale F32 1"),
        ({"quant_method": "fbgemm_fp8"}, "weight F8_E4M3 512x256, weight_scale F32 512x1"),
        ({"quant_method": "awq"}, "qweight I32 256x64, scales F16 2x512, qzeros I32 2x64"),
        ({"quant_method": "awq", "zero_point": False}, "qweight I32 256x64, scales F16 2x512"),
        (
            {"quant_method": "awq", "w_bit": 4, "q_group_size": 64},
            "qweight I32 256x64, scales F16 4x512, qzeros I32 4x64",
        ),
        (
            {"quant_method": "gptq", "bits": 4},
            "qweight I32 32x512, qzeros I32 2x64, scales F16 2x512, g_idx I32 256",
        ),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {r"+:.*up_proj": {"bits": 8, "group_size": 64}}},
            "qweight I32 64x512, qzeros I32 4x128, scales F16 4x512, g_idx I32 256",
        ),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {r".*down_proj": {"bits": 8}}},
            "qweight I32 32x512, qzeros I32 2x64, scales F16 2x512, g_idx I32 256",
        ),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {r"-:.*up_proj": {}}}, "weight BF16 512x256"),
        (
            {"quant_method": "torchao", "quant_type": "int4_weight_only"},
            "weight_qdata U8 512x128, weight_scale BF16 2x512, weight_zero_point BF16 2x512",
        ),
        (
            {"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 64}},
            "weight_qdata U8 512x128, weight_scale BF16 4x512, weight_zero_point BF16 4x512",
        ),
        (
            {"quant_method": "torchao", "quant_type": "int8_weight_only"},
            "weight_qdata I8 512x256, weight_scale F32 512x1",
        ),
        (
            {"quant_method": "exl3", "bits": 4},
            "trellis I16 16x32x64, suh F16 256, svh F16 512",
        ),
    ],
    ids=lambda item: str(item)[:70],
)
def test_other_methods(raw: dict[str, Any], parts: str) -> None:
    """Options that are left out have the library's values."""
    assert stored(**raw) == parts


def test_heads_of_gptq_and_exl3() -> None:
    """lm_head is dense unless lm_head is set; EXL3's has 6 bits."""

    def head(**quantization: Any) -> set[str]:
        model = build({**LLAMA, "quantization_config": quantization})
        form = formats.of_config(model.config)
        parts = next(form.stored(tensor, model) for tensor in model.tensors if tensor.role == "lm_head")
        return {f"{p.name.removeprefix('lm_head.')} {p.dtype} {'x'.join(map(str, p.shape))}" for p in parts}

    dynamic = {"quant_method": "gptq", "bits": 4, "dynamic": {r".*down_proj": {"bits": 8}}}
    for base in ({"quant_method": "gptq", "bits": 4}, dynamic):
        assert head(**base) == {"weight BF16 512x256"}
        assert "qweight I32 32x512" in head(**base, lm_head=True)
    assert "trellis I16 16x32x96" in head(quant_method="exl3", bits=4)


def test_torchao_by_module_is_refused() -> None:
    """Rules by module beside the default have no reader."""
    one = {"_type": "Int8WeightOnlyConfig", "_data": {}}
    assert stored(quant_method="torchao", quant_type={"default": one}).startswith("weight_qdata I8")
    for kind in ({"default": one, "lm_head": one}, {"lm_head": one}, {"default": "int8"}):
        with pytest.raises(FormatError, match="rules by module"):
            stored(quant_method="torchao", quant_type=kind)
