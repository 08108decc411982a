"""What a user says beside a log: excerpts leave out settings, and a budget knows what was planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from membudget.engines.vllm.logs.against import Expected
from membudget.engines.vllm.logs.checks import Check
from membudget.engines.vllm.logs.record import EngineLog, Figure, Setting
from membudget.model import Model

#: Figures that print a setting.
_PRINTED = {
    "max_model_len": "max_model_len",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "kv_cache_dtype": "kv_dtype",
    "gpu_memory_utilization": "utilization",
}


@dataclass(frozen=True)
class Given:
    """What counts where the log does not say it.  The log's own lines win, and a contradiction is a difference."""

    #: Of the engine; None: the one that the log names is looked up, offline.
    model: Model | None = None
    #: Of vLLM, as 0.32.0.
    version: str | None = None
    #: vLLM's settings by their own names: ``tensor_parallel_size``, ``kv_cache_dtype``.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: Fields of `PoolRequest` that a budget states; they count more than the log's.
    known: Mapping[str, Any] = field(default_factory=dict)
    #: All that a budget says of the start of a log; None where there is no budget.
    expected: Callable[[EngineLog], Expected] | None = None


def apply(log: EngineLog, given: Given) -> list[Check]:
    """Fill in what the log does not print; a check that does not hold for each contradiction."""
    found = []
    if given.version is not None:
        version = log.version
        if version is None:
            log.figures["version"] = [Figure("version", given.version, "text", 0, given.version, 0, "", "", "option")]
        elif version != given.version:
            line = log.figures["version"][0].line
            found.append(_contradiction("vllm_version", version, given.version, line))
    for name, value in given.settings.items():
        line, printed = _printed(log, name)
        if printed is None:
            log.settings[name] = Setting(value, 0, "option")
        elif printed != value:
            found.append(_contradiction(name, printed, value, line))
    return found


def _printed(log: EngineLog, name: str) -> tuple[int, Any]:
    """The line and value of a setting that the log prints; (0, None) for none."""
    figure = log.get(_PRINTED.get(name, ""))
    if figure is not None and not figure.half:
        return figure.line, figure.value
    setting = log.settings.get(name)
    return (0, None) if setting is None else (setting.line, setting.value)


def _contradiction(name: str, printed: Any, value: Any, line: int) -> Check:
    return Check(f"setting.{name}", False, f"{name} is {printed} in the log, {value} by its option", line)
