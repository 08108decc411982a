"""Explain a vLLM log in one screen: did it start, where every byte went, does it equal the arithmetic, what helps.

Reads a file, or a stream: `vllm serve ... 2>&1 | membudget log -`.  With --json: one object an engine, in a list.
Exit code 0: every engine started and its figures agree; 1: not so; 2: no vLLM start-up in it.
"""

from __future__ import annotations

from membudget.commands import Result
from membudget.commands.common import InputError, short_repr
from membudget.engines.vllm.explain import explain_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from membudget.budget import Budget
    from membudget.commands.arguments import Arguments, Declares

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
    budget = _budget(args.budget) if args.budget else None
    model = budget.model if budget else None
    try:
        found = explain_file(args.file, model=model, known=_known(budget) if budget else None)
    except OSError as error:
        raise InputError(f"{short_repr(args.file)}: cannot be read: {error.strerror or error}") from None
    if found.code == 2:
        raise InputError(found.text)
    return Result(found.code, found.document, lambda: found.text)


def _budget(path: str) -> Budget:
    from membudget.budget_file import load_file

    file = load_file(path)
    if file.problems:
        raise InputError(f"--budget: {file.error}")
    first = file.budgets[0]
    if any(budget.model is not first.model for budget in file.budgets):
        raise InputError(f"--budget: {path} is about several models; give one with the model of this log only")
    return first


def _known(budget: Budget) -> dict[str, Any]:
    """What the budget says in so many words; defaults are left to the log."""
    engine = budget.engine
    given = {**engine.options, "max_num_batched_tokens": engine.max_num_batched_tokens}
    return {
        asked: given[flag] for flag, asked in _ASKED.items() if f"engine.vllm.{flag}" in budget.where and flag in given
    }
