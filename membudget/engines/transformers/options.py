"""What transformers declares of itself to budgets."""

from __future__ import annotations

from membudget.budgets.fields import Choice, Field, Fields
from membudget.budgets.settings import Declared, Smaller, is_gguf
from membudget.formats import Format

FIELDS = Fields(
    "engine.transformers",
    {
        "attention": Field(
            Choice("sdpa", "eager"),
            "Fused attention, or the scores of all positions in memory.",
            "sdpa",
            default="sdpa",
        ),
        "logits": Field(
            Choice("last", "every"), "Logits of the last position, or of every one.", "last", default="last"
        ),
        "cache": Field(
            Choice("dynamic", "static"), "The Cache class that the measurement uses.", "dynamic", default="dynamic"
        ),
    },
)


def _refuses(form: Format) -> str | None:
    if is_gguf(form):
        return f"{form.name} is GGUF, which transformers unpacks into 16 bits when it loads: plan it as bf16"
    return None


DECLARED = Declared(
    name="transformers",
    title="transformers",
    about="A plain transformers forward: every prompt at once.",
    fields=FIELDS,
    order=1,
    smaller=(Smaller("fp8"), Smaller("awq")),
    refuses=_refuses,
)
