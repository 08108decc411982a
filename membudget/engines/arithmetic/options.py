"""What `arithmetic` declares of itself to budgets."""

from __future__ import annotations

from membudget.budgets.fields import Choice, Count, Field, Fields, Share, Tokens
from membudget.budgets.settings import Declared, Smaller
from membudget.data.defaults import DEFAULT_BATCHED_TOKENS, MAX_CTX, SMALL_STEP, SMALLEST_GGUF
from membudget.machines import MAX_MACHINES

_SIZE = Count(1, MAX_MACHINES)
FIELDS = Fields(
    "engine.arithmetic",
    {
        "gpu_memory_utilization": Field(
            Share(), "The share of the machine's memory that counts.", "0.85", default="all of it"
        ),
        "max_num_batched_tokens": Field(
            Tokens(1, MAX_CTX), "Tokens that one step takes at most: the prefill chunk.", "8192", default="8192"
        ),
        "attention": Field(
            Choice("sdpa", "eager"), "Fused attention, or every score in memory.", "sdpa", default="sdpa"
        ),
        "logits": Field(
            Choice("last", "every"), "Logits of the last position, or of every one.", "last", default="last"
        ),
        "tensor_parallel_size": Field(
            _SIZE, "Ranks that share every layer.", "2", default="the number of machines", short=("--tp",)
        ),
        "pipeline_parallel_size": Field(_SIZE, "Pipeline stages.", "2", default="1", short=("--pp",)),
    },
)

DECLARED = Declared(
    name="arithmetic",
    title="arithmetic",
    about="The textbook's four buckets in all of the memory. No engine runs so: a floor, not an answer.",
    fields=FIELDS,
    order=9,
    batched_tokens=DEFAULT_BATCHED_TOKENS,
    small_step=SMALL_STEP,
    kv="vllm",
    small_cache="fp8",
    smaller=(Smaller("fp8"), Smaller("awq"), Smaller("q4_k_m", "llama_cpp")),
    smallest=tuple(Smaller(name, "llama_cpp") for name in SMALLEST_GGUF),
    several=True,
)
