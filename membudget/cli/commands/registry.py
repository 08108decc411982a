"""The commands by name: their module, their line of help, their parser.

argparse, not click: with 30 options a parser costs 16 ms of start-up with argparse and 43 ms with click (medians of
41 starts, Python 3.11), options are the same number of lines, and `required`, `nargs` and errors that name what is
near are ours in either.  argcomplete adds nothing until a shell asks.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from membudget.cli.commands.arguments import UsageError, build

#: The order people read them in: name, module under `membudget.cli.commands`, one line of help.
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("plan", "plan", "does a model fit a machine for so many users, and what limits it"),
    ("count", "count", "parameters of a model by role and by layer"),
    ("check", "check", "check budget files: the arithmetic, without pytest"),
    ("doctor", "doctor", "this machine: what runs here, and the traps that endanger a run"),
    ("init", "init", "write a first budget for a model and this machine"),
    ("fleet", "fleet", "how many devices for so many users, as a lower bound"),
    ("machines", "machines", "machines that are known, and this one"),
    ("formats", "formats", "weight formats and KV cache dtypes; which fit a model"),
    ("models", "models", "models whose config.json ships with membudget"),
    ("schema", "schema", "the JSON Schema of a budget file, for editors"),
    ("completion", "completion", "completion for bash, zsh and fish"),
    ("fetch", "fetch", "save a model's config.json from the hub"),
    ("pool", "pool", "vLLM's KV cache pool, to the block"),
    ("upgrade", "upgrade", "what a newer vLLM makes of models and budgets"),
    ("oracle", "oracle", "ask the installed vLLM for its own pool"),
    ("log", "log", "read the memory figures in a vLLM log"),
    ("trace", "trace", "the exact peak of one prefill, on fake tensors"),
    ("probe", "probe", "measure a budget on this machine"),
    ("history", "history", "runs that were recorded, and their course"),
    ("diff", "diff", "what moved between two runs, since when, and why"),
    ("bisect", "bisect", "which version of a package moved a line"),
    ("explore", "explore", "an HTML page to play with a plan"),
    ("report", "report", "an HTML page of a run, or of budgets as predicted"),
)


def parser_of(name: str) -> argparse.ArgumentParser:
    """The argparse parser of one command, for its help and for the documentation."""
    module = module_of(name)
    return build(name, (module.__doc__ or "").strip(), module.options)


def available() -> list[str]:
    """The commands whose parts are all there."""
    return [name for name, module, _ in COMMANDS if find_spec(f"membudget.cli.commands.{module}") is not None]


def module_of(name: str) -> ModuleType:
    """The module of one command.  `UsageError` where this version does not have it."""
    module = next(module for known, module, _ in COMMANDS if known == name)
    try:
        return import_module(f"membudget.cli.commands.{module}")
    except ModuleNotFoundError as error:
        if error.name == f"membudget.cli.commands.{module}":
            raise UsageError(f"{name} is not part of this version of membudget") from None
        raise
