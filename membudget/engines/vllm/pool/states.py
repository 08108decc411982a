"""What vLLM keeps a sequence in a recurrent layer: shapes per tensor-parallel rank.

vLLM's conv state has conv_kernel - 1 columns (one more a draft token), where
transformers' cache keeps conv_kernel: so the shapes are vLLM's own, by model_type,
from `get_mamba_state_shape_from_config` of its models (0.8.5 to 0.32.0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from membudget.errors import MembudgetError
from membudget.formats.dtypes import TORCH_DTYPES, torch_bytes
from membudget.model.config import Config, ConfigError


class StateError(MembudgetError):
    """A recurrent layer whose state vLLM's arithmetic is not known for, or that TP does not divide."""


class Shapes(NamedTuple):
    """One recurrent layer's state on one rank.

    kind: mamba1, mamba2, gdn (gated delta net), kda, conv (short convolution), linear (lightning attention).
    conv: elements in the cache dtype.  state: elements in the state dtype.  state_dtype: the
    default dtype of the state where it is not the model's.  text: how it came about.
    """

    kind: str
    conv: int
    state: int
    state_dtype: str | None
    text: str


class Question(NamedTuple):
    """config, tensor-parallel size and draft tokens that the shapes are asked for."""

    config: Config
    tp: int
    draft: int


def _divide(q: Question, value: int, what: str) -> int:
    if value % q.tp:
        raise StateError(f"{q.config.source}: {what} {value} is not divisible by tensor_parallel_size {q.tp}")
    return value // q.tp


def _mamba1(inner: int, state: int, kernel: int, q: Question) -> Shapes:
    inner = _divide(q, inner, "the mamba inner size")
    text = f"({kernel} - 1) x {inner} conv + {inner} x {state} state"
    return Shapes("mamba1", (kernel - 1) * inner, inner * state, None, text)


def _mamba2(
    inner: int, groups: int, heads: int, head_dim: int, state: int, kernel: int, q: Question, dtype: str | None = None
) -> Shapes:
    if groups % q.tp:
        groups = q.tp  # groups are replicated so that each rank has those of its heads
    conv = _divide(q, inner + 2 * groups * state, "mamba conv size")
    heads = _divide(q, heads, "mamba heads")
    columns = kernel - 1 + q.draft
    text = f"{columns} x {conv} conv + {heads} x {head_dim} x {state} state"
    return Shapes("mamba2", columns * conv, heads * head_dim * state, dtype, text)


def _granite(q: Question) -> Shapes:
    c = q.config
    return _mamba2(
        c.integer("mamba_expand", 2) * c.integer("hidden_size"),
        c.integer("mamba_n_groups", 1),
        c.integer("mamba_n_heads", 128),
        _head_dim(c),
        c.integer("mamba_d_state", 256),
        c.integer("mamba_d_conv", 4),
        q,
    )


def _head_dim(c: Config) -> int:
    written = c.get("mamba_d_head")
    if written in (None, "auto"):
        return c.integer("mamba_expand", 2) * c.integer("hidden_size") // c.integer("mamba_n_heads", 128)
    return c.integer("mamba_d_head")


def _falcon_h1(q: Question) -> Shapes:
    c = q.config
    inner = c.get("mamba_d_ssm")
    return _mamba2(
        c.integer("mamba_expand", 2) * c.integer("hidden_size") if inner is None else c.integer("mamba_d_ssm"),
        c.integer("mamba_n_groups", 1),
        c.integer("mamba_n_heads", 128),
        _head_dim(c),
        c.integer("mamba_d_state", 256),
        c.integer("mamba_d_conv", 4),
        q,
    )


