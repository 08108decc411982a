"""Weight formats: known sizes, names, and the sums that hold for any model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from membudget import formats
from membudget.formats import FormatError, UnknownFormat, get, names
from membudget.formats.base import Weights, is_layer_matrix
from membudget.formats.dtypes import DTYPE_BITS
from membudget.model import Config, Model, build
from membudget.model.tensors import Tensor
from tests_math.strategies import llama_configs

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
PUBLISHED = yaml.safe_load((Path(__file__).parents[2] / "fixtures" / "sizes.yaml").read_text(encoding="utf-8"))[
    "safetensors"
]

LLAMA_8B = "meta-llama/Llama-3.1-8B"
LAYERS = 6_979_321_856  # weights in the layers' matrices: 32 x (41,943,040 + 176,160,768)
DENSE = 2 * 525_336_576 * 2 + (32 * 8192 + 4096) * 2  # embedding, head and norms in 16 bits

# Llama-3.1-8B: bytes of all tensors, from the layouts as the libraries document them
KNOWN = {
    "fp32": 32_121_044_992,
    "bf16": 16_060_522_496,
    "fp16": 16_060_522_496,
    "fp8": 9_081_201_536,
    "fp8-static": 9_081_202_432,
    "awq": 5_727_854_592,
    "gptq": 5_732_835_328,
    "w4a16": 5_700_595_200,
    "nvfp4": 6_027_749_120,
    "mxfp4": 5_809_643_520,
    "nf4-dq": 5_702_295_552,
    "nf4": LAYERS // 2 + LAYERS // 64 * 4 + DENSE,
    "int8-bnb": LAYERS + 32 * (4096 * 2 + 1024 * 2 + 14336 * 2 + 4096) * 4 + DENSE,
    "w8a8": LAYERS + 32 * (4096 * 2 + 1024 * 2 + 14336 * 2 + 4096) * 2 + DENSE,
    "fp8-channel": LAYERS + 32 * (4096 * 2 + 1024 * 2 + 14336 * 2 + 4096) * 2 + DENSE,
    "mxfp8": LAYERS + LAYERS // 32 + DENSE,
    "int8-torchao": LAYERS + 32 * (4096 * 2 + 1024 * 2 + 14336 * 2 + 4096) * 4 + DENSE,
    "w8a16": LAYERS + LAYERS // 128 * 2 + 224 * 16 + DENSE,
    "w4a16-g32": LAYERS // 2 + LAYERS // 32 * 2 + 224 * 16 + DENSE,
    "w4a16-asym": 5_700_595_200 + LAYERS // 128 // 2,
    # an int32 for every input of a matrix: what GPTQ has more than AWQ
    "w4a16-actorder": 5_700_595_200 + 32 * (6 * 4096 + 14336) * 4,
    "gptq-8bit-g32": LAYERS + LAYERS // 32 * 3 + 32 * (6 * 4096 + 14336) * 4 + DENSE,
    "hqq-8bit-g128": LAYERS + LAYERS // 128 * 4 + DENSE,
    "fp4": LAYERS // 2 + LAYERS // 64 * 4 + DENSE,
    # signs of both sides, and the head at 6 bits
    "exl3-4.0": LAYERS // 2
    + 32 * (6 * 4096 + 14336 + 4096 * 3 + 1024 * 2 + 14336 * 2) * 2
    + 525_336_576 * 3 // 4
    + (4096 + 128_256) * 2
    + 525_336_576 * 2
    + (32 * 8192 + 4096) * 2,
    "fp8-block": LAYERS + LAYERS // 16384 * 4 + DENSE,
    "hqq": LAYERS // 2 + LAYERS // 64 * 4 + DENSE,
    "int4-torchao": LAYERS // 2 + LAYERS // 128 * 4 + DENSE,
}


@pytest.mark.parametrize(("name", "size"), KNOWN.items())
def test_known_size(name: str, size: int, model: Get) -> None:
    """Llama-3.1-8B in each safetensors format, to the byte."""
    assert get(name).weigh(model(LLAMA_8B)).total == size


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checkpoint(name: str, model: Get) -> None:
    """Published checkpoints: total_size to the byte, or files that differ by their headers alone."""
    entry = PUBLISHED[name]
    known = model(entry["config"])
    form = formats.of_config(known.config) if entry["format"] == "declared" else get(entry["format"])
    if "total_size" in entry and name == "DeepSeek-V3-AWQ":
        # without the MTP layer, and with the router's 58 x 256 correction biases in 16 bits
        assert form.weigh(known).total + 58 * 256 * 2 == entry["total_size"]
    elif "with_buffers" in entry:
        assert form.weigh(known, total="checkpoint").total == entry["with_buffers"]
    elif "mtp" in entry:
        assert form.weigh(known, total="checkpoint").total + entry["mtp"] == entry["total_size"]
        layer = [tensor for tensor in known.tensors if tensor.name.startswith("model.layers.5.")]
        assert 0.9 < sum(i.total for tensor in layer for i in form.stored(tensor, known)) / entry["mtp"] < 1.1
    elif "total_size" in entry:
        assert form.weigh(known).total == entry["total_size"]
    else:
        total = form.weigh(known, total="checkpoint").total
        stored = sum(item.copies for tensor in known.tensors for item in form.stored(tensor, known))
        # a header spends between 80 and 200 bytes on a tensor
        assert 80 * stored < entry["files"] - total < 200 * stored


@pytest.mark.parametrize(
    ("name", "bits"), {"q8_0": 8.5, "awq": 4.15625, "w4a16": 4.125, "nvfp4": 4.5, "mxfp4": 4.25, "bf16": 16}.items()
)
def test_true_bits(name: str, bits: float, model: Get) -> None:
    """ "4-bit" is never 4.0: bits of one layer weight, scales and zero points included."""
    assert get(name).weigh(model(LLAMA_8B)).bits_per_layer_weight == pytest.approx(bits, abs=1e-5)


def test_parameters_do_not_depend_on_the_format(model: Get) -> None:
    """A packed checkpoint has fewer elements; the model has as many parameters as before."""
    assert model("openai/gpt-oss-20b").count.params == 20_914_757_184
    assert model("Qwen/Qwen2.5-7B").count.params == 7_615_616_512
    packed = get("awq").weigh(model("Qwen/Qwen2.5-7B"))
    elements = sum(size * 8 // DTYPE_BITS[dtype] for dtype, size in packed.by_dtype.items())
    assert elements < 7_615_616_512 // 3


def test_awq_tensors(model: Get) -> None:
    """AWQ stores a linear layer of (out, in) as three tensors that run along in."""
    llama = model(LLAMA_8B)
    [up] = [tensor for tensor in llama.tensors if tensor.name == "model.layers.0.mlp.up_proj.weight"]
    assert [(item.name, item.dtype, item.shape) for item in get("awq").stored(up, llama)] == [
        ("model.layers.0.mlp.up_proj.qweight", "I32", (4096, 1792)),
        ("model.layers.0.mlp.up_proj.scales", "F16", (32, 14336)),
        ("model.layers.0.mlp.up_proj.qzeros", "I32", (32, 1792)),
    ]


def test_gpt_oss_tensors(model: Get) -> None:
    """gpt-oss packs its experts in blocks of 32 with a scale each and keeps the rest in bf16."""
    oss = model("openai/gpt-oss-20b")
    form = formats.of_config(oss.config)
    stored = {item.name: item for tensor in oss.tensors for item in form.stored(tensor, oss)}
    at = "model.layers.0.mlp.experts."
    assert stored[at + "gate_up_proj_blocks"][1:3] == ("U8", (32, 5760, 90, 16))
    assert stored[at + "gate_up_proj_scales"][1:3] == ("U8", (32, 5760, 90))
    assert stored[at + "down_proj_bias"][1:3] == ("BF16", (32, 2880))
    assert stored["model.layers.0.self_attn.q_proj.weight"].dtype == "BF16"
    assert len(stored) == 459  # tensors of the published files


def test_stacked_experts_are_stored_apart(model: Get) -> None:
    """Experts that a model stacks are matrices of their own in a packed file: each has its scales."""
    gemma = model("google/gemma-4-26B-A4B")
    [both] = [tensor for tensor in gemma.tensors if tensor.name.endswith("layers.0.experts.gate_up_proj")]
    assert (both.shape, both.copies) == ((1408, 2816), 128)
    stored = get("nvfp4").stored(both, gemma)
    at = both.name.removesuffix("gate_up_proj")
    assert [(item.name.removeprefix(at), item.shape, item.copies) for item in stored] == [
        (f"*.{part}.{suffix}", shape, 128)
        for part in ("gate_proj", "up_proj")
        for suffix, shape in (
            ("weight", (704, 1408)), ("weight_scale", (704, 176)), ("weight_scale_2", ()), ("input_scale", ())
        )
    ]  # fmt: skip
    assert sum(item.total for item in stored) == get("nvfp4").layout(both, gemma).nbytes * 128
    [dense] = get("bf16").stored(both, gemma)
    assert (dense.name, dense.shape, dense.copies) == (both.name, (128, 1408, 2816), 1)


def test_conv1d_is_transposed(model: Get) -> None:
    """GPT-2 keeps its weights as (in, out): a scale a row is one for each of the outputs."""
    gpt = model("openai-community/gpt2-medium")
    [c_attn] = [tensor for tensor in gpt.tensors if tensor.name.endswith("h.0.attn.c_attn.weight")]
    assert c_attn.shape == (1024, 3072)
    assert [item.shape for item in get("int8-bnb").stored(c_attn, gpt)][1] == (3072,)


def test_active_bytes(model: Get) -> None:
    """One token reads the active experts and one row of the table; a tied table is read whole, as the head."""
    moe = model("Qwen/Qwen3-30B-A3B")
    weights = get("bf16").weigh(moe)
    table = 151_936 * 2048
    assert weights.active == 2 * (moe.count.active - table + 2048)
    tied = model("meta-llama/Llama-3.2-1B")
    assert get("bf16").weigh(tied).active == 2 * tied.count.params


def test_weights_are_kept_on_the_model(model: Get) -> None:
    """Weighing twice gives the same object."""
    llama = model(LLAMA_8B)
    assert get("awq").weigh(llama) is get("awq").weigh(llama)


def test_why_has_the_numbers(model: Get) -> None:
    """The reason states weights, bits and bytes."""
    assert get("awq").weigh(model(LLAMA_8B)).why == (
        "6,979,321,856 layer weights x 4.1562 bits = 3,625,975,808 B; 1,050,939,392 others take 2,101,878,784 B"
    )


@pytest.mark.parametrize(
    ("spelled", "canonical"),
    {
        "BF16": "bf16", "bfloat16": "bf16", "f16": "fp16", "Float16": "fp16", "Q4_K_M": "q4_k_m", "q4-k-m": "q4_k_m",
        "FP8_BLOCK": "fp8-block", "fp8_dynamic": "fp8-channel", "AWQ-G64": "awq-g64", "bnb-nf4": "nf4",
        "torchao-int4": "int4-torchao", "exl3-4.0": "exl3-4.0", "gptq-int8": "gptq-8bit", " w4a16 ": "w4a16",
    }.items(),
)  # fmt: skip
def test_spellings(spelled: str, canonical: str) -> None:
    """Common spellings, in any case, are the same format."""
    assert get(spelled).key == get(canonical).key


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("q4km", r"unknown format 'q4km': did you mean q4_k_m"),
        ("int3", r"Known are fp32, bf16"),
        ("", r"unknown format ''"),
        ("awq-asym", r"option 'asym' is not known; awq takes -gN"),
        ("awq-g", r"option 'g' is not known; awq takes -gN"),
        ("gptq-g32-g64", r"option 'g64' is given twice"),
        ("x" * 1000, r"unknown format 'x+\.\.\.'"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    """An unknown name is an error that says what is near and what is known."""
    with pytest.raises(UnknownFormat, match=message):
        get(name)


def test_an_average_is_no_layout() -> None:
    """EXL3 at 4.25 bits does not say which matrix has how many: refused, with what to name instead."""
    with pytest.raises(FormatError, match=r"4\.25 bits is an average.*exl3-4\.0 and -5\.0"):
        get("exl3-4.25")


def test_every_format_is_described() -> None:
    """Each name has a row with its bits, what stays dense, and a source."""
    rows = formats.describe()
    assert [row.name for row in rows] == names()
    assert all(row.bits and row.dense and row.source for row in rows)
    assert len(set(names())) == len(names())


@pytest.mark.parametrize("name", names())
def test_bits_are_as_described(name: str, model: Get) -> None:
    """The table's bits a layer weight are what Llama-3.1-8B comes out at."""
    [row] = [row for row in formats.describe() if row.name == name]
    numbers = [float(word) for word in row.bits.replace("experts,", " ").split() if word.replace(".", "").isdigit()]
    bits = get(name).weigh(model(LLAMA_8B)).bits_per_layer_weight
    assert min(numbers) - 0.06 <= bits <= max(numbers) + 0.02


