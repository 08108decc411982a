"""All families that membudget knows, by model_type."""

from __future__ import annotations

from membudget.model.families import dense as _dense
from membudget.model.families import experts as _experts
from membudget.model.families import linear as _linear
from membudget.model.families import mla as _mla
from membudget.model.families import state_space as _state_space
from membudget.model.families.base import FAMILIES, Family

__all__ = ["FAMILIES", "Family"]
_ = (_dense, _experts, _linear, _mla, _state_space)
