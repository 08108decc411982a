"""Shows a search for an edge while it goes on: one line on a terminal, nothing where the output is kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from membudget.text.terminal import Terminal

#: Characters of the bar.
WIDTH = 24
_NAMES = {"edge": "edge", "trace_edge": "edge on fake tensors"}


class Progress:
    """Hears a worker's stages and draws the tries of a search.

    write: takes text for a terminal, control characters and all; None: nothing is drawn.
    """

    def __init__(self, write: Callable[[str], None] | None, unicode: bool = True) -> None:
        self._write, self._full, self._empty = write, *(("█", "░") if unicode else ("#", "."))
        self._drawn, self._tries = False, 0

    @classmethod
    def on(cls, stream: Any = None) -> Progress:
        """On a stream (standard error), where a person is looking at it."""
        stream = sys.stderr if stream is None else stream
        try:
            seen = stream.isatty()
        except (AttributeError, ValueError):
            seen = False

        def write(text: str) -> None:
            stream.write(text)
            stream.flush()

        return cls(write if seen else None, Terminal.of(stream).unicode)

    def hear(self, stage: dict[str, Any]) -> None:
        """One stage of a worker: a try that begins is drawn, the end of the search takes the line away."""
        name, looking = str(stage.get("stage")), stage.get("looking")
        if self._write is None or name not in _NAMES:
            return
        if looking is not None:
            self._tries += 1
            self._write(f"\r\x1b[2K{_NAMES[name]}: {self.line(looking['number'], looking['low'], looking['high'])}")
            self._drawn = True
        elif "found" in stage:
            if self._drawn:
                self._write("\r\x1b[2K")
            self._drawn, self._tries = False, 0

    def line(self, number: int, low: int, high: int | None) -> str:
        """What is tried, of which range: the bar is the range, full up to what fitted."""
        if high is None:
            return f"trying {number:,} users, {low:,} fit, no limit seen yet, try {self._tries}"
        full = min(WIDTH, low * WIDTH // max(high - 1, 1))
        bar = self._full * full + self._empty * (WIDTH - full)
        return f"{bar} trying {number:,} users of {low:,}..{high - 1:,}, try {self._tries}"
