"""llama.cpp's mixes: which ggml type each tensor of a GGUF file gets.

Source: ggml-org/llama.cpp src/llama-quant.cpp at 007dbbf3: tensor_allows_quantization,
llama_tensor_get_type_impl, tensor_type_fallback and llama_ftype_get_default_type,
restated as a table.  A rule looks at the tensor's `Place` and names a type, or None
for the mix's base type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Place(NamedTuple):
    """Where a tensor stands: number `i` of `n`, in a model with these properties.

    gqa: query heads a KV head.  experts: experts a layer.  imatrix: whether the file was
    quantized with an importance matrix.
    """

    i: int
    n: int
    gqa: int
    experts: int
    imatrix: bool


Rule = Callable[[Place], "str | None"]


def always(kind: str) -> Rule:
    """Every such tensor."""
    return lambda at: kind


def first(count: int, kind: str, then: str | None = None) -> Rule:
    """The first `count` tensors."""
    return lambda at: kind if at.i < count else then


def first_part(of: int, kind: str, then: str | None = None) -> Rule:
    """The first n / `of` tensors."""
    return lambda at: kind if at.i < at.n // of else then


def grouped(kind: str, then: str | None = None) -> Rule:
    """Models with at least four query heads a KV head."""
    return lambda at: kind if at.gqa >= 4 else then


def middle(kind: str) -> Rule:
    """All but the first and the last eighth."""
    return lambda at: kind if at.n // 8 <= at.i < 7 * at.n // 8 else None


def is_more(at: Place) -> bool:
    """The first and the last eighth, and every third between."""
    eighth = at.n // 8
    return at.i < eighth or at.i >= 7 * at.n // 8 or (at.i - eighth) % 3 == 2


def more(kind: str) -> Rule:
    """Where llama.cpp's use_more_bits says so."""
    return lambda at: kind if is_more(at) else None


def _v_low(then: str) -> Rule:
    return lambda at: "Q4_K" if at.gqa >= 4 or at.experts >= 4 else then


def _iq3_xxs_v(at: Place) -> str:
    return "Q4_K" if at.gqa >= 4 else "IQ3_XXS" if at.imatrix else "IQ3_S"


def _iq3_xxs_down(at: Place) -> str | None:
    if at.imatrix:
        return None
    return "Q4_K" if at.i < at.n // 8 else "Q3_K"


def _iq3_m_down(at: Place) -> str | None:
    return "Q4_K" if at.i < at.n // 8 or (at.experts == 8 and is_more(at)) else None


def _unless_imatrix(rule: Rule) -> Rule:
    return lambda at: None if at.imatrix else rule(at)


def _with_imatrix(rule: Rule) -> Rule:
    return lambda at: rule(at) if at.imatrix else None


class Mix(NamedTuple):
    """A mix: its base type, and the rules for the tensors that get another.

    v: attn_v (and fused attn_qkv, attn_kv_b).  output: attn_output.
    embed: token_embd where a separate output.weight exists.  head: output.weight, or the tied token_embd.
    low: one of the 1 and 2 bit mixes, which have a branch of their own.
    eight: attn_output of 8-expert models becomes Q5_K.
    imatrix: llama-quantize refuses to make this mix without an importance matrix.
    """

    base: str
    v: Rule | None = None
    q: Rule | None = None
    k: Rule | None = None
    down: Rule | None = None
    output: Rule | None = None
    gate_up: Rule | None = None
    embed: str | None = None
    head: str = "Q6_K"
    low: bool = False
    eight: bool = False
    imatrix: bool = False


def _low(base: str, *, v: str, down: str, embed: str, output: str | None = None) -> Mix:
    return Mix(
        base,
        v=_v_low(v),
        down=first_part(8, down),
        output=always(output) if output else None,
        embed=embed,
        head="Q5_K",
        low=True,
        imatrix=True,
    )


