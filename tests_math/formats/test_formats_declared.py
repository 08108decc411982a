"""Formats that a checkpoint declares: every quant_method, the modules left alone, and hostile patterns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membudget.formats import FormatError, get, of_config
from membudget.formats.modules import matcher, module_of
from membudget.model import Config, Model, build

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
LLAMA = "meta-llama/Llama-3.1-8B"


def group(weights: dict[str, Any], targets: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """A compressed-tensors config with one group."""
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": targets or ["Linear"], "weights": weights, **more}},
        "ignore": ["lm_head"],
    }


W4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
FP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}

#: A quantization_config and the named format that stores the same bytes on Llama-3.1-8B.
SAME = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, "awq"),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, "gptq"),
    "gptq-8bit": ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "gptq-8bit-g32"),
    "gptq-skipping-nothing": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*absent": {}}},
        "gptq",
    ),
    "auto-round": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 128, "packing_format": "auto_round:auto_gptq"},
        "gptq",
    ),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
    "fp8-static": ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8-static"),
    "fp8-block": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block"),
    "w4a16": (group(W4, format="pack-quantized"), "w4a16"),
    "w4a16-asym": (group({**W4, "symmetric": False}), "w4a16-asym"),
    "w4a16-actorder": (group({**W4, "actorder": "group"}), "w4a16-actorder"),
    "w8a8": (
        {**group({"num_bits": 8, "type": "int", "strategy": "channel"}), "format": "int-quantized"},
        "w8a8",
    ),
    "fp8-channel": (group(FP8), "fp8-channel"),
    "mxfp4": (group({**FP4, "group_size": 32, "strategy": "group"}), "mxfp4"),
    "nvfp4": (group(FP4, input_activations={**FP4, "dynamic": "local"}), "nvfp4"),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}, "nvfp4"),
    "modelopt-fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8-static"),
    "nf4-dq": (
        {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
        },
        "nf4-dq",
    ),
    "int8-bnb": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8-bnb"),
    "hqq": ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, "hqq"),
    "torchao": (
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {}}}},
        "int4-torchao",
    ),
    "exl3": ({"quant_method": "exl3", "bits": 4.0, "head_bits": 6}, "exl3-4.0"),
}


def declared(raw: dict[str, Any], base: dict[str, Any]) -> Model:
    """The model with this quantization_config."""
    return build({**base, "quantization_config": raw})


@pytest.mark.parametrize("case", SAME)
def test_declared_equals_named(case: str, model: Get, raw_config: Callable[[str], dict[str, Any]]) -> None:
    """What a config declares weighs what the same format weighs by name."""
    raw, name = SAME[case]
    assert raw
    made = declared(raw, raw_config(LLAMA))
    assert of_config(made.config).weigh(made).total == get(name).weigh(model(LLAMA)).total


def test_modules_left_alone(raw_config: Callable[[str], dict[str, Any]]) -> None:
    """Modules that a config does not convert stay in 16 bits: FBGEMM's first and last layers of the 405B."""
    config = raw_config("meta-llama/Llama-3.1-405B-Instruct-FP8")
    model = build(config)
    form = of_config(model.config)
    kept = {tensor.name for tensor in model.tensors for item in form.stored(tensor, model) if item.dtype == "BF16"}
    skipped = config["quantization_config"]["modules_to_not_convert"]
    assert {name + ".weight" for name in skipped} <= kept
    assert "model.layers.1.mlp.up_proj.weight" not in kept


def test_text_model_may_declare_it(raw_config: Callable[[str], dict[str, Any]]) -> None:
    """Kimi-K2.5 declares its format inside text_config and packs nothing but the routed experts."""
    model = build(raw_config("moonshotai/Kimi-K2.5"))
    form = of_config(model.config)
    packed = {tensor.role for tensor in model.tensors for item in form.stored(tensor, model) if item.dtype == "I32"}
    assert packed == {"mlp.experts"}


def test_wildcards_and_prefixes(raw_config: Callable[[str], dict[str, Any]]) -> None:
    """ModelOpt names modules by wildcards and by the multimodal model's names."""
    model = build(raw_config("nvidia/Kimi-K2.5-NVFP4"))
    form = of_config(model.config)
    kinds: dict[str, set[str]] = {}
    for tensor in model.tensors:
        for item in form.stored(tensor, model):
            kinds.setdefault(tensor.role, set()).add(item.dtype)
    assert kinds["attn"] == kinds["lm_head"] == {"BF16"}
    assert "U8" in kinds["mlp.experts"]


