"""Arguments, declared once as argparse has them, and read without argparse where nothing is unusual.

Importing argparse and building a parser take longer than a whole plan.  So `quick` reads
what is written in full and correct, from the same declarations; everything else (help,
errors, `-x` clusters) goes to `build`, the real argparse parser, whose word counts.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any, Protocol

    class Declares(Protocol):
        """What `options(parser)` of a command gets: an argparse parser, or a `_Recorder`."""

        def add_argument(self, *names: str, **more: Any) -> Any:
            """As argparse's."""


class UsageError(ValueError):
    """Arguments that no command takes: says which, what is near and where to read on."""


class Arguments:
    """What was read: one attribute an argument, as in argparse's Namespace."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class _Recorder:
    """Takes the declarations of a command, as far as `quick` understands them."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.options: dict[str, tuple[str, str, Any]] = {}
        self.positionals: list[tuple[str, str | None]] = []
        self.odd = False

    def add_argument(self, *names: str, **more: Any) -> None:
        """Keep what moves a value; types and other actions are argparse's business."""
        action, nargs = more.get("action", "store"), more.get("nargs")
        if not names[0].startswith("-"):
            self.positionals.append((names[0], nargs))
            self.values[names[0]] = [] if nargs == "*" else more.get("default")
            self.odd |= nargs not in (None, "?", "*") or "type" in more or "choices" in more
            return
        long = next((name for name in names if name.startswith("--")), names[0])
        dest = more.get("dest") or long.lstrip("-").replace("-", "_")
        self.values[dest] = more.get("default", False if action == "store_true" else None)
        self.odd |= action not in ("store", "append", "store_true") or nargs is not None or "type" in more
        for name in names:
            self.options[name] = (dest, action, more.get("choices"))


def declare(parser: Declares, options: Callable[[Declares], None]) -> None:
    """A command's own arguments and those that every command takes."""
    options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, errors too")
    parser.add_argument("-h", "--help", action="store_true", help="show this help")


def quick(options: Callable[[Declares], None], words: list[str]) -> Arguments | None:
    """The arguments, or None where argparse has to look at them."""
    known = _Recorder()
    declare(known, options)
    if known.odd:
        return None
    values, loose, given = known.values, [], set()
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            loose.append(word)
            continue
        name, equals, value = word.partition("=")
        found = known.options.get(name)
        if found is None:
            return None
        dest, action, choices = found
        if action == "store" and dest in given:
            return None
        given.add(dest)
        if action == "store_true":
            if equals or dest == "help":
                return None
            values[dest] = True
            continue
        if not equals:
            value = next(rest, "-")
            if value.startswith("-"):
                return None
        if choices is not None and value not in choices:
            return None
        values[dest] = [*(values[dest] or ()), value] if action == "append" else value
    return Arguments(values) if _place(known, loose) else None


def _place(known: _Recorder, loose: list[str]) -> bool:
    """Give the words without a dash to the positionals, in order; False where they do not match."""
    for name, nargs in known.positionals:
        if nargs == "*":
            known.values[name], loose = loose, []
        elif loose:
            known.values[name], *loose = loose
        elif nargs is None:
            return False
    return not loose


def build(name: str, description: str, options: Callable[[Declares], None]) -> argparse.ArgumentParser:
    """The argparse parser of one command; it raises `UsageError` instead of exiting."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            raise UsageError(f"{message} (see `{self.prog} --help`)")

    class Formatter(argparse.RawDescriptionHelpFormatter):
        """A line an option where it fits: long choices stand in the text, and two spellings share their value."""

        def __init__(self, prog: str) -> None:
            from membudget.report.terminal import Terminal

            super().__init__(prog, max_help_position=30, width=Terminal.of().width)

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
            import textwrap

            lines = [textwrap.wrap(line, width, break_on_hyphens=False) or [""] for line in text.splitlines()]
            return "\n".join(indent + line for parts in lines for line in parts)

    parser = Parser(
        prog=f"membudget {name}",
        usage=f"membudget {name} [OPTIONS]",
        description=description,
        formatter_class=Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    declare(parser, options)
    parser.usage = _usage(parser)
    return parser


def _names(action: argparse.Action) -> list[str]:
    """How an option is spelt, on one line where there is room, else the other spellings by themselves."""
    names = list(action.option_strings)
    return names if len(", ".join(names)) > 24 else [", ".join(names)]


def _long(action: argparse.Action) -> bool:
    """Whether an option with its choices would not leave room for what it means."""
    return len(action.option_strings[-1]) + sum(len(str(choice)) + 1 for choice in action.choices or ()) > 24


def parse(name: str, description: str, options: Callable[[Declares], None], words: list[str]) -> Any:
    """Read the arguments of one command, or raise `UsageError`."""
    found = quick(options, words)
    if found is not None:
        return found
    parser = build(name, description, options)
    args, rest = parser.parse_known_intermixed_args(words)
    if rest:
        raise UsageError(_unknown(parser, rest))
    _once(parser, words)
    return args


def _once(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """`UsageError` for an option that is given twice and holds one value: argparse would forget the first."""
    from membudget.locate import shown

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
            shown = str(action.metavar or action.dest)
            words.append(f"[{shown} ...]" if action.nargs == "*" else f"[{shown}]" if action.nargs == "?" else shown)
    return " ".join([*words, "[OPTIONS]"])


def _unknown(parser: argparse.ArgumentParser, rest: list[str]) -> str:
    from difflib import get_close_matches

    from membudget.locate import shown

    first = next((word for word in rest if word.startswith("-")), rest[0])
    if not first.startswith("-"):
        return f"{shown(first)} is one argument too many (see `{parser.prog} --help`)"
    known = [option for action in parser._actions for option in action.option_strings]
    near = get_close_matches(first.partition("=")[0], known, 3, 0.5)
    hint = f"; near are {', '.join(near)}" if near else ""
    return f"unknown option {shown(first)}{hint} (see `{parser.prog} --help`)"
