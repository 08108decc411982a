"""Quantization that names modules, and keys that change bytes: read, or refused by name."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from membudget import formats
from membudget.errors import MembudgetError
from membudget.formats import FormatError, registry
from membudget.formats.modules import matcher
from membudget.model import Model, build

pytestmark = pytest.mark.math

LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512,
    "intermediate_size": 512, "num_key_value_heads": 4, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
#: Elements of a square matrix, of gate, up or down, of the table, and of the norms.
SQUARE, WIDE, TABLE, NORMS = 256 * 256, 256 * 512, 512 * 256, 5 * 256
DENSE = 2 * (2 * (4 * SQUARE + 3 * WIDE) + 2 * TABLE + NORMS)


def model(**quantization: Any) -> Model:
    """A small Llama with this quantization_config."""
    return build({**LLAMA, "quantization_config": quantization})


def size(built: Model) -> int:
    """Its weights in bytes."""
    return formats.of_config(built.config).weigh(built).total


def gptq(elements: int, out: int, into: int, group: int = 128) -> int:
    """4-bit GPTQ of one matrix by hand: weights, zeros in 4 bits and fp16 scales a group, g_idx in int32."""
    groups = into // group
    return elements // 2 + groups * out // 2 + groups * out * 2 + into * 4


def test_auto_round_blocks_and_modules() -> None:
    """block_name_to_quantize leaves other blocks dense; extra_config a module; a pattern is an expression."""
    base = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "packing_format": "auto_round:auto_gptq"}
    whole = DENSE - 2 * (4 * (2 * SQUARE - gptq(SQUARE, 256, 256)) + 2 * (2 * WIDE - gptq(WIDE, 512, 256)))
    whole -= 2 * (2 * WIDE - gptq(WIDE, 256, 512))
    assert size(model(**base)) == whole
    first = model(**base, block_name_to_quantize="model.layers.0")
    assert size(first) == (DENSE + whole) // 2
    one = model(**base, extra_config={"model.layers.0.self_attn.q_proj": {"bits": 16}})
    assert size(one) == whole + 2 * SQUARE - gptq(SQUARE, 256, 256)
    both = model(**base, extra_config={r"model\.layers\.\d+\.self_attn\.q_proj": {"bits": 16}})
    assert size(both) == whole + 2 * (2 * SQUARE - gptq(SQUARE, 256, 256))


def test_gptq_of_some_modules() -> None:
    """modules_in_block_to_quantize: those alone, in lists of any depth."""
    base = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    q = 2 * (2 * SQUARE - gptq(SQUARE, 256, 256))
    assert size(model(**base, modules_in_block_to_quantize=[["self_attn.q_proj"]])) == DENSE - q
    assert size(model(**base, modules_in_block_to_quantize=["self_attn.q_proj", ["self_attn.k_proj"]])) == DENSE - 2 * q


def test_hqq_by_module() -> None:
    """A setting by name: 4 bits and two bf16 numbers a group of 64 for that module, all others dense."""
    settings = {"self_attn.q_proj": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}
    saved = 2 * (2 * SQUARE - (SQUARE // 2 + 2 * 2 * SQUARE // 64))
    assert size(model(quant_method="hqq", quant_config=settings)) == DENSE - saved


@pytest.mark.parametrize(("bits", "group"), [(4, 64), (8, 64), (4, 32), (6, 64), (3, 32)])
def test_mlx(bits: int, group: int) -> None:
    """Every matrix and table: its bits, and a scale and a bias in bf16 a group; a module may be left out."""
    packed = (DENSE // 2 - NORMS) * bits // 8 + (DENSE // 2 - NORMS) // group * 4 + 2 * NORMS
    built = build({**LLAMA, "quantization": {"bits": bits, "group_size": group}})
    assert size(built) == packed
    kept = build({**LLAMA, "quantization": {"bits": bits, "group_size": group, "lm_head": False}})
    assert size(kept) == packed + 2 * TABLE - TABLE * bits // 8 - TABLE // group * 4


def test_torchao_embeddings() -> None:
    """include_input_output_embeddings: table and head in int8 with an fp32 scale a row."""
    base = {"quant_method": "torchao", "quant_type": "int8_weight_only"}
    inside = size(model(**base, include_input_output_embeddings=True))
    assert size(model(**base)) - inside == 2 * (2 * TABLE - TABLE - 512 * 4)


@pytest.mark.parametrize(
    ("quantization", "key"),
    [
        ({"quant_method": "awq", "bits": 4, "modules_in_block_to_quantize": [["q_proj"]]}, "modules_in_block"),
        ({"quant_method": "gptq", "bits": 4, "extra_config": {"lm_head": {"bits": 8}}}, "extra_config"),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "is_marlin_format"),
        ({"quant_method": "fp8", "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        (
            {"quant_method": "torchao", "quant_type": "int4_weight_only", "include_input_output_embeddings": True},
            "incl",
        ),
        (
            {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_awq", "extra_config": 3},
            "extra",
        ),
        ({"bits": 7, "group_size": 64}, "7 bits"),
    ],
)
def test_what_is_not_read_is_refused(quantization: dict[str, Any], key: str) -> None:
    """A key that changes bytes and that the method does not read is an error that names it."""
    with pytest.raises(FormatError, match=key):
        size(model(**quantization))


def test_dense_sparsity_is_none() -> None:
    """llm-compressor writes a sparsity_config of format dense, which stores nothing else."""
    assert size(model(quant_method="fp8", sparsity_config={"format": "dense"})) == size(model(quant_method="fp8"))


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("lm_head.weight", "lm_head", True),
        ("lm_head", "lm_head", True),
        ("mlp.gate.weight", "model.layers.3.mlp.gate", True),
        ("mlp.gate.weight", "model.layers.3.mlp.gate_proj", False),
        (r"re:.*\.gate\.weight", "model.layers.3.mlp.gate", False),
        (r"re:.*\.gate$", "model.layers.3.mlp.gate", True),
        ("model.layers.3.*", "model.layers.3.mlp.gate", True),
        ("model.layers.3.*", "model.layers.30.mlp.gate", False),
        ("*.gate", "model.layers.3.mlp.gate", True),
    ],
)
def test_names_of_modules(pattern: str, name: str, matches: bool) -> None:
    """A parameter's name stands for its module; an expression is taken as it is."""
    assert matcher([pattern], "config.json")(name) is matches


