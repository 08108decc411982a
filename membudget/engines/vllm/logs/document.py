"""An engine's log as plain values, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from membudget.engines.vllm.logs import checks as of
from membudget.engines.vllm.logs.compare import Compared
from membudget.engines.vllm.logs.concurrency import options
from membudget.engines.vllm.logs.kinds import TEXTS
from membudget.engines.vllm.logs.record import EngineLog
from membudget.engines.vllm.logs.suggestions import suggestions
from membudget.engines.vllm.logs.verdict import verdict
from membudget.model import Model


def as_json(log: EngineLog, compared: Compared | None = None, model: Model | None = None) -> dict[str, Any]:
    """One engine as plain values: bytes are integers, keys are documented in docs/vllm-logs.md."""
    ended = verdict(log)
    compared = compared or Compared()
    checks = [*of.checks(log), *compared.checks]
    per_token = of.bytes_per_token(log)
    found = [asdict(each) for each in suggestions(log, compared, model)]
    return {
        "engine": log.name,
        "source": log.source,
        "data_parallel_rank": log.dp,
        "version": log.version,
        "model": log.model,
        "max_model_len": log.max_model_len,
        "first_line": log.first_line,
        "last_line": log.last_line,
        "settings": {name: _plain(setting.value) for name, setting in sorted(log.settings.items())},
        "figures": {name: _figure(log, name) for name in sorted(log.figures)},
        "bytes_per_token": None if per_token is None else {"low": per_token[0], "high": per_token[1]},
        "verdict": {**asdict(ended), "kind": ended.kind or "", "line": ended.line or None},
        "refusals": [
            {
                "kind": refusal.kind,
                "text": TEXTS[refusal.kind],
                "line": refusal.line,
                "raw": refusal.raw,
                "figures": {figure.name: figure.value for figure in refusal.figures},
            }
            for refusal in log.refusals
        ],
        "checks": [check.as_json() for check in checks],
        "differences": [check.as_json() for check in checks if check.holds is False],
        "arithmetic": None if compared.pool is None else compared.pool.as_json(),
        "options": [asdict(option) for option in options(log, compared)],
        "suggestions": found,
        "remedies": found,  # the old name of `suggestions`, for one version
        "note": compared.note,
    }


def _figure(log: EngineLog, name: str) -> dict[str, Any]:
    figure = log.get(name)
    assert figure is not None
    out: dict[str, Any] = {
        "value": figure.value,
        "unit": figure.unit or None,
        "half_width": figure.half,
        "printed": figure.printed,
        "line": figure.line,
        "raw": figure.raw,
        "rank": figure.rank or None,
    }
    every = log.all(name)
    if len(every) > 1:
        out["all"] = [{"value": f.value, "rank": f.rank or None, "line": f.line} for f in every]
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)
