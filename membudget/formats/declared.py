"""The format that a config.json declares: its quantization_config, or a ModelOpt hf_quant_config.json, or its dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from membudget.formats import per_module, schemes
from membudget.formats.base import Format, FormatError, is_layer_matrix
from membudget.formats.dtypes import DENSE_FORMATS
from membudget.formats.groups import compressed, modelopt
from membudget.formats.modules import Matcher, matcher, module_of
from membudget.formats.named import dense, exl3
from membudget.formats.quantization import Quantization, declaration, dense_dtype
from membudget.formats.safetensors import Choose, Safetensors, Scheme
from membudget.model import Model
from membudget.model.config import Config
from membudget.model.tensors import Tensor


def of_config(config: Config, hf_quant_config: Mapping[str, Any] | None = None) -> Format:
    """The format of the checkpoint that this config.json lies beside.

    hf_quant_config: the content of hf_quant_config.json, where ModelOpt wrote one.
    Raises `FormatError` for an unsupported method, by its name.
    """
    raw = declaration(config, hf_quant_config)
    if raw is None:
        dtype = config.dtype
        if dtype is None:
            raise FormatError(
                f"{config.source}: has no dtype and no quantization_config; name its format: "
                "--format bf16, or `format: bf16` in a budget"
            )
        return dense(DENSE_FORMATS[dense_dtype(config)], dense_dtype(config))
    method = _method(raw)
    make = _METHODS.get(method)
    if make is None:
        raise FormatError(
            f"{config.source}: quant_method {method!r} is not known; known are {', '.join(sorted(_METHODS))}. "
            "docs/formats.md says how to add one"
        )
    made = make(raw, dense_dtype(config))
    raw.refuse_unread(method)
    return made


def _method(raw: Quantization) -> str:
    method = raw.text("quant_method").lower()
    algorithm = raw.text("quant_algo")
    if method == "fp8" and raw.raw.get("moe_quant_algo") is not None:
        return method  # ModelOpt converted the experts of an fp8 checkpoint
    if not method and not algorithm and "bits" in raw.raw and not raw.raw.get("config_groups"):
        return "mlx"
    if algorithm or method.startswith("modelopt"):
        return "modelopt"
    if method in ("", "compressed-tensors", "compressed_tensors") and raw.raw.get("config_groups"):
        return "compressed-tensors"
    return method


def _keep(choose: Callable[[Tensor], Scheme | None], skip: Matcher) -> Choose:
    """Ask `skip` once a module name: a model has thousands of them."""
    known: dict[str, bool] = {}

    def inner(tensor: Tensor, model: Model) -> Scheme | None:
        scheme = choose(tensor)
        if scheme is None:
            return None
        name = tensor.name
        kept = known.get(name)
        if kept is None:
            if len(known) > 200_000:
                known.clear()
            kept = known[name] = skip(module_of(name))
        return None if kept else scheme

    return inner


def _is_mtp_matrix(tensor: Tensor) -> bool:
    """A matrix of the layer that predicts further tokens: its attention and MLP, not its head or its router."""
    name = tensor.name
    if tensor.role != "mtp" or len(tensor.shape) != 2 or not name.endswith("_proj.weight"):
        return False
    return ".self_attn." in name or ".mlp." in name


def _made(
    raw: Quantization,
    method: str,
    scheme: Scheme,
    dtype: str,
    also_head: bool = False,
    mtp: bool = False,
    tables: bool = False,
) -> Format:
    ignored = raw.ignored()

    def choose(tensor: Tensor) -> Scheme | None:
        if is_layer_matrix(tensor) or (also_head and tensor.role == "lm_head") or (mtp and _is_mtp_matrix(tensor)):
            return scheme
        if tables and tensor.role == "embed" and tensor.name.endswith(("embed_tokens.weight", "wte.weight")):
            return scheme
        return None

    key = ("declared", method, scheme.key, also_head, mtp, tables, tuple(ignored))
    return Safetensors(method, key, _keep(choose, matcher(ignored, f"{raw.source}: {raw.where}")), dtype)


def _fp8(raw: Quantization, dtype: str) -> Format:
    block = raw.raw.get("weight_block_size")
    if block is not None:
        if not isinstance(block, list) or len(block) != 2 or not all(type(item) is int and item > 0 for item in block):
            raise raw.error("weight_block_size", f"is {block!r}"[:80], "two whole numbers, for example [128, 128]")
        if raw.model_type.startswith(("deepseek_v4", "deepseek_ref")):
            return _deepseek_v4(raw, dtype, block[0], block[1])
        # DeepSeek's files have fp32 scales and Qwen's bf16 ones; their configs do not say so
        scale = "BF16" if raw.model_type.startswith("qwen") else "F32"
        return _made(raw, "fp8", schemes.fp8_block(block[0], block[1], scale), dtype, mtp=True)
    static = raw.text("activation_scheme", "dynamic") == "static"
    return _made(raw, "fp8", schemes.fp8_tensor(static), dtype)


def _deepseek_v4(raw: Quantization, dtype: str, rows: int, columns: int) -> Format:
    """DeepSeek-V4: fp8 blocks, and experts in fp4 (then all scales are e8m0), fp8, or ModelOpt's NVFP4.

    Source: vLLM models/deepseek_v41/quant_config.py; the published headers.
    """
    kind = raw.text("expert_dtype", "fp8").lower()
    if kind not in ("fp4", "fp8"):
        raise raw.error("expert_dtype", f"is {kind!r}", "fp4 or fp8")
    flat = schemes.fp8_block(rows, columns, "F8_E8M0" if kind == "fp4" else "F32", "scale")
    experts = schemes.fp4_ue8m0() if kind == "fp4" else flat
    algorithm = raw.text("moe_quant_algo").upper()
    if algorithm == "NVFP4":
        experts = schemes.nvfp4("modelopt", raw.integer("group_size", 16))
        _experts_alone(raw, algorithm)
    elif algorithm:
        raise raw.error("moe_quant_algo", f"is {algorithm!r}", "NVFP4")
    # ModelOpt's list says what is not NVFP4; it stays in fp8
    ignored = [] if algorithm else raw.ignored()

    def choose(tensor: Tensor) -> Scheme | None:
        if tensor.role == "mlp.experts":
            return experts
        # the compressors are published in bf16
        return flat if is_layer_matrix(tensor) and ".compressor." not in tensor.name else None

    key = ("declared", "deepseek_v4", flat.key, experts.key, tuple(ignored))
    return Safetensors("fp8", key, _keep(choose, matcher(ignored, f"{raw.source}: {raw.where}")), dtype)


def _experts_alone(raw: Quantization, algorithm: str) -> None:
    """Refuse ModelOpt's lists where they say more than `moe_quant_algo`: other layers, or another algorithm."""
    for layer, values in raw.table("quantized_layers").items():
        stored = values.get("quant_algo") if isinstance(values, Mapping) else values
        if not layer.endswith(".experts") or stored != algorithm:
            raise raw.error("quantized_layers", f"has {layer}: {stored!r}"[:80], f"experts in {algorithm} alone")
    if len(raw.table("config_groups")) > 1:
        raise raw.error("config_groups", "has more than one group", f"one, of experts in {algorithm}")


