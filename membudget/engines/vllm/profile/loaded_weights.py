"""Weights as a rank of vLLM holds them, not as the file stores them: "Model loading took".

Maps that vLLM fuses lie in one tensor; the caching allocator rounds a large one up to 2 MiB; rotary embeddings keep
their tables; MXFP4 experts are padded for the kernel that multiplies them; towers are split over tensor-parallel
ranks like the model.
"""

from __future__ import annotations

from typing import NamedTuple

from membudget.engines.vllm.parallel.cut import VOCAB_PADDING
from membudget.engines.vllm.parallel.ranks import stages
from membudget.engines.vllm.pool.derive import model_dtype
from membudget.engines.vllm.profile.estimate import Estimate
from membudget.engines.vllm.profile.kernels import Linear, held, kernels, kind
from membudget.engines.vllm.profile.rope import tables
from membudget.engines.vllm.profile.settings import ProfileSettings
from membudget.formats import get
from membudget.formats.base import Format, Piece
from membudget.formats.safetensors import Safetensors
from membudget.machines import Machine
from membudget.model import Model
from membudget.model.tensors import Tensor
from membudget.units import MIB

Version = tuple[int, int, int]

#: Maps that lie in one tensor (each model's packed_modules_mapping): leaf -> what they are fused into.
_FUSED = {
    "q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "w1": "gate_up_proj", "w3": "gate_up_proj",
    "q_a_proj": "fused_qkv_a_proj", "kv_a_proj_with_mqa": "fused_qkv_a_proj",
    "in_proj_qkv": "in_proj_qkvz", "in_proj_z": "in_proj_qkvz",
    "in_proj_b": "in_proj_ba", "in_proj_a": "in_proj_ba",
}  # fmt: skip
#: torch's caching allocator (c10/cuda/CUDACachingAllocator.cpp): requests of up to 1 MiB are multiples of 512 B; of 10
#: MiB and more are whole multiples of 2 MiB, and a rest of up to 1 MiB is not split off; those between come out of
#: blocks of 20 MiB.
_SMALL, _LARGE, _STEP, _BUFFER, _UNIT = MIB, 10 * MIB, 2 * MIB, 20 * MIB, 512
#: What the weights of 44 public starts were off by: 0.02 GiB and less.
_OFF = 16 * MIB
#: Names of a quantized matrix's scales, the larger ones first.
_SCALES = ("weight_scale", "weight_scale_inv", "scales")
#: Tower matrices that a rank holds whole: tables and convolutions.
_WHOLE = ("embed", "position", "patch", "class_", "conv")


class Rank(NamedTuple):
    """What one rank of a pipeline stage holds.

    stage: its index.  model: its tensors and caches.  weights: as loaded.
    """

    stage: int
    model: Model
    weights: Estimate


def ranks(
    model: Model, form: Format, machine: Machine, settings: ProfileSettings, version: Version
) -> tuple[Rank, ...]:
    """One rank of every pipeline stage, kept on the model.

    Raises `RankError` for layouts that are refused or not known.
    """
    key = (
        "loaded",
        form.key,
        settings.tp,
        settings.pp,
        settings.experts,
        settings.dtype,
        settings.language_model_only,
        version,
        machine.compute_capability,
    )
    found = model.memo.get(key)
    if found is None:
        found = model.memo[key] = _ranks(model, form, machine, settings, version)
    assert isinstance(found, tuple)
    return found


def _ranks(
    model: Model, form: Format, machine: Machine, settings: ProfileSettings, version: Version
) -> tuple[Rank, ...]:
    tp, pp, experts = settings.tp, settings.pp, settings.experts
    held: list[Model] = [model]
    if tp * pp > 1 or (experts.ranks > 1 and any(tensor.role == "mlp.experts" for tensor in model.tensors)):
        # how MXFP4's experts are cut follows from their kernel, below: their shapes are those of a plain model
        held = [stage.model for stage in stages(model, get("bf16") if _mxfp4(form) else form, tp, pp, experts)]
    return tuple(
        Rank(place, rank, _weights(model, rank, form, machine, settings, version)) for place, rank in enumerate(held)
    )


def by_tensor(form: Format) -> bool:
    """Whether a format says what every tensor takes; of files whose headers were read only the sum is known."""
    return type(form).layout is not Format.layout


