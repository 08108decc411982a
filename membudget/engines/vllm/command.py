"""The `vllm serve` line that a plan stands for."""

from __future__ import annotations

import json
import shlex
from typing import Any

from membudget.budgets.settings import Settings
from membudget.engines.vllm.settings import VllmSettings
from membudget.formats import Format
from membudget.model import Model


def serve(model: Model, weights: Format, asked: VllmSettings, settings: Settings, ctx: int) -> str:
    """One line: the model, what the plan assumed, and every flag that was given."""
    return shlex.join(["vllm", "serve", model.name, *flags(model, weights, asked, settings, ctx)])


def flags(model: Model, weights: Format, asked: VllmSettings, settings: Settings, ctx: int) -> list[str]:
    """The flags alone."""
    words = ["--max-model-len", str(asked.max_model_len or ctx)]
    if asked.kv_cache_memory_bytes is None:
        words += ["--gpu-memory-utilization", f"{asked.utilization:g}"]
    if settings.max_num_batched_tokens is not None:
        words += ["--max-num-batched-tokens", str(settings.max_num_batched_tokens)]
    if asked.kv_cache_dtype != "auto":
        words += ["--kv-cache-dtype", asked.kv_cache_dtype]
    declared = model.config.raw.get("quantization_config") is not None
    given = dict(asked.given)
    if asked.dtype is not None and "dtype" not in given and asked.dtype != model.config.dtype:
        words += ["--dtype", asked.dtype]
    if not declared and asked.dtype is None and "quantization" not in given and weights.name in _ONLINE:
        words += ["--quantization", _ONLINE[weights.name]]
    if asked.tp > 1:
        words += ["--tensor-parallel-size", str(asked.tp)]
    if asked.pp > 1:
        words += ["--pipeline-parallel-size", str(asked.pp)]
    for name, value in given.items():
        if name not in _SAID:
            words += flag(name, value)
    return words


#: Formats that vLLM makes of a dense checkpoint when it loads it.
_ONLINE = {"fp8": "fp8"}
#: Options that the line has already, or that vLLM does not have.
_SAID = ("version", "max_model_len", "tensor_parallel_size", "pipeline_parallel_size")


def flag(name: str, value: Any) -> list[str]:
    """One option as it is typed: ``--no-enable-prefix-caching``, ``--speculative-config '{...}'``."""
    option = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [option] if value else [f"--no-{name.replace('_', '-')}"]
    if isinstance(value, (dict, list)):
        return [option, json.dumps(value)]
    return [option, str(value)]
