"""A log's settings as the question that the pool's arithmetic is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from membudget.engines.vllm import speculative
from membudget.engines.vllm.logs.kinds import Event
from membudget.engines.vllm.logs.models import named
from membudget.engines.vllm.logs.record import EngineLog
from membudget.engines.vllm.pool.result import PoolRequest
from membudget.engines.vllm.versions import DEFAULT
from membudget.errors import MembudgetError
from membudget.model import Model

_DRAFTS = ("speculative_tokens", "draft_layers", "draft_model")


@dataclass(frozen=True)
class Question:
    """What the log's settings ask of the pool."""

    request: PoolRequest
    #: Why the drafter's layers are not in the request, "" where there is no drafter or its layers are in it.
    unknown_drafter: str = ""


def ask(log: EngineLog, model: Model, known: Mapping[str, Any] | None = None) -> Question:
    """The question that the log's settings pose.

    known: fields of `PoolRequest` that count more than the log's.
    """
    fields = {**_fields(log), **(known or {})}
    unknown = ""
    if not any(fields.get(name) for name in _DRAFTS):
        found, unknown = _drafter(log, model)
        fields.update(found)
    return Question(PoolRequest(model=model, **fields), unknown)


def on_cpu(log: EngineLog) -> bool:
    """Whether the engine runs on the CPU."""
    found = (figure for name in ("available_kv", "reserved_kv") for figure in log.all(name))
    return log.setting("device_config") == "cpu" or any(figure.message.startswith("cpu_") for figure in found)


def _fields(log: EngineLog) -> dict[str, Any]:
    batched = log.value("max_num_batched_tokens")
    if batched is None or _flag(log, "enable_chunked_prefill") is False:
        # switched off after the line was printed (MLA on the CPU): only an argument still counts
        batched = _number(log, "max_num_batched_tokens")
    override = log.value("override_blocks")
    dtype = _word(log, "dtype")
    scheduling = _flag(log, "async_scheduling")
    if scheduling is None and log.get("async_scheduling") is not None:
        scheduling = log.value("async_scheduling") == "enabled"
    return {
        "max_model_len": log.max_model_len,
        "max_num_batched_tokens": batched,
        "kv_cache_dtype": _word(log, "kv_cache_dtype") or log.value("kv_dtype") or "auto",
        "dtype": None if dtype == "auto" else dtype,
        "tp": _number(log, "tensor_parallel_size") or 1,
        "pp": _number(log, "pipeline_parallel_size") or 1,
        "dcp": _number(log, "decode_context_parallel_size") or 1,
        "block_size": _number(log, "block_size"),
        "prefix_caching": _flag(log, "enable_prefix_caching"),
        "num_gpu_blocks_override": None if override is None else int(override),
        "async_scheduling": scheduling,
        "hybrid_manager": False if _flag(log, "disable_hybrid_kv_cache_manager") else None,
        "mamba_cache_dtype": _word(log, "mamba_cache_dtype") or "auto",
        "mamba_ssm_cache_dtype": _word(log, "mamba_ssm_cache_dtype") or "auto",
        "mamba_cache_mode": _word(log, "mamba_cache_mode") or log.value("mamba_cache_mode"),
        "version": log.version or DEFAULT,
        "platform": "cpu" if on_cpu(log) else "cuda",
        "device_memory": log.value("total_memory"),
    }


def _drafter(log: EngineLog, model: Model) -> tuple[dict[str, Any], str]:
    """The drafter's fields; and why they are not known, where there is a drafter."""
    setting = log.setting("speculative_config")
    if setting is None:
        return {}, "" if Event.DRAFTER not in log.events else "the log does not print speculative_config"
    try:
        given = speculative.read(setting)
        assert given is not None
        found = speculative.drafter(given, model, named)
    except MembudgetError as error:
        return {}, str(error)
    except OSError as error:
        return {}, f"the drafter's config cannot be read: {error.strerror or error}"
    return {name: value for name, value in vars(found).items() if value}, ""


def _number(log: EngineLog, name: str) -> int | None:
    value = log.setting(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _flag(log: EngineLog, name: str) -> bool | None:
    value = log.setting(name)
    return value if isinstance(value, bool) else None


def _word(log: EngineLog, name: str) -> str | None:
    value = log.setting(name)
    return value if isinstance(value, str) and value else None
