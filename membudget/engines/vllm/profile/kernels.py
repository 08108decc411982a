"""What a kernel keeps of one quantized layer: repacked, padded to its tiles, its scales in another form.

Counted by vLLM's own code: tools/loaded_weights.py runs each kernel's preparation, and what comes out is
fixtures/oracle/loaded_weights.json.  vLLM: layers/quantization/utils/marlin_utils{,_fp8,_fp4}.py, nvfp4_utils.py,
kernels/linear (0.20 on; layers/quantization/kernels before).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from membudget.machines import Machine

Version = tuple[int, int, int]

#: Marlin pads a shape that fits no tile from this version on (marlin_padded_nk); before it takes none of them.
_PADS = (0, 24, 0)
#: Marlin multiplies (n % 64, k % 128) or (n % 128, k % 64); experts need 64 inside.
_TILES = ((64, 128), (128, 64))
#: GPTQ's g_idx is not loaded from this version on (auto_gptq.py).
_NO_G_IDX = (0, 30, 0)
#: Inputs and outputs of one scale of a block-wise FP8 weight.
_BLOCK = 128
#: NVFP4's group; its native kernels need sides of 32 and scales in blocks of 128 x 4.
_NVFP4_GROUP, _NVFP4_SIDE, _SCALE_ROWS, _SCALE_COLUMNS = 16, 32, 128, 4


class Linear(NamedTuple):
    """One layer as the kernel sees it, maps that are fused counted as one.

    n, k: output and input side on this rank.  pieces: stored bytes by the suffix of the tensor's name.
    groups: scales of one output, 1 where it has one for all its inputs.  expert: ``up`` (n inside) or ``down`` (k
    inside) where it is one of a mixture.  width: bytes of the model's dtype.
    """

    n: int
    k: int
    pieces: Mapping[str, int]
    groups: int
    expert: str = ""
    width: int = 2


def kind(dtypes: Mapping[str, str]) -> str:
    """``fp8``, ``nvfp4``, ``packed`` (4 and 8 bits in groups), or ``""``: kept as stored.

    dtypes: of the stored tensors, by the suffix of their names.
    """
    weight = dtypes.get("weight_packed") or dtypes.get("weight")
    scale = dtypes.get("weight_scale") or dtypes.get("weight_scale_inv")
    if ("qweight" in dtypes and "scales" in dtypes) or ("weight_packed" in dtypes and weight == "I32"):
        return "packed"
    if weight == "F8_E4M3" and scale and scale != "U8":
        return "fp8"
    return "nvfp4" if weight == "U8" and scale == "F8_E4M3" else ""


def kernels(
    what: str, machine: Machine, version: Version, *, expert: bool = False, awq: bool = False
) -> tuple[str, ...]:
    """The kernels this device may take: ``marlin``, ``machete``, ``native``; the first is the one to expect.

    FP8 is native from 8.9 on (cutlass_fp8_supported), NVFP4 from 10.0 on (cutlass_scaled_mm_supports_fp4); before,
    Marlin.  Packed weights: Machete on 9.0, Marlin elsewhere and for experts; AWQ takes Marlin everywhere before 0.24
    (awq_marlin.py).  Both where the compute capability is not known.
    """
    card = machine.compute_capability
    if what == "packed":
        if expert or (awq and version < (0, 24, 0)):
            return ("marlin",)
        if card is None:
            return ("marlin", "machete")
        return ("machete",) if card == (9, 0) else ("marlin",)
    if card is None:
        return ("native", "marlin")
    return ("native",) if card >= ((8, 9) if what == "fp8" else (10, 0)) else ("marlin",)


def held(what: str, kernel: str, layer: Linear, version: Version) -> dict[str, int]:
    """Bytes that this kernel keeps of the layer: ``weight``, ``scale`` and, where there are any, ``zeros``."""
    if what == "fp8":
        return _fp8(layer, kernel, version)
    return _nvfp4(layer, kernel, version) if what == "nvfp4" else _packed(layer, kernel, version)


def padded(layer: Linear, group: int, version: Version) -> tuple[int, int]:
    """Sides as Marlin keeps them; group: inputs of one scale, 1 where it is for all of them."""
    n, k = layer.n, layer.k
    if version < _PADS:
        return n, k
    if layer.expert:
        step = math.lcm(64, group)
        return (n, _up(k, step)) if layer.expert == "down" else (_up(n, step), k)
    ways = [(_up(n, n_to), _up(k, math.lcm(k_to, group))) for n_to, k_to in _TILES]
    return min(ways, key=lambda nk: (nk[0] * nk[1], nk[0] + nk[1]))


def _fp8(layer: Linear, kernel: str, version: Version) -> dict[str, int]:
    """One byte a weight; Marlin has a scale of the model's dtype for every output, and every block of inputs."""
    scale = sum(size for name, size in layer.pieces.items() if name.startswith("weight_scale"))
    if kernel == "native":
        return {"weight": layer.n * layer.k, "scale": scale}
    group = _BLOCK if layer.groups > 1 or "weight_scale_inv" in layer.pieces else 1
    n, k = padded(layer, group, version)
    return {"weight": n * k, "scale": n * layer.width * (-(-k // group) if group > 1 else 1)}


def _nvfp4(layer: Linear, kernel: str, version: Version) -> dict[str, int]:
    if kernel == "marlin":
        n, k = padded(layer, _NVFP4_GROUP, version)
        return {"weight": n * k // 2, "scale": n * k // _NVFP4_GROUP}
    n, k = (layer.n, layer.k) if layer.expert else (_up(layer.n, _NVFP4_SIDE), _up(layer.k, _NVFP4_SIDE))
    scale = _up(layer.n, _SCALE_ROWS) * _up(layer.k // _NVFP4_GROUP, _SCALE_COLUMNS)
    return {"weight": n * k // 2, "scale": scale}


def _packed(layer: Linear, kernel: str, version: Version) -> dict[str, int]:
    """Marlin drops GPTQ's zero points, which are all alike, and g_idx; Machete lets them lie (machete.py changes only
    what it reads), g_idx up to 0.29: 0.30 no longer loads it.  Real zero points take the model's dtype there.
    """
    pieces, gptq = layer.pieces, "g_idx" in layer.pieces
    weight = pieces.get("qweight") or pieces["weight_packed"]
    scale = pieces.get("scales") or pieces["weight_scale"]
    stored = pieces.get("qzeros", 0) + pieces.get("weight_zero_point", 0)
    zeros = 0 if gptq else stored
    made = {"weight": weight, "scale": scale, "zeros": scale if zeros else 0}
    if gptq:
        made |= {"zeros": stored, "g_idx": pieces["g_idx"] if version < _NO_G_IDX else 0}
    if kernel == "marlin":
        group = layer.k // layer.groups if layer.groups > 1 else 1
        n, k = padded(layer, group, version)
        groups = k // group if group > 1 else 1
        made = {
            "weight": weight * n * k // (layer.n * layer.k),
            "scale": scale * n * groups // (layer.n * layer.groups),
            "zeros": zeros * n * groups // (layer.n * layer.groups),
        }
    return {name: size for name, size in made.items() if size}


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
