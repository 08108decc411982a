"""Formats that are declared in groups of modules: compressed-tensors and NVIDIA's ModelOpt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from membudget.formats import schemes
from membudget.formats.base import Format, is_layer_matrix
from membudget.formats.modules import Matcher, matcher, module_of
from membudget.formats.quantization import Quantization, is_linear
from membudget.formats.safetensors import Safetensors, Scheme
from membudget.model import Model
from membudget.model.tensors import Tensor

#: A target that means every nn.Linear.
_CLASSES = ("Linear",)


class Rule:
    """A scheme for the modules that `test` accepts; test None: for every linear layer."""

    __slots__ = ("scheme", "test")

    def __init__(self, test: Matcher | None, scheme: Scheme | None) -> None:
        self.test, self.scheme = test, scheme


def compressed(raw: Quantization, dtype: str) -> Format:
    """compressed-tensors: config_groups of targets, and a list of what is ignored.

    Source: vllm-project/compressed-tensors quantization/quant_config.py, quant_args.py, utils/match.py.
    A target names modules before it names classes, as there.
    """
    named: list[Rule] = []
    classes: list[Rule] = []
    for name, value in raw.table("config_groups").items():
        where = f"{raw.where}.config_groups.{name}"
        if not isinstance(value, Mapping):
            raise raw.error(f"config_groups.{name}", f"is {value!r}"[:80], "an object with targets and weights")
        group = Quantization(value, raw.source, where)
        scheme = _group_scheme(group, group.text("format") or raw.text("format"), dtype)
        targets = group.strings("targets")
        for target in targets:
            if target in _CLASSES:
                classes.append(Rule(None, scheme))
        others = [target for target in targets if target not in _CLASSES]
        if others:
            named.append(Rule(matcher(others, f"{raw.source}: {where}", anywhere=False), scheme))
    ignored = raw.strings("ignore")
    skip = matcher(ignored, f"{raw.source}: {raw.where}.ignore", anywhere=False)
    return _by_rules("compressed-tensors", raw, [*named, *classes], skip, dtype, strict=True)


def _group_scheme(group: Quantization, form: str, dtype: str) -> Scheme | None:
    weights = group.table("weights")
    if not weights:
        return None  # activations or outputs only
    args = Quantization(weights, group.source, f"{group.where}.weights")
    inputs = group.table("input_activations")
    static = bool(inputs) and inputs.get("dynamic") is False
    bits, kind = args.integer("num_bits"), args.text("type", "int")
    strategy = args.text("strategy") or ("group" if args.raw.get("group_size") else "tensor")
    scale = "F16" if dtype == "F16" else "F32" if dtype == "F32" else "BF16"
    asymmetric = not args.flag("symmetric", True)
    size = {"tensor": 0, "channel": -1}.get(strategy)
    if size is None:
        size = args.integer("group_size") if strategy in ("group", "tensor_group") else 0
    if "24" in form:
        raise args.error("format", f"is {form!r}", "one without 2:4 sparsity: what it stores is not known")
    if kind == "float" and bits == 8:
        return _fp8_group(args, strategy, static, scale)
    if kind == "float" and bits == 4:
        if size == 32:
            return schemes.mxfp4()
        return schemes.nvfp4("compressed-tensors", size or 16, bool(inputs) and inputs.get("dynamic") is not True)
    if kind == "int" and form in ("pack-quantized", "") and bits in schemes.BITS:
        order = args.raw.get("actorder")
        return schemes.packed(bits, size, asymmetric, order in ("group", True), scale)
    if kind == "int" and bits == 8:
        return schemes.int8(size, static, asymmetric, scale)
    raise args.error(
        "num_bits", f"is {bits} of type {kind!r} in format {form!r}", "2, 3, 4 or 8 bits of int, 4 or 8 of float"
    )


def _fp8_group(args: Quantization, strategy: str, static: bool, scale: str) -> Scheme:
    if strategy == "tensor":
        return schemes.fp8_tensor(static, scale)
    if strategy == "channel":
        return schemes.fp8_channel(scale, static)
    if strategy == "group" and args.integer("group_size") == 32:
        return schemes.mxfp8()
    if strategy == "block":
        block = args.raw.get("block_structure")
        if isinstance(block, str) and "x" in block:
            parts = block.split("x")
            block = [int(part) if part.isascii() and part.isdigit() else 0 for part in parts]
        if not isinstance(block, list) or len(block) != 2 or not all(type(item) is int and item > 0 for item in block):
            raise args.error("block_structure", f"is {block!r}"[:80], "two whole numbers, for example [128, 128]")
        return schemes.fp8_block(block[0], block[1], scale, "weight_scale")
    raise args.error("strategy", f"is {strategy!r}", "tensor, channel, block or group")


def _algorithm(values: Quantization, name: str) -> Scheme | None:
    group = values.integer("group_size", 0)
    if name in ("", "NONE"):
        return None
    if name == "FP8":
        return schemes.fp8_tensor(True, "F32", ())
    if name == "FP8_PER_CHANNEL_PER_TOKEN":
        return schemes.fp8_channel("F32")
    if name in ("FP8_PB_WO", "FP8_PB"):
        return schemes.fp8_block(128, 128, "F32", "weight_scale")
    if name in ("NVFP4", "NVFP4_AWQ"):
        return schemes.nvfp4("modelopt", group or 16)
    if name == "W4A16_NVFP4":
        return schemes.nvfp4("modelopt", group or 16, False)
    if name == "MXFP8":
        return schemes.mxfp8()
    raise values.error("quant_algo", f"is {name!r}", ", ".join(("FP8", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8")))


def modelopt(raw: Quantization, dtype: str) -> Format:
    """NVIDIA ModelOpt: one algorithm and what it leaves alone, or layers by name (MIXED_PRECISION).

    Source: NVIDIA/Model-Optimizer modelopt/torch/export; vLLM model_executor/layers/quantization/modelopt.py.
    """
    name = raw.text("quant_algo").upper()
    where = f"{raw.source}: {raw.where}"
    skip = matcher(raw.ignored(), where)
    layers = raw.table("quantized_layers")
    if name != "MIXED_PRECISION":
        if not name:
            groups = raw.table("config_groups")
            if groups:
                return compressed(raw, dtype)
            raise raw.error("quant_algo", "is missing", "FP8, NVFP4 or MIXED_PRECISION")
        # beside quant_algo the groups say the same once more; what would say another thing is refused
        stored = {
            str(group.get("weights")) for group in raw.table("config_groups").values() if isinstance(group, Mapping)
        }
        if len(stored) > 1:
            raise raw.error("config_groups", f"has {len(stored)} kinds of weights beside quant_algo {name}", "one kind")
        return _by_rules("modelopt", raw, [Rule(None, _algorithm(raw, name))], skip, dtype, strict=False)
    if not layers:
        raise raw.error("quantized_layers", "is missing", "an object of layers: MIXED_PRECISION says nothing else")
    _groups_agree(raw, layers)
    schemes_by: dict[Any, list[str]] = {}
    found: dict[Any, Scheme | None] = {}
    for layer, value in layers.items():
        values = Quantization(value if isinstance(value, Mapping) else {}, raw.source, f"{raw.where}.quantized_layers")
        scheme = _algorithm(values, values.text("quant_algo").upper())
        key = scheme.key if scheme else None
        schemes_by.setdefault(key, []).append(layer)
        found[key] = scheme
    rules = [Rule(matcher(patterns, where), found[key]) for key, patterns in schemes_by.items()]
    return _by_rules("modelopt", raw, rules, skip, dtype, strict=False)


def _groups_agree(raw: Quantization, layers: Mapping[str, Any]) -> None:
    """ModelOpt 0.37 and later write config_groups beside quantized_layers: the same once more, or it is refused.

    vLLM reads quantized_layers (quantization/modelopt.py); a group says bits and no algorithm.
    """
    for name, value in raw.table("config_groups").items():
        where = f"{raw.where}.config_groups.{name}"
        group = Quantization(value if isinstance(value, Mapping) else {}, raw.source, where)
        weights = group.table("weights")
        if not weights:
            continue  # activations only
        bits = Quantization(weights, raw.source, f"{where}.weights").integer("num_bits")
        for target in group.strings("targets"):
            layer = layers.get(target)
            stored = str(layer.get("quant_algo")).upper() if isinstance(layer, Mapping) else None
            if stored is None or bits != (4 if "FP4" in stored else 8):
                there = f"quantized_layers has {stored}" if stored else "quantized_layers does not name it"
                raise group.error("targets", f"has {target} in {bits} bits; {there}"[:200], "the same layers in both")


def _by_rules(method: str, raw: Quantization, rules: list[Rule], skip: Matcher, dtype: str, *, strict: bool) -> Format:
    """strict: every linear layer is meant unless ignored, heads and towers too; else the layers' matrices."""
    known: dict[str, Scheme | None] = {}

    def decide(tensor: Tensor) -> Scheme | None:
        # a router is a parameter of its own in most models and no nn.Linear; a target may name it
        linear = is_linear(tensor) and tensor.role != "mlp.router" if strict else is_layer_matrix(tensor)
        module = module_of(tensor.name)
        if skip(module):
            return None
        for rule in rules:
            if rule.test is None:
                if linear:
                    return rule.scheme
            elif is_linear(tensor) and rule.test(module):
                return rule.scheme
        return None

    def choose(tensor: Tensor, model: Model) -> Scheme | None:
        name = tensor.name
        if name not in known:
            if len(known) > 200_000:
                known.clear()
            known[name] = decide(tensor)
        return known[name]

    return Safetensors(method, ("declared", method, repr(raw.raw)), choose, dtype)
