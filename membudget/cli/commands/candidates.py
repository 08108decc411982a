"""What can stand at the cursor of a half-typed command line: commands, options, values; from the parsers themselves.

The shells' scripts (`membudget.cli.commands.completion`) ask with two environment variables; the shell itself
completes files, since it knows about tildes, variables and quotes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from typing import Any

#: What the shell is told to complete itself, after our own candidates.
FILES, YAML, FOLDERS = ":files", ":yaml", ":folders"
#: By the argument's metavar, where its name says nothing.
_PATHS = {"FILE": FILES, "PATH": FILES, "PYTHON": FILES, "RUN": FILES, "DIR": FOLDERS, "BUDGET": YAML}


def candidates(words: list[str]) -> list[tuple[str, str]]:
    """Every (value, description) that may replace the last of `words`, the one at the cursor.

    words: all before the cursor, without the program's name.  A value that starts with ``:`` tells the shell to
    complete files.  Never raises for what was typed.
    """
    from membudget.cli.main import COMMANDS, available, parser_of

    *before, word = words or [""]
    if not before:
        here = set(available())
        found = [(name, text) for name, _, text in COMMANDS if name in here]
        return _starting(word, [*found, ("--help", "show the commands"), ("--version", "show the version")])
    if before[0] == "help" and len(before) == 1:
        return _starting(word, [(name, text) for name, _, text in COMMANDS])
    if before[0] not in available():
        return []
    parser = parser_of(before[0])
    options = {option: action for action in parser._actions for option in action.option_strings}
    last = before[-1] if len(before) > 1 else ""
    if last in options and options[last].nargs != 0:
        return _starting(word, _values(before[0], options[last]))
    name, equals, part = word.partition("=")
    if equals and name in options and options[name].nargs != 0:
        found = _starting(part, _values(before[0], options[name]))
        return [(value if value.startswith(":") else f"{name}={value}", text) for value, text in found]
    if word.startswith("-"):
        return _starting(
            word, [(option, options[option].help or "") for option in options if _again(options, option, before)]
        )
    place = _place(before[1:], options)
    positionals = [action for action in parser._actions if not action.option_strings]
    if place < len(positionals):
        return _starting(word, _values(before[0], positionals[place]))
    many = positionals[-1:] if positionals and positionals[-1].nargs == "*" else []
    return _starting(word, [pair for action in many for pair in _values(before[0], action)])


def _again(options: dict[str, argparse.Action], option: str, before: list[str]) -> bool:
    """Whether an option may still be given: not twice, unless it may be repeated."""
    action = options[option]
    given = any(word.partition("=")[0] in action.option_strings for word in before)
    return not given or type(action).__name__ == "_AppendAction"


def _place(before: list[str], options: dict[str, argparse.Action]) -> int:
    """How many positional arguments were typed."""
    count, value = 0, False
    for word in before:
        if value:
            value = False
        elif word in options:
            value = options[word].nargs != 0
        elif not word.startswith("-"):
            count += 1
    return count


def _values(command: str, action: argparse.Action) -> list[tuple[str, str]]:
    """What may be the value of an argument."""
    if action.choices:
        return [(str(choice), "") for choice in action.choices]
    long = next((option for option in action.option_strings if option.startswith("--")), "")
    asked = _BY_NAME.get(long) or _BY_NAME.get(f"{command} {action.dest}")
    if asked is not None and (command, long) != ("history", "--machine"):
        return _asked(asked)
    metavar = str(action.metavar)
    if metavar == "MODEL":
        return [*_asked(_models), (FILES, "")]
    if long == "--machines" or (command == "check" and metavar == "PATH"):
        return [(YAML, "")]
    return [(_PATHS[metavar], "")] if metavar in _PATHS else []


def _asked(ask: Callable[[], Iterable[tuple[str, str]]]) -> list[tuple[str, str]]:
    """A table's names; none where it cannot be read, since nobody reads an error between two key presses."""
    try:
        return list(ask())
    except (ValueError, OSError):
        return []


def _models() -> Iterable[tuple[str, str]]:
    from membudget.sources.locate import cache_folder, fixture_ids

    shipped = fixture_ids()
    yield from ((name, "config ships") for name in shipped)
    try:
        folders = os.listdir(cache_folder())
    except OSError:
        return
    for folder in sorted(folders):
        name = folder.removeprefix("models--").replace("--", "/", 1)
        if folder.startswith("models--") and name not in shipped:
            yield name, "in the Hugging Face cache"


def _machines() -> Iterable[tuple[str, str]]:
    from membudget import machines

    yield from ((name, machine.title) for name, machine in machines.all_machines().items())
    yield machines.THIS_MACHINE, "whatever this is"


def _formats() -> Iterable[tuple[str, str]]:
    from membudget import formats

    return [(str(row[0]), f"{row[1]} bits a weight") for row in formats.describe()]


def _caches() -> Iterable[tuple[str, str]]:
    from membudget.formats import kv

    return [(name, "") for name in dict.fromkeys(("auto", *kv.names()))]


def _traps() -> Iterable[tuple[str, str]]:
    from membudget.cli.commands.doctor import NAMES

    return [(name, "") for name in NAMES]


def _commands() -> Iterable[tuple[str, str]]:
    from membudget.history.here import PACKAGES

    return [(name, "") for name in PACKAGES]


#: By an option's name, or by command and positional.
_BY_NAME: dict[str, Any] = {
    "--machine": _machines,
    "--device": _machines,
    "--node": _machines,
    "machines names": _machines,
    "--format": _formats,
    "--kv-cache-dtype": _caches,
    "--ignore": _traps,
    "--package": _commands,
    "models words": _models,
    "fetch repos": _models,
}


def _starting(word: str, found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those that go on from `word`, in any case of letters where none does as it is typed."""
    pairs = list(found)
    fits = [pair for pair in pairs if pair[0].startswith((word, ":"))]
    if any(not value.startswith(":") for value, _ in fits) or not word:
        return fits
    return [pair for pair in pairs if pair[0].casefold().startswith(word.casefold()) or pair[0].startswith(":")]
