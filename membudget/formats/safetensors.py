"""Formats that lie in safetensors files: a scheme for the layers' matrices, everything else dense."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, NamedTuple

from membudget.formats.base import Format, FormatError, Layout, Piece, Stored, is_layer_matrix, layout, piece

if TYPE_CHECKING:
    from membudget.model import Model
    from membudget.model.tensors import Tensor


class Scheme(NamedTuple):
    """How one matrix of (out, into) is stored.

    key: equal for equal schemes.  pieces(out, into): what lies in the file.
    stacked: what joins a stacked expert tensor's name, which has no ``.weight``, and a suffix.
    """

    key: Hashable
    pieces: Callable[[int, int], tuple[Piece, ...]]
    stacked: str = "_"


#: Stored in fp32 whatever the model's dtype is.
ALWAYS_FP32 = ("e_score_correction_bias",)
#: Model types whose stacked experts are (into, out): they are multiplied from the left.
INTO_FIRST = ("gpt_oss", "llama4_text", "llama4")

Choose = Callable[["Tensor"], "Scheme | None"]


class Safetensors(Format):
    """choose(tensor) names the scheme of a tensor, or None: it is stored as it is, in `dense`."""

    def __init__(self, name: str, key: Hashable, choose: Choose | None, dense: str = "BF16") -> None:
        self.name, self.key, self.dense = name, key, dense
        self._choose = choose
        self._made: dict[Hashable, Layout] = {}

    def choose(self, tensor: Tensor) -> Scheme | None:
        """The scheme that this tensor is stored in, or None when it stays dense."""
        return None if self._choose is None else self._choose(tensor)

    def layout(self, tensor: Tensor, model: Model) -> Layout:  # noqa: D102
        scheme = None if self._choose is None else self._choose(tensor)
        flip = scheme is not None and tensor.role == "mlp.experts" and model.model_type in INTO_FIRST
        dense = self._dense(tensor) if scheme is None else ""
        key = (scheme.key if scheme else dense, tensor.shape, flip)
        made = self._made.get(key)
        if made is None:
            if len(self._made) > 10_000:  # shapes of models that nobody will plan again
                self._made.clear()
            if scheme is None:
                made = layout((piece("weight", dense, *tensor.shape),))
            else:
                *stack, out, into = tensor.shape
                times = 1
                for extent in stack:
                    times *= extent
                try:
                    made = layout(scheme.pieces(into, out) if flip else scheme.pieces(out, into), times)
                except FormatError as error:
                    raise FormatError(f"{self.name}: {tensor.name} {tensor.shape}: {error}") from None
            self._made[key] = made
        return made

    def stored(self, tensor: Tensor, model: Model) -> list[Stored]:  # noqa: D102
        made = self.layout(tensor, model)
        scheme = self.choose(tensor)
        if scheme is None:
            only = made.pieces[0]
            return [Stored(tensor.name, only.dtype, only.shape, only.nbytes, tensor.copies)]
        if tensor.name.endswith(".weight"):
            stem, stack, copies = tensor.name[: -len("weight")], tensor.shape[:-2], tensor.copies
        else:
            # stacked experts are one tensor in the file
            stem, copies = tensor.name + scheme.stacked, 1
            stack = tensor.shape[:-2] if tensor.copies == 1 else (tensor.copies, *tensor.shape[:-2])
        times = 1
        for extent in stack:
            times *= extent
        return [
            Stored(stem + item.suffix, item.dtype, (*stack, *item.shape), item.nbytes * times, copies)
            for item in made.pieces
        ]

    def _dense(self, tensor: Tensor) -> str:
        return "F32" if tensor.name.endswith(ALWAYS_FP32) else self.dense


def by_default(scheme: Scheme) -> Choose:
    """The scheme for every matrix of a layer, nothing else."""
    return lambda tensor: scheme if is_layer_matrix(tensor) else None


def divide(size: int, by: int, what: str) -> int:
    """size / by, which must be whole."""
    whole, rest = divmod(size, by)
    if rest:
        raise FormatError(f"{what} {size:,} is not divisible by {by}")
    return whole


def up(size: int, by: int) -> int:
    """size / by, rounded up."""
    return -(-size // by)
