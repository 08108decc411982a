"""Models whose config.json ships with membudget: they need no network and no file."""

from __future__ import annotations

from membudget.commands import Result
from membudget.locate import fixture_ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from membudget.commands.arguments import Arguments, Declares


def options(parser: Declares) -> None:
    """The arguments of `membudget models`."""
    parser.add_argument("words", metavar="WORD", nargs="*", help="only those with all these words in their id")


def run(args: Arguments) -> Result:
    """List; exit code 1 where no id has the words."""
    words = [word.casefold() for word in args.words]
    found = [name for name in fixture_ids() if all(word in name.casefold() for word in words)]
    return Result(0 if found else 1, {"models": found}, lambda: "\n".join(found) or "none of the shipped configs")
