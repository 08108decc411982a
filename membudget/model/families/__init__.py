"""All families that membudget knows, by model_type; only the module that a type needs is imported."""

from __future__ import annotations

from importlib import import_module

from membudget.model.families.base import FAMILIES, Family
from membudget.model.families.index import MODULE_OF

__all__ = ["MODULES", "Family", "all_families", "find"]

#: The modules that declare families.
MODULES = (
    "dense", "encdec", "encoders", "experts", "inkling", "legacy", "linear", "loops", "mixtures", "mla", "per_layer",
    "recurrent", "remote", "state_space", "streams",
)  # fmt: skip


def find(model_type: str) -> Family | None:
    """The family of a model_type, or None."""
    module = MODULE_OF.get(model_type)
    if module is None:
        # A family that was declared since the index was written is found all the same.
        return all_families().get(model_type)
    import_module(f"membudget.model.families.{module}")
    return FAMILIES.get(model_type)


def all_families() -> dict[str, Family]:
    """Every family, by model_type."""
    for module in MODULES:
        import_module(f"membudget.model.families.{module}")
    return FAMILIES
