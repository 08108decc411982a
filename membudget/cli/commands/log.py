"""Explain a vLLM log in one screen: did it start, where every byte went, does it match the arithmetic, what helps.

A file that llama.cpp, llama-server, Ollama or LM Studio wrote is explained, too (docs/llama-cpp.md).
Reads a file, or a stream: `vllm serve ... 2>&1 | membudget log -`.  With --json: one object an engine, in a list.
With --budget the model, the engine's settings and the KV cache memory are compared with the budget, too.
An excerpt leaves out settings: --model, --vllm-version and vLLM's own options fill them in, those below and any
other that decides about memory (--pp, --max-num-seqs, --no-enable-prefix-caching: docs/vllm-logs.md).
Exit code 0: every engine started and all agrees; 1: an engine did not start, its log ends before it did, or
something differs; 2: no vLLM start-up in it.
"""

from __future__ import annotations

import os
from argparse import SUPPRESS
from functools import partial
from typing import Any

from membudget import formats, machines
from membudget.budgets.budget import Budget
from membudget.budgets.file import load_file
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import InputError, context, count, share, short_repr, size
from membudget.engines.llama_cpp import logs as llama_logs
from membudget.engines.llama_cpp.plan import Server
from membudget.engines.vllm import speculative
from membudget.engines.vllm.logs.expected import of_budget
from membudget.engines.vllm.logs.explain import Explained, explain_file
from membudget.engines.vllm.logs.given import Given
from membudget.engines.vllm.options import DECLARED
from membudget.engines.vllm.profile import learn
from membudget.engines.vllm.profile.learned import KIND
from membudget.formats import get
from membudget.formats.gguf import Gguf
from membudget.machines import measured
from membudget.model import build
from membudget.planning.load import checked
from membudget.sources.locate import locate
from membudget.units import gib

#: A budget's vLLM flags and what the pool's question calls them.
_ASKED = {
    "max_model_len": "max_model_len",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "block_size": "block_size",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "enable_prefix_caching": "prefix_caching",
}
_PARTS = ("weights", "activation", "non_torch", "cuda_graphs")
_MOST = 2**40
#: Characters of a llama.cpp log that are read.
_MOST_TEXT = 2**26
#: vLLM's options that take a whole number: their name here, and the short form.
_COUNTS = (
    ("tensor_parallel_size", "--tp"),
    ("pipeline_parallel_size", "--pp"),
    ("data_parallel_size", "--dp"),
    ("decode_context_parallel_size", "--dcp"),
    ("max_num_batched_tokens",),
    ("max_num_seqs",),
    ("block_size",),
    ("num_gpu_blocks_override",),
)
#: Those that take a word.
_WORDS = (
    "kv_cache_dtype",
    "dtype",
    "quantization",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "mamba_cache_mode",
)
#: Those with a form that begins with ``--no-``.
_FLAGS = (
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "enforce_eager",
    "async_scheduling",
    "enable_expert_parallel",
    "disable_hybrid_kv_cache_manager",
)


def options(parser: Declares) -> None:
    """The arguments of `membudget log`."""
    add = parser.add_argument
    add("file", metavar="FILE", help="a vLLM log; - for the standard input")
    add("--budget", metavar="FILE", help="the budget it ran under: its model and its flags count")
    add("--model", metavar="MODEL", help="hub id, folder or config.json, where the log has a path or no model")
    add("--offline", action="store_true", help="never ask the hub for --model")
    add("--learn", action="store_true", help="keep what the start took, for the next plan of --machine")
    add("--machine", metavar="NAME", help="of the start, for --learn; default: the budget's")
    add("--format", metavar="NAME", help="of the weights, for --learn; default: the budget's, else the config's own")
    add("--vllm-version", metavar="X.Y.Z", help="where the log does not print it")
    add("--tp", "--tensor-parallel-size", dest="tensor_parallel_size", metavar="N", help="where the log has none")
    add("--max-model-len", metavar="N", help="where the log does not print it")
    add("--kv-cache-dtype", metavar="DTYPE", help="where the log does not print it")
    add("--speculative-config", metavar="JSON", help="the drafter, where the log does not print it")
    # the others are in docs/vllm-logs.md: with them the help would not fit a screen
    for name, *short in _COUNTS[1:]:
        add(*short, _option(name), dest=name, metavar="N", help=SUPPRESS)
    for name in ("gpu_memory_utilization", "kv_cache_memory_bytes", *_WORDS[1:]):
        add(_option(name), dest=name, metavar="VALUE", help=SUPPRESS)
    for name in _FLAGS:
        add(_option(name), dest=name, action="store_true", default=None, help=SUPPRESS)
        add(_option(f"no_{name}"), dest=name, action="store_false", default=None, help=SUPPRESS)


