"""The plugin's command-line options: `--membudget-NAME`, and `--NAME` where no other plugin has it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

#: Name, what it takes, whether it may be given more than once, help.
_OPTIONS = (
    (
        "budgets",
        "PATH",
        True,
        "a budget file or a folder of them (repeatable; default: ROOTDIR/budgets)",
    ),
    ("machines", "FILE", True, "a YAML table of your own machines (repeatable)"),
    ("models", "DIR", False, "where checkpoints lie, as DIR/org/name or DIR/name"),
    ("chunk", "TOKENS", False, "the search for the most users prefills so much of each prompt at a time"),
    ("vllm", "CMD", False, "how vLLM is started: a python that has it, a vllm command, a container command"),
    ("vllm-version", "VERSIONS", False, "run each budget of vLLM under these versions' rules: 0.27.1,0.32.0"),
    ("runs", "DIR", False, "where records of runs lie (default: MEMBUDGET_RUNS, else ROOTDIR/runs)"),
    ("record", "", False, "add a record of this run: versions, and every line predicted and measured"),
    ("compare", "RUN", False, "fail where a line moved since RUN (last-green, last, reference, transformers==5.8.0)"),
    ("dry-run", "", False, "measure nothing: print what would be loaded, and whether it would start"),
    ("accept-drift", "REASON", False, "record this run as the new reference; refused where CI is set"),
)


PREFIX = "--membudget-"


def add_options(parser: pytest.Parser) -> None:
    """Declare the options; the short spelling of 0.1 is kept for one version, where nobody else has taken it."""
    group = parser.getgroup("membudget", "memory budgets")
    taken = _option_names(parser)
    if f"{PREFIX}{_OPTIONS[0][0]}" in taken:  # named in a conftest.py and installed as well
        return
    for name, metavar, many, text in _OPTIONS:
        dest = f"membudget_{name.replace('-', '_')}"
        more: dict[str, Any] = {"action": "append" if many else "store", "metavar": metavar}
        if not metavar:
            more = {"action": "store_true"}
        names = [f"{PREFIX}{name}", *([] if f"--{name}" in taken else [f"--{name}"])]
        try:
            group.addoption(*names, dest=dest, help=text, **more)
        except (ValueError, argparse.ArgumentError):
            group.addoption(names[0], dest=dest, help=text, **more)
    parser.addini("membudget_budgets", "files or folders of budgets that plain `pytest` collects", type="args")


def _option_names(parser: pytest.Parser) -> set[str]:
    """The options that are there.  pytest has no public way to ask; before 9 it finds a conflict too late to catch."""
    groups = [*getattr(parser, "_groups", ()), getattr(parser, "_anonymous", None)]
    options = [option for group in groups for option in getattr(group, "options", ())]
    return {name for option in options for name in option.names()}


def is_named(pluginmanager: pytest.PytestPluginManager) -> bool:
    """Whether a conftest.py names this plugin in `pytest_plugins`."""
    for plugin in pluginmanager.get_plugins():
        named = getattr(plugin, "pytest_plugins", ())
        if "membudget.pytest_plugin.plugin" in ((named,) if isinstance(named, str) else named):
            return True
    return False


def refuse_paths_behind_a_space(args: Sequence[str], folder: str) -> None:
    """`pytest.UsageError` for ``--models ~/models``: pytest would take that path for one of tests, and its rootdir.

    pytest looks for the rootdir before it knows our options.  folder: where pytest was started; a path in it does
    no harm.
    """
    names = [name for name, metavar, *_ in _OPTIONS if metavar in ("PATH", "FILE", "DIR", "CMD")]
    paths = {lead + name for name in names for lead in ("--", PREFIX)}
    if any(arg.startswith(("--rootdir", "--config-file")) or arg == "-c" for arg in args):
        return
    for option, value in pairwise(args):
        if option not in paths or value.startswith("-") or not os.path.exists(os.path.join(folder, value)):
            continue
        inside = os.path.realpath(os.path.join(folder, value)).startswith(os.path.realpath(folder) + os.sep)
        if not inside:
            raise pytest.UsageError(
                f"write {option}={value} with an =: behind a space pytest takes a path outside of {folder} for one of "
                "tests, and looks for its configuration there"
            )
