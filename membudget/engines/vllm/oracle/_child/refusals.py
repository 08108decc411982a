"""vLLM's own functions that refuse a start, called with sizes: what they say, or None.

    python refusals.py CASES.json ANSWERS.json

Runs in the asked vLLM's environment, imports nothing of membudget.  A case is [function, arguments].
"""

from __future__ import annotations

import json
import os
import sys
from os import _exit
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def scheduler(**sizes: Any) -> None:
    from vllm.config import SchedulerConfig

    SchedulerConfig(is_encoder_decoder=False, **sizes)


def heads(heads: int, kv_heads: int, tp: int, dcp: int) -> None:
    from vllm.config import ModelConfig

    model = SimpleNamespace(
        model_arch_config=SimpleNamespace(total_num_attention_heads=heads),
        hf_text_config=SimpleNamespace(num_attention_heads=heads),
        use_mla=False,
        get_total_num_kv_heads=lambda: kv_heads,
        multimodal_config=None,
    )
    parallel = SimpleNamespace(
        tensor_parallel_size=tp,
        pipeline_parallel_size=1,
        decode_context_parallel_size=dcp,
        enable_expert_parallel=False,
        enable_hc_sp=False,
        distributed_executor_backend="mp",
    )
    ModelConfig.verify_with_parallel_config(model, parallel)  # type: ignore[arg-type, unused-ignore]


def experts(width: int, block: list[int], tp: int) -> None:
    from vllm.model_executor.layers.quantization.utils.fp8_utils import validate_fp8_block_shape_moe

    with patch("vllm.distributed.get_tensor_model_parallel_world_size", lambda: tp):
        validate_fp8_block_shape_moe(width, block)


def linear(input: int, output: list[int], cut: str, block: list[int], tp: int) -> None:
    """One linear layer's rank; cut: input (row parallel) or output (column parallel)."""
    from vllm.model_executor.layers.quantization.utils.fp8_utils import validate_fp8_block_shape

    with patch("vllm.distributed.get_tensor_model_parallel_world_size", lambda: tp):
        validate_fp8_block_shape(
            SimpleNamespace(tp_size=tp),  # type: ignore[arg-type, unused-ignore]
            input * (tp if cut == "input" else 1),
            sum(output) * (tp if cut == "output" else 1),
            input,
            output,
            block,
        )


def memory(total: int, free: int, utilization: float) -> None:
    from vllm.v1.worker.utils import request_memory

    snapshot = SimpleNamespace(total_memory=total, free_memory=free, device_="cuda:0")
    request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=utilization))  # type: ignore[arg-type, unused-ignore]


def mamba(max_num_seqs: int, num_blocks: int, eager: bool) -> None:
    from vllm.config import CompilationConfig, CUDAGraphMode
    from vllm.v1.attention.backend import AttentionCGSupport

    config = CompilationConfig(cudagraph_mode=CUDAGraphMode.NONE if eager else CUDAGraphMode.FULL_AND_PIECEWISE)
    config.resolve_cudagraph_mode_and_sizes(
        AttentionCGSupport.ALWAYS,
        "backend",
        1,
        use_v2_model_runner=True,
        kv_cache_config=SimpleNamespace(has_mamba_layers=True, num_blocks=num_blocks),  # type: ignore[arg-type, unused-ignore]
        max_num_reqs=max_num_seqs,
    )


def multimodal(item: int, batched: int, whole: bool) -> None:
    from vllm.v1.core.encoder_cache_manager import compute_mm_encoder_budget

    settings = SimpleNamespace(
        disable_chunked_mm_input=whole,
        max_num_batched_tokens=batched,
        max_num_encoder_input_tokens=batched,
        encoder_cache_size=batched,
    )
    compute_mm_encoder_budget(settings, {"image": item})  # type: ignore[arg-type, unused-ignore]


FUNCTIONS = {each.__name__: each for each in (scheduler, heads, experts, linear, memory, mamba, multimodal)}


def main(cases: list[Any]) -> dict[str, Any]:
    import fake_cuda

    fake_cuda.install((9, 0), 80 << 30)
    import vllm

    rows = []
    for name, arguments in cases:
        said = None
        try:
            FUNCTIONS[name](**arguments)
        except (ValueError, AssertionError) as error:
            said = error.errors()[0]["msg"].removeprefix("Value error, ") if hasattr(error, "errors") else str(error)
        rows.append([name, arguments, said])
    return {"version": vllm.__version__.partition("+")[0], "rows": rows}


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        asked = json.load(file)
    result = main(asked)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(result, file)
    sys.stdout.flush()
    _exit(0)