def _weights(
    model: Model, rank: Model, form: Format, machine: Machine, settings: ProfileSettings, version: Version
) -> Estimate:
    if not by_tensor(form):  # files of which only the headers were read, or GGUF: as they are stored
        size = form.weigh(rank).total
        return Estimate("weights", size, size - _OFF, size + _OFF, "as the files store them", "their headers")
    dtype = model_dtype(model.config, settings.dtype)[0]
    width = 4 if dtype == "float32" else 2
    sizes: dict[str, int] = {}
    layers: dict[str, _Quantized] = {}
    padded: list[tuple[int, int]] = []
    for tensor in rank.tensors:
        if tensor.part != "params" and not tensor.name.endswith("e_score_correction_bias"):
            continue
        if settings.language_model_only and tensor.role.partition(".")[0] in ("vision", "audio"):
            continue
        if _mxfp4(form) and tensor.role == "mlp.experts":
            padded.append(_experts(tensor, machine, settings, version))
            continue
        _add(sizes, layers, tensor, _cut(tensor, model, settings.tp), form, model, width)
    rotary = tables(model.config, width)
    ways = _prepared(layers, machine, version)
    every = [_allocated([*sizes.values(), *kept, *rotary]) for _, kept in ways]
    plain = every[0]
    low, high = sum(size for size, _ in padded), sum(size for _, size in padded)
    size = plain + (low + high) // 2
    low, high = low + min(every) - plain, high + max(every) - plain
    total = sum(sizes.values()) + sum(ways[0][1])
    why = f"{total:,} B of tensors, {sum(rotary):,} B of rotary tables, rounded as the allocator does"
    if layers:
        stored = sum(each.stored for each in layers.values())
        said = "; ".join(f"{name} {sum(kept):,} B" for name, kept in ways)
        why += f"; {stored:,} B of quantized layers as their kernel keeps them: {said}"
    if padded:
        why += f"; MXFP4 experts {low:,} to {high:,} B by the kernel that multiplies them"
    source = "model_executor/models, layers/rotary_embedding; CUDACachingAllocator.cpp"
    return Estimate("weights", size, plain + low - _OFF, plain + high + _OFF, why, source)


class _Quantized(NamedTuple):
    """One quantized layer: what its kernel sees, how often it is there, what it is (`kernels.kind`), bytes stored."""

    layer: Linear
    copies: int
    what: str
    stored: int


def _prepared(layers: dict[str, _Quantized], machine: Machine, version: Version) -> list[tuple[str, list[int]]]:
    """What the kernels keep of all layers, tensor by tensor: (their names, bytes) of each choice, the likely first."""
    takes: dict[str, tuple[str, ...]] = {}
    for name, each in layers.items():
        awq = "qzeros" in each.layer.pieces and "g_idx" not in each.layer.pieces
        takes[name] = kernels(each.what, machine, version, expert=bool(each.layer.expert), awq=awq)
    out = []
    for place in range(max(map(len, takes.values()), default=1)):
        kept: list[int] = []
        names: set[str] = set()
        for name, each in layers.items():
            kernel = takes[name][min(place, len(takes[name]) - 1)]
            names.add(kernel)
            kept += [size * each.copies for size in held(each.what, kernel, each.layer, version).values()]
        out.append((" and ".join(sorted(names)), kept))
    return out


def _add(
    sizes: dict[str, int],
    layers: dict[str, _Quantized],
    tensor: Tensor,
    shape: tuple[int, ...],
    form: Format,
    model: Model,
    width: int,
) -> None:
    made = form.layout(tensor._replace(shape=shape), model)
    stem, _, last = tensor.name.rpartition(".")
    parent, _, leaf = stem.rpartition(".") if last in ("weight", "bias") else (stem, "", last)
    if tensor.role == "mlp.experts":
        parent = parent.removesuffix(".*")
    name = f"{parent}.{_FUSED.get(leaf, leaf)}"
    pieces = {piece.suffix: piece for piece in made.pieces}
    what = kind({suffix: piece.dtype for suffix, piece in pieces.items()}) if last != "bias" else ""
    if what and len(shape) == 2:
        _quantized(layers, name, what, tensor, shape, pieces, width)
        return
    for piece in made.pieces:
        if piece.beside:
            continue
        size = piece.nbytes
        if piece.suffix == "weight" and piece.dtype in ("F32", "BF16", "F16") and isinstance(form, Safetensors):
            dense = {"F32": 4}.get(piece.dtype, 2)
            if piece.dtype == form.dense and dense != width:
                size = size // dense * width  # kept in the model's dtype, whatever the file's is
        where = f"{name}.{last if last == 'bias' else piece.suffix}"
        sizes[where] = sizes.get(where, 0) + size * tensor.copies


