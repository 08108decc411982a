"""Drawing in a terminal: bars, tables, colours; plain ASCII where nothing else can be shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from membudget.text.sanitize import shown

#: SGR codes by what they mark.
COLOURS = {
    "weights": "34",
    "kv_cache": "35",
    "activations": "33",
    "overhead": "90",
    "good": "32",
    "bad": "31",
    "bold": "1",
    "faint": "2",
}
_BLOCKS = "▏▎▍▌▋▊▉█"
MIN_WIDTH, MAX_WIDTH, PIPE_WIDTH = 30, 120, 100


class Terminal:
    """What the stream can show.

    width: columns.  unicode: whether block characters arrive.  colour: whether SGR codes do.
    """

    __slots__ = ("colour", "unicode", "width")

    def __init__(self, width: int = PIPE_WIDTH, unicode: bool = True, colour: bool = False) -> None:
        self.width, self.unicode, self.colour = max(MIN_WIDTH, min(width, MAX_WIDTH)), unicode, colour

    @classmethod
    def of(cls, stream: TextIO | None = None) -> Terminal:
        """Look at a stream: NO_COLOR and TERM=dumb turn colours off, FORCE_COLOR on, COLUMNS sets the width."""
        stream = sys.stdout if stream is None else stream
        try:
            tty = stream.isatty()
        except (AttributeError, ValueError):
            tty = False
        encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "").replace("_", "")
        forced = os.environ.get("FORCE_COLOR", "") not in ("", "0")
        colour = (forced or (tty and os.environ.get("TERM") != "dumb")) and not os.environ.get("NO_COLOR")
        return cls(_width(stream, tty), encoding in ("utf8", "utf8sig", "utf16", "cp65001"), colour)

    def paint(self, text: str, *marks: str) -> str:
        """`text` in the colours of these marks, or as it is."""
        if not self.colour or not text or not marks:
            return text
        return f"\x1b[{';'.join(COLOURS[mark] for mark in marks)}m{text}\x1b[0m"

    @property
    def dot(self) -> str:
        """What separates the parts of a headline."""
        return " · " if self.unicode else " | "

    def headline(self, *parts: str) -> list[str]:
        """Parts with dots between them; where they do not fit, the next ones stand below, indented."""
        lines: list[str] = []
        for part in parts:
            longer = f"{lines[-1]}{self.dot}{part}" if lines else part
            if lines and columns(longer) <= self.width:
                lines[-1] = longer
            elif columns(part) + 2 * bool(lines) <= self.width:
                lines.append("  " + part if lines else part)
            else:
                lines += self.wrap(part, "  " if lines else "")
        return lines

    def bar(self, start: int, end: int, limit: int, scale: int, cells: int, mark: str = "") -> str:
        """One step of a waterfall: a bar from `start` to `end`, and a line at `limit`.

        All sizes in the same unit; `scale` of them are `cells` characters wide.  Something
        that is not 0 always shows.
        """
        if cells < 1 or scale < 1:
            return ""
        first, last = _eighths(start, scale, cells), _eighths(end, scale, cells)
        line = min(_eighths(limit, scale, cells) // 8, cells - 1)
        row = [" "] * cells
        row[line] = "│" if self.unicode else "|"
        if end <= start:
            return "".join(row).rstrip()
        left = min(first // 8, cells - 1)
        whole, part = divmod(last, 8)
        for cell in range(left, min(whole, cells)):
            row[cell] = "█" if self.unicode else "#"
        if whole < cells and (part or whole <= left):
            row[max(whole, left)] = _BLOCKS[max(part, 1) - 1] if self.unicode else "#"
        right = max(min(whole + bool(part), cells), left + 1)
        painted = "".join(row[:left]) + self.paint("".join(row[left:right]), *([mark] if mark else []))
        return (painted + "".join(row[right:])).rstrip()

    def wrap(self, text: str, indent: str = "", bullet: str = "") -> list[str]:
        """Break a sentence at spaces; the first line starts with `bullet`, the others under its text."""
        room = self.width - len(indent) - len(bullet)
        lines, line = [], ""
        for word in text.split():
            if line and len(line) + 1 + len(word) > room:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}" if line else word
        lines.append(line)
        lead = " " * len(bullet)
        return [indent + (lead if number else bullet) + line for number, line in enumerate(lines)]


def table(rows: Sequence[Sequence[str]], align: str = "", gap: str = "  ") -> list[str]:
    """Columns as wide as their widest cell; `align` has ``<`` or ``>`` for each, the rest is left."""
    if not rows:
        return []
    columns = max(len(row) for row in rows)
    widths = [max((len(row[c]) for row in rows if c < len(row)), default=0) for c in range(columns)]
    sides = align.ljust(columns, "<")
    return [gap.join(f"{cell:{sides[c]}{widths[c]}}" for c, cell in enumerate(row)).rstrip() for row in rows]


def plain(name: str) -> str:
    """A name from outside as it may be printed: as it is where a shell would take it so, else quoted."""
    if name and name.isascii() and all(letter.isalnum() or letter in "_-./:@+~," for letter in name):
        return name

    return shown(name)


def columns(text: str) -> int:
    """Columns that a text takes; colours take none."""
    if "\x1b" in text:
        for code in {"0", *COLOURS.values(), *(f"{one};{two}" for one in COLOURS.values() for two in COLOURS.values())}:
            text = text.replace(f"\x1b[{code}m", "")
    return len(text)


def _eighths(size: int, scale: int, cells: int) -> int:
    return min(max(size, 0) * cells * 8 // scale, cells * 8)


def _width(stream: TextIO, tty: bool) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    if not tty:
        return PIPE_WIDTH
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return PIPE_WIDTH
