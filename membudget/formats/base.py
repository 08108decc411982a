"""What a weight format is: a rule that says which tensors really lie in the file for one tensor of the model."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from membudget.errors import MembudgetError
from membudget.formats.dtypes import DTYPE_BITS
from membudget.model import Model
from membudget.model.tensors import Tensor

#: The roles whose matrices a format compresses; embeddings, heads, norms and other towers stay as they are.
LAYER_ROLES = ("attn", "mlp", "mixer")


class FormatError(MembudgetError):
    """A format that does not apply to a tensor or a config: says which, and what is allowed."""


class UnknownFormat(FormatError):
    """An unknown or unusable format; the message names the nearest known ones."""


class Stored(NamedTuple):
    """A tensor as it lies in the file, or `copies` alike ones (``*`` in the name stands for 0 .. copies - 1).

    dtype: as a safetensors header or ggml names it.  shape: of one copy, row-major as in PyTorch
    (a GGUF header lists the same extents backwards).  nbytes: of one copy.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    copies: int = 1

    @property
    def total(self) -> int:
        """Bytes of all copies."""
        return self.nbytes * self.copies

    def expand(self) -> Iterator[Stored]:
        """Every copy under its own name."""
        if self.copies == 1:
            yield self
            return
        for number in range(self.copies):
            yield Stored(self.name.replace("*", str(number)), self.dtype, self.shape, self.nbytes)


class Weights(NamedTuple):
    """What a model's weights take in one format, in bytes.

    total: of all tensors.  by_role: by the model's buckets.  by_dtype: by the dtype in the file.
    layer_bits: (bytes, weights) of the layers' matrices, scales and zero points included;
        8 x bytes / weights is the true bits per layer weight.
    active: what one token reads: only the active experts, and one row of the embedding
        table unless the table is the output head too.
    why: the sum in words and numbers.
    """

    total: int
    by_role: dict[str, int]
    by_dtype: dict[str, int]
    layer_bits: tuple[int, int]
    active: int
    why: str

    @property
    def bits_per_layer_weight(self) -> float:
        """8 x bytes / weights of the layers' matrices; 0.0 for a model without any."""
        size, weights = self.layer_bits
        return 8 * size / weights if weights else 0.0


class Piece(NamedTuple):
    """One stored tensor, before it has a name: the suffix that replaces ``weight``, and what it is.

    beside: bookkeeping in the file that is not a weight; it counts for the checkpoint only.
    """

    suffix: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    beside: bool = False


class Layout(NamedTuple):
    """All that is stored for one copy of a tensor, summed: the weights, and what lies beside them."""

    pieces: tuple[Piece, ...]
    nbytes: int
    by_dtype: tuple[tuple[str, int], ...]
    beside: tuple[tuple[str, int], ...] = ()


