"""Runs in vLLM's own Python: start one engine over several ranks, and say what each rank holds.

    python vllm_ranks.py JOB.json RESULT.json

JOB: {"model": folder with config.json, "engine": vLLM's engine arguments}.  RESULT: parameters' bytes a rank, in
vLLM's order of ranks, and the pool's figures.  Every worker imports this file as its extension (vLLM's
worker_extension_cls) and counts what it was given before the CPU's kernels repack it.  Imports nothing of membudget.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_COUNTED: list[int] = []


class Counted:
    """What every worker gains: the bytes of its parameters as they were loaded."""

    def parameter_bytes(self) -> int:
        """Bytes before kernels repack them."""
        return _COUNTED[0]


def count_at_loading() -> None:
    """Count parameters when they are loaded: the CPU's linear maps are packed and dropped right after."""
    from vllm.model_executor.model_loader import base_loader

    repack: Any = base_loader.process_weights_after_loading

    def counted(model: Any, *more: Any, **named: Any) -> Any:
        unique = {id(each): each for each in model.parameters()}.values()
        _COUNTED.append(sum(each.numel() * each.element_size() for each in unique))
        return repack(model, *more, **named)

    base_loader.process_weights_after_loading = counted


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Start, ask, and answer."""
    import vllm

    arguments = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, **job["engine"]}
    llm = vllm.LLM(model=job["model"], worker_extension_cls="vllm_ranks.Counted", **arguments)
    cache = llm.llm_engine.vllm_config.cache_config
    return {
        "version": vllm.__version__.partition("+")[0],
        "executor": type(llm.llm_engine.engine_core.engine_core.model_executor).__name__,
        "ranks": llm.collective_rpc("parameter_bytes"),
        "num_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "tokens": getattr(cache, "kv_cache_size_tokens", None),
        "max_concurrency": getattr(cache, "kv_cache_max_concurrency", None),
    }


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        PYTHONPATH=os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])),
    )
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
    with open(sys.argv[1], encoding="utf-8") as file:
        asked = json.load(file)
    result = main(asked)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(result, file)
else:
    count_at_loading()