def _fbgemm(raw: Quantization, dtype: str) -> Format:
    return _made(raw, "fbgemm_fp8", schemes.fp8_channel("F32"), dtype)


def _awq(raw: Quantization, dtype: str) -> Format:
    bits = raw.integer("bits", raw.integer("w_bit", 4))
    version = raw.text("version", "gemm").lower()
    if version not in ("gemm", "gemv", "exllama", "marlin"):
        raise raw.error("version", f"is {version!r}", "gemm")
    group = raw.integer("group_size", raw.integer("q_group_size", 128))
    return _made(raw, "awq", _awq_scheme(raw, bits, group), dtype)


def _awq_scheme(raw: Quantization, bits: int, group: int) -> Scheme:
    if bits != 4:
        raise raw.error("bits", f"is {bits}", "4: AWQ packs nothing else")
    return schemes.awq(group, raw.flag("zero_point", True))


def _gptq(raw: Quantization, dtype: str) -> Format:
    key = "checkpoint_format" if raw.raw.get("checkpoint_format") is not None else "format"
    packing = raw.text(key, "gptq").lower()
    if packing not in ("gptq", "gptq_v2"):  # marlin and bitblas pack otherwise, marlin_24 stores half
        raise raw.error(key, f"is {packing!r}, and what it stores is not known", "gptq or gptq_v2")
    if raw.table("dynamic"):
        return _gptq_dynamic(raw, dtype)
    scheme = schemes.gptq(raw.integer("bits"), raw.integer("group_size", 128))
    if raw.raw.get("modules_in_block_to_quantize"):
        return per_module.gptq_subset(raw, dtype, scheme)
    return _made(raw, "gptq", scheme, dtype, raw.flag("lm_head"))


