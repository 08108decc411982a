"""How wide a token is where, on one rank: what the temporaries of a forward are made of."""

from __future__ import annotations

from typing import NamedTuple

from membudget.engines.vllm.parallel.cut import layer_of
from membudget.model import Model
from membudget.model.tensors import Tensor


class Widths(NamedTuple):
    """Elements a token.

    vocab, hidden: of the whole model.  dense: gate, up and their product of the widest dense MLP (or shared
    expert) of one layer, on one rank.  experts: how many experts a token is sent to, 0 without a mixture.
    inner: the width of one expert on one rank.  heads_out: query heads x width of a value (MLA: the latent),
    on one rank: a row of what attention puts out.  layers: of the model.
    """

    vocab: int
    hidden: int
    dense: int
    experts: int
    inner: int
    heads_out: int
    layers: int


def widths(model: Model, rank: Model, tp: int) -> Widths:
    """Read off the tensors: `rank` is what one rank holds, `model` the whole."""
    key = ("profile widths", tp)
    found = rank.memo.get(key)
    if found is None:
        found = rank.memo[key] = _widths(model, rank, tp)
    assert isinstance(found, Widths)
    return found


def _widths(model: Model, rank: Model, tp: int) -> Widths:
    hidden = model.config.integer("hidden_size")
    dense: dict[int | None, int] = {}
    experts = max((tensor.active or 0 for tensor in model.tensors if tensor.role == "mlp.experts"), default=0)
    inner = 0
    for tensor in rank.tensors:
        role = tensor.role
        if not role.startswith("mlp") or role == "mlp.router" or len(tensor.shape) != 2 or tensor.part != "params":
            continue
        layer = layer_of(tensor.name)
        wide = inside(tensor, hidden)
        if role == "mlp.experts":
            if tensor.name.endswith(("down_proj.weight", "w2.weight", "down_proj")):
                inner = max(inner, wide)
        else:
            dense[layer] = dense.get(layer, 0) + wide
    heads = model.config.integer("num_attention_heads", 1)
    value = max((spec.v_dim or spec.latent for spec in model.caches), default=0)
    return Widths(
        vocab=model.config.integer("vocab_size"),
        hidden=hidden,
        dense=max(dense.values(), default=0),
        experts=experts,
        inner=inner,
        heads_out=heads * value // tp,
        layers=len(model.caches),
    )


def inside(tensor: Tensor, hidden: int) -> int:
    """The side of an MLP's matrix that is not the model's hidden size."""
    first, second = tensor.shape
    return first if second == hidden else second