def test_hf_quant_config(model: Get) -> None:
    """ModelOpt's own file, given beside a plain config, decides."""
    llama = model(LLAMA)
    content = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}
    assert of_config(llama.config, content).weigh(llama).total == get("nvfp4").weigh(llama).total


def test_mixed_precision_names_its_layers(raw_config: Callable[[str], dict[str, Any]]) -> None:
    """MIXED_PRECISION stores the layers that it names and leaves the others alone."""
    raw = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"},
            "model.layers.1.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16},
        },
    }
    model = declared(raw, raw_config(LLAMA))
    form = of_config(model.config)
    up = {tensor.name: form.stored(tensor, model)[0].dtype for tensor in model.tensors if "up_proj" in tensor.name}
    assert up.pop("model.layers.0.mlp.up_proj.weight") == "F8_E4M3"
    assert up.pop("model.layers.1.mlp.up_proj.weight") == "U8"
    assert set(up.values()) == {"BF16"}


def test_mixed_precision_as_published(model: Get) -> None:
    """config_groups beside quantized_layers: nvidia/Qwen3.6-35B-A3B-NVFP4, 23.4 GB (noonghunna/club-3090 pull 607).

    Its head in bf16 would add 0.7 GB, its linear attention 0.8 GB.
    """
    mixed = model("nvidia/Qwen3.6-35B-A3B-NVFP4")
    form = of_config(mixed.config)
    assert round(form.weigh(mixed, total="checkpoint").total / 1e9, 1) == 23.4
    kinds: dict[str, set[str]] = {}
    for tensor in mixed.tensors:
        kinds.setdefault(tensor.role, set()).add(form.stored(tensor, mixed)[0].dtype)
    # the same file as two loaders found it: a packed head, fp8 attention, MTP left alone
    assert kinds["lm_head"] == kinds["mlp.experts"] == {"U8"}
    assert "F8_E4M3" in kinds["attn"]
    assert kinds["mtp"] == {"BF16"}


MIXED = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "FP8"}},
}


@pytest.mark.parametrize(
    ("target", "bits", "message"),
    [
        ("model.layers.0.mlp.up_proj", 4, r"config_groups\.group_0\.targets has .*up_proj in 4 bits; .* has FP8"),
        ("model.layers.1.mlp.up_proj", 8, r"in 8 bits; quantized_layers does not name it"),
    ],
)
def test_mixed_precision_that_contradicts_itself(
    target: str, bits: int, message: str, raw_config: Callable[[str], dict[str, Any]]
) -> None:
    """Groups that say another thing than the layers are refused, with the layer."""
    groups = {"group_0": {"targets": [target], "weights": {"num_bits": bits, "type": "float"}}}
    broken = declared({**MIXED, "config_groups": groups}, raw_config(LLAMA))
    with pytest.raises(FormatError, match=message):
        of_config(broken.config)


