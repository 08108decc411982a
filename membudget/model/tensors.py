"""What a model is made of: tensors as its checkpoint names them, and their counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

#: Buckets of `ParameterCount.by_role`.  A role is one of these, or one of these
#: with a dotted part behind it: ``mlp.experts``, ``mlp.router``, ``attn.indexer``.
ROLES = ("embed", "attn", "mixer", "mlp", "norms", "lm_head", "vision", "audio", "mtp", "other")


class Tensor(NamedTuple):
    """One tensor, or `copies` alike ones: experts.

    name: as in the published checkpoint; ``*`` stands for 0 .. copies - 1
        (``model.layers.3.mlp.experts.*.up_proj.weight``).  A name without it is one
        tensor in the file that holds all copies, stacked: (copies, *shape).
    shape: of one copy, as PyTorch stores it, a linear weight is (out_features, in_features).
    role: what it is for, see `ROLES`.
    active: how many of the copies one token reads; all of them unless it is an expert.
    part: ``params`` (a parameter of the model) or ``checkpoint`` (stored in published
        files beside them: router-bias buffers, MTP heads, untied copies).
    joined: the copies of one tensor are joined along its first dimension (DBRX:
        (copies * shape[0], ...)), not stacked on a dimension of their own.
    """

    name: str
    shape: tuple[int, ...]
    role: str
    copies: int = 1
    active: int | None = None
    part: str = "params"
    joined: bool = False

    @property
    def numel(self) -> int:
        """Elements of one copy."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def elements(self) -> int:
        """Elements of all copies."""
        return self.numel * self.copies

    @property
    def active_elements(self) -> int:
        """Elements that one token reads."""
        return self.numel * (self.copies if self.active is None else self.active)

    def expand(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and shape of every tensor that the checkpoint stores."""
        if "*" not in self.name:
            if self.copies == 1:
                yield self.name, self.shape
            elif self.joined:
                yield self.name, (self.copies * self.shape[0], *self.shape[1:])
            else:
                yield self.name, (self.copies, *self.shape)
            return
        for number in range(self.copies):
            yield self.name.replace("*", str(number)), self.shape


class ParameterCount(NamedTuple):
    """Three named totals and what they are made of, in elements.

    params: the model's parameters.  active: those one token reads (MoE).
    checkpoint: params plus what published files store beside them.
    by_role: `params` by bucket, every bucket of `ROLES` that is not empty, and
        always embed, attn, mlp, norms, lm_head (0 when tied) and other.
    by_part: `params` by full role (``mlp.experts``, ``mlp.router``).
    """

    params: int
    active: int
    checkpoint: int
    by_role: dict[str, int]
    by_part: dict[str, int]


def count(tensors: Iterable[Tensor]) -> ParameterCount:
    """Sum an inventory."""
    params = active = checkpoint = 0
    by_role = dict.fromkeys(("embed", "attn", "mlp", "norms", "lm_head", "other"), 0)
    by_part: dict[str, int] = {}
    for tensor in tensors:
        numel = tensor.numel
        elements = numel * tensor.copies
        checkpoint += elements
        if tensor.part != "params":
            continue
        params += elements
        active += elements if tensor.active is None else numel * tensor.active
        role = tensor.role
        by_part[role] = by_part.get(role, 0) + elements
        bucket = role.partition(".")[0]
        by_role[bucket] = by_role.get(bucket, 0) + elements
    return ParameterCount(params, active, checkpoint, by_role, by_part)
