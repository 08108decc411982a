"""One module a command: its docstring is the help, `options(parser)` adds its arguments, `run(args)` answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Result:
    """What a command found: an exit code, the JSON document, and the text, made only when asked for."""

    __slots__ = ("code", "document", "text")

    def __init__(self, code: int, document: Any, text: Callable[[], str]) -> None:
        self.code, self.document, self.text = code, document, text