def test_groups_of_activations_alone(raw_config: Callable[[str], dict[str, Any]]) -> None:
    """A group without weights stores nothing and contradicts nothing."""
    groups = {"group_0": {"targets": ["Linear"], "input_activations": {"num_bits": 8}}}
    plain, more = (declared(raw, raw_config(LLAMA)) for raw in (MIXED, {**MIXED, "config_groups": groups}))
    assert of_config(more.config).weigh(more).total == of_config(plain.config).weigh(plain).total


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"quant_method": "aqlm"}, r"quant_method 'aqlm' is not known; known are auto-round, awq"),
        ({"quant_method": "awq", "bits": 3}, r"quantization_config\.bits is 3; allowed is 4"),
        ({"quant_method": "gptq"}, r"quantization_config\.bits is None"),
        ({"quant_method": "gptq", "bits": 5}, r"5 bits is not packed"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, r"weight_block_size is \[0, 128\]"),
        ({"quant_method": "bitsandbytes"}, r"neither load_in_4bit nor load_in_8bit"),
        ({"quant_method": "modelopt", "quant_algo": "FP3"}, r"quant_algo is 'FP3'"),
        (
            {"quant_method": "awq", "modules_to_not_convert": "lm_head"},
            r"modules_to_not_convert is not a list of strings",
        ),
        ({"quant_method": "exl3", "bits": 4.25}, r"bits is 4\.25; allowed is a whole number"),
        (group({"num_bits": 1, "type": "float"}), r"num_bits is 1 of type 'float'"),
        ("fp8", r"quantization_config is 'fp8'; allowed is an object"),
    ],
)
def test_refused(raw: Any, message: str, raw_config: Callable[[str], dict[str, Any]]) -> None:
    """What is not known is refused by its name, with the key and what is allowed."""
    config = Config({**raw_config(LLAMA), "quantization_config": raw}, "config.json")
    with pytest.raises(FormatError, match=message):
        of_config(config)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("lm_head", "lm_head", True),
        ("gate", "model.layers.3.block_sparse_moe.gate", True),
        ("gate", "model.layers.3.mlp.gate_proj", False),
        ("model.layers.1", "model.layers.1.mlp.up_proj", True),
        ("model.layers.1", "model.layers.10.mlp.up_proj", False),
        ("model.layers.1*", "model.layers.10.mlp.up_proj", True),
        ("model.layers.1.*", "model.layers.10.mlp.up_proj", False),
        ("model.layers.*.self_attn", "model.layers.10.self_attn.q_proj", True),
        ("model.layers.*.self_attn", "model.layers.10.self_attn_norm", False),
        ("*.mlp.shared_expert.*", "model.layers.0.mlp.shared_expert.up_proj", True),
        ("re:.*mlp\\.(gate|up)_proj$", "model.layers.0.mlp.up_proj", True),
        ("re:.*mlp\\.(gate|up)_proj$", "model.layers.0.mlp.down_proj", False),
        ("re:mlp", "model.layers.0.mlp.up_proj", False),
        ("language_model.model.layers.0.self_attn*", "model.layers.0.self_attn.q_proj", True),
        ("model.language_model.layers.0.mlp*", "model.layers.0.mlp.up_proj", True),
        # wildcards in the middle: each piece behind the one before, none twice, and the end at the end
        ("a*b*c", "abc", True),
        ("a*b*c", "axbxc", True),
        ("a*b*c", "axcxb", False),
        ("a*bc*c", "abc", False),
        ("a*bc*c", "abcc", True),
        ("a*b", "ab", True),
        ("a*ba", "aba", True),
        ("ab*ba", "aba", False),
        ("ab*ba", "abba", True),
        ("a*b", "a.b.below", True),
        ("a*b", "a.bx.below", False),
        ("a*b*c", "axbyc.below", True),
        ("*b", "b", True),
        ("*b", "b.below", True),
        ("*.gate", "model.gate", True),
        ("*.gate", "gate", False),
        ("b*b", "b", False),
        ("b*b*b", "bb", False),
        ("b*b*b", "bbb", True),
    ],
)
def test_patterns(pattern: str, name: str, expected: bool) -> None:
    """Names, wildcards and expressions match whole parts of a module's name, as the libraries do."""
    assert matcher([pattern], "config.json")(name) is expected


def test_experts_are_matched_as_one() -> None:
    """The experts' placeholder is read as expert 0."""
    assert module_of("model.layers.3.mlp.experts.*.up_proj.weight") == "model.layers.3.mlp.experts.0.up_proj"


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|a)*b",
        "(a|aa)+$",
        "(.*a){20}",
        ".*.*.*.*.*x",
        "((a?){30}){30}",
        r"(a)\1*(b)\2",
        "a{1,9}" * 12 + "b",
    ],
)
def test_slow_patterns_are_refused(pattern: str) -> None:
    """A pattern that could take exponential time is refused before it is tried."""
    with pytest.raises(FormatError, match="could take too long"):
        matcher(["re:" + pattern], "config.json")


@pytest.mark.parametrize(
    "pattern",
    [
        "a{0,100}" * 3, "(a|b)*", "(?>a+)b", "(?=a+)b", "a{1,9}" * 7, "a?" * 24, "(?:ab){1,1}c+", r"(?:a{1,2}){1}",
        "(a?|b?)x", ".*.*.*x",
    ],
)  # fmt: skip
def test_patterns_that_end_are_read(pattern: str) -> None:
    """Up to three open repeats, a repeat of alternatives, and bounded ones: tried, and quickly done."""
    assert matcher(["re:" + pattern], "config.json")("model.layers.0.self_attn.q_proj") in (True, False)