def _gptq_dynamic(raw: Quantization, dtype: str) -> Format:
    """GPTQModel's rules by module: ``-:regex`` leaves modules alone, ``+:regex`` or ``regex`` changes bits or group."""
    source = f"{raw.source}: {raw.where}.dynamic"
    base = {"bits": raw.integer("bits"), "group_size": raw.integer("group_size", 128)}
    rules: list[tuple[Matcher, Scheme | None]] = []
    for pattern, change in raw.table("dynamic").items():
        skip = pattern.startswith("-:")
        test = matcher(["re:" + pattern.removeprefix("-:").removeprefix("+:")], source)
        more = Quantization({**base, **(change if isinstance(change, Mapping) else {})}, raw.source, source)
        rules.append((test, None if skip else schemes.gptq(more.integer("bits"), more.integer("group_size"))))
    normal, head = schemes.gptq(base["bits"], base["group_size"]), raw.flag("lm_head")
    skip_all = matcher(raw.ignored(), source)

    def choose(tensor: Tensor, model: Model) -> Scheme | None:
        if not (is_layer_matrix(tensor) or (head and tensor.role == "lm_head")):
            return None
        module = module_of(tensor.name)
        if skip_all(module):
            return None
        return next((scheme for test, scheme in rules if test(module)), normal)

    return Safetensors("gptq", ("gptq dynamic", repr(sorted(raw.raw.items(), key=str))), choose, dtype)


def _auto_round(raw: Quantization, dtype: str) -> Format:
    packing = raw.text("packing_format", "auto_round:auto_gptq").lower()
    if "awq" in packing:
        return per_module.auto_round(raw, dtype, lambda bits, group: _awq_scheme(raw, bits, group))
    if "gptq" in packing:
        return per_module.auto_round(raw, dtype, schemes.gptq)
    raise raw.error("packing_format", f"is {packing!r}", "auto_round:auto_gptq or auto_round:auto_awq")


def _bitsandbytes(raw: Quantization, dtype: str) -> Format:
    if raw.flag("load_in_4bit") or raw.flag("_load_in_4bit"):
        kind = raw.text("bnb_4bit_quant_type", "fp4")
        if kind not in ("nf4", "fp4"):
            raise raw.error("bnb_4bit_quant_type", f"is {kind!r}", "nf4 or fp4")
        return _made(raw, "bitsandbytes", schemes.bnb4(raw.flag("bnb_4bit_use_double_quant"), kind), dtype)
    if raw.flag("load_in_8bit") or raw.flag("_load_in_8bit"):
        return _made(raw, "bitsandbytes", schemes.bnb8(), dtype)
    raise raw.error("", "has neither load_in_4bit nor load_in_8bit", "one of them, true")


def _mxfp4(raw: Quantization, dtype: str) -> Format:
    stacked, flat = schemes.mxfp4("gpt-oss"), schemes.mxfp4()

    def choose(tensor: Tensor) -> Scheme | None:
        # transformers converts the experts only
        if tensor.role != "mlp.experts" or not is_layer_matrix(tensor):
            return None
        return flat if tensor.name.endswith(".weight") else stacked

    ignored = raw.ignored()
    skip = matcher(ignored, f"{raw.source}: {raw.where}")
    return Safetensors("mxfp4", ("declared", "mxfp4", tuple(ignored)), _keep(choose, skip), dtype)


def _exl3(raw: Quantization, dtype: str) -> Format:
    bits, head = raw.raw.get("bits"), raw.raw.get("head_bits", 6)
    for key, value in (("bits", bits), ("head_bits", head)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
            raise raw.error(key, f"is {value!r}", "a whole number: an average does not say which matrix has how many")
    assert isinstance(bits, (int, float))
    assert isinstance(head, (int, float))
    return exl3("exl3", int(bits), int(head), "F16" if dtype == "F32" else dtype)


def _torchao(raw: Quantization, dtype: str) -> Format:
    kind: object = raw.raw.get("quant_type")
    options: Mapping[str, Any] = raw.table("quant_type_kwargs")
    if isinstance(kind, Mapping):  # transformers writes {"default": {"_type": ..., "_data": {...}}}
        inner = kind.get("default")
        if not isinstance(inner, Mapping) or len(kind) != 1:
            raise raw.error("quant_type", "has rules by module", "one default")
        kind, options = inner.get("_type"), inner.get("_data") or {}
    name = str(kind).lower().replace("_", "").replace("config", "")
    values = Quantization(options, raw.source, f"{raw.where}.quant_type")
    if name == "int4weightonly":
        return _made(raw, "torchao", schemes.torchao_int4(values.integer("group_size", 128)), dtype)
    if name in ("int8weightonly", "int8dynamicactivationint8weight"):
        # the input and output embeddings are linear maps to torchao, where it is told so
        embeddings = raw.flag("include_input_output_embeddings")
        return _made(raw, "torchao", schemes.torchao_int8(), dtype, embeddings, tables=embeddings)
    raise raw.error("quant_type", f"is {kind!r}"[:80], "int4_weight_only, int8_weight_only")


_METHODS: dict[str, Callable[[Quantization, str], Format]] = {
    "auto-round": _auto_round,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": compressed,
    "exl3": _exl3,
    "fbgemm_fp8": _fbgemm,
    "fp8": _fp8,
    "gptq": _gptq,
    "hqq": per_module.hqq,
    "mlx": per_module.mlx,
    "modelopt": modelopt,
    "mxfp4": _mxfp4,
    "torchao": _torchao,
}
