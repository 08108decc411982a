"""Formats that are made from a name and a number or two, without a config's declaration."""

from __future__ import annotations

from membudget.formats import schemes
from membudget.formats.base import Format, is_layer_matrix
from membudget.formats.safetensors import Safetensors, Scheme
from membudget.model import Model
from membudget.model.tensors import Tensor


def dense(name: str, dtype: str) -> Format:
    """Every weight in one dtype, by its name in a safetensors header."""
    return Safetensors(name, "dense", None, dtype)


def mxfp4(name: str) -> Format:
    """MXFP4 by name: gpt-oss's experts as they are published; every layer matrix of other models."""
    stacked, flat = schemes.mxfp4("gpt-oss"), schemes.mxfp4()

    def choose(tensor: Tensor, model: Model) -> Scheme | None:
        if not is_layer_matrix(tensor):
            return None
        if model.model_type == "gpt_oss":
            return stacked if tensor.role == "mlp.experts" else None
        return flat

    return Safetensors(name, "mxfp4 by name", choose)


def exl3(name: str, bits: int, head: int, dtype: str = "F16") -> Format:
    """EXL3: layer matrices at `bits`, the head at `head` bits."""
    layers, last = schemes.exl3(bits), schemes.exl3(head)

    def choose(tensor: Tensor, model: Model) -> Scheme | None:
        head_matrix = tensor.role == "lm_head" and len(tensor.shape) == 2  # phi's head has a bias too
        return layers if is_layer_matrix(tensor) else last if head_matrix else None

    return Safetensors(name, ("exl3", bits, head), choose, dtype)