MIXES: dict[str, Mix] = {
    "F32": Mix("F32", head="F32"),
    "F16": Mix("F16", head="F16"),
    "BF16": Mix("BF16", head="BF16"),
    "Q8_0": Mix("Q8_0", head="Q8_0"),
    "Q6_K": Mix("Q6_K"),
    "Q5_K_M": Mix("Q5_K", v=more("Q6_K"), down=more("Q6_K")),
    "Q5_K_S": Mix("Q5_K"),
    "Q5_1": Mix("Q5_1"),
    "Q5_0": Mix("Q5_0", down=_with_imatrix(first_part(8, "Q5_1"))),
    "Q4_K_M": Mix("Q4_K", v=more("Q6_K"), down=more("Q6_K"), eight=True),
    "Q4_K_S": Mix("Q4_K", v=first(4, "Q5_K"), down=first_part(8, "Q5_K"), eight=True),
    "Q4_1": Mix("Q4_1"),
    "Q4_0": Mix("Q4_0", down=_with_imatrix(first_part(8, "Q4_1"))),
    "IQ4_NL": Mix("IQ4_NL", v=grouped("Q5_K"), down=_unless_imatrix(first_part(8, "Q5_K")), eight=True),
    "IQ4_XS": Mix("IQ4_XS", v=grouped("Q5_K"), down=_unless_imatrix(first_part(8, "Q5_K")), eight=True),
    "Q3_K_L": Mix("Q3_K", v=always("Q5_K"), down=always("Q5_K"), output=always("Q5_K")),
    "Q3_K_M": Mix(
        "Q3_K",
        v=first(2, "Q5_K", "Q4_K"),
        down=first_part(16, "Q5_K", "Q4_K"),
        output=always("Q4_K"),
        eight=True,
    ),
    "Q3_K_S": Mix("Q3_K", eight=True),
    "IQ3_M": Mix("IQ3_S", v=always("Q4_K"), down=_iq3_m_down, output=always("Q4_K"), eight=True),
    "IQ3_S": Mix("IQ3_S", v=grouped("Q4_K"), eight=True),
    "IQ3_XS": Mix(
        "IQ3_S",
        v=grouped("Q4_K"),
        q=always("IQ3_XXS"),
        k=always("IQ3_XXS"),
        gate_up=middle("IQ3_XXS"),
        eight=True,
        imatrix=True,  # its IQ3_XXS parts, since v0.4.0 at the latest
    ),
    "IQ3_XXS": Mix(
        "IQ3_XXS",
        v=_iq3_xxs_v,
        q=always("IQ2_S"),
        k=always("IQ2_S"),
        down=_iq3_xxs_down,
        output=always("IQ3_S"),
        embed="IQ3_S",
        head="Q5_K",
        eight=True,
        imatrix=True,
    ),
    "Q2_K": Mix("Q2_K", v=grouped("Q4_K", "Q3_K"), down=always("Q3_K"), output=always("Q3_K"), eight=True),
    "Q2_K_S": Mix("Q2_K", v=grouped("Q4_K"), down=first_part(8, "Q4_K"), imatrix=True),
    "IQ2_M": _low("IQ2_S", v="IQ3_S", down="IQ3_S", embed="IQ3_S", output="IQ3_S"),
    "IQ2_S": _low("IQ2_XS", v="IQ3_S", down="IQ3_S", embed="IQ3_S", output="IQ3_S"),
    "IQ2_XS": _low("IQ2_XS", v="Q2_K", down="Q2_K", embed="Q2_K"),
    "IQ2_XXS": _low("IQ2_XXS", v="Q2_K", down="Q2_K", embed="Q2_K"),
    "IQ1_M": _low("IQ1_M", v="Q2_K", down="Q2_K", embed="Q2_K", output="IQ2_XXS"),
    "IQ1_S": _low("IQ1_S", v="Q2_K", down="Q2_K", embed="Q2_K", output="IQ2_XXS"),
    "TQ1_0": Mix("TQ1_0", embed="Q4_K"),
    "TQ2_0": Mix("TQ2_0", embed="Q4_K"),
    "Q2_0": Mix("Q2_0", embed="Q4_K"),
    "MXFP4_MOE": Mix("MXFP4", head="Q8_0"),
}

#: The mixes that keep every matrix in one plain type.
PLAIN = ("F32", "F16", "BF16")

#: ffn_down of the falcon architecture, where it differs.
FALCON_DOWN: dict[str, Rule | None] = {
    "Q3_K_M": lambda at: "Q5_K" if at.i < at.n // 16 else "Q4_K" if is_more(at) else None,
    "Q3_K_L": always("Q4_K"),
    "Q4_K_S": None,
    "Q4_K_M": lambda at: "Q6_K" if at.i < at.n // 16 else "Q5_K" if is_more(at) else None,
}
#: What a type becomes where a row is not made of whole blocks; then F16.
FALLBACK = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
