"""Formats whose config names modules one by one: AutoRound's extra_config, GPTQ's lists, HQQ's and mlx's settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from membudget.formats import schemes
from membudget.formats.base import Format, is_layer_matrix
from membudget.formats.modules import Matcher, matcher, module_of
from membudget.formats.quantization import Quantization
from membudget.formats.safetensors import Safetensors, Scheme
from membudget.model import Model
from membudget.model.tensors import Tensor

#: Bits from which on a module is left in the model's dtype.
DENSE_BITS = 16
_SPECIAL = re.compile(r"[\\^$*+?()\[\]{}|]")


class Rule(NamedTuple):
    """The scheme of the modules that `test` accepts; None leaves them dense."""

    test: Matcher
    scheme: Scheme | None


def by_module(
    raw: Quantization, method: str, rules: list[Rule], default: Callable[[Tensor, str], Scheme | None], dtype: str
) -> Format:
    """The first rule that names a tensor's module decides, else default(tensor, module); ignored modules stay dense."""
    skip = matcher(raw.ignored(), f"{raw.source}: {raw.where}")
    known: dict[str, Scheme | None] = {}

    def decide(tensor: Tensor) -> Scheme | None:
        module = module_of(tensor.name)
        if len(tensor.shape) < 2 or skip(module):
            return None
        for rule in rules:
            if rule.test(module):
                return rule.scheme
        return default(tensor, module)

    def choose(tensor: Tensor, model: Model) -> Scheme | None:
        if tensor.name not in known:
            if len(known) > 200_000:
                known.clear()
            known[tensor.name] = decide(tensor)
        return known[tensor.name]

    return Safetensors(method, ("declared", method, repr(sorted(raw.raw.items(), key=str))), choose, dtype)


def _test(name: str, raw: Quantization, key: str) -> Matcher:
    """A module's full name, or an expression where it has an operator in it; a dot alone is a dot."""
    return matcher([f"re:{name}" if _SPECIAL.search(name) else name], f"{raw.source}: {raw.where}.{key}")


def auto_round(raw: Quantization, dtype: str, scheme: Callable[[int, int], Scheme]) -> Format:
    """AutoRound: the bits of blocks by name, and ``extra_config`` with a module's own bits and group.

    scheme(bits, group) makes the packing.  Source: intel/auto-round; vLLM quantization/inc.py.
    """
    bits, group = raw.integer("bits"), raw.integer("group_size", 128)
    rules = []
    for name, value in raw.table("extra_config").items():
        own = Quantization(value if isinstance(value, Mapping) else {}, raw.source, f"{raw.where}.extra_config.{name}")
        own_bits = own.integer("bits", bits)
        made = None if own_bits >= DENSE_BITS else scheme(own_bits, own.integer("group_size", group))
        rules.append(Rule(_test(name, raw, "extra_config"), made))
    given = raw.raw.get("block_name_to_quantize")
    blocks = given.split(",") if isinstance(given, str) else raw.strings("block_name_to_quantize")
    inside = matcher([f"{block.strip()}.*" for block in blocks], f"{raw.source}: {raw.where}.block_name_to_quantize")
    head, normal = raw.flag("quant_lm_head") or raw.flag("lm_head"), scheme(bits, group)

    def default(tensor: Tensor, module: str) -> Scheme | None:
        if tensor.role == "lm_head":
            return normal if head else None
        return normal if is_layer_matrix(tensor) and (not blocks or inside(module)) else None

    return by_module(raw, "auto-round", rules, default, dtype)


def gptq_subset(raw: Quantization, dtype: str, scheme: Scheme) -> Format:
    """GPTQ of the modules in modules_in_block_to_quantize alone: their names inside a block, in lists of any depth."""
    listed: list[str] = []
    left = [raw.raw.get("modules_in_block_to_quantize")]
    while left:  # not by calls: a file may nest deeper than Python does
        value = left.pop()
        if isinstance(value, str):
            listed.append(value)
        elif isinstance(value, list) and len(listed) < 10_000:
            left += reversed(value)
        else:
            kind = "a list" if isinstance(value, list) else repr(value)
            raise raw.error("modules_in_block_to_quantize", f"has {kind}"[:80], "names of modules, in lists")

    inside = matcher(listed, f"{raw.source}: {raw.where}.modules_in_block_to_quantize")
    head = raw.flag("lm_head")

    def default(tensor: Tensor, module: str) -> Scheme | None:
        if tensor.role == "lm_head":
            return scheme if head else None
        return scheme if is_layer_matrix(tensor) and inside(module) else None

    return by_module(raw, "gptq", [], default, dtype)


def hqq(raw: Quantization, dtype: str) -> Format:
    """HQQ: one setting for all layers, or a setting by the module's name inside a block (dynamic_config)."""
    quant = raw.table("quant_config") or raw.raw
    skip = Quantization({**raw.raw, "ignore": [*raw.ignored(), *raw.strings("skip_modules")]}, raw.source, raw.where)

    def made(values: Mapping[str, Any], where: str) -> Scheme:
        inner = values.get("weight_quant_params")
        own = Quantization(inner if isinstance(inner, Mapping) else values, raw.source, where)
        return schemes.hqq(own.integer("nbits", 4), own.integer("group_size", 64), dtype)

    where = f"{raw.where}.quant_config"
    if "weight_quant_params" in quant or "nbits" in quant or not any(isinstance(v, Mapping) for v in quant.values()):
        scheme = made(quant, where)
        return by_module(skip, "hqq", [], lambda tensor, _: scheme if is_layer_matrix(tensor) else None, dtype)
    rules = []
    for name, value in quant.items():
        if not isinstance(value, Mapping):
            raise raw.error(f"quant_config.{name}", f"is {value!r}"[:80], "an object with weight_quant_params")
        rules.append(Rule(_test(name, raw, "quant_config"), made(value, f"{where}.{name}")))
    return by_module(skip, "hqq", rules, lambda tensor, _: None, dtype)


def mlx(raw: Quantization, dtype: str) -> Format:
    """mlx: bits and group_size for every linear layer, embedding and head whose rows divide; a module's own beside.

    Source: ml-explore/mlx-lm utils.py (quantize_model, load_model: class_predicate), mlx nn/layers/quantized.py.
    """
    bits, group, mode = raw.integer("bits", 4), raw.integer("group_size", 64), raw.text("mode", "affine")

    def made(values: Quantization) -> Scheme:
        return schemes.mlx(
            values.integer("bits", bits), values.integer("group_size", group), values.text("mode", mode), dtype
        )

    rules = []
    for name, value in raw.raw.items():
        if isinstance(value, Mapping):
            own = made(Quantization(value, raw.source, f"{raw.where}.{name}"))
            rules.append(Rule(_test(name, raw, name), own))
        elif value is False:
            rules.append(Rule(_test(name, raw, name), None))
    normal = made(raw)

    def default(tensor: Tensor, module: str) -> Scheme | None:
        plain = tensor.role not in ("vision", "audio", "norms") and "conv" not in tensor.name
        return normal if plain and "norm" not in tensor.name and tensor.shape[-1] % group == 0 else None

    return by_module(raw, "mlx", rules, default, dtype)
