"""The KV cache dtype that a checkpoint declares, and from which vLLM on ``auto`` follows it.

Sources: vLLM utils/torch_utils.py (get_kv_cache_quant_algo_string, for ModelOpt), model_executor/layers/attention
(for compressed-tensors), compressed_tensors.py (validate_kv_cache_scheme), 0.10.2 to 0.32.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from membudget.formats.quantization import Quantization, declaration
from membudget.model.config import Config

#: The newest version of vLLM whose rules are here.
LATEST = (0, 32, 0)


@dataclass(frozen=True)
class DeclaredCache:
    """What a checkpoint declares for its KV cache."""

    #: The dtype, by vLLM's name.
    name: str
    #: Where it says so, and the file of vLLM that follows it.
    why: str


def declared(
    config: Config, hf_quant_config: Mapping[str, Any] | None = None, version: tuple[int, ...] = LATEST
) -> DeclaredCache | None:
    """The KV cache dtype that vLLM takes from this checkpoint when ``--kv-cache-dtype`` is ``auto``; None: the model's.

    Raises `FormatError` for a scheme that vLLM refuses to load.
    """
    found = declaration(config, hf_quant_config)
    if found is None:
        return None
    method = found.text("quant_method").lower().replace("_", "-")
    # a ModelOpt file without quant_method has quant_algo
    if method.startswith("modelopt") or (not method and found.raw.get("quant_algo")):
        return _modelopt(found, version)
    return _compressed(found, config, version) if method in ("", "compressed-tensors") else None


def _modelopt(found: Quantization, version: tuple[int, ...]) -> DeclaredCache | None:
    if version < (0, 14, 0):
        return None
    inner = found.table("quantization") or found.raw
    keys = [(place, key) for key in ("kv_cache_scheme", "kv_cache_quant_algo") for place in (inner, found.raw)]
    scheme, key = next(((place[key], key) for place, key in keys if place.get(key)), (None, ""))
    if isinstance(scheme, Mapping):
        floats = scheme.get("type") == "float"
        eight = floats and scheme.get("num_bits") == 8 and scheme.get("dynamic") is False
        scheme = "FP8" if eight else "NVFP4" if floats and scheme.get("num_bits") == 4 else None
    name = {"FP8": "fp8", "NVFP4": "nvfp4"}.get(str(scheme).upper())
    # vLLM warns about any other and serves it as `auto`
    if name is None or (name == "nvfp4" and version < (0, 20, 0)):
        return None
    return DeclaredCache(name, f"{found.where}.{key} (utils/torch_utils.py)")


def _compressed(found: Quantization, config: Config, version: tuple[int, ...]) -> DeclaredCache | None:
    scheme = found.table("kv_cache_scheme")
    # MLA layers do not look at the scheme (mla_attention.py)
    if not scheme or version < (0, 15, 0) or config.get("kv_lora_rank"):
        return None
    if scheme.get("type") != "float" or scheme.get("num_bits") != 8:
        raise found.error("kv_cache_scheme", f"is {scheme.get('num_bits')} bits of {scheme.get('type')}", "8, float")
    if scheme.get("strategy", "tensor") not in ("tensor", "attn_head"):
        raise found.error("kv_cache_scheme.strategy", f"is {scheme['strategy']!r}"[:80], "tensor or attn_head")
    if scheme.get("symmetric", True) is not True:
        raise found.error("kv_cache_scheme.symmetric", "is not true", "true: vLLM has no zero points for a KV cache")
    return DeclaredCache("fp8", f"{found.where}.kv_cache_scheme (layers/attention/attention.py)")