def _zamba2(q: Question) -> Shapes:
    c = q.config
    heads, expand = c.integer("n_mamba_heads", 8), c.integer("mamba_expand", 2)
    inner = expand * c.integer("hidden_size")
    return _mamba2(
        inner,
        c.integer("mamba_ngroups", 1),
        heads,
        c.integer("mamba_headdim", inner // heads),
        c.integer("mamba_d_state", 64),
        c.integer("mamba_d_conv", 4),
        q,
    )


def _nemotron_h(q: Question) -> Shapes:
    c = q.config
    heads, head_dim = c.integer("mamba_num_heads", 128), c.integer("mamba_head_dim", 64)
    dtype = c.get("mamba_ssm_cache_dtype", "float32")
    return _mamba2(
        heads * head_dim,
        c.integer("n_groups", 8),
        heads,
        head_dim,
        c.integer("ssm_state_size", 128),
        c.integer("conv_kernel", 4),
        q,
        dtype if isinstance(dtype, str) else "float32",
    )


def _mamba2_model(q: Question) -> Shapes:
    c = q.config
    return _mamba2(
        c.integer("expand", 2) * c.integer("hidden_size"),
        c.integer("n_groups", 8),
        c.integer("num_heads", 128),
        c.integer("head_dim", 64),
        c.integer("state_size", 128),
        c.integer("conv_kernel", 4),
        q,
    )


def _mamba_model(q: Question) -> Shapes:
    c = q.config
    inner = c.get("intermediate_size")
    width = c.integer("expand", 2) * c.integer("hidden_size") if inner is None else c.integer("intermediate_size")
    return _mamba1(width, c.integer("state_size", 16), c.integer("conv_kernel", 4), q)


def _jamba(q: Question) -> Shapes:
    c = q.config
    inner = c.integer("mamba_expand", 2) * c.integer("hidden_size")
    return _mamba1(inner, c.integer("mamba_d_state", 16), c.integer("mamba_d_conv", 4), q)


def _gdn(q: Question) -> Shapes:
    c = q.config
    k_heads, k_dim = c.integer("linear_num_key_heads", 16), c.integer("linear_key_head_dim", 128)
    v_heads, v_dim = c.integer("linear_num_value_heads", 32), c.integer("linear_value_head_dim", 128)
    conv = _divide(q, 2 * k_heads * k_dim + v_heads * v_dim, "the linear-attention conv size")
    v_heads = _divide(q, v_heads, "linear_num_value_heads")
    columns = c.integer("linear_conv_kernel_dim", 4) - 1 + q.draft
    text = f"{columns} x {conv} conv + {v_heads} x {v_dim} x {k_dim} state"
    dtype = None
    if c.model_type.startswith("qwen3_5"):
        written = c.get("mamba_ssm_dtype")
        dtype = written if isinstance(written, str) else None
    return Shapes("gdn", columns * conv, v_heads * v_dim * k_dim, dtype, text)


def _kda(q: Question) -> Shapes:
    written = q.config.get("linear_attn_config")
    if not isinstance(written, dict):
        raise q.config.error("linear_attn_config", "is missing", "an object with num_heads, head_dim")
    c = Config({"model_type": "kda", **written}, f"{q.config.source}: linear_attn_config")
    heads, head_dim = c.integer("num_heads"), c.integer("head_dim")
    conv = _divide(q, 3 * heads * head_dim, "the KDA conv size")
    heads = _divide(q, heads, "KDA heads")
    columns = c.integer("short_conv_kernel_size", 4) - 1 + q.draft
    text = f"{columns} x {conv} conv + {heads} x {head_dim} x {head_dim} state"
    return Shapes("kda", columns * conv, heads * head_dim * head_dim, "float32", text)


def _short_conv(q: Question) -> Shapes:
    c = q.config
    width = _divide(q, c.integer("conv_dim", c.integer("hidden_size")), "conv_dim")
    kernel = c.integer("conv_L_cache", 3)
    return Shapes("conv", (kernel - 1) * width, 0, None, f"{kernel - 1} x {width} conv")


def _lightning(q: Question) -> Shapes:
    c = q.config
    heads, d = _divide(q, c.heads, "attention heads"), c.head_dim
    return Shapes("linear", 0, heads * d * d, None, f"{heads} x {d} x {d} state")


_RECIPES: dict[str, Callable[[Question], Shapes]] = {
    "bamba": _granite,
    "granitemoehybrid": _granite,
    "falcon_h1": _falcon_h1,
    "zamba2": _zamba2,
    "nemotron_h": _nemotron_h,
    "nemotron_h_puzzle": _nemotron_h,
    "mamba2": _mamba2_model,
    "mamba": _mamba_model,
    "falcon_mamba": _mamba_model,
    "jamba": _jamba,
    "qwen3_next": _gdn,
    "qwen3_5": _gdn,
    "qwen3_5_text": _gdn,
    "qwen3_5_moe": _gdn,
    "qwen3_5_moe_text": _gdn,
    "olmo_hybrid": _gdn,
    "kimi_linear": _kda,
    "lfm2": _short_conv,
    "lfm2_moe": _short_conv,
    "minimax": _lightning,
    "minimax_text_01": _lightning,
    "bailing_moe_linear": _lightning,
}

#: Mamba-1 and Mamba-2 mixers: vLLM up to 0.27 turns mode "all" on where prefix caching is.
SUPPORTS_ALL = frozenset(("mamba1", "mamba2"))


def shapes(config: Config, tp: int = 1, draft_tokens: int = 0) -> Shapes:
    """The state of one recurrent layer of this model; `StateError` for a type that is not known."""
    recipe = _RECIPES.get(config.model_type)
    if recipe is None:
        raise StateError(
            f"{config.source}: how vLLM keeps the recurrent state of model_type {config.model_type!r} is not known; "
            f"known are {', '.join(sorted(_RECIPES))}. Ask the installed vLLM: membudget oracle"
        )
    try:
        return recipe(Question(config, tp, draft_tokens))
    except ConfigError as error:
        raise StateError(str(error)) from None


def page_bytes(
    state: Shapes, model_dtype: str, cache_dtype: str = "auto", state_dtype: str = "auto"
) -> tuple[int, str]:
    """Bytes of one layer's state, and how they came about.

    model_dtype: of the weights' computation.  cache_dtype, state_dtype: --mamba-cache-dtype and
    --mamba-ssm-cache-dtype (``auto``: the model's, or what its config asks for).
    """
    conv_name = model_dtype if cache_dtype == "auto" else cache_dtype
    state_name = (state.state_dtype or conv_name) if state_dtype == "auto" else state_dtype
    for name in (conv_name, state_name):
        if name not in TORCH_DTYPES:
            raise StateError(f"a recurrent state of dtype {name!r} is not known; known are {', '.join(TORCH_DTYPES)}")
    conv, kept = state.conv * torch_bytes(conv_name), state.state * torch_bytes(state_name)
    return conv + kept, f"{state.text} = {conv:,} B {conv_name} + {kept:,} B {state_name}"
