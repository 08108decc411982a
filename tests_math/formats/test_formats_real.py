"""Checkpoints made by the libraries themselves, tiny and on the CPU, compared tensor by tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from membudget.formats import get, of_config, schemes
from membudget.formats.dtypes import DTYPE_BITS
from membudget.formats.safetensors import Scheme
from membudget.model import build

pytestmark = [pytest.mark.transformers, pytest.mark.filterwarnings("ignore")]

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "tie_word_embeddings": False,
}
PRESETS = ("W4A16", "W4A16_ASYM", "W8A8", "W8A16", "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4", "NVFP4A16", "MXFP4",
           "MXFP8")  # fmt: skip

DTYPES = {
    "bfloat16": "BF16", "float16": "F16", "float32": "F32", "int8": "I8", "uint8": "U8", "int32": "I32",
    "int64": "I64", "float8_e4m3fn": "F8_E4M3",
}  # fmt: skip

Header = dict[str, tuple[str, tuple[int, ...]]]


def tiny() -> Any:
    """A random Llama in bf16."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).to(torch.bfloat16)


def header(folder: Path) -> Header:
    """Name, dtype and shape of every tensor in a folder's safetensors files, from their headers."""
    found: Header = {}
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            content = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        content.pop("__metadata__", None)
        found |= {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in content.items()}
    assert found
    return found


def bytes_of(found: Header) -> int:
    """All tensors' bytes."""
    total = 0
    for dtype, shape in found.values():
        size = DTYPE_BITS[dtype] // 8
        for extent in shape:
            size *= extent
        total += size
    return total


def check(folder: Path) -> None:
    """The folder's files hold exactly the tensors and bytes that its config.json says they do."""
    found = header(folder)
    model = build(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    form = of_config(model.config)
    stored = [copy for tensor in model.tensors for item in form.stored(tensor, model) for copy in item.expand()]
    assert {item.name: (item.dtype, item.shape) for item in stored} == found
    assert form.weigh(model).total == bytes_of(found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_dense_checkpoint(dtype: str, tmp_path: Path) -> None:
    """transformers' own checkpoint in each dense dtype."""
    torch = pytest.importorskip("torch")
    model = tiny().to(getattr(torch, dtype))
    model.config.dtype = getattr(torch, dtype)
    model.save_pretrained(tmp_path, max_shard_size="200KB")
    check(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_compressed_tensors(preset: str, tmp_path: Path) -> None:
    """compressed-tensors compresses a model with each of its presets; the folder is what its config declares."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme

    model = tiny()
    config = QuantizationConfig(
        config_groups={"group_0": preset_name_to_scheme(preset, ["Linear"])},
        ignore=["lm_head"],
        quantization_status="initialized",
    )
    apply_quantization_config(model, config)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if "scale" in name:
                parameter.data.fill_(1.0)
            if "zero_point" in name:
                parameter.data.zero_()
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path)
    compressor.update_config(str(tmp_path))
    check(tmp_path)


def described(tensors: dict[str, Any]) -> Header:
    """Torch tensors as a header describes them."""
    return {
        name: (DTYPES[str(value.dtype).removeprefix("torch.")], tuple(value.shape)) for name, value in tensors.items()
    }


def expected(scheme: Scheme, out: int, into: int) -> Header:
    """What a scheme says about one matrix."""
    return {item.suffix: (item.dtype, item.shape) for item in scheme.pieces(out, into)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("double", [False, True])
def test_bitsandbytes_4bit(kind: str, double: bool) -> None:
    """bitsandbytes quantizes a layer; its state_dict is the scheme, bookkeeping included."""
    torch = pytest.importorskip("torch")
    bnb = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    weight = torch.randn(512, 256, dtype=torch.bfloat16)
    layer = bnb.nn.Linear4bit(256, 512, bias=False, quant_type=kind, compress_statistics=double)
    layer.weight = bnb.nn.Params4bit(weight, requires_grad=False, quant_type=kind, compress_statistics=double)
    found = described(layer.to("cpu").state_dict())
    ours = expected(schemes.bnb4(double, kind), 512, 256)
    state = f"weight.quant_state.bitsandbytes__{kind}"
    # the state's JSON holds a float whose digits depend on the weights
    assert abs(found[state][1][0] - ours[state][1][0]) <= (8 if double else 0)
    found.pop(state)
    ours.pop(state)
    assert found == ours


@pytest.mark.slow
def test_bitsandbytes_int8() -> None:
    """LLM.int8() stores int8, an fp32 scale a row and one byte that names the layout."""
    torch = pytest.importorskip("torch")
    bnb = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    layer = bnb.nn.Linear8bitLt(256, 512, bias=False, has_fp16_weights=False)
    weight = torch.randn(512, 256, dtype=torch.float16)
    layer.weight = bnb.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    assert described(layer.to("cpu").state_dict()) == expected(schemes.bnb8(), 512, 256)


@pytest.mark.slow
def test_torchao_int8() -> None:
    """torchao's weight-only int8 on the CPU (its int4 needs a kernel library that is for GPUs)."""
    torch = pytest.importorskip("torch")
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    layer = torch.nn.Sequential(torch.nn.Linear(256, 512, bias=False)).to(torch.bfloat16)
    quantization.quantize_(layer, quantization.Int8WeightOnlyConfig())
    weight = layer[0].weight
    found = described({f"weight_{name}": getattr(weight, name) for name in weight.tensor_data_names})
    assert found == expected(schemes.torchao_int8(), 512, 256)


@pytest.mark.slow
def test_bitsandbytes_checkpoint_weight() -> None:
    """A tiny Llama in nf4 by name weighs what bitsandbytes holds in its layers, without the bookkeeping."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    model = build({"model_type": "llama", **SIZES})
    weights = get("nf4").weigh(model)
    layers = 2 * (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 512)
    assert weights.total == layers // 2 + layers // 64 * 4 + 2 * (2 * 64 * 256 + 5 * 256)
