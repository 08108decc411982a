"""The peers, as data: what to install, what to ask, where its answer stands."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

#: weights and KV cache in bytes; None: the tool does not offer that figure
Answer = tuple[float | None, float | None]


class Peer(NamedTuple):
    """One tool.  `{model}` is the hub id, `{folder}` has its config.json, `{builtin}` the tool's own name for it."""

    package: str
    command: list[str]
    parse: Callable[[str, int], Answer]  # its stdout and the users asked for
    needs: tuple[str, ...] = ()  # beside the package itself
    #: how far from the truth its weights and its cache may be: half a unit of the last digit it prints, in bytes
    printed: tuple[Callable[[float], float], Callable[[float], float]] = (lambda told: 0.0, lambda told: 0.0)


def thousandths(told: float) -> float:
    """Half of 0.001 GB: sparkfit rounds to three decimals, and JSON drops the zeros."""
    return 0.5e6


def hundredths(told: float) -> float:
    """Half of 0.01 KB, MB or GB of 1,024, whichever the figure is printed in; trailing zeros are dropped."""
    return 0.005 * 1024 ** int(math.log(told, 1024)) if told >= 1 else 0.0


def five_digits(told: float) -> float:
    """Half a unit of the fifth digit, as ridgepoint prints weights."""
    return 0.5 * 10.0 ** (math.floor(math.log10(told)) - 4)


def hf_mem(text: str, users: int) -> Answer:
    """One JSON document."""
    told = json.loads(text)
    return told["memory"], told.get("kv_cache")


def kvfit(text: str, users: int) -> Answer:
    """Its cache is one sequence's."""
    told = json.loads(text)
    return figure(told, "weight_bytes"), told["cache"]["bytes_per_sequence"] * users


def sparkfit(text: str, users: int) -> Answer:
    """GB with three decimals."""
    told = json.loads(text)["budget_gb"]
    return told["weights"] * 1e9, told["kv"] * 1e9


def ridgepoint(text: str, users: int) -> Answer:
    """Weights with five digits; the cache is one sequence's."""
    told = json.loads(text)
    return told["memory"]["weights_bytes"]["best"], told["capacity"]["bytes_per_seq"] * users


def modelinfo(text: str, users: int) -> Answer:
    """A table; its GB are GiB."""
    return sized(text, r"Weights:\s+([\d.]+) (\w+)"), sized(text, r"KV Cache:\s+([\d.]+) (\w+)")


def vramcalc(text: str, users: int) -> Answer:
    """One JSON document."""
    told = json.loads(text)["estimate"]
    return told["weights"], told["kv_cache"]


def accelerate(text: str, users: int) -> Answer:
    """A table, the total of one dtype; its GB are GiB.  It offers no KV cache."""
    return sized(text, r"float16\s*│[^│]*│\s*([\d.]+) (\w+)"), None


def membudget(text: str, users: int) -> Answer:
    """One JSON document."""
    told = json.loads(text)
    return told["weights"], told["kv_cache"]


def figure(told: Any, key: str) -> float | None:
    """The first number under this key, however deep."""
    if isinstance(told, dict):
        if isinstance(told.get(key), int | float):
            return float(told[key])
        told = list(told.values())
    for item in told if isinstance(told, list) else []:
        if (found := figure(item, key)) is not None:
            return found
    return None


def sized(text: str, pattern: str) -> float | None:
    """A figure printed as KB, MB, GB or TB of 1,024."""
    found = re.search(pattern, text)
    return float(found[1]) * 1024 ** ("B", "KB", "MB", "GB", "TB").index(found[2]) if found else None


PEERS = {
    "hf-mem": Peer(
        "hf-mem",
        [
            "hf-mem",
            "--model-id",
            "{model}",
            "--experimental",
            "--max-model-len",
            "{ctx}",
            "--batch-size",
            "{users}",
            "--kv-cache-dtype",
            "bfloat16",
            "--json-output",
        ],
        hf_mem,
    ),
    "kvfit": Peer("kvfit", ["kvfit", "{model}", "--context", "{ctx}", "--hardware", "custom:4000", "--json"], kvfit),
    "sparkfit": Peer(
        "sparkfit",
        [
            "sparkfit",
            "plan",
            "-m",
            "{builtin}",
            "-q",
            "{quant}",
            "-c",
            "{ctx}",
            "-n",
            "{users}",
            "--kv-dtype",
            "bf16",
            "--json",
        ],
        sparkfit,
        printed=(thousandths, thousandths),
    ),
    "ridgepoint": Peer(
        "ridgepoint",
        ["ridgepoint", "fit", "{model}", "--gpu", "h100-80gb:64", "--dtype", "{dtype}", "--ctx", "{ctx}", "--json"],
        ridgepoint,
        printed=(five_digits, lambda told: 0.0),
    ),
    "modelinfo-cli": Peer(
        "modelinfo-cli",
        ["modelinfo", "{model}", "--context", "{ctx}", "--batch-size", "{users}"],
        modelinfo,
        printed=(hundredths, hundredths),
    ),
    "vramcalc": Peer(
        "vramcalc", ["vramcalc", "estimate", "{folder}", "--seq", "{ctx}", "--batch", "{users}", "--json"], vramcalc
    ),
    "accelerate": Peer(
        "accelerate",
        ["accelerate-estimate-memory", "{model}", "--dtypes", "float16"],
        accelerate,
        ("transformers",),
        printed=(hundredths, hundredths),
    ),
    "membudget": Peer(
        "membudget",
        [
            "membudget",
            "plan",
            "{folder}",
            "--ctx",
            "{ctx}",
            "--users",
            "{users}",
            "--engine",
            "transformers",
            "--machine",
            "dgx-spark",
            "--json",
        ],
        membudget,
    ),
}
#: sparkfit has no config reader: what it calls these models itself
BUILTIN = {
    "meta-llama/Llama-3.1-8B": "llama3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama3.1-70b",
    "meta-llama/Llama-3.2-1B": "llama3.2-1b",
    "Qwen/Qwen2.5-7B": "qwen2.5-7b",
    "Qwen/Qwen3-8B": "qwen3-8b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
    "google/gemma-2-9b": "gemma2-9b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "Qwen/Qwen2.5-7B-Instruct-AWQ": "qwen2.5-7b",
    "nvidia/Llama-3.1-8B-Instruct-FP4": "llama3.1-8b",
}
#: the weights' format, in the words of the tools that have to be told; bf16 otherwise
QUANT = {
    "openai/gpt-oss-20b": "mxfp4",
    "deepseek-ai/DeepSeek-V3": "fp8",
    "Qwen/Qwen2.5-7B-Instruct-AWQ": "q4_0",  # what sparkfit's own config reader takes AWQ for
    "nvidia/Llama-3.1-8B-Instruct-FP4": "nvfp4",
}
DTYPE = {
    "openai/gpt-oss-20b": "awq",
    "deepseek-ai/DeepSeek-V3": "fp8",
    "Qwen/Qwen2.5-7B-Instruct-AWQ": "awq",
    "nvidia/Llama-3.1-8B-Instruct-FP4": "awq",
}
