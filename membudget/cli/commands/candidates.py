"""What may stand at the cursor of a half-typed command line, for argcomplete: values by what an argument takes.

Commands, options and choices come from the parsers; here are only the values that a table or a folder knows.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from typing import Any

import argcomplete
from argcomplete.completers import BaseCompleter, DirectoriesCompleter, FilesCompleter

from membudget import formats, machines
from membudget.cli.commands.doctor import NAMES
from membudget.cli.commands.registry import COMMANDS, available, parser_of
from membudget.errors import MembudgetError
from membudget.formats import kv
from membudget.history.here import PACKAGES
from membudget.sources.cache import cache_folder
from membudget.sources.locate import fixture_ids

_FILES, _FOLDERS, _YAML = FilesCompleter(), DirectoriesCompleter(), FilesCompleter(("yaml", "yml"))


def complete(**more: Any) -> None:
    """Answer the shell and end the process; options that a help leaves out are offered too.

    more: as `argcomplete.autocomplete` takes them, for tests.
    """
    words = os.environ.get("COMP_LINE", "").split()
    # no default completer: a word that no argument takes has no candidates, files least of all
    none: Any = None
    argcomplete.autocomplete(
        _parser(words[1] if len(words) > 1 else ""),
        default_completer=none,
        validator=_goes_on,
        print_suppressed=True,
        **more,
    )


def _parser(chosen: str) -> argparse.ArgumentParser:
    """Every command by its name and help; the arguments of the one that is typed."""
    parser = argparse.ArgumentParser(prog="membudget")
    parser.add_argument("--version", action="store_true")
    commands = parser.add_subparsers()
    here = set(available())
    for name, _, text in COMMANDS:
        if name not in here:
            continue
        parents = [_with_values(name, parser_of(name))] if name == chosen else []
        commands.add_parser(name, help=text, parents=parents, add_help=False, allow_abbrev=False)
    return parser


def _with_values(command: str, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    for action in parser._actions:
        completer = _completer(command, action)
        if completer is not None:
            action.completer = completer  # type: ignore[attr-defined]
    return parser


def _completer(command: str, action: argparse.Action) -> Any:
    """What offers an argument's values; None where only its choices may stand, or anything."""
    long = next((option for option in action.option_strings if option.startswith("--")), "")
    metavar = str(action.metavar)
    names = None if (command, long) == ("history", "--machine") else _NAMES.get(long or f"{command} {action.dest}")
    if names is not None:
        return _Names(names, metavar == "MODEL")
    if metavar == "MODEL":
        return _Names(_models, True)
    if long == "--machines" or (command, metavar) == ("check", "PATH"):
        return _YAML
    return _PATHS.get(metavar)


class _Names(BaseCompleter):
    """The names of a table, and files where a path may stand as well."""

    def __init__(self, names: Callable[[], Iterable[str]], files: bool = False) -> None:
        self.names, self.files = names, files

    def __call__(self, *, prefix: str, action: Any, parser: Any, parsed_args: Any) -> list[str]:
        try:
            found = list(self.names())
        except (MembudgetError, OSError):  # a table that cannot be read: no message between two key presses
            found = []
        return [*found, *(_FILES(prefix) if self.files else ())]


def _models() -> Iterable[str]:
    shipped = fixture_ids()
    yield from shipped
    try:
        folders = os.listdir(cache_folder())
    except OSError:
        return
    for folder in sorted(folders):
        name = folder.removeprefix("models--").replace("--", "/", 1)
        if folder.startswith("models--") and name not in shipped:
            yield name


def _machines() -> Iterable[str]:
    return [*machines.all_machines(), machines.THIS_MACHINE]


def _formats() -> Iterable[str]:
    return [str(row[0]) for row in formats.describe()]


def _caches() -> Iterable[str]:
    return dict.fromkeys(("auto", *kv.names()))


def _goes_on(candidate: str, prefix: str) -> bool:
    """Whether a candidate goes on from what is typed, in any case of letters."""
    return candidate.casefold().startswith(prefix.casefold())


#: By an option's name, or by command and positional.
_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "--machine": _machines,
    "--device": _machines,
    "--node": _machines,
    "machines names": _machines,
    "--format": _formats,
    "--kv-cache-dtype": _caches,
    "--ignore": lambda: NAMES,
    "--package": lambda: PACKAGES,
    "models words": _models,
    "fetch repos": _models,
}
#: By an argument's metavar, where its name says nothing.
_PATHS = {"FILE": _FILES, "PATH": _FILES, "PYTHON": _FILES, "RUN": _FILES, "DIR": _FOLDERS, "BUDGET": _YAML}
