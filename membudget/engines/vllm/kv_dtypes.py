"""What vLLM's kv_cache_dtype stores: the names, what auto becomes, bytes of a side and of a latent row.

vLLM: utils/torch_utils.py, v1/kv_cache_interface.py, the attention backends' get_kv_cache_shape.
"""

from __future__ import annotations

from membudget.engines.vllm.pool import states
from membudget.engines.vllm.versions import Rules
from membudget.errors import MembudgetError
from membudget.model.config import Config

#: Bytes of an element of K or V by kv_cache_dtype; names with rules of their own are not here.
KV_DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
#: An fp32 scale a token, head and side is stored beside the data (Triton backend).
PER_TOKEN_HEAD = ("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head")
#: Opaque bytes a token of a latent cache (backends/mla/flashmla_sparse.py).
DS_MLA_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
KV_CACHE_DTYPES = ("auto", *KV_DTYPE_BYTES, *PER_TOKEN_HEAD, "nvfp4", *DS_MLA_BYTES)


class SpecError(MembudgetError):
    """A layer, dtype or parallel size that vLLM refuses or whose pages are not known."""


def resolve_kv_dtype(config: Config, asked: str, rules: Rules) -> tuple[str, str]:
    """``auto`` -> what a quantized checkpoint asks for, and why (utils/torch_utils.py, since 0.14.0)."""
    if asked not in KV_CACHE_DTYPES:
        raise SpecError(f"kv_cache_dtype {asked!r} is not known; known are {', '.join(KV_CACHE_DTYPES)}")
    written = config.raw.get("quantization_config")
    if asked != "auto" or not isinstance(written, dict) or rules.version < (0, 14, 0):
        return asked, ""
    if not str(written.get("quant_method", "")).startswith("modelopt"):
        return asked, ""
    inner = written.get("quantization")
    inner = inner if isinstance(inner, dict) else written
    scheme = (
        inner.get("kv_cache_scheme")
        or written.get("kv_cache_scheme")
        or inner.get("kv_cache_quant_algo")
        or written.get("kv_cache_quant_algo")
    )
    if isinstance(scheme, dict):
        if scheme.get("type") != "float":
            return asked, ""
        if scheme.get("num_bits") == 8 and scheme.get("dynamic") is False:
            scheme = "fp8"
        elif scheme.get("num_bits") == 4:
            scheme = "nvfp4"
    if isinstance(scheme, str) and scheme.lower() in ("fp8", "nvfp4"):
        name = scheme.lower()
        return name, f"kv_cache_dtype auto is {name}: quantization_config says so (utils/torch_utils.py)"
    return asked, ""


def side_bytes(dim: int, dtype: str, model_dtype: str) -> int:
    """Bytes of K (or V) of one head and token."""
    if dtype == "auto":
        return dim * states.DTYPE_BYTES[model_dtype]
    if dtype in KV_DTYPE_BYTES:
        return dim * KV_DTYPE_BYTES[dtype]
    if dtype == "int4_per_token_head":
        return dim // 2 + 4
    if dtype in PER_TOKEN_HEAD:
        return dim + 4
    if dtype == "nvfp4":
        return dim // 2 + dim // 16
    raise SpecError(f"kv_cache_dtype {dtype!r} is for latent caches (MLA), this model has keys and values of heads")


def latent_bytes(width: int, dtype: str, model_dtype: str) -> int:
    """Bytes of one token of a latent (MLA) cache, kv_lora_rank + qk_rope_head_dim wide."""
    if dtype in DS_MLA_BYTES:
        return DS_MLA_BYTES[dtype]
    if dtype == "nvfp4":
        raise SpecError("kv_cache_dtype nvfp4 is not for latent caches (MLA): write nvfp4_ds_mla")
    if dtype == "int4_per_token_head":
        return width // 2 + 8
    if dtype in PER_TOKEN_HEAD:
        return width + 8
    return side_bytes(width, dtype, model_dtype)