def run(args: Arguments) -> Result:
    """Read, compare, explain."""
    if args.budget and args.model:
        raise InputError("--model and --budget: a budget names its model; pass one of them")
    if not args.budget and (found_llama := _llama(args)):
        return found_llama
    given = _of_budget(args.budget) if args.budget else Given(model=_model(args))
    given = Given(given.model, args.vllm_version, _settings(args), given.known, given.expected)
    try:
        found = explain_file(args.file, given)
    except OSError as error:
        raise InputError(f"{short_repr(args.file)}: cannot be read: {error.strerror or error}") from None
    notes = _learn(args, found) if args.learn else []
    return Result(0 if found.good else 1, found.document, lambda: "\n\n".join([found.text, *notes]))


def _llama(args: Arguments) -> Result | None:
    """Of a file that llama.cpp, llama-server, Ollama or LM Studio wrote; None for all else."""
    if not os.path.isfile(args.file):
        return None
    try:
        with open(args.file, encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_TEXT)
    except OSError:
        return None  # the reader below says why
    if "vllm" in text.lower():
        return None
    # a format's own bytes are what a longest context is computed with
    layout = get(args.format) if args.format and args.model else None
    model = _model(args) if isinstance(layout, Gguf) else None
    found = llama_logs.explain(text, Server.written(model, layout) if model and isinstance(layout, Gguf) else None)
    return None if found.code == 2 else Result(found.code, found.document, lambda: found.text)


def _learn(args: Arguments, found: Explained) -> list[str]:
    """Keep what each start took with its machine: one sentence an engine, and ``learned`` in its document."""
    budget = _budget(args.budget)[0] if args.budget else None
    name = args.machine or (budget.machine_name if budget else None)
    if name is None:
        raise InputError("--learn: pass --machine NAME, the machine of this log")
    machine = machines.get(name)
    notes = []
    for (log, model), document in zip(found.engines, found.document, strict=True):
        if model is None:
            raise InputError("--learn: the model is not known; pass --model")
        if args.format is not None:
            form = formats.get(args.format)
        else:
            form = budget.format if budget else formats.of_config(model.config)
        entry = learn(log, model, form, machine, when=_date(args.file), source=os.path.basename(args.file)).as_json()
        path = measured.add(machine.name, KIND, entry)
        document["learned"] = entry
        parts = [f"{part} {gib(entry[part], 2)}" for part in _PARTS if entry[part] is not None]
        notes.append(f"learned for {machine.name}: {', '.join(parts)} ({path})")
    return notes


def _date(path: str) -> str:
    """The day of a log, as 2026-05-04; today's for the standard input."""
    from datetime import UTC, datetime

    when = datetime.now(UTC) if path == "-" else datetime.fromtimestamp(os.stat(path).st_mtime, UTC)
    return when.strftime("%Y-%m-%d")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _model(args: Arguments) -> Any:
    """The model of --model, None without."""
    if args.model is None:
        return None
    found = locate(args.model, offline=True if args.offline else None)
    if found.config is None:
        raise InputError(f"--model {short_repr(args.model)}: no config.json there")
    return build(found.config, found.repo or args.model)


def _settings(args: Arguments) -> dict[str, Any]:
    """vLLM's settings that were given as options, by their own names."""
    found: dict[str, Any] = {}
    if args.max_model_len is not None:
        found["max_model_len"] = context("--max-model-len", args.max_model_len, _MOST)
    for name, *_ in _COUNTS:
        if (text := getattr(args, name)) is not None:
            found[name] = count(_option(name), text, _MOST)
    if args.gpu_memory_utilization is not None:
        found["gpu_memory_utilization"] = share("--gpu-memory-utilization", args.gpu_memory_utilization)
    if args.kv_cache_memory_bytes is not None:
        found["kv_cache_memory_bytes"] = size("--kv-cache-memory-bytes", args.kv_cache_memory_bytes)
    for name in (*_WORDS, *_FLAGS):
        if (value := getattr(args, name)) is not None:
            found[name] = value
    if args.speculative_config is not None:
        speculative.read(args.speculative_config)  # refuses what vLLM does not accept
        found["speculative_config"] = args.speculative_config
    return found


def _of_budget(path: str) -> Given:
    """What the budget says: its model, the flags that it states, and what it predicts of the start."""
    budget, lengths = _budget(path)
    return Given(budget.model, known=_known(budget), expected=partial(of_budget, budget, lengths))


def _budget(path: str) -> tuple[Budget, tuple[int, ...]]:
    """The budget, and all its contexts: a file may ask for several, and for several numbers of users."""
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


def _known(budget: Budget) -> dict[str, Any]:
    """What the budget says in so many words; defaults are left to the log."""
    engine = budget.engine
    given = {**engine.options, "max_num_batched_tokens": engine.step_tokens}
    return {
        asked: given[flag] for flag, asked in _ASKED.items() if f"engine.vllm.{flag}" in budget.where and flag in given
    }
