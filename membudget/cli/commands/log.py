"""Explain a vLLM log in one screen: did it start, where every byte went, does it equal the arithmetic, what helps.

Reads a file, or a stream: `vllm serve ... 2>&1 | membudget log -`.  With --json: one object an engine, in a list.
With --budget the model, the engine's settings and the bytes for the pool are held against the budget, too.
Exit code 0: every engine started and all agrees; 1: an engine did not start, its log ends before it did, or
something differs; 2: no vLLM start-up in it.
"""

from __future__ import annotations

from typing import Any

from membudget.budgets.budget import Budget
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import InputError, short_repr
from membudget.engines.vllm.logs.against import Expected
from membudget.engines.vllm.logs.explain import explain_file
from membudget.engines.vllm.options import DECLARED

#: A budget's vLLM flags and what the pool's question calls them.
_ASKED = {
    "max_model_len": "max_model_len",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "block_size": "block_size",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "enable_prefix_caching": "prefix_caching",
}


def options(parser: Declares) -> None:
    """The arguments of `membudget log`."""
    parser.add_argument("file", metavar="FILE", help="a vLLM log; - for the standard input")
    parser.add_argument("--budget", metavar="FILE", help="the budget it ran under: its model and its flags count")


def run(args: Arguments) -> Result:
    """Read, compare, explain."""
    budget, lengths = _budget(args.budget) if args.budget else (None, ())
    model = budget.model if budget else None
    known, expected = (_known(budget), _expected(budget, lengths)) if budget else (None, None)
    try:
        found = explain_file(args.file, model=model, known=known, expected=expected)
    except OSError as error:
        raise InputError(f"{short_repr(args.file)}: cannot be read: {error.strerror or error}") from None
    if found.code == 2:
        raise InputError(found.text)
    return Result(found.code, found.document, lambda: found.text)


def _budget(path: str) -> tuple[Budget, tuple[int, ...]]:
    """The budget, and all its contexts: a file may ask for several, and for several numbers of users."""
    from membudget.budgets.file import load_file
    from membudget.planning.load import checked

    file = checked(load_file(path))
    if file.problems:
        raise InputError(f"--budget: {file.error}")
    first = file.budgets[0]
    if any(budget.model is not first.model for budget in file.budgets):
        raise InputError(f"--budget: {path} is about several models; give one with the model of this log only")
    for name in ("machine_name", "format", "kv_cache_dtype", "engine"):
        if any(getattr(budget, name) != getattr(first, name) for budget in file.budgets):
            word = name.removesuffix("_name")
            raise InputError(f"--budget: {path} has several of {word}; give one with the {word} of this log only")
    if first.engine.name != DECLARED.name:
        raise InputError(
            f"--budget: {path} is about the engine {first.engine.name}; "
            f"a vLLM log needs one with `engine: {{{DECLARED.name}: {{...}}}}`"
        )
    return first, tuple(dict.fromkeys(budget.ctx for budget in file.budgets))


def _expected(budget: Budget, lengths: tuple[int, ...]) -> Expected:
    """What the budget says of the start, of its tightest rank."""
    from membudget.engines.vllm.logs.against import Expected
    from membudget.formats import FormatError, kv
    from membudget.planning.ledger import predict

    engine, machine = budget.engine, budget.machine
    try:
        ledger = predict(budget)
    except ValueError as error:
        raise InputError(f"--budget: {budget.file}:{budget.line}: {error}") from None
    try:
        auto = kv.auto(budget.model.config, None, budget.format).name
    except FormatError:
        auto = budget.kv_cache_dtype
    graphs = budget.overhead.get("cuda_graphs", 0)
    given = {**engine.options, "max_num_batched_tokens": engine.max_num_batched_tokens}
    return Expected(
        place=budget.file,
        where=budget.where,
        machine=budget.machine_name,
        total=machine.cuda_total or machine.memory,
        platform=machine.platform,
        weights=ledger.weights,
        activation=ledger.activations,
        non_torch=sum(budget.overhead.values()) - graphs,
        graphs=graphs,
        utilization=engine.gpu_memory_utilization,
        lengths=lengths,
        batched=engine.max_num_batched_tokens,
        tp=budget.tensor_parallel,
        pp=budget.pipeline_parallel,
        cache=budget.kv_cache_dtype,
        auto=auto,
        stated={name: value for name, value in given.items() if f"engine.vllm.{name}" in budget.where},
    )


def _known(budget: Budget) -> dict[str, Any]:
    """What the budget says in so many words; defaults are left to the log."""
    engine = budget.engine
    given = {**engine.options, "max_num_batched_tokens": engine.max_num_batched_tokens}
    return {
        asked: given[flag] for flag, asked in _ASKED.items() if f"engine.vllm.{flag}" in budget.where and flag in given
    }
