"""Runs in vLLM's own Python: start one engine over several ranks, and say what each rank holds.

    python vllm_ranks.py JOB.json RESULT.json

JOB: {"model": folder with config.json, "engine": vLLM's engine arguments}.  RESULT: parameters' bytes a rank, in
vLLM's order of ranks, and the pool's figures.  Imports nothing of membudget.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
#: A function is sent to every worker; both ends are this file.
os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"


def held(worker: Any) -> int:
    """Bytes of the parameters that a worker holds."""
    model = worker.model_runner.model
    unique = {id(each): each for each in model.parameters()}.values()
    return sum(each.numel() * each.element_size() for each in unique)


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Start, ask, and answer."""
    import vllm

    arguments = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, **job["engine"]}
    llm = vllm.LLM(model=job["model"], **arguments)
    cache = llm.llm_engine.vllm_config.cache_config
    return {
        "version": vllm.__version__.partition("+")[0],
        "executor": type(llm.llm_engine.engine_core.engine_core.model_executor).__name__,
        "ranks": llm.collective_rpc(held),
        "num_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "tokens": getattr(cache, "kv_cache_size_tokens", None),
        "max_concurrency": getattr(cache, "kv_cache_max_concurrency", None),
    }


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        asked = json.load(file)
    result = main(asked)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(result, file)