def test_the_longest_pattern() -> None:
    """500 characters are read, and a name of hundreds is looked at from its beginning."""
    assert matcher(["x" * 500], "config.json")("x" * 500)
    assert not matcher(["re:" + "x" * 497], "config.json")("x" * 300)
    assert matcher(["re:" + "x" * 400], "config.json")("x" * 401)


def test_anywhere_or_from_the_beginning() -> None:
    """compressed-tensors' targets are names from the beginning; ignore lists of others any run of whole parts."""
    assert matcher(["mlp.gate"], "config.json")("model.layers.0.mlp.gate")
    assert not matcher(["mlp.gate"], "config.json", anywhere=False)("model.layers.0.mlp.gate")
    assert matcher(["model.layers"], "config.json", anywhere=False)("model.layers.0.mlp.gate")
    assert not matcher(["layers"], "config.json", anywhere=False)("model.layers.0.mlp.gate")
    assert not matcher(["model.gate"], "config.json")("model.layers.gate")


@pytest.mark.parametrize("pattern", ["(", "[a", "a**", "(?P<x>a)(?P<x>b)", "x" * 501])
def test_broken_patterns_are_refused(pattern: str) -> None:
    """A pattern that is no expression, or is too long, is a clear error."""
    with pytest.raises(FormatError, match=r"cannot read the pattern|at most 500"):
        matcher(["re:" + pattern], "config.json")


@settings(deadline=None)
@given(pattern=st.text(alphabet="ab.*+?()|[]{}1,\\^$", max_size=40), name=st.text(alphabet="ab.", max_size=60))
def test_no_pattern_takes_long(pattern: str, name: str) -> None:
    """Whatever a file says, matching ends at once or is refused."""
    try:
        test = matcher(["re:" + pattern, pattern], "config.json")
    except FormatError:
        return
    assert test(name) in (True, False)


def test_targets_of_groups(raw_config: Callable[[str], dict[str, Any]]) -> None:
    """A module's name or expression goes before the class Linear; plain names are whole names, from the beginning."""
    groups = {
        "group_0": {"targets": ["Linear"], "weights": FP8},
        "group_1": {"targets": ["re:.*up_proj", "model.layers.0.mlp.down_proj", "gate_proj"], "weights": W4},
    }
    ignored = ["v_proj", "model.layers.1.mlp.up_proj"]
    raw = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignored}
    model = declared(raw, raw_config(LLAMA))
    form = of_config(model.config)
    found = {tensor.name: form.stored(tensor, model)[0].dtype for tensor in model.tensors}
    assert found["model.layers.0.mlp.up_proj.weight"] == found["model.layers.0.mlp.down_proj.weight"] == "I32"
    assert found["model.layers.2.mlp.down_proj.weight"] == found["model.layers.0.mlp.gate_proj.weight"] == "F8_E4M3"
    assert found["model.layers.0.self_attn.v_proj.weight"] == found["lm_head.weight"] == "F8_E4M3"
    assert found["model.layers.1.mlp.up_proj.weight"] == "BF16"
    only = declared({**raw, "config_groups": {"group_1": groups["group_1"]}}, raw_config(LLAMA))
    form = of_config(only.config)
    kept = {tensor.name for tensor in only.tensors if form.stored(tensor, only)[0].dtype == "BF16"}
    assert "model.layers.0.mlp.gate_proj.weight" in kept
    assert "model.layers.0.mlp.up_proj.weight" not in kept


@pytest.mark.parametrize(
    ("declared", "key"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin_24"}, "checkpoint_format"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}, "checkpoint_format"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "format": "bitblas"}, "format"),
        ({**group(W4), "transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}}, "transform_config"),
    ],
)
def test_what_packs_otherwise_is_refused(declared: dict[str, Any], key: str) -> None:
    """Marlin's and BitBLAS's packings, and rotations that are stored beside the weights, are not counted as plain."""
    with pytest.raises(FormatError, match=rf"\.{key} is "):
        of_config(Config({"model_type": "llama", "dtype": "bfloat16", "quantization_config": declared}, "config.json"))


@pytest.mark.parametrize("packing", ["gptq", "gptq_v2"])
def test_gptq_names_its_packing(model: Get, packing: str) -> None:
    """GPTQModel writes it; its second version has the tensors of the first."""
    declared = {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": packing}
    built = model(LLAMA)
    found = of_config(Config({**built.config.raw, "quantization_config": declared}, "config.json"))
    assert found.weigh(built).total == get("gptq").weigh(built).total
