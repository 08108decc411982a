"""Weight formats and KV cache dtypes that membudget knows."""

from __future__ import annotations

from membudget import formats
from membudget.commands import Result
from membudget.formats import kv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from membudget.commands.arguments import Arguments, Declares

_KEYS = ("name", "bits_per_layer_weight", "dense", "source", "suffixes")


def options(parser: Declares) -> None:
    """`membudget formats` takes nothing of its own."""


def run(args: Arguments) -> Result:
    """List."""
    rows = [tuple(row) for row in formats.describe()]
    dtypes = ["auto", *(name for name in kv.names() if name != "auto")]
    document = {"formats": [dict(zip(_KEYS, row, strict=False)) for row in rows], "kv_cache_dtypes": dtypes}
    return Result(0, document, lambda: _text(rows, dtypes))


def _text(rows: Sequence[Sequence[str]], dtypes: Sequence[str]) -> str:
    from membudget.report.terminal import Terminal, table

    terminal = Terminal.of()
    lines = table([("format", "bits a layer weight", "not compressed", "as laid out by"), *(row[:4] for row in rows)])
    suffixes: dict[str, list[str]] = {}
    for row in rows:
        for suffix in row[4].split("; ") if len(row) > 4 and row[4] else ():
            suffixes.setdefault(suffix, []).append(row[0])
    if suffixes:
        lines += ["", "a format's name may go on:"]
        for suffix, names in suffixes.items():
            lines += terminal.wrap(f"{suffix} ({_few(names)})", "  ")
    lines += ["", *terminal.wrap("KV cache dtypes: " + ", ".join(dtypes))]
    return "\n".join(lines)


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:3])} and {len(names) - 3} more"
