"""What a budget predicts of the start that a log is of: `membudget plan`'s own figures under the log's version."""

from __future__ import annotations

from dataclasses import replace

from membudget.budgets.budget import Budget
from membudget.engines.vllm.logs.against import Expected, version
from membudget.engines.vllm.logs.record import EngineLog
from membudget.engines.vllm.start import Starts
from membudget.engines.vllm.versions import rules
from membudget.errors import MembudgetError
from membudget.formats import kv
from membudget.formats.base import FormatError

#: Flags that a budget may leave to the log.
_OPEN = ("version", "max_num_seqs", "enforce_eager", "async_scheduling", "max_model_len")


class NotPredicted(MembudgetError):
    """A budget without a prediction: its file, its line, and why."""


def of_budget(budget: Budget, lengths: tuple[int, ...], log: EngineLog) -> Expected:
    """What the budget says of the start of a log, of its tightest rank; what it leaves open is as in the log.

    lengths: its contexts, in tokens.  Raises `NotPredicted` for a budget that `membudget plan` refuses.
    """
    engine, machine = budget.engine, budget.machine
    named = {name for name in _OPEN if f"engine.vllm.{name}" in budget.where}
    options = dict(engine.options)
    options |= {name: value for name in _OPEN if name not in named and (value := log.setting(name)) is not None}
    options.setdefault("version", version(log))
    printed = log.utilization
    share = engine.gpu_memory_utilization
    if share is None:
        share = float(printed.value) if printed is not None else rules(version(log)).utilization / 100
    step = budget.settings.max_num_batched_tokens
    if "engine.vllm.max_num_batched_tokens" not in budget.where and (said := log.get("max_num_batched_tokens")):
        step = int(said.value)
    settings = replace(budget.settings, options=options, gpu_memory_utilization=share, max_num_batched_tokens=step)
    try:
        start = Starts(budget.model, budget.format, budget.device, settings).start(max(lengths))
    except MembudgetError as error:
        raise NotPredicted(f"--budget: {budget.file}:{budget.line}: {error}") from None
    try:
        auto = kv.auto(budget.model.config, None, budget.format).name
    except FormatError:
        auto = budget.kv_cache_dtype
    at, profiled = start.least, start.profiled
    whose = " (the log's)" if printed is not None else " (the default)"
    given = {**engine.options, "max_num_batched_tokens": engine.step_tokens}
    return Expected(
        place=budget.file,
        where=budget.where,
        machine=budget.machine_name,
        total=profiled.total.bytes,
        platform=machine.platform,
        parts=start.parts[at],
        requested=profiled.part("requested").bytes,
        left=start.stages[at],
        low=start.low[at],
        high=start.high[at],
        utilization=engine.gpu_memory_utilization,
        share=profiled.utilization,
        whose="" if engine.gpu_memory_utilization is not None else whose,
        lengths=lengths,
        batched=profiled.steps.tokens,
        tp=budget.tensor_parallel,
        pp=budget.pipeline_parallel,
        cache=budget.kv_cache_dtype,
        auto=auto,
        stated={name: value for name, value in given.items() if f"engine.vllm.{name}" in budget.where},
    )