@pytest.mark.parametrize(
    "pattern", ["re:(?=(a*)(b*)(c*)(d*)(e*))x", "re:(?!.*a.*b.*c.*d.*e)x", "re:(?:a*b*c*|d*e*f*g*h*)x"]
)
def test_expressions_that_would_try_for_ever(pattern: str) -> None:
    """In a look-ahead or an alternative as anywhere else."""
    with pytest.raises(FormatError):
        matcher([pattern], "config.json")


def test_what_is_common_of_a_model_in_mxfp4() -> None:
    """gpt-oss: its experts stay as they are in every published file; mixes that make them anew are not published."""
    assert [registry.common(name, "mxfp4") for name in ("mxfp4", "mxfp4_moe", "Q4_K_M", "bf16")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert [registry.common(name) for name in ("bf16", "mxfp4")] == [True, False]


def deep(levels: int) -> Any:
    """A name in so many lists."""
    value: Any = "self_attn.q_proj"
    for _ in range(levels):
        value = [value]
    return value


def test_lists_of_any_depth_and_length(tmp_path: Path) -> None:
    """Deeper than any file needs, or longer than any model has modules: refused by name."""
    base = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    assert size(model(**base, modules_in_block_to_quantize=deep(3))) < DENSE
    for levels in (40, 400, 800, 900, 940, 960, 980, 990, 5000):
        path = tmp_path / "config.json"
        nested = f'{"[" * levels}"self_attn.q_proj"{"]" * levels}'
        text = json.dumps({**LLAMA, "quantization_config": {**base, "modules_in_block_to_quantize": "@"}})
        path.write_text(text.replace('"@"', nested), encoding="utf-8")
        with contextlib.suppress(MembudgetError):  # no RecursionError
            assert size(build(str(path))) < DENSE
    for number, code in ((10_000, None), (10_001, "modules_in_block")):
        names = [[f"module{index}"] for index in range(number)]
        if code:
            with pytest.raises(FormatError, match=code):
                size(model(**base, modules_in_block_to_quantize=names))
        else:
            assert size(model(**base, modules_in_block_to_quantize=names)) == DENSE
    with pytest.raises(FormatError, match="modules_in_block"):
        size(model(**base, modules_in_block_to_quantize=[["self_attn.q_proj", 3]]))


def test_defaults_of_options() -> None:
    """AutoRound's group of 128; HQQ's and mlx's 4 bits and group of 64; either name for a head that is packed."""
    base = {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"}
    assert size(model(**base)) == size(model(**base, group_size=128))
    packed = size(model(**base)) - (2 * TABLE - gptq(TABLE, 512, 256))
    assert size(model(**base, lm_head=True)) == size(model(**base, quant_lm_head=True)) == packed
    quant = {"weight_quant_params": {"nbits": 4, "group_size": 64}}
    assert size(model(quant_method="hqq", quant_config={"weight_quant_params": {}})) == size(
        model(quant_method="hqq", quant_config=quant)
    )
    assert size(model(quant_method="hqq", quant_config={"nbits": 4, "group_size": 64})) == size(
        model(quant_method="hqq", quant_config=quant)
    )
    whole = build({**LLAMA, "quantization": {"bits": 4, "group_size": 64}})
    assert size(build({**LLAMA, "quantization": {"bits": 4}})) == size(whole)
    odd = build({**LLAMA, "hidden_size": 288, "quantization": {"bits": 4, "group_size": 64}})
    names = {
        item.name: item.dtype for tensor in odd.tensors for item in formats.of_config(odd.config).stored(tensor, odd)
    }
    assert names["model.layers.0.mlp.up_proj.weight"] == "BF16"  # 288 is no multiple of 64
    assert names["model.layers.0.mlp.down_proj.weight"] == "U32"
    assert names["model.norm.weight"] == "BF16"
