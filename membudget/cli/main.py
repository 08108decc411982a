"""The command line: `membudget plan | count | check | ...`.

Every command lives in its own module under `membudget.cli.commands`, imported only when it
is the one chosen: `HELP`, `options(parser)` and `run(args) -> Result`.

Exit codes: 0 yes; 1 no (does not fit, differs); 2 wrong input; 3 not available here; 70 a bug; 74 not written;
130 Ctrl-C.
With --json every command writes one document to stdout, errors too.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

from membudget import __version__
from membudget.cli.commands.arguments import UsageError, parse
from membudget.cli.commands.registry import COMMANDS, available, module_of, parser_of
from membudget.errors import BUG, INTERRUPTED, NOT_AVAILABLE, UNWRITTEN, WRONG_INPUT, MembudgetError
from membudget.sources.locate import is_known
from membudget.text.sanitize import printable, shown, without_tokens
from membudget.text.terminal import COLOURS, Terminal


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; nothing that a user types makes it raise."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    as_json = "--json" in arguments
    try:
        code, text = _answer(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # the one place where errors become messages
        code, text = _failed(error, as_json)
        return _write(text, code, sys.stdout) if as_json else _write(text, code, sys.stderr, answer=False)
    return _write(text, code, sys.stdout)


def usage() -> str:
    """The help of `membudget` itself."""
    here = set(available())
    lines = [
        "usage: membudget COMMAND ... [--json]",
        "",
        "The memory a language model needs to serve people: to the byte, proven by tests.",
        "",
        *(f"  {name:<10} {text}" for name, _, text in COMMANDS if name in here),
        "",
        "Start with: membudget Qwen3-8B --ctx 32k --users 8",
        "Options:    membudget COMMAND --help; membudget --version",
        "Exit codes: 0 yes; 1 no (does not fit, differs); 2 wrong input; 3 not available",
        "            here; 70 a bug of ours; 74 the answer was not written; 130 Ctrl-C",
    ]
    return "\n".join(lines)


def _answer(arguments: list[str]) -> tuple[int, str]:
    first = arguments[0] if arguments else "--help"
    if first in ("-h", "--help", "help"):
        if first == "help" and len(arguments) > 1:
            return _answer([arguments[1], "--help"])
        return (0 if arguments else 2), usage()
    if first in ("-V", "--version", "version"):
        return 0, f"membudget {__version__}"
    if not any(first == name for name, _, _ in COMMANDS):
        arguments = _as_plan(arguments)
        first = arguments[0]
    for word in arguments:
        if "\0" in word:  # no shell passes one; no file or name has one
            raise UsageError(f"{shown(word)} has a NUL character in it, which no path or name has")
    if "-h" in arguments or "--help" in arguments:
        return 0, parser_of(first).format_help().rstrip()
    module = module_of(first)
    args = parse(first, (module.__doc__ or "").strip(), module.options, arguments[1:])
    result = module.run(args)
    return result.code, _json(result.document) if args.json else result.text()


def _as_plan(arguments: list[str]) -> list[str]:
    """`membudget MODEL ...` is `membudget plan MODEL ... --brief`.  Raises `UsageError` for any other word."""
    first = arguments[0]
    if first.startswith("-") or "\0" in first or not is_known(first):
        raise UsageError(_unknown_command(first))
    return ["plan", *arguments, "--brief"]


def _unknown_command(name: str) -> str:
    from difflib import get_close_matches

    known = available()
    near = get_close_matches(name, known, 3, 0.5)
    hint = f"; near are {', '.join(near)}" if near else ""
    return f"unknown command {shown(name)}, and no model is called so{hint}; known are {', '.join(known)}"


def _failed(error: Exception, as_json: bool) -> tuple[int, str]:
    """The exit code and the message, as text or as JSON."""
    code = _code_of(error)
    message = str(error).strip() or type(error).__name__
    if code == BUG:
        if os.environ.get("MEMBUDGET_TRACEBACK"):
            raise error
        message = (
            f"internal error: {type(error).__name__}: {message}. This is a bug in membudget; "
            "with MEMBUDGET_TRACEBACK=1 in the environment it shows where, please report that"
        )
    if as_json:
        return code, _json({"error": _as_json(error, message, code)})
    return code, f"membudget: {message}"


def _as_json(error: Exception, message: str, exit_code: int) -> dict[str, Any]:
    code = error.code if isinstance(error, MembudgetError) else "internal" if exit_code == BUG else "file"
    return {"type": type(error).__name__, "code": code, "message": message, "exit_code": exit_code}


def _code_of(error: Exception) -> int:
    """A refusal of ours has its own; a file or a package that is missing is not available; all else is a bug."""
    if isinstance(error, MembudgetError):
        return error.exit_code
    if isinstance(error, ImportError):
        return BUG if (error.name or "").startswith("membudget") else NOT_AVAILABLE
    if isinstance(error, FileNotFoundError):
        return NOT_AVAILABLE
    return WRONG_INPUT if isinstance(error, OSError) else BUG


def _clean(text: str, stream: Any) -> str:
    """What may be printed: without secrets, and without what a terminal would obey but for our own colours.

    Names come from files, logs and other people's machines; this is the one door that all of them leave by.
    """
    text = without_tokens(text)
    if "\x1b" not in text:
        return printable(text)
    if not Terminal.of(stream).colour:
        return printable(text)
    codes = "|".join(("0", *COLOURS.values()))
    parts = re.split(rf"(\x1b\[(?:{codes})(?:;(?:{codes}))*m)", text)
    return "".join(part if place % 2 else printable(part) for place, part in enumerate(parts))


def _json(document: object) -> str:
    return json.dumps(document, indent=2, allow_nan=False)


def _write(text: str, code: int, stream: Any, answer: bool = True) -> int:
    """Print; a reader that has gone away (`| head`) is not an error, the verdict stands."""
    try:
        if stream is None:
            raise OSError(0, "it is closed")
        encoding = stream.encoding or "utf-8"
        text = _clean(text, stream).encode(encoding, "backslashreplace").decode(encoding)
        stream.write(text + "\n")
        stream.flush()
    except BrokenPipeError:
        # what is left in the buffer must not raise again when the interpreter exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except OSError as error:
        return _unwritten(error, stream) if answer else code
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _unwritten(error: OSError, stream: Any) -> int:
    """Say that stdout takes nothing (a full disk, closed): an unread verdict must not look like success."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if sys.stderr is not None:
        _write(f"membudget: stdout: cannot be written: {error.strerror or error}", UNWRITTEN, sys.stderr, answer=False)
    return UNWRITTEN


def entry() -> None:
    """The console script.  Between two key presses the shell asks through argcomplete's variable."""
    if "_ARGCOMPLETE" in os.environ:
        from membudget.cli.commands.candidates import complete  # argcomplete is needed here alone

        complete()
    sys.exit(main())


if __name__ == "__main__":
    entry()
