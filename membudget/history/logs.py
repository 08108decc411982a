"""A vLLM log as a run: its figures become lines, so that two versions' logs can be compared like any two runs."""

from __future__ import annotations

from typing import Any

from membudget.errors import MembudgetError
from membudget.history.drift import LOG
from membudget.history.record import Entry, Line, Record

#: The figures of a log that are lines: name in the log, name of the line, unit.
LINES = (
    ("weights", "weights", "bytes"),
    ("consumed", "weights_and_non_torch", "bytes"),
    ("peak_activation", "activations", "bytes"),
    ("peak_with_graphs", "activations_and_graphs", "bytes"),
    ("non_torch", "overhead.non_torch", "bytes"),
    ("cudagraph_estimate", "overhead.cuda_graphs_estimate", "bytes"),
    ("cudagraph", "overhead.cuda_graphs", "bytes"),
    ("available_kv", "kv_cache", "bytes"),
    ("reserved_kv", "kv_cache", "bytes"),
    ("kv_tokens", "pool_tokens", "count"),
    ("max_concurrency", "pool_concurrency", "x100"),
    ("override_blocks", "pool_blocks", "count"),
    ("num_blocks", "pool_blocks", "count"),
    ("block_size", "pool_block_tokens", "count"),
)
#: Settings of the start that make two logs another question.
SETTINGS = (
    "kv_cache_dtype",
    "quantization",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "num_gpu_blocks_override",
)


def of_log(path: str, version: str = "") -> Record:
    """Read a log.  version: of vLLM, where the log does not say it.

    Raises `ValueError` where no engine started in it, or where it is of another version.
    """
    import os
    from datetime import UTC, datetime

    from membudget.engines.vllm.logs.log import parse_file
    from membudget.engines.vllm.logs.verdict import verdict

    engines = parse_file(path)
    if not engines:
        raise MembudgetError(f"{path}: no line of a vLLM start-up in it")
    budgets: dict[str, Entry] = {}
    for number, engine in enumerate(engines):
        name = _name(engine.model, number)
        lines: dict[str, Line] = {}
        for figure, line, unit in LINES:
            found = engine.get(figure)
            if found is not None and line not in lines:
                value = round(float(found.value) * 100) if unit == "x100" else int(found.value)
                lines[line] = Line(None, value, unit, _digits(found.half, unit))
        ended = verdict(engine)
        # a line like the others: a start that is refused after one that was not has moved
        lines["start"] = Line(None, " ".join(filter(None, (ended.status, ended.kind))), "word", "exact")
        failed = ended.status in ("refused", "failed")
        told = f"{ended.status}: {ended.text} (line {ended.line})" if failed else ""
        budgets[name] = Entry("failed" if failed else "recorded", lines, _settings(engine), told)
    printed = next((engine.version for engine in engines if engine.version), "")
    if printed and version and printed != version:
        raise MembudgetError(f"{path}@{version}: the log itself says vLLM {printed}")
    version = printed or version
    when = datetime.fromtimestamp(os.stat(path).st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return Record(
        id=f"log:{path}",
        time=when,
        source=LOG,
        machine={},
        versions={"vllm": version} if version else {},
        budgets=budgets,
    )


def _name(model: str | None, number: int) -> str:
    """The model's own name, without folders: the same model lies elsewhere in another run."""
    name = (model or "engine").rstrip("/").rpartition("/")[2] or "engine"
    return name if not number else f"{name}#{number + 1}"


def _digits(half: float, unit: str) -> str:
    """Two prints of the same figure may differ by a printed digit: two decimals, where it is a multiple."""
    if unit == "x100":
        return f"within {max(round(2 * half * 100), 1)}"
    return f"within {2 * int(half)} B" if unit == "bytes" and half else "exact"


def _settings(engine: Any) -> dict[str, Any]:
    from membudget.engines.vllm.logs.models import find_model

    found = {name: engine.setting(name) for name in SETTINGS}
    found["max_model_len"] = engine.max_model_len
    model, _ = find_model(engine)
    if model is not None:
        found["caches"] = sorted({spec.kind for spec in model.caches})
    defaults = {"kv_cache_dtype": "auto", "tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    return {name: value for name, value in found.items() if value is not None and value != defaults.get(name)}
