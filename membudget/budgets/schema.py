"""Every field of a budget file: what it may be, what it means.  The one table behind loader, schema and docs.

json_schema()       the JSON Schema (draft 2020-12) that editors use; `membudget schema` prints it
read(node, reader)  the checked values of a document
"""

from __future__ import annotations

from typing import Any

from membudget.budgets.fields import (
    REFUSED,
    Allowance,
    Boolean,
    Choice,
    Count,
    Expected,
    Field,
    Fields,
    Kind,
    Many,
    Reader,
    Share,
    Size,
    Text,
)
from membudget.budgets.tolerance import Tolerance, parse
from membudget.machines import MAX_MACHINES
from membudget.text.yaml_strict import Node

#: Longest context and most users: as far as `membudget.planning.ledger` searches.
MAX_CTX, MAX_USERS = 2**30, 2**24

_OVERHEAD = Fields(
    "overhead",
    {
        "cuda_context": Field(Size(), "What a process takes for its first touch of the device.", "512 MiB"),
        "allocator": Field(Size(), "What PyTorch's allocator reserves and does not use.", "512 MiB"),
        "cuda_graphs": Field(Size(), "What captured CUDA graphs take.", "512 MiB"),
        "non_torch": Field(Size(), "Everything else outside PyTorch: NCCL, cuBLAS workspaces.", "0 B"),
    },
)

#: Names of vLLM's flags that are no fields, and why.
_REPLICAS = (
    "data parallel is not planned for: each replica is a deployment of its own; "
    "write one replica's machines and its share of the users"
)

