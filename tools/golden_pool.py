"""Regenerates fixtures/oracle/: what an installed vLLM answers for full-size models.

    python tools/golden_pool.py --vllm /path/to/python 0.32.0
    python tools/golden_pool.py --vllm /path/to/python --python-path UNPACKED_WHEEL 0.20.2

One file a version, pool-VERSION.json.  Takes 15 to 30 s a model; needs no GPU, no weights
and no network.  Configs come from membudget/data/models and fixtures/oracle/configs.  Answers
are kept as they come in, so that a run that was stopped goes on where it was (--fresh:
ask all again).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, HERE)

from membudget.engines.vllm.oracle.asking import OracleError, ask  # noqa: E402

GIB = 2**30
AVAILABLE = 60 * GIB
LENGTHS = (8_192, 32_768, 131_072)
BATCHED = (2_048, 8_192)
GRID = [{"max_model_len": n, "max_num_batched_tokens": b} for b in BATCHED for n in LENGTHS]
BOTH = ("auto", "fp8")

#: Uniform, sliding, chunked, latent, latent with an indexer, Mamba-1, Mamba-2, gated delta net, KDA,
#: short convolution, attention-free, shared KV, cross attention.
MODELS = (
    "meta-llama--Llama-3.1-8B",
    "meta-llama--Llama-3.1-70B",
    "Qwen--Qwen2.5-7B",
    "Qwen--Qwen3-30B-A3B",
    "zai-org--GLM-4.5-Air",
    "microsoft--phi-4",
    "microsoft--Phi-3-mini-128k-instruct",
    "mistralai--Mistral-7B-v0.1",
    "mistralai--Mixtral-8x7B-v0.1",
    "MiniMaxAI--MiniMax-M2.5",
    "google--gemma-2-9b",
    "google--gemma-3-1b-it",
    "google--gemma-3-27b-it",
    "google--gemma-3n-E4B-it",
    "google--gemma-4-26B-A4B",
    "nvidia--Gemma-4-31B-IT-NVFP4",
    "openai--gpt-oss-20b",
    "openai--gpt-oss-120b",
    "allenai--Olmo-3.1-32B-Instruct",
    "LGAI-EXAONE--EXAONE-4.0-32B",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct",
    "deepseek-ai--DeepSeek-V2-Lite",
    "deepseek-ai--DeepSeek-V3",
    "moonshotai--Kimi-K2-Instruct",
    "deepseek-ai--DeepSeek-V3.2",
    "zai-org--GLM-5",
    "deepseek-ai--DeepSeek-V4-Flash",
    "deepseek-ai--DeepSeek-V4-Pro",
    "ai21labs--Jamba-v0.1",
    "state-spaces--mamba2-2.7b",
    "nvidia--Nemotron-H-56B-Base-8K",
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "tiiuae--Falcon-H1-7B-Base",
    "ibm-granite--granite-4.0-h-small",
    "Qwen--Qwen3-Next-80B-A3B-Instruct",
    "Qwen--Qwen3.5-35B-A3B",
    "Qwen--Qwen3.5-9B",
    "moonshotai--Kimi-Linear-48B-A3B-Instruct",
    "LiquidAI--LFM2-1.2B",
    "nvidia--Llama-3.1-70B-Instruct-FP8",
)
#: Other settings of fewer models: (model, tp, pp, available bytes, engine arguments, cases).
ONE = [{"max_model_len": 32_768, "max_num_batched_tokens": 8_192}]
LONG = [{"max_model_len": 131_072, "max_num_batched_tokens": 8_192}]
VARIANTS: tuple[tuple[str, int, int, int, dict[str, Any], list[dict[str, int]]], ...] = (
    ("meta-llama--Llama-3.1-70B", 8, 1, AVAILABLE, {}, ONE),
    ("meta-llama--Llama-3.1-70B", 16, 1, AVAILABLE, {}, ONE),
    ("meta-llama--Llama-3.1-8B", 1, 2, AVAILABLE, {}, LONG),
    ("meta-llama--Llama-3.1-8B", 1, 3, AVAILABLE, {}, LONG),
    ("meta-llama--Llama-3.1-8B", 1, 1, GIB, {}, LONG),
    ("meta-llama--Llama-3.1-8B", 1, 1, AVAILABLE, {"block_size": 64}, LONG),
    ("meta-llama--Llama-3.1-8B", 1, 1, AVAILABLE, {"num_gpu_blocks_override": 1000}, GRID[:2]),
    ("deepseek-ai--DeepSeek-V3", 8, 1, AVAILABLE, {}, ONE),
    ("deepseek-ai--DeepSeek-V3", 8, 1, 2 * GIB, {}, LONG),
    ("Qwen--Qwen3-30B-A3B", 8, 1, AVAILABLE, {}, ONE),
    ("google--gemma-3-27b-it", 2, 2, AVAILABLE, {}, ONE),
    ("google--gemma-3-27b-it", 1, 1, 4 * GIB, {}, LONG),
    ("google--gemma-3-27b-it", 1, 1, AVAILABLE, {"async_scheduling": False}, GRID),
    ("google--gemma-3-27b-it", 1, 1, AVAILABLE, {"disable_hybrid_kv_cache_manager": True}, ONE),
    ("google--gemma-3-27b-it", 1, 1, AVAILABLE, {"block_size": 32}, ONE),
    ("openai--gpt-oss-120b", 4, 1, AVAILABLE, {}, GRID),
    ("openai--gpt-oss-120b", 1, 2, AVAILABLE, {}, GRID),
    ("Qwen--Qwen3-Next-80B-A3B-Instruct", 2, 1, AVAILABLE, {}, ONE),
    ("Qwen--Qwen3-Next-80B-A3B-Instruct", 1, 1, AVAILABLE, {"enable_prefix_caching": False}, GRID),
    ("Qwen--Qwen3-Next-80B-A3B-Instruct", 1, 1, GIB, {}, LONG),
    ("Qwen--Qwen3.5-35B-A3B", 4, 1, AVAILABLE, {}, ONE),
    ("Qwen--Qwen3.5-35B-A3B", 1, 2, AVAILABLE, {}, ONE),
    ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 2, 1, AVAILABLE, {"enable_prefix_caching": False}, ONE),
    ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 1, 1, AVAILABLE, {"mamba_ssm_cache_dtype": "float16"}, ONE),
    ("ai21labs--Jamba-v0.1", 4, 1, AVAILABLE, {}, ONE),
    ("openai--whisper-large-v3", 1, 1, AVAILABLE, {}, [{"max_model_len": 448, "max_num_batched_tokens": 8_192}]),
)
COLUMNS = (
    "kv_cache_dtype",
    "max_model_len",
    "max_num_batched_tokens",
    "block_size",
    "groups",
    "bytes_per_block",
    "num_blocks",
    "tokens",
    "max_concurrency",
    "error",
)


def config_of(name: str) -> dict[str, Any]:
    """The published config.json of a model."""
    for folder in ("membudget/data/models", "fixtures/oracle/configs"):
        path = os.path.join(HERE, folder, f"{name}.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return dict(json.load(file))
    raise SystemExit(f"{name}: no config in membudget/data/models or fixtures/oracle/configs")


def main() -> int:
    """Ask what is missing, write after every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="names the file; the asked vLLM must say the same")
    parser.add_argument("--vllm", required=True, help="its python")
    parser.add_argument("--python-path", help="an unpacked wheel, before the interpreter's own packages")
    parser.add_argument("--platform", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--block-size", type=int, help="for every model (older CPU wheels)")
    parser.add_argument("--dtypes", default="auto,fp8")
    parser.add_argument("--models", nargs="*", default=None)
    parser.add_argument("--no-variants", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    a = parser.parse_args()
    path = os.path.join(HERE, "fixtures", "oracle", f"pool-{a.version}.json")
    table: dict[str, Any] = {}
    if os.path.exists(path) and not a.fresh:
        with open(path, encoding="utf-8") as file:
            table = json.load(file)
    table.setdefault("version", a.version)
    table["source"] = f"vLLM {a.version} itself, asked with tools/golden_pool.py"
    table["platform"], table["capability"], table["columns"] = a.platform, [9, 0], COLUMNS
    asked = table.setdefault("asked", [])
    done = {json.dumps([each[key] for key in ("model", "tp", "pp", "available", "engine")]) for each in asked}
    engine = {"block_size": a.block_size} if a.block_size else {}
    dtypes = tuple(a.dtypes.split(","))
    jobs = [(name, 1, 1, AVAILABLE, engine, GRID, dtypes) for name in a.models or MODELS]
    if not a.no_variants:
        jobs += [(*variant, ("auto",)) for variant in VARIANTS if not a.models or variant[0] in a.models]
    for name, tp, pp, available, arguments, cases, kv in jobs:
        if json.dumps([name, tp, pp, available, arguments]) in done:
            continue
        try:
            answer = ask(
                a.vllm,
                config_of(name),
                cases,
                available=available,
                kv_cache_dtypes=kv,
                platform=a.platform,
                tp=tp,
                pp=pp,
                engine=arguments,
                python_path=a.python_path,
            )
        except OracleError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        if answer.version != a.version:
            raise SystemExit(f"the asked vLLM is {answer.version}, not {a.version}")
        rows = []
        encoder = states = None
        for row in answer.rows:
            if row.num_blocks is None and row.block_size is None:
                print(f"{name} {row.kv_cache_dtype}: {row.error}"[:300], file=sys.stderr)
                continue
            values = {**row.as_json(), "groups": len(row.groups) or None}
            rows.append([values[column] for column in COLUMNS])
            encoder = row.encoder_tokens
            if a.platform == "cpu" and row.mamba_ssm_cache_dtype not in (None, "auto"):
                states = row.mamba_ssm_cache_dtype  # the CPU decides: fp32 where it has AVX-512 BF16
        asked.append(
            {"model": name, "tp": tp, "pp": pp, "available": available, "engine": arguments, "params": answer.params}
            | ({"encoder_tokens": encoder} if encoder else {})
            | ({"mamba_ssm_cache_dtype": states} if states else {})
            | {"rows": rows}
        )
        print(f"{name} tp {tp} pp {pp} {arguments or ''}: {len(rows)} rows, {answer.seconds} s", flush=True)
        write(path, table)
    return 0


def write(path: str, table: dict[str, Any]) -> None:
    """One row a line: a table that a person can diff."""
    head = json.dumps({key: value for key, value in table.items() if key != "asked"}, indent=1)[:-2]
    parts = []
    for each in table["asked"]:
        start = json.dumps({key: value for key, value in each.items() if key != "rows"})[:-1]
        parts.append(f'{start}, "rows": [\n  ' + ",\n  ".join(json.dumps(row) for row in each["rows"]) + "]}")
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(head + ',\n "asked": [\n ' + ",\n ".join(parts) + "]}\n")
    os.replace(path + ".new", path)


if __name__ == "__main__":
    sys.exit(main())