def test_indivisible_group_is_an_error() -> None:
    """A width that the group size does not divide names the tensor, the width and the group."""
    config = {
        "model_type": "llama", "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 1,
        "num_attention_heads": 4, "vocab_size": 32,
    }  # fmt: skip
    with pytest.raises(FormatError, match=r"awq: model\.layers\.0\.self_attn\.q_proj.*96 is not divisible by 128"):
        get("awq").weigh(build(config))


@settings(max_examples=60, deadline=None)
@given(config=llama_configs())
def test_sums(config: dict[str, Any]) -> None:
    """For any Llama and any format: parts sum to the total, and the stored tensors are exactly that."""
    model = build(config)
    for name in ("fp32", "bf16", "fp8-channel", "fp8-block", "w8a8", "w4a16", "int8-bnb", "nf4-dq"):
        form = get(name)
        for total in ("params", "checkpoint"):
            weights = form.weigh(model, total=total)
            assert weights.total == sum(weights.by_role.values()) == sum(weights.by_dtype.values())
            assert 0 < weights.active <= weights.total
        stored = [item for tensor in model.tensors for item in form.stored(tensor, model)]
        assert sum(item.total for item in stored) == weights.total
        for item in stored:
            size = DTYPE_BITS[item.dtype] // 8
            for extent in item.shape:
                size *= extent
            assert item.nbytes == size


