"""Regenerates fixtures/oracle/users.json: what vLLM's own scheduler runs at once, on pools at the edge.

    python tools/golden_users.py --vllm /path/to/python 0.32.0
    python tools/golden_users.py --vllm /path/to/python --python-path UNPACKED_WHEEL 0.20.2

For every model, sync and async scheduling, 2,048 and 8,192 batched tokens and some numbers
of requests: the smallest pool in which the rule says that they run.  The scheduler is asked
how many run there, and whether they run with one block less.  Needs no GPU and no weights.
Requests of a hybrid end just behind a block boundary, so that states are passed on at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, HERE)

import golden_pool  # noqa: E402

from membudget.engines.vllm.admission.users import smallest_pool  # noqa: E402
from membudget.engines.vllm.oracle.asking import OracleError, ask_many, text_only  # noqa: E402
from membudget.engines.vllm.pool.plan import PoolRequest, plan_pool  # noqa: E402
from membudget.engines.vllm.versions import rules  # noqa: E402
from membudget.errors import MembudgetError  # noqa: E402
from membudget.model import build  # noqa: E402

PATH = os.path.join(HERE, "fixtures", "oracle", "users.json")
AVAILABLE = 60 * 2**30
CTX = 8_192
SETTINGS = tuple((batched, overlap) for batched in (2_048, 8_192) for overlap in (False, True))
MODELS = {
    "meta-llama--Llama-3.1-8B": "dense",
    "Qwen--Qwen2.5-7B": "dense",
    "microsoft--phi-4": "dense",
    "Qwen--Qwen3-30B-A3B": "MoE",
    "zai-org--GLM-4.5-Air": "MoE",
    "deepseek-ai--DeepSeek-V2-Lite": "MLA",
    "deepseek-ai--DeepSeek-V3": "MLA",
    "deepseek-ai--DeepSeek-V3.2": "MLA and indexer",
    "google--gemma-2-9b": "sliding 1:1",
    "openai--gpt-oss-20b": "sliding 1:1",
    "openai--gpt-oss-120b": "sliding 1:1",
    "allenai--Olmo-3.1-32B-Instruct": "sliding 3:1",
    "LGAI-EXAONE--EXAONE-4.0-32B": "sliding 3:1",
    "google--gemma-3-1b-it": "sliding 5:1",
    "google--gemma-3-27b-it": "sliding 5:1",
    "google--gemma-4-26B-A4B": "sliding 5:1",
    "mistralai--Mistral-7B-v0.1": "all sliding",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": "chunked",
    "google--gemma-3n-E4B-it": "shared KV",
    "Qwen--Qwen3-Next-80B-A3B-Instruct": "delta",
    "Qwen--Qwen3.5-9B": "delta",
    "Qwen--Qwen3.5-35B-A3B": "delta",
    "moonshotai--Kimi-Linear-48B-A3B-Instruct": "delta and MLA",
    "ai21labs--Jamba-v0.1": "Mamba-1",
    "state-spaces--mamba2-2.7b": "Mamba-2, no attention",
    "nvidia--Nemotron-H-56B-Base-8K": "Mamba-2",
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "Mamba-2",
    "ibm-granite--granite-4.0-h-small": "Mamba-2",
    "tiiuae--Falcon-H1-7B-Base": "parallel hybrid",
    "LiquidAI--LFM2-1.2B": "short convolution",
}


def questions(name: str, version: str, requests: list[int], answer: int) -> tuple[int, list[dict[str, Any]]]:
    """ctx, and the pools at the edge as the rule sees them; raises `MembudgetError` where it has no answer."""
    model, known = build(text_only(golden_pool.config_of(name))), rules(version)
    out: list[dict[str, Any]] = []
    ctx = CTX
    for batched, overlap in SETTINGS:
        pool = plan_pool(
            PoolRequest(
                model,
                AVAILABLE,
                max_model_len=CTX,
                max_num_batched_tokens=batched,
                async_scheduling=overlap,
                version=version,
            )
        )
        if any(group.mode == "align" for group in pool.groups):
            ctx = (CTX - 40) // pool.block_size * pool.block_size + 40
        setting = {"max_num_batched_tokens": batched, "async_scheduling": overlap, "max_num_seqs": 256}
        for n in requests:
            blocks = smallest_pool(pool, ctx, n, rules=known, answer=answer, **setting)
            common = {**setting, "ctx": ctx, "answer": answer}
            out.append({**common, "num_blocks": blocks, "start": n, "most": n + 1})
            out.append({**common, "num_blocks": blocks - 1, "n": n})
    return ctx, out


def main() -> int:
    """Ask what is missing of a version, write after every few models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="the asked vLLM must say the same")
    parser.add_argument("--vllm", required=True, help="its python")
    parser.add_argument("--python-path", help="an unpacked wheel, before the interpreter's own packages")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--requests", type=int, nargs="*", default=[2, 6])
    parser.add_argument("--answer", type=int, default=96)
    parser.add_argument("--at-once", type=int, default=6, help="models a process")
    a = parser.parse_args()
    table: dict[str, Any] = {}
    if os.path.exists(PATH):
        with open(PATH, encoding="utf-8") as file:
            table = json.load(file)
    asked = table.setdefault("asked", [])
    done = {(each["version"], each["model"]) for each in asked}
    todo = [name for name in a.models if (a.version, name) not in done]
    for at in range(0, len(todo), a.at_once):
        names, jobs = [], []
        for name in todo[at : at + a.at_once]:
            try:
                ctx, wanted = questions(name, a.version, a.requests, a.answer)
            except MembudgetError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            names.append((name, ctx))
            jobs.append(
                {
                    "config": golden_pool.config_of(name),
                    "platform": "cuda",
                    "capability": [9, 0],
                    "available": AVAILABLE,
                    "tp": 1,
                    "pp": 1,
                    "engine": {},
                    "kv_cache_dtypes": ["auto"],
                    "cases": [{"max_model_len": CTX, "max_num_batched_tokens": 8_192}],
                    "users": wanted,
                }
            )
        if not jobs:
            continue
        for (name, ctx), answer in zip(names, ask_many(a.vllm, jobs, python_path=a.python_path), strict=True):
            if isinstance(answer, OracleError) or answer.rows[0].error:
                print(f"{name}: {answer if isinstance(answer, OracleError) else answer.rows[0].error}", file=sys.stderr)
                continue
            if answer.version != a.version:
                raise SystemExit(f"the asked vLLM is {answer.version}, not {a.version}")
            rows = [row(each) for each in answer.rows[0].users]
            asked.append(
                {
                    "version": a.version,
                    "model": name,
                    "kind": MODELS.get(name, ""),
                    "ctx": ctx,
                    "answer": a.answer,
                    "rows": rows,
                }
            )
            print(f"{name}: {len(rows)} rows, {answer.seconds} s", flush=True)
        table = {
            "source": "vLLM's own scheduler, run with tools/golden_users.py",
            "max_model_len": CTX,
            "columns": COLUMNS,
        }
        write({**table, "asked": asked})
    return 0


COLUMNS = ("max_num_batched_tokens", "async_scheduling", "num_blocks", "runs: n, serves, steps, digest of free blocks")


def row(answer: dict[str, Any]) -> list[Any]:
    """One question's runs: [n, served, steps, digest of the free blocks after each step] each."""
    runs = [[run["n"], run["serves"], run["steps"], run["free"]] for run in answer["runs"]]
    return [answer["max_num_batched_tokens"], answer["async_scheduling"], answer["num_blocks"], runs]


def write(table: dict[str, Any]) -> None:
    """One row a line: a table that a person can diff."""
    head = json.dumps({key: value for key, value in table.items() if key != "asked"}, indent=1)[:-2]
    parts = []
    for each in table["asked"]:
        start = json.dumps({key: value for key, value in each.items() if key != "rows"})[:-1]
        parts.append(f'{start}, "rows": [\n  ' + ",\n  ".join(json.dumps(one) for one in each["rows"]) + "]}")
    with open(PATH + ".new", "w", encoding="utf-8") as file:
        file.write(head + ',\n "asked": [\n ' + ",\n ".join(parts) + "]}\n")
    os.replace(PATH + ".new", PATH)


if __name__ == "__main__":
    sys.exit(main())
