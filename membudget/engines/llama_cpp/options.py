"""What llama.cpp declares of itself to budgets."""

from __future__ import annotations

from membudget.budgets.fields import Field, Fields, Tokens
from membudget.budgets.settings import Declared, Smaller
from membudget.data.defaults import MAX_CTX, SMALL_STEP, SMALLEST_GGUF

#: llama.cpp's default of ``-ub`` (common/common.h).
UBATCH = 512

FIELDS = Fields(
    "engine.llama_cpp",
    {"n_ubatch": Field(Tokens(1, MAX_CTX), "Tokens that one step takes at most.", "512", default="512")},
)

DECLARED = Declared(
    name="llama_cpp",
    title="llama.cpp",
    about="llama.cpp: a slot of cells for each user; prefill in chunks of n_ubatch.",
    fields=FIELDS,
    order=2,
    aliases=("llama.cpp", "llama-cpp", "llamacpp"),
    batched_tokens=UBATCH,
    step="n_ubatch",
    small_step=SMALL_STEP,
    kv="llama.cpp",
    small_cache="q8_0",
    smaller=(Smaller("q8_0"), Smaller("q4_k_m")),
    smallest=tuple(map(Smaller, SMALLEST_GGUF)),
    platforms=("cuda", "rocm", "metal", "cpu"),
    gguf=True,
    cells=True,
)
