"""Models whose config.json ships with membudget: they need no network and no file."""

from __future__ import annotations

from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.model import ConfigError, build
from membudget.sources.locate import fixture_ids, locate


def options(parser: Declares) -> None:
    """The arguments of `membudget models`."""
    parser.add_argument("words", metavar="WORD", nargs="*", help="only those with all these words in their id")


def run(args: Arguments) -> Result:
    """List those that can be predicted; exit code 1 where no id has the words."""
    words = [word.casefold() for word in args.words]
    found, refused = [], {}
    for name in fixture_ids():
        if all(word in name.casefold() for word in words):
            why = _refusal(name)
            if why:
                refused[name] = why
            else:
                found.append(name)
    none = [f"{name} ships, and is refused: {why}" for name, why in refused.items()]
    text = "\n".join(found or none) or "none of the shipped configs"
    return Result(0 if found else 1, {"models": found, "refused": refused}, lambda: text)


def _refusal(name: str) -> str:
    """Why a shipped config is not predicted: a part of it has no rules; else empty."""
    try:
        config = locate(name, offline=True).config
        if config is not None:
            build(config, name)
    except ConfigError as error:
        return str(error)
    return ""
