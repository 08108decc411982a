"""What vLLM says of a config's layers and of its pool: specs, groups, blocks, tokens, concurrency, users.

Runs in the asked vLLM's environment, as `child.py` does.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

import scheduler as scheduling
import torch


class Attributes(types.SimpleNamespace):
    """A runner of which only some attributes are read; the others are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def layer_specs(config: Any) -> dict[str, Any]:
    try:
        from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

        return dict(get_kv_cache_spec(config))
    except ImportError:
        pass
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    model, cache = config.model_config, config.cache_config
    runner = Attributes(
        vllm_config=config,
        model_config=model,
        cache_config=cache,
        compilation_config=config.compilation_config,
        parallel_config=config.parallel_config,
        scheduler_config=config.scheduler_config,
        speculative_config=None,
        shared_kv_cache_layers={},
        kv_cache_dtype=model.dtype if cache.cache_dtype == "auto" else torch.uint8,
        attention_chunk_size=getattr(model, "attention_chunk_size", None),
        block_size=cache.block_size,
    )
    return dict(GPUModelRunner.get_kv_cache_spec(runner))


def resolve_layout(config: Any, specs: list[dict[str, Any]]) -> str | None:
    try:
        from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout

        try:
            from vllm.v1.worker.worker_base import get_current_attn_backends
        except ImportError:
            from vllm.v1.worker.utils import get_current_attn_backends
    except ImportError:
        return None
    supported = [layout.name for layout in get_supported_kv_cache_layouts(get_current_attn_backends(config))]
    arguments: list[Any] = [config, [supported] * len(specs)]
    if "kv_cache_specs" in inspect.signature(resolve_kv_cache_layout).parameters:
        arguments.append([spec for stage in specs for spec in stage.values()])
    return str(resolve_kv_cache_layout(*arguments).name)


_SPEC_FIELDS = (
    "num_kv_heads",
    "head_size",
    "head_size_v",
    "sliding_window",
    "attention_chunk_size",
    "page_size_padded",
    "num_speculative_blocks",
    "num_prefill_checkpoint_blocks",
)


def describe(spec: Any) -> dict[str, Any]:
    out: dict[str, Any] = {"type": type(spec).__name__, "block": spec.block_size, "page": spec.page_size_bytes}
    for name in _SPEC_FIELDS:
        value = getattr(spec, name, None)
        if value not in (None, 0):
            out[name] = int(value)
    if hasattr(spec, "shapes"):
        out["shapes"] = [list(shape) for shape in spec.shapes]
        out["dtypes"] = [str(dtype).removeprefix("torch.") for dtype in getattr(spec, "dtypes", None) or [spec.dtype]]
    elif hasattr(spec, "dtype"):
        out["dtype"] = str(spec.dtype).removeprefix("torch.")
    return out


class Printed:
    """A logger that keeps what is printed about the pool: older versions return no figure."""

    def __init__(self, logger: Any) -> None:
        self.logger, self.tokens = logger, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        def log(message: Any, *values: Any, **more: Any) -> None:
            text = str(message)
            if "KV cache size: %s tokens" in text:
                self.tokens.append(int(str(values[text.count("%s", 0, text.index("KV cache"))]).replace(",", "")))

        return log


def carve(
    config: Any, specs: list[dict[str, Any]], available: list[int], users: list[dict[str, Any]]
) -> dict[str, Any]:
    """One case: groups, blocks, tokens, concurrency, users, or the refusal in vLLM's words."""
    import copy

    from vllm.v1.core import kv_cache_utils as utils

    printed = Printed(utils.logger)
    utils.logger = printed  # type: ignore[assignment]
    copies = [{name: copy.copy(spec) for name, spec in stage.items()} for stage in specs]
    try:
        if hasattr(utils, "get_kv_cache_configs"):
            pools = utils.get_kv_cache_configs(config, copies, available)
            pool = min(pools, key=lambda each: each.num_blocks)
        else:
            pool = utils.get_kv_cache_config(config, copies[0], available[0])
    except (ValueError, NotImplementedError, AssertionError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    groups = []
    for group in pool.kv_cache_groups:
        spec = group.kv_cache_spec
        groups.append(
            {
                "layers": len(group.layer_names),
                "blocks": -(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes),
                **describe(spec),
            }
        )
    out: dict[str, Any] = {"groups": groups, "num_blocks": pool.num_blocks}
    if groups:
        if hasattr(utils, "get_max_concurrency_for_kv_cache_config"):
            out["concurrency"] = utils.get_max_concurrency_for_kv_cache_config(config, pool)
        if hasattr(utils, "get_kv_cache_capacity"):
            out["tokens"] = utils.get_kv_cache_capacity(config, pool)[0]
        elif printed.tokens:
            out["tokens"] = min(printed.tokens)
        if hasattr(utils, "_pool_bytes_per_block"):
            takes = len(inspect.signature(utils._pool_bytes_per_block).parameters)
            arguments = [config, pool.kv_cache_groups][2 - takes :]
            out["bytes_per_block"] = utils._pool_bytes_per_block(*arguments)
        if users:
            if hasattr(utils, "generate_scheduler_kv_cache_config") and hasattr(utils, "get_kv_cache_configs"):
                pool = utils.generate_scheduler_kv_cache_config(pools)
            out["users"] = scheduling.answers(config, pool, users)
    return out