_VLLM = Fields(
    "engine.vllm",
    {
        "gpu_memory_utilization": Field(
            Share(),
            "The part of the machine's memory that vLLM claims; on unified memory it must leave os_reserve.",
            "0.85",
            default="all of it",
        ),
        "max_num_batched_tokens": Field(
            Count(1, MAX_CTX), "Tokens that one step takes at most: the prefill chunk.", "8192", default="8192"
        ),
        "max_model_len": Field(Count(1, MAX_CTX), "vLLM's flag, for its pool; the arithmetic does not use it.", "32Ki"),
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
            "Stages that the layers are dealt out to.",
            "2",
            default="the number of machines divided by tensor_parallel_size, where that is given; else 1",
        ),
    },
    refused={
        "data_parallel_size": _REPLICAS,
        "enable_expert_parallel": "expert parallel is not planned for: vLLM deals experts out by its own placement; "
        "without it every rank holds a slice of every expert, which is what the arithmetic counts",
        "decode_context_parallel_size": "decode context parallel is not planned for in budgets; "
        "`membudget pool` knows it for one rank's pool",
    },
)
_TRANSFORMERS = Fields(
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
_LLAMA_CPP = Fields(
    "engine.llama_cpp",
    {"n_ubatch": Field(Count(1, MAX_CTX), "Tokens that one step takes at most.", "512", default="512")},
)
_ENGINE = Fields(
    "engine",
    {
        "vllm": Field(_VLLM, "vLLM: prefill in chunks, fused attention, logits of the last position."),
        "transformers": Field(_TRANSFORMERS, "A plain transformers forward: every prompt at once."),
        "llama_cpp": Field(_LLAMA_CPP, "llama.cpp: a slot of cells for each user; prefill in chunks of n_ubatch."),
    },
    single=True,
)

_EXPECT = Fields(
    "expect",
    {
        "fits": Field(
            Boolean(), "Whether the budget fits; a budget that must not fit says false.", "true", default="true"
        ),
        "params": Field(Expected("count"), "Parameters of the model.", "8_030_261_248"),
        "active": Field(
            Expected("count"), "Parameters that one token reads (mixtures of experts).", "within 2% of 3_300_000_000"
        ),
        "checkpoint": Field(
            Expected("count"), "Parameters, and what published files store beside them.", "8_030_261_248"
        ),
        "weights": Field(Expected(), "Bytes of the weights.", "within 1% of 16.06 GB"),
        "kv_per_token": Field(
            Expected(), "Bytes that the first token of a sequence adds to its cache; llama_cpp: of a cell.", "128 KiB"
        ),
        "kv_per_request": Field(Expected(), "Bytes of one user's cache at the full context.", "1 GiB"),
        "kv_cache": Field(Expected(), "Bytes of all users' caches.", "8 GiB"),
        "activations": Field(Expected(), "Bytes of the largest step's temporaries.", "below 1 GiB"),
        "logits": Field(
            Expected(), "Bytes of the logits of every position of one sequence at the full context.", "8_405_385_216"
        ),
        "overhead": Field(Expected(), "Bytes of all overhead, the operating system included.", "1.5 GiB"),
        "total": Field(Expected(), "Bytes of everything.", "within 1% of 26.5 GiB"),
        "capacity": Field(Expected(), "Bytes of the machine.", "80 GiB"),
        "headroom": Field(
            Expected(signed=True), "Bytes left over; negative when it does not fit.", "within 3% of -1.4 GiB"
        ),
        "max_users": Field(Expected("count"), "The most users that fit at this context.", "within 1% of 100"),
        "max_ctx": Field(Expected("count"), "The longest context that fits for these users.", "within 1% of 94_000"),
    },
)

#: Tolerances of a measurement; what a budget leaves out has the default that stands here.
_MEASURE = Fields(
    "measure",
    {
        "weights": Field(
            Allowance(), "Device memory after loading, less that before.", "within +64 MiB", default="within +64 MiB"
        ),
        "loading_peak": Field(Allowance(), "The most that loading holds at once.", "within 10%", default="within 10%"),
        "kv_growth": Field(
            Allowance(), "Bytes a token and sequence adds, as a slope.", "within 1%", default="within 1%"
        ),
        "kv_cache": Field(Allowance(), "Bytes that the cache object holds.", "exact", default="exact"),
        "activations": Field(Allowance(), "The peak of a step over what stays.", "within 10%", default="within 10%"),
        "cuda_context": Field(
            Allowance(), "What the first touch of the device takes.", "below 1 GiB", default="below 1 GiB"
        ),
        "fragmentation": Field(
            Allowance(), "Reserved less allocated after many steps.", "below 1 GiB", default="below 1 GiB"
        ),
        "max_users": Field(Allowance("count"), "The edge that is found by trying.", "within 10%", default="within 10%"),
        "available_kv": Field(Allowance(), "vLLM's memory for its pool.", "within 2%", default="within 2%"),
        "num_blocks": Field(Allowance("count"), "vLLM's blocks.", "within 2%", default="within 2%"),
        "pool_tokens": Field(Allowance("count"), "vLLM's tokens in the pool.", "within 2%", default="within 2%"),
        "max_concurrency": Field(Allowance("count"), "vLLM's maximum concurrency.", "within 2%", default="within 2%"),
    },
)

_BREAK = Fields(
    "break",
    {
        "outcome": Field(
            Choice("out_of_memory", "fits"), "What must happen under the ceiling.", "out_of_memory", required=True
        ),
        "attention": Field(Choice("sdpa", "eager"), "Attention of this forward.", "eager", default="sdpa"),
        "logits": Field(Choice("last", "every"), "Logits of this forward.", "every", default="last"),
        "ctx": Field(Count(1, MAX_CTX), "Tokens of the prompt.", "16Ki", default="the budget's ctx"),
        "users": Field(Count(1, MAX_USERS), "Prompts at once.", "1", default="1"),
        "expect": Field(
            Fields(
                "break.expect",
                {
                    "logits": Field(Expected(), "Bytes of the logits of every position.", "8_405_385_216"),
                    "scores": Field(Expected(), "Bytes of one layer's attention scores, before any copy.", "16 GiB"),
                    "activations": Field(Expected(), "Bytes of the step's temporaries.", "within 1% of 2 GB"),
                },
            ),
            "Exact truths about this breakage.",
        ),
    },
)

BUDGET = Fields(
    "a budget",
    {
        "why": Field(Text("a sentence"), "The story: why this budget is here.", "A team of eight shares one Spark."),
        "model": Field(
            Many(Text("a hub id (meta-llama/Llama-3.1-8B), or ./a folder, config.json or .gguf beside this file")),
            "The model: a hub id, or a path relative to this file.",
            "meta-llama/Llama-3.1-8B",
            required=True,
        ),
        "format": Field(
            Many(
                Text(
                    "a weight format (bf16, fp8, awq, q4_k_m; `membudget formats` lists all)",
                    ["bf16", "fp8", "awq", "q4_k_m"],
                )
            ),
            "The weights' format.",
            "bf16",
            default="what the model's config.json declares",
        ),
        "kv_cache_dtype": Field(
            Many(Text("a KV cache dtype (auto, bf16, fp8)", ["auto", "bf16", "fp8"])),
            "The KV cache's dtype, by vLLM's name.",
            "bf16",
            default="auto: the model's own",
        ),
        "ctx": Field(Many(Count(1, MAX_CTX)), "Tokens of context that every user has.", "[8Ki, 32Ki]", required=True),
        "users": Field(Many(Count(1, MAX_USERS)), "Users at once, each at the full context.", "8", required=True),
        "machine": Field(
            Many(
                Text(
                    "a machine (dgx-spark, h100-80; `membudget machines` lists all), several (2x dgx-spark), "
                    "or this-machine",
                    ["dgx-spark", "2x dgx-spark", "this-machine"],
                )
            ),
            "The machine it must fit, or how many of one kind: `2x dgx-spark`, one rank of vLLM on each.",
            "dgx-spark",
            required=True,
        ),
        "engine": Field(_ENGINE, "How the model is run.", "", default="vllm with its defaults"),
        "overhead": Field(
            _OVERHEAD,
            "What is neither weights, cache nor activations. Given, it is the whole list: a part left out is 0 B.",
            "",
            default="cuda_context, allocator and cuda_graphs of 512 MiB each",
        ),
        "os_reserve": Field(Size(), "What is left to the operating system.", "10 GiB", default="the machine's own"),
        "capacity": Field(
            Choice("reported", "nominal"),
            "The memory that counts: as the driver reports it, or as printed on the box (in GiB).",
            "reported",
            default="reported",
        ),
        "expect": Field(
            _EXPECT, "Exact truths, typed by a person; a comment says where each comes from.", "", default="fits: true"
        ),
        "measure": Field(_MEASURE, "By how much hardware may differ from the prediction."),
        "break": Field(Many(_BREAK, alone=False), "Breakages to provoke, under the ceiling."),
        "ceiling": Field(Size(), "The most memory that a breakage may take.", "40 GiB"),
    },
    needs={"break": "ceiling"},
)


def read(node: Node, reader: Reader) -> dict[str, Any] | None:
    """The values of a document; None where something was refused (the reader has the problems)."""
    before = len(reader.problems)
    values = BUDGET.read(node, "", reader)
    return None if values is REFUSED or len(reader.problems) > before else values


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a budget file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "membudget budget",
        "description": "One model, in one format, for so many users at one context, on one machine.",
        **BUDGET.json(),
    }


def schema_text() -> str:
    """The JSON Schema as it is printed and committed."""
    import json

    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def measure_defaults() -> dict[str, Tolerance]:
    """The tolerance of every line that a budget's `measure` leaves out."""
    found = {}
    for name, field in _MEASURE.fields.items():
        assert isinstance(field.kind, Allowance)
        found[name] = parse(field.default, field.kind.unit)
    return found


def documented() -> list[tuple[str, Field, Kind]]:
    """Every field with its dotted path, outer ones first; for docs/budgets.md."""
    rows: list[tuple[str, Field, Kind]] = []

    def walk(fields: Fields, prefix: str) -> None:
        for name, field in fields.fields.items():
            kind = field.kind
            rows.append((prefix + name, field, kind))
            inner = kind.kind if isinstance(kind, Many) else kind
            if isinstance(inner, Fields):
                walk(inner, f"{prefix}{name}{'[]' if inner is not kind else ''}.")

    walk(BUDGET, "")
    return rows
