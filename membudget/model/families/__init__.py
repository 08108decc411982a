"""All families, by model_type."""

from __future__ import annotations

from membudget.model.families import (  # each declares its families when it is imported
    dense,
    encdec,
    encoders,
    experts,
    inkling,
    legacy,
    linear,
    loops,
    mixtures,
    mla,
    per_layer,
    recurrent,
    remote,
    state_space,
    streams,
)
from membudget.model.families.base import FAMILIES, Family

__all__ = ["MODULES", "Family", "all_families", "find"]

#: The modules that declare families.
MODULES = (
    dense, encdec, encoders, experts, inkling, legacy, linear, loops, mixtures, mla, per_layer, recurrent, remote,
    state_space, streams,
)  # fmt: skip


def find(model_type: str) -> Family | None:
    """The family of a model_type, or None."""
    return FAMILIES.get(model_type)


def all_families() -> dict[str, Family]:
    """Every family, by model_type."""
    return FAMILIES
