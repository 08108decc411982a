"""The errors that membudget raises on purpose.

Every refusal is a `MembudgetError`: wrong input, or something that is not available here.  Any other exception is a
bug of ours.  Code decides on a class or on `code`, never on the text.
"""

from __future__ import annotations

import re
from typing import ClassVar

#: Exit codes of the command line: no; wrong input; not available here; a bug; not written (sysexits); Ctrl-C.
NO, WRONG_INPUT, NOT_AVAILABLE, BUG, UNWRITTEN, INTERRUPTED = 1, 2, 3, 70, 74, 130


#: A word that no name and no part of a path is as long as: a value out of a file, which says no more in full.
_ENDLESS = re.compile(r"[^\s/\\]{400,}")


class MembudgetError(ValueError):
    """What is wrong, where, what is allowed, and what to do next, in one text for people; `code` is for programs.

    code: a short name that stays, ``unknown_machine``; the class's own where none is given.
    """

    #: The code of errors of this class that have none of their own; the class's name where it is empty.
    default_code: ClassVar[str] = ""
    #: Of a command that ends with it.
    exit_code: int = WRONG_INPUT

    def __init__(self, text: str, *, code: str = "") -> None:
        super().__init__(_ENDLESS.sub(lambda found: f"{found[0][:80]}...", text))
        self.code = code or self.default_code or _snake(type(self).__name__)


def _snake(name: str) -> str:
    """``ConfigError`` -> ``config``, ``UnknownMachine`` -> ``unknown_machine``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name.removesuffix("Error")).lower()


class NotAvailableError(MembudgetError):
    """Something that this machine or installation lacks: says what, and how to get it."""

    exit_code: int = NOT_AVAILABLE