def piece(suffix: str, dtype: str, *shape: int) -> Piece:
    """A stored tensor of plain elements; packed ones have the dtype that they are packed into."""
    size = DTYPE_BITS[dtype]
    for extent in shape:
        size *= extent
    return Piece(suffix, dtype, shape, size // 8)


def layout(pieces: tuple[Piece, ...], times: int = 1) -> Layout:
    """Sum pieces; `times` of them are stacked in one tensor or lie side by side."""
    by_dtype: dict[str, int] = {}
    beside: dict[str, int] = {}
    for item in pieces:
        sums = beside if item.beside else by_dtype
        sums[item.dtype] = sums.get(item.dtype, 0) + item.nbytes * times
    return Layout(pieces, sum(by_dtype.values()), tuple(by_dtype.items()), tuple(beside.items()))


def is_layer_matrix(tensor: Tensor) -> bool:
    """Whether this is a matrix of a layer's linear map, the only thing that formats compress by default.

    Routers, shared-expert gates (one row), convolutions, norms and tables are not, nor the
    projection that weighs a sparse indexer's heads, which is kept in fp32 or bf16.
    """
    role = tensor.role
    if role.partition(".")[0] not in LAYER_ROLES or role == "mlp.router" or len(tensor.shape) < 2:
        return False
    name, shape = tensor.name, tensor.shape
    if len(shape) > 2 and role != "mlp.experts":
        return False
    if shape[0] == 1 or shape[-1] == 1 or name.endswith("indexer.weights_proj.weight"):
        return False
    module = name.removesuffix(".weight").rpartition(".")[2]
    if "conv" in module or "norm" in module:
        return False
    return name.endswith(".weight") or (role == "mlp.experts" and not name.endswith(("_bias", ".bias")))


class Format:
    """A weight format.  Subclasses say what lies in the file (`layout`, `stored`); the sums are here.

    name: how people call it.  key: equal for formats that are equal.
    """

    name: str
    key: Hashable

    def layout(self, tensor: Tensor, model: Model) -> Layout:
        """What is stored for one copy of this tensor (for all copies where they are stacked: see `stacks`)."""
        raise NotImplementedError

    def stored(self, tensor: Tensor, model: Model) -> list[Stored]:
        """The tensors that really lie in the file for this tensor of the model."""
        raise NotImplementedError

    def extras(self, model: Model) -> list[Stored]:
        """What the file holds beside the model's own tensors (RoPE factors in a GGUF file)."""
        return []

    def weigh(self, model: Model, *, total: str = "params") -> Weights:
        """Bytes of the whole model.

        total: ``params`` (the model's parameters) or ``checkpoint`` (also what published
        files store beside them: `Tensor.part`).  The result is kept on the model.
        """
        key = ("weigh", self.key, total)
        found = model.memo.get(key)
        if found is None:
            if total not in ("params", "checkpoint"):
                raise FormatError(f"total is {total!r}; allowed are 'params' and 'checkpoint'")
            found = model.memo[key] = _weigh(self, model, total == "checkpoint")
        assert isinstance(found, Weights)
        return found

    def __repr__(self) -> str:
        return f"<Format {self.name}>"


def _weigh(form: Format, model: Model, everything: bool) -> Weights:
    by_role: dict[str, int] = {}
    by_dtype: dict[str, int] = {}
    size = active = layer_bytes = layer_weights = kept = beside = 0
    head = any(tensor.role == "lm_head" for tensor in model.tensors)
    table_is_head = not head and model.config.tied
    vocab = model.config.get("vocab_size")
    for tensor in model.tensors:
        if not everything and tensor.part != "params":
            continue
        made = form.layout(tensor, model)
        copies, nbytes = tensor.copies, made.nbytes * tensor.copies
        if everything and made.beside:
            for dtype, part in made.beside:
                beside += part * copies
                by_dtype[dtype] = by_dtype.get(dtype, 0) + part * copies
        size += nbytes
        bucket = tensor.role.partition(".")[0]
        by_role[bucket] = by_role.get(bucket, 0) + nbytes
        for dtype, part in made.by_dtype:
            by_dtype[dtype] = by_dtype.get(dtype, 0) + part * copies
        if is_layer_matrix(tensor):
            layer_bytes += nbytes
            layer_weights += tensor.elements
        else:
            kept += tensor.elements
        if bucket == "embed" and len(tensor.shape) == 2 and not (table_is_head and tensor.shape[0] == vocab):
            active += nbytes // tensor.shape[0]
        else:
            active += nbytes if tensor.active is None else made.nbytes * tensor.active
    others = size - layer_bytes
    for item in form.extras(model):
        beside += item.total
        by_dtype[item.dtype] = by_dtype.get(item.dtype, 0) + item.total
    if beside:
        size += beside
        by_role["other"] = by_role.get("other", 0) + beside
    bits = f"{8 * layer_bytes / layer_weights:.4f}".rstrip("0").rstrip(".") if layer_weights else "0"
    why = f"{layer_weights:,} layer weights x {bits} bits = {layer_bytes:,} B; {kept:,} others take {others:,} B" + (
        f"; beside them {beside:,} B" if beside else ""
    )
    return Weights(size, by_role, by_dtype, (layer_bytes, layer_weights), active, why)