@settings(max_examples=60, deadline=None)
@given(config=llama_configs())
def test_fewer_bits_take_fewer_bytes(config: dict[str, Any]) -> None:
    """fp32 is twice bf16, and bf16 is more than 8 bits wherever scales are small beside the weights."""
    model = build(config)
    bf16 = get("bf16").weigh(model).total
    assert get("fp32").weigh(model).total == 2 * bf16 == 2 * get("fp16").weigh(model).total
    assert get("nf4").weigh(model).total <= get("int8-bnb").weigh(model).total + 4 * len(model.tensors)


def test_format_of_a_plain_config(model: Get) -> None:
    """A config without quantization_config is published in its dtype; without a dtype it is an error."""
    assert formats.of_config(model(LLAMA_8B).config).name == "bf16"
    with pytest.raises(FormatError, match="has no dtype and no quantization_config; name its format: --format"):
        formats.of_config(Config({"model_type": "llama"}))


def test_bits_are_in_the_name() -> None:
    """Every dtype of a safetensors header has its bits in its name, but BOOL, which takes a byte."""
    for name, bits in DTYPE_BITS.items():
        number = re.search("[0-9]+", name)
        assert bits == (int(number[0]) if number else 8)
    assert len(DTYPE_BITS) == 22


@pytest.mark.parametrize(
    ("name", "shape", "role", "compressed"),
    [
        ("mlp.up_proj.weight", (8, 16), "mlp", True),
        ("mlp.up_proj.weight", (2, 16), "mlp", True),
        ("mlp.up_proj.weight", (16, 2), "mlp", True),
        ("mlp.shared_expert_gate.weight", (1, 16), "mlp.shared", False),
        ("self_attn.g.weight", (16, 1), "attn", False),
        ("mlp.up_proj.bias", (8,), "mlp", False),
        ("mlp.gate.weight", (8, 16), "mlp.router", False),
        ("mixer.conv1d.weight", (16, 4), "mixer", False),
        ("mixer.conv.weight", (16, 1, 4), "mixer", False),
        ("self_attn.q_norm.weight", (4, 16), "attn", False),
        ("self_attn.indexer.weights_proj.weight", (4, 16), "attn.indexer", False),
        ("self_attn.indexer.wk.weight", (4, 16), "attn.indexer", True),
        ("experts.gate_up_proj", (4, 8, 16), "mlp.experts", True),
        ("experts.gate_up_proj_bias", (4, 8), "mlp.experts", False),
        ("experts.down.bias", (4, 8), "mlp.experts", False),
        ("mlp.up_proj", (4, 8), "mlp", False),
        ("mlp.wide.weight", (4, 8, 16), "mlp", False),
        ("embed_tokens.weight", (8, 16), "embed", False),
        ("lm_head.weight", (8, 16), "lm_head", False),
        ("patch.weight", (8, 16), "vision", False),
    ],
)
def test_what_formats_compress(name: str, shape: tuple[int, ...], role: str, compressed: bool) -> None:
    """Matrices of layers' linear maps; no rows, routers, convolutions, norms, biases, tables or towers."""
    assert is_layer_matrix(Tensor(f"model.layers.0.{name}", shape, role)) is compressed


def test_a_model_without_matrices_has_no_bits() -> None:
    """0 bytes of 0 weights are 0 bits."""
    weights = Weights(8, {}, {}, (0, 0), 8, "")
    assert weights.bits_per_layer_weight == 0.0
    assert weights._replace(layer_bits=(17, 32)).bits_per_layer_weight == 4.25


def test_a_format_shows_its_name() -> None:
    """In a failing test."""
    assert repr(get("q4_k_m")) == "<Format q4_k_m>"


def test_total_is_one_of_two(model: Get) -> None:
    """`params` or `checkpoint`; anything else is an error, asked first or again."""
    for _ in range(2):
        with pytest.raises(FormatError, match="total is 'all'; allowed are 'params' and 'checkpoint'"):
            get("bf16").weigh(model(LLAMA_8B), total="all")
