"""What vLLM's kernels keep of a quantized layer, counted: `python tools/loaded_weights.py`, where vLLM is installed.

Each kernel's own preparation runs on small CPU tensors, for shapes that fit its tiles and shapes that do not. Two
things need a GPU and change no size but their own: Marlin's repacking, whose result has the shape that vLLM registers
for it (_custom_ops.py _gptq_marlin_repack_fake), and `.cuda()`. Machete's prepacked weight is left out of its kernel
for the same reason: it is the same tensor in another order. The result is fixtures/oracle/loaded_weights.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm import _custom_ops as ops
from vllm.model_executor import parameter
from vllm.model_executor.kernels.linear.mixed_precision.machete import MacheteLinearKernel
from vllm.model_executor.kernels.linear.mixed_precision.marlin import MarlinLinearKernel
from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import MPLinearLayerConfig
from vllm.model_executor.kernels.linear.nvfp4.cutlass import CutlassNvFp4LinearKernel
from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import prepare_fp4_layer_for_marlin
from vllm.model_executor.layers.quantization.utils.marlin_utils_fp8 import (
    prepare_fp8_layer_for_marlin,
    prepare_fp8_moe_layer_for_marlin,
)
from vllm.model_executor.parameter import GroupQuantScaleParameter, PackedColumnParameter, PackedvLLMParameter
from vllm.scalar_type import scalar_types

RESULT = Path(__file__).resolve().parents[1] / "fixtures" / "oracle" / "loaded_weights.json"
#: Output and input sides: of the tiles of all kernels, of one of Marlin's two, of none.
SHAPES = ((512, 256), (192, 320), (160, 384), (1056, 192), (96, 96))
GROUP, BLOCK, EXPERTS = 32, 128, 4


def _repacked(b_q_weight: Any, size_k: int, size_n: int, num_bits: int, is_a_8bit: bool = False) -> Any:
    return torch.zeros((size_k // 16, size_n * 16 // (32 // num_bits)), dtype=b_q_weight.dtype)


def _layer(n: int, k: int, **tensors: Any) -> torch.nn.Module:
    layer = torch.nn.Module()
    layer.output_size_per_partition, layer.input_size_per_partition = n, k
    layer.params_dtype = layer.orig_dtype = torch.bfloat16
    layer.logical_widths = [n]
    for name, tensor in tensors.items():
        kept = tensor if isinstance(tensor, torch.nn.Parameter) else torch.nn.Parameter(tensor, requires_grad=False)
        layer.register_parameter(name, kept)
    return layer


def _sizes(layer: torch.nn.Module) -> dict[str, int]:
    return {name: each.numel() * each.element_size() for name, each in layer.named_parameters()}


def fp8(n: int, k: int, scale: torch.Tensor, block: bool) -> dict[str, int]:
    """Marlin with an 8-bit float weight."""
    layer = _layer(n, k, weight=torch.zeros(n, k, dtype=torch.float8_e4m3fn))
    layer.register_parameter("weight_scale", torch.nn.Parameter(scale, requires_grad=False))
    if block:
        layer.weight_block_size = [BLOCK, BLOCK]
    prepare_fp8_layer_for_marlin(layer, size_k_first=False)
    return _sizes(layer)


def nvfp4(n: int, k: int, prepare: Callable[[torch.nn.Module], None]) -> dict[str, int]:
    """A kernel with NVFP4 weights."""
    layer = _layer(
        n, k, weight=torch.zeros(n, k // 2, dtype=torch.uint8),
        weight_scale=torch.ones(n, k // 16).to(torch.float8_e4m3fn), weight_global_scale=torch.tensor(1.0),
    )  # fmt: skip
    prepare(layer)
    return {name: size for name, size in _sizes(layer).items() if "global" not in name}


def packed(n: int, k: int, kind: type[Any], zeros: bool) -> dict[str, int]:
    """A kernel with packed 4-bit weights in groups, as compressed-tensors names them."""

    def loader(*_: Any, **__: Any) -> None:
        return None

    tensors = {
        "weight_packed": PackedvLLMParameter(
            data=torch.zeros(n, k // 8, dtype=torch.int32), input_dim=1, output_dim=0, packed_factor=8, packed_dim=1,
            weight_loader=loader,
        ),
        "weight_scale": GroupQuantScaleParameter(
            data=torch.ones(n, k // GROUP, dtype=torch.bfloat16), input_dim=1, output_dim=0, weight_loader=loader
        ),
    }  # fmt: skip
    if zeros:
        tensors["weight_zero_point"] = PackedColumnParameter(
            data=torch.zeros(n // 8, k // GROUP, dtype=torch.int32), output_dim=0, packed_factor=8, packed_dim=0,
            weight_loader=loader,
        )  # fmt: skip
        tensors["weight_zero_point"]._input_dim = 1
    layer = _layer(n, k, **tensors)
    config = MPLinearLayerConfig(
        full_weight_shape=(k, n), partition_weight_shape=(k, n),
        weight_type=scalar_types.uint4 if zeros else scalar_types.uint4b8, act_type=torch.bfloat16, group_size=GROUP,
        zero_points=zeros,
    )  # fmt: skip
    kernel = kind.__new__(kind)
    kernel.config, kernel.w_q_name, kernel.w_s_name = config, "weight_packed", "weight_scale"
    kernel.w_zp_name, kernel.w_gidx_name = "weight_zero_point" if zeros else None, None
    kernel.process_weights_after_loading(layer)
    return {name: size for name, size in _sizes(layer).items() if size}


def experts(n: int, k: int, block: bool) -> dict[str, int]:
    """Marlin with 8-bit float experts: n wide inside, k outside."""
    layer = torch.nn.Module()
    layer.num_experts, layer.hidden_size, layer.intermediate_size_per_partition = EXPERTS, k, n
    layer.orig_dtype = torch.bfloat16
    if block:
        layer.weight_block_size = [BLOCK, BLOCK]
        up = torch.ones(EXPERTS, -(-2 * n // BLOCK), -(-k // BLOCK))
        down = torch.ones(EXPERTS, -(-k // BLOCK), -(-n // BLOCK))
    else:
        up = down = torch.ones(EXPERTS)
    made = prepare_fp8_moe_layer_for_marlin(
        layer, torch.zeros(EXPERTS, 2 * n, k, dtype=torch.float8_e4m3fn),
        torch.zeros(EXPERTS, k, n, dtype=torch.float8_e4m3fn), up, down,
    )  # fmt: skip
    names = ("w13_weight", "w2_weight", "w13_scale", "w2_scale")
    return {name: each.numel() * each.element_size() for name, each in zip(names, made[:4], strict=True)}


def main() -> int:
    """Run every kernel on every shape it takes."""
    ops.gptq_marlin_repack = _repacked
    parameter.get_tensor_model_parallel_rank = lambda: 0
    parameter.get_tensor_model_parallel_world_size = lambda: 1
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    cutlass = CutlassNvFp4LinearKernel.__new__(CutlassNvFp4LinearKernel)
    rows: list[dict[str, Any]] = []

    def add(kernel: str, form: str, n: int, k: int, **found: int) -> None:
        rows.append({"kernel": kernel, "format": form, "n": n, "k": k, "bytes": found})

    for n, k in SHAPES:
        add("marlin", "fp8", n, k, **fp8(n, k, torch.ones(1), False))
        add("marlin", "fp8-channel", n, k, **fp8(n, k, torch.ones(n, 1), False))
        if k % BLOCK == 0:
            add("marlin", "fp8-block", n, k, **fp8(n, k, torch.ones(-(-n // BLOCK), k // BLOCK), True))
        add("marlin", "nvfp4", n, k, **nvfp4(n, k, prepare_fp4_layer_for_marlin))
        add("native", "nvfp4", n, k, **nvfp4(n, k, cutlass.process_weights_after_loading))
        add("marlin", "w4a16", n, k, **packed(n, k, MarlinLinearKernel, False))
        add("marlin", "w4a16-asym", n, k, **packed(n, k, MarlinLinearKernel, True))
    prepack = ops.machete_prepack_B
    ops.machete_prepack_B = lambda weight, **_: weight
    for n, k in SHAPES[:1]:
        add("machete", "w4a16", n, k, **packed(n, k, MacheteLinearKernel, False))
        add("machete", "w4a16-asym", n, k, **packed(n, k, MacheteLinearKernel, True))
    ops.machete_prepack_B = prepack
    for n, k in ((256, 512), (160, 256)):
        add("marlin", "fp8 experts", n, k, **experts(n, k, False))
    add("marlin", "fp8-block experts", 256, 512, **experts(256, 512, True))
    head = {"made by": "tools/loaded_weights.py", "vllm": vllm.__version__.partition("+")[0], "group": GROUP,
            "block": BLOCK, "experts": EXPERTS, "dtype": "bfloat16"}  # fmt: skip
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    RESULT.write_text(json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n  ' + lines + "\n ]\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
