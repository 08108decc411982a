"""Formats that lie in safetensors files: a scheme for the layers' matrices, everything else dense."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from membudget.formats.base import Format, FormatError, Layout, Piece, Stored, is_layer_matrix, layout, piece
from membudget.model import Model
from membudget.model.tensors import Tensor


class Scheme(NamedTuple):
    """How one matrix of (out, into) is stored.

    key: equal for equal schemes.  pieces(out, into): what lies in the file.
    stacked: experts stay stacked in one tensor (``experts.down_proj_blocks``); otherwise every
        expert's gate, up and down is a matrix of its own (``experts.0.down_proj.weight``).
    """

    key: Hashable
    pieces: Callable[[int, int], tuple[Piece, ...]]
    stacked: bool = False


#: Stored in fp32 whatever the model's dtype is: routers' corrections, and DeepSeek-V4's small maps.
ALWAYS_FP32 = (
    "e_score_correction_bias", "ffn.gate.bias", ".attn_sink", "compressor.ape", "hc_attn_fn", "hc_attn_base",
    "hc_attn_scale", "hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale", "hc_head.hc_fn", "hc_head.hc_base", "hc_head.hc_scale",
)  # fmt: skip
#: Tables of integers: the experts of every token in DeepSeek-V4's hashed layers.
ALWAYS_I64 = (".tid2eid",)
#: Model types whose linear weights are (into, out): OpenAI's Conv1D.
CONV1D = ("gpt2", "imagegpt", "decision_transformer")
#: Model types whose stacked experts are (into, out): they are multiplied from the left.
INTO_FIRST = ("gpt_oss", "llama4_text", "llama4", "qwen3_vl_moe_text")

_FLIPPED = (*INTO_FIRST, *CONV1D)

Choose = Callable[["Tensor", "Model"], "Scheme | None"]


class Safetensors(Format):
    """choose(tensor, model) names the scheme of a tensor, or None: it is stored as it is, in `dense`."""

    def __init__(self, name: str, key: Hashable, choose: Choose | None, dense: str = "BF16") -> None:
        self.name, self.key, self.dense = name, (key, dense), dense
        self._choose = choose
        self._made: dict[Hashable, Layout] = {}

    def choose(self, tensor: Tensor, model: Model) -> Scheme | None:
        """The scheme that this tensor is stored in, or None when it stays dense."""
        return None if self._choose is None else self._choose(tensor, model)

    def layout(self, tensor: Tensor, model: Model) -> Layout:  # noqa: D102
        scheme = None if self._choose is None else self._choose(tensor, model)
        if scheme is None:
            name = tensor.name
            dtype = "F32" if name.endswith(ALWAYS_FP32) else "I64" if name.endswith(ALWAYS_I64) else self.dense
            key: Hashable = (dtype, tensor.shape)
        else:
            experts = tensor.role == "mlp.experts" and not tensor.name.endswith(".weight")
            key = (scheme.key, tensor.shape, experts and tensor.name[-12:], model.model_type in _FLIPPED)
        made = self._made.get(key)
        if made is not None:
            return made
        if len(self._made) > 10_000:  # shapes of models that nobody will plan again
            self._made.clear()
        if scheme is None:
            made = layout((piece("weight", dtype, *tensor.shape),))
        else:
            stack, count, out, into = _matrices(tensor, model, scheme)
            try:
                made = layout(scheme.pieces(out, into), stack * count)
            except FormatError as error:
                raise FormatError(f"{self.name}: {tensor.name} {tensor.shape}: {error}") from None
        self._made[key] = made
        return made

    def stored(self, tensor: Tensor, model: Model) -> list[Stored]:  # noqa: D102
        pieces = self.layout(tensor, model).pieces
        scheme = self.choose(tensor, model)
        if scheme is None:
            only = pieces[0]
            if tensor.copies == 1 or "*" in tensor.name:
                return [Stored(tensor.name, only.dtype, only.shape, only.nbytes, tensor.copies)]
            [(name, shape)] = tensor.expand()
            return [Stored(name, only.dtype, shape, only.nbytes * tensor.copies)]
        if tensor.name.endswith(".weight"):
            stem = tensor.name.removesuffix("weight")
            return [Stored(stem + item.suffix, item.dtype, item.shape, item.nbytes, tensor.copies) for item in pieces]
        stack, count, *_ = _matrices(tensor, model, scheme)
        copies = stack * tensor.copies
        if scheme.stacked:  # one tensor in the file
            return [
                Stored(f"{tensor.name}_{item.suffix}", item.dtype, (copies, *item.shape), item.nbytes * copies)
                for item in pieces
            ]
        head, _, last = tensor.name.rpartition(".")
        return [
            Stored(f"{head}.*.{part}.{item.suffix}", item.dtype, item.shape, item.nbytes, copies)
            for part in (("gate_proj", "up_proj") if count == 2 else (last,))
            for item in pieces
        ]


def _matrices(tensor: Tensor, model: Model, scheme: Scheme) -> tuple[int, int, int, int]:
    """(matrices stacked in one copy, matrices beside each other in each of them, out, into)."""
    *stacked, out, into = tensor.shape
    stack = 1
    for extent in stacked:
        stack *= extent
    if tensor.name.endswith(".weight"):
        return (stack, 1, into, out) if model.model_type in CONV1D else (stack, 1, out, into)
    if model.model_type in INTO_FIRST:
        out, into = into, out
    if tensor.name.endswith("gate_up_proj") and not scheme.stacked and out % 2 == 0:
        return stack, 2, out // 2, into
    return stack, 1, out, into


def by_default(scheme: Scheme) -> Choose:
    """The scheme for every matrix of a layer, nothing else."""
    return lambda tensor, model: scheme if is_layer_matrix(tensor) else None


def divide(size: int, by: int, what: str) -> int:
    """size / by, which must be whole."""
    whole, rest = divmod(size, by)
    if rest:
        raise FormatError(f"{what} {size:,} is not divisible by {by}")
    return whole


def up(size: int, by: int) -> int:
    """size / by, rounded up."""
    return -(-size // by)
