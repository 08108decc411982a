"""What vLLM declares of itself to budgets: its flags by their own names, what it reads, what is suggested for it."""

from __future__ import annotations

from membudget.budgets.fields import Boolean, Count, Field, Fields, Share, Size, Tokens
from membudget.budgets.settings import Declared, Smaller
from membudget.data.defaults import DEFAULT_BATCHED_TOKENS, MAX_CTX, MAX_USERS, SMALL_STEP, SMALLEST_GGUF
from membudget.machines import MAX_MACHINES

_REPLICAS = (
    "data parallel is not planned for: each replica is a deployment of its own; "
    "write one replica's machines and its share of the users"
)

FIELDS = Fields(
    "engine.vllm",
    {
        "gpu_memory_utilization": Field(
            Share(),
            "The part of the machine's memory that vLLM claims; on unified memory it must leave os_reserve.",
            "0.85",
            default="all of it",
        ),
        "max_num_batched_tokens": Field(
            Tokens(1, MAX_CTX), "Tokens that one step takes at most: the prefill chunk.", "8192", default="8192"
        ),
        "max_model_len": Field(
            Tokens(1, MAX_CTX), "vLLM's flag, for its pool; the arithmetic does not use it.", "32Ki"
        ),
        "max_num_seqs": Field(Count(1, MAX_USERS), "vLLM's flag, for its pool; the arithmetic does not use it.", "256"),
        "block_size": Field(Count(1, 2**20), "Tokens in a block, for its pool; the arithmetic does not use it.", "16"),
        "kv_cache_memory_bytes": Field(Size(), "Fixes the pool's size; the arithmetic does not use it.", "8 GiB"),
        "enable_prefix_caching": Field(
            Boolean(), "vLLM's flag, for its pool; the arithmetic does not use it.", "false"
        ),
        "enforce_eager": Field(Boolean(), "No CUDA graphs. Set overhead.cuda_graphs to 0 B with it.", "true"),
        "tensor_parallel_size": Field(
            Count(1, MAX_MACHINES),
            "Ranks that share every layer. Times pipeline_parallel_size it is the number of machines.",
            "2",
            default="the number of machines, divided by pipeline_parallel_size where that is given",
        ),
        "pipeline_parallel_size": Field(
            Count(1, MAX_MACHINES),
            "Pipeline stages.",
            "2",
            default="the number of machines divided by tensor_parallel_size, where that is given; else 1",
        ),
    },
    refused={
        "data_parallel_size": _REPLICAS,
        "enable_expert_parallel": "expert parallel is not planned for: vLLM places experts by rules of its own; "
        "without it every rank holds a slice of every expert, which is what the arithmetic counts",
        "decode_context_parallel_size": "decode context parallel is not planned for in budgets; "
        "`membudget pool` knows it for one rank's pool",
    },
)

DECLARED = Declared(
    name="vllm",
    title="vLLM",
    about="vLLM: prefill in chunks, fused attention, logits of the last position.",
    fields=FIELDS,
    order=0,
    batched_tokens=DEFAULT_BATCHED_TOKENS,
    small_step=SMALL_STEP,
    kv="vllm",
    small_cache="fp8",
    smaller=(Smaller("fp8"), Smaller("awq"), Smaller("q4_k_m", "llama_cpp")),
    smallest=tuple(Smaller(name, "llama_cpp") for name in SMALLEST_GGUF),
    several=True,
    claims=True,
)
