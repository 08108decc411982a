"""What vLLM declares of itself to budgets: its flags by their own names, what it reads, what is suggested for it."""

from __future__ import annotations

from membudget.budgets.fields import Boolean, Choice, Count, Field, Fields, Json, Share, Size, Text, Tokens
from membudget.budgets.settings import Declared, Smaller
from membudget.data.defaults import MAX_CTX, MAX_USERS, SMALL_STEP, SMALLEST_GGUF
from membudget.engines.vllm.versions import DEFAULT
from membudget.machines import MAX_MACHINES

_DTYPE = Choice("auto", "float32", "float16", "bfloat16", "half", "float")
_SIZE = Count(1, MAX_MACHINES)

FIELDS = Fields(
    "engine.vllm",
    {
        "gpu_memory_utilization": Field(
            Share(),
            "The share of the device's memory that vLLM claims; on unified memory it must leave os_reserve.",
            "0.85",
            default="the version's own: 0.92, before 0.20 0.9; less where that would not leave os_reserve",
        ),
        "max_num_batched_tokens": Field(
            Tokens(1, MAX_CTX), "Tokens of one step: the prefill chunk.", "8192", default="the server's for this device"
        ),
        "max_num_seqs": Field(
            Count(1, MAX_USERS), "Sequences of one step.", "256", default="the server's for this device"
        ),
        "max_model_len": Field(Tokens(1, MAX_CTX), "Tokens of the longest request.", "32Ki", default="ctx"),
        "kv_cache_memory_bytes": Field(Size(), "Fixes the pool's size on each device.", "8 GiB"),
        "num_gpu_blocks_override": Field(Count(1, 2**40), "Fixes the number of blocks.", "1000"),
        "block_size": Field(Count(1, 2**20), "Tokens in a block.", "16", default="the attention kernel's"),
        "enable_prefix_caching": Field(Boolean(), "Keep blocks of earlier requests.", "false", default="the version's"),
        "enable_chunked_prefill": Field(Boolean(), "Prompts in chunks.", "true", default="true"),
        "async_scheduling": Field(Boolean(), "Schedule a step before the last one has ended.", default="the version's"),
        "enforce_eager": Field(Boolean(), "No CUDA graphs.", "true", default="false"),
        "disable_hybrid_kv_cache_manager": Field(Boolean(), "One group for all layers.", "true", default="false"),
        "dtype": Field(_DTYPE, "Of the model's computation.", "bfloat16", default="auto"),
        "quantization": Field(Text("vLLM's name of a method, as fp8"), "How weights are quantized.", "fp8"),
        "mamba_cache_dtype": Field(_DTYPE, "Of convolution states.", "auto", default="auto"),
        "mamba_ssm_cache_dtype": Field(_DTYPE, "Of recurrent states.", "float32", default="auto"),
        "mamba_cache_mode": Field(Choice("none", "all", "align"), "Which states a request keeps.", "align"),
        "tensor_parallel_size": Field(
            _SIZE,
            "Ranks that share every layer. Times pipeline_parallel_size it is the number of machines.",
            "2",
            default="the number of machines, divided by the other parallel sizes that are given",
            short=("--tp",),
        ),
        "pipeline_parallel_size": Field(
            _SIZE,
            "Pipeline stages.",
            "2",
            default="the number of machines divided by tensor_parallel_size, where that is given; else 1",
            short=("--pp",),
        ),
        "decode_context_parallel_size": Field(
            _SIZE, "Ranks that share a request's tokens while it decodes.", "2", default="1", short=("--dcp",)
        ),
        "data_parallel_size": Field(
            _SIZE,
            "Replicas with requests of their own; a mixture's experts are shared by all of their ranks.",
            "8",
            default="1",
            short=("-dp",),
        ),
        "enable_expert_parallel": Field(
            Boolean(),
            "A rank holds whole experts, in place of a slice of every one.",
            "true",
            default="false",
            short=("-ep",),
        ),
        "speculative_config": Field(
            Json("an object as vLLM takes it"),
            "The drafter.",
            "{method: mtp, num_speculative_tokens: 2}",
        ),
        "enable_lora": Field(
            Boolean(), "Serve LoRA adapters: their buffers are made at the start.", "true", default="false"
        ),
        "max_loras": Field(Count(1, 4096), "Adapters in one step, with enable_lora.", "4", default="1"),
        "max_lora_rank": Field(Count(1, 512), "The largest rank of an adapter, with enable_lora.", "64", default="16"),
        "limit_mm_per_prompt": Field(Json("an object as vLLM takes it"), "Images, videos a request.", "{image: 1}"),
        "language_model_only": Field(Boolean(), "Without the other towers.", "true", default="false"),
        "version": Field(Text("a version of vLLM, as '0.32.0'"), "Whose rules decide.", "'0.32.0'", default=DEFAULT),
    },
)

DECLARED = Declared(
    name="vllm",
    title="vLLM",
    about="vLLM by its own rules: what its start leaves for the pool, blocks, start rules, its scheduler.",
    fields=FIELDS,
    order=0,
    batched_tokens=None,
    small_step=SMALL_STEP,
    kv="vllm",
    dtype_option="dtype",
    small_cache="fp8",
    smaller=(Smaller("fp8"), Smaller("awq"), Smaller("q4_k_m", "llama_cpp")),
    smallest=tuple(Smaller(name, "llama_cpp") for name in SMALLEST_GGUF),
    several=True,
    claims=True,
)
