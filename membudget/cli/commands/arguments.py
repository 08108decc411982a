"""Arguments: one argparse parser a command, with errors that name what is near."""

from __future__ import annotations

import argparse
import textwrap
from argparse import ArgumentParser as Declares
from argparse import Namespace as Arguments
from collections.abc import Callable
from difflib import get_close_matches
from typing import NoReturn

from membudget.errors import MembudgetError
from membudget.text.sanitize import shown
from membudget.text.terminal import Terminal

__all__ = ["Arguments", "Declares", "UsageError", "build", "parse"]


class UsageError(MembudgetError):
    """Arguments that no command takes: says which, what is near and where to read on."""

    default_code = "usage"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """A line an option where it fits: long choices stand in the text, and two spellings share their value."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=Terminal.of().width)

    def add_argument(self, action: argparse.Action) -> None:
        if not getattr(action, "quiet", False):
            super().add_argument(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = str(action.metavar or action.dest.upper())
        if action.choices and action.metavar is None:
            value = "NAME" if _long(action) else f"{{{','.join(map(str, action.choices))}}}"
        return f"{_names(action)[0]} {value}"

    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action)
        if action.choices and action.metavar is None and _long(action):
            text = f"{', '.join(map(str, action.choices))}; {text}"
        return "; ".join([*(f"or {name}" for name in _names(action)[1:]), text])

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = [textwrap.wrap(line, width, break_on_hyphens=False) or [""] for line in text.splitlines()]
        return "\n".join(indent + line for parts in lines for line in parts)


def build(name: str, description: str, options: Callable[[Declares], None]) -> argparse.ArgumentParser:
    """The argparse parser of one command; it raises `UsageError` instead of exiting."""
    parser = _Parser(
        prog=f"membudget {name}",
        usage=f"membudget {name} [OPTIONS]",
        description=description,
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, errors too")
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    parser.usage = _usage(parser)
    return parser


def _names(action: argparse.Action) -> list[str]:
    """How an option is spelt, on one line where there is room, else the other spellings by themselves."""
    names = list(action.option_strings)
    return names if len(", ".join(names)) > 24 else [", ".join(names)]


def _long(action: argparse.Action) -> bool:
    """Whether an option with its choices would not leave room for what it means."""
    return len(action.option_strings[-1]) + sum(len(str(choice)) + 1 for choice in action.choices or ()) > 24


def parse(name: str, description: str, options: Callable[[Declares], None], words: list[str]) -> Arguments:
    """Read the arguments of one command, or raise `UsageError`."""
    parser = build(name, description, options)
    args, rest = parser.parse_known_intermixed_args(words)
    if rest:
        raise UsageError(_unknown(parser, rest))
    _once(parser, words)
    return args


def _once(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """`UsageError` for an option that is given twice and holds one value: argparse would forget the first."""
    given: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word == "--":
            return
        option, equals, value = word.partition("=")
        action = parser._option_string_actions.get(option)
        if action is None or action.nargs == 0:
            continue
        value = value if equals else next(rest, "")
        if type(action).__name__ == "_StoreAction" and action.dest in given:
            raise UsageError(
                f"{option} is given twice, {shown(given[action.dest])} and {shown(value)}; it takes one value "
                f"(see `{parser.prog} --help`)"
            )
        given[action.dest] = value


def _usage(parser: argparse.ArgumentParser) -> str:
    words = [parser.prog]
    for action in parser._actions:
        if not action.option_strings:
            name = str(action.metavar or action.dest)
            words.append(f"[{name} ...]" if action.nargs == "*" else f"[{name}]" if action.nargs == "?" else name)
    return " ".join([*words, "[OPTIONS]"])


def _unknown(parser: argparse.ArgumentParser, rest: list[str]) -> str:
    first = next((word for word in rest if word.startswith("-")), rest[0])
    if not first.startswith("-"):
        return f"{shown(first)} is one argument too many (see `{parser.prog} --help`)"
    known = [option for action in parser._actions for option in action.option_strings]
    near = get_close_matches(first.partition("=")[0], known, 3, 0.5)
    hint = f"; near are {', '.join(near)}" if near else ""
    return f"unknown option {shown(first)}{hint} (see `{parser.prog} --help`)"
