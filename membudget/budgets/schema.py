"""Every field of a budget file: what it may be, what it means.  The one table behind loader, schema and docs.

json_schema()       the JSON Schema (draft 2020-12) that editors use; `membudget schema` prints it
read(node, reader)  the checked values of a document
"""

from __future__ import annotations

from typing import Any

from membudget.budgets.fields import (
    Allowance,
    Boolean,
    Choice,
    Count,
    Expected,
    Field,
    Fields,
    Kind,
    Many,
    Size,
    Text,
    Tokens,
)
from membudget.budgets.reader import REFUSED, Reader
from membudget.budgets.settings import declared
from membudget.budgets.tolerance import Tolerance, parse
from membudget.data.defaults import MAX_CTX, MAX_USERS
from membudget.text.yaml_strict import Node

_OVERHEAD = Fields(
    "overhead",
    {
        "cuda_context": Field(Size(), "What a process takes for its first touch of the device.", "512 MiB"),
        "allocator": Field(Size(), "What PyTorch's allocator reserves and does not use.", "512 MiB"),
        "cuda_graphs": Field(Size(), "What captured CUDA graphs take.", "512 MiB"),
        "non_torch": Field(Size(), "Everything else outside PyTorch: NCCL, cuBLAS workspaces.", "0 B"),
    },
)

_ENGINE = Fields("engine", {one.name: Field(one.fields, one.about) for one in declared().values()}, single=True)

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

#: What a line of vLLM's pool may be where a budget says nothing.
RANGE = "the range of its version's rule"
#: Tolerances of a measurement; what a budget leaves out has the default that stands here.
_MEASURE = Fields(
    "measure",
    {
        "weights": Field(
            Allowance(),
            "Device memory after loading, less that before; exact where tensors' own bytes are counted (CPU, CUDA).",
            "within +64 MiB",
            default="within +64 MiB",
        ),
        "loading_peak": Field(Allowance(), "The most that loading holds at once.", "within 10%", default="within 10%"),
        "kv_growth": Field(
            Allowance(),
            "Bytes a token and sequence adds, as a slope; exact on the CPU and on CUDA.",
            "within 1%",
            default="within 1%",
        ),
        "kv_cache": Field(Allowance(), "Bytes that the cache object holds.", "exact", default="exact"),
        "activations": Field(
            Allowance(), "The peak of a step over what stays; exact on the CPU.", "within 3%", default="within 3%"
        ),
        "cuda_context": Field(
            Allowance(), "What the first touch of the device takes.", "below 1 GiB", default="below 1 GiB"
        ),
        "fragmentation": Field(
            Allowance(), "Reserved less allocated after many steps.", "below 1 GiB", default="below 1 GiB"
        ),
        "max_users": Field(Allowance("count"), "The edge that is found by trying.", "within 10%", default="within 10%"),
        "available_kv": Field(Allowance(), "vLLM's memory for its pool.", "within 2%", default=RANGE),
        "num_blocks": Field(Allowance("count"), "vLLM's blocks.", "within 2%", default=RANGE),
        "pool_tokens": Field(Allowance("count"), "vLLM's tokens in the pool.", "within 2%", default=RANGE),
        "max_concurrency": Field(Allowance("count"), "vLLM's maximum concurrency.", "within 2%", default=RANGE),
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
        "ctx": Field(Tokens(1, MAX_CTX), "Tokens of the prompt.", "16Ki", default="the budget's ctx"),
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
        "ctx": Field(Many(Tokens(1, MAX_CTX)), "Tokens of context that every user has.", "[8Ki, 32Ki]", required=True),
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
    """The tolerance of every line that a budget's `measure` leaves out, where it does not follow from a rule."""
    found = {}
    for name, field in _MEASURE.fields.items():
        assert isinstance(field.kind, Allowance)
        if field.default == RANGE:
            continue
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