def _quantized(
    layers: dict[str, _Quantized],
    name: str,
    what: str,
    tensor: Tensor,
    shape: tuple[int, ...],
    pieces: dict[str, Piece],
    width: int,
) -> None:
    """Count a map's pieces to the layer that it is fused into."""
    n, k = shape
    scale = next((pieces[each].shape for each in _SCALES if each in pieces), ())
    groups = (scale[0] if "scales" in pieces else scale[1]) if len(scale) == 2 else 1
    expert = ""
    if tensor.role == "mlp.experts":
        expert = "down" if name.endswith(("down_proj", "w2")) else "up"
    found = {suffix: piece.nbytes for suffix, piece in pieces.items()}
    before = layers.get(name)
    if before is not None:
        n += before.layer.n
        each_input = {"g_idx": found.get("g_idx", 0)}  # of the inputs, which fused maps share
        found = {suffix: size + before.layer.pieces.get(suffix, 0) for suffix, size in found.items()} | each_input
        found = {suffix: size for suffix, size in found.items() if size or suffix != "g_idx"}
    stored = sum(found.values()) * tensor.copies
    layers[name] = _Quantized(Linear(n, k, found, groups, expert, width), tensor.copies, what, stored)


def _cut(tensor: Tensor, model: Model, tp: int) -> tuple[int, ...]:
    """A tensor's shape on a rank; the model's own are cut already, towers and a single rank's vocabulary are not."""
    bucket = tensor.role.partition(".")[0]
    shape = tensor.shape
    if bucket in ("embed", "lm_head") and shape[0] == model.config.get("vocab_size"):
        return (-(-shape[0] // VOCAB_PADDING) * VOCAB_PADDING, *shape[1:])
    if bucket in ("vision", "audio") and tp > 1 and len(shape) == 2 and not any(word in tensor.name for word in _WHOLE):
        side = 0 if shape[0] % tp == 0 else 1
        if shape[side] % tp == 0:
            return tuple(size // tp if place == side else size for place, size in enumerate(shape))
    return shape


def _mxfp4(form: Format) -> bool:
    return form.name == "mxfp4"


def _experts(tensor: Tensor, machine: Machine, settings: ProfileSettings, version: Version) -> tuple[int, int]:
    """(least, most) bytes of gpt-oss's experts of one name: as the kernels pad them that this device may take.

    fused_moe/oracle/mxfp4.py (0.32.0:816; quantization/mxfp4.py before 0.18): Marlin, cards before Hopper and 12.x,
    the inner side to 128 and hidden to 256; FlashInfer's TRT-LLM on Blackwell 10.x both to 256; Triton on Hopper, whose
    layout pads the input side to 256 (gpt-oss-20b printed 13.47 GiB in 0.11, 13.64 in 0.19, between it and Marlin).
    """
    major = machine.compute_capability[0] if machine.compute_capability else 0
    ways = {9: ((64, 256), (128, 256)), 10: ((256, 256),), 0: ((64, 256), (128, 256), (256, 256))}
    found = [_padded(tensor, settings.tp, inner, hidden) for inner, hidden in ways.get(major, ((128, 256),))]
    return min(found), max(found)


def _padded(tensor: Tensor, tp: int, inner_to: int, hidden_to: int) -> int:
    """Bytes of one stacked tensor: 17 bytes for 32 weights, biases in 16 bits."""
    if len(tensor.shape) == 1:
        return tensor.shape[0] * 2 * tensor.copies
    into, out = tensor.shape  # gpt-oss stacks its experts as (into, out)
    if tensor.name.endswith("gate_up_proj"):
        hidden, inner, times = into, out // 2, 2
    else:
        hidden, inner, times = out, into, 1
    wide = -(-inner // inner_to) * inner_to
    high = -(-hidden // hidden_to) * hidden_to
    return wide * high * times * 17 // 32 * tensor.copies


def _allocated(sizes: list[int]) -> int:
    """What torch counts as allocated for tensors of these sizes, one after the other."""
    total = 0
    free: list[int] = []
    for size in sizes:
        rounded = -(-size // _UNIT) * _UNIT
        if rounded <= _SMALL:
            total += rounded
            continue
        block = min((left for left in free if left >= rounded), default=0)
        if block:
            free.remove(block)
        else:
            block = _BUFFER if rounded < _LARGE else -(-rounded // _STEP) * _STEP
        rest = block - rounded
        if rest > _SMALL:
            free.append(rest)
            total += rounded
        else:
            total += block
    return total
