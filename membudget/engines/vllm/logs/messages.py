"""The messages of `table`, compiled: patterns, the figures in them, and literals that find their lines quickly."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from membudget.engines.vllm.logs.kinds import Event, RefusalKind
from membudget.engines.vllm.logs.table import TABLE


class Hole(NamedTuple):
    """A figure inside a message.

    unit: GiB, MiB, B, size (a number with its unit), tokens, blocks, s, x, % or text; "" has none.
    digits: the decimals vLLM rounds to, at least (``str(round(x, 2))`` prints "1.0"); None: exact.
    """

    name: str
    unit: str
    digits: int | None


class Message(NamedTuple):
    """One message: its pattern has one group a hole, in order; anchor and needle are in every match or line of it."""

    key: str
    first: str
    last: str
    file: str
    refusal: RefusalKind | None
    event: Event | None
    anchor: str
    needle: str
    pattern: re.Pattern[str]
    holes: tuple[Hole, ...]


#: kind -> (regular expression, unit, digits).
KINDS: dict[str, tuple[str, str, int | None]] = {
    "gib": (r"(-?\d+(?:\.\d+)?)", "GiB", 2),
    "bytes": (r"(-?\d+)", "B", None),
    "size": (r"(\d+(?:\.\d+)? (?:[KMGT]iB|bytes))", "size", 2),
    "tokens": (r"(\d[\d,]*)", "tokens", None),
    "blocks": (r"(\d+)", "blocks", None),
    "count": (r"(-?\d+)", "", None),
    "s": (r"(\d+(?:\.\d+)?)", "s", 0),
    "x": (r"(\d+(?:\.\d+)?)", "x", 2),
    "pct": (r"(-?\d+(?:\.\d+)?)", "%", 1),
    "util": (r"(\d+(?:\.\d+)?(?:e-?\d+)?)", "", None),
    "util2": (r"(\d+\.\d+)", "", 2),
    "util4": (r"(\d+\.\d+)", "", 4),
    "word": (r"([^\s,;'\"]+)", "text", None),
    "rest": (r"(.*)", "text", None),
    "onoff": (r"(enabled|disabled)\b", "text", None),
    "arch": (r"((?!\w*(?:MTP|NextN|[Ee]agle|EAGLE|DFlash|Medusa|Speculator))\w+)", "text", None),
    "draftarch": (r"(\w*(?:MTP|NextN|[Ee]agle|EAGLE|DFlash|Medusa|Speculator)\w*)", "text", None),
    "draftkind": (r"(MTP|EAGLE)", "text", None),
}

#: A line without any of these has no message in it: the first and cheapest test (a test holds it).
NEEDLES: tuple[str, ...] = (
    "GiB",
    " GB",
    "locks",
    " took ",
    "KV cache size",
    "oncurrency for",
    "block size",
    "page size",
    "padding layers",
    "LLM engine (v",
    "init engine (",
    "█",
    "server version",
    "args: ",
    "uto-fit max",
    "seq len (",
    "model len ",
    "batched_tokens=",
    "startup complete",
    "Uvicorn running",
    "Killed",
    "SIGKILL",
    "memory profiling",
    "out of memory",
    "gpu-memory-utilization=",
    "--kv-cache-memory=",
    "kv cache memory",
    "kv_cache_memory_bytes",
    "group sizes (",
    "sliding-window layers as",
    "KV cache manager is",
    "Encoder cache",
    "initialization failed",
    "failed to start",
    "hit an exception",
    "fatal error",
    "executing method",
    "Mamba cache",
    "rchitecture: ",
    "Detected ",
    "data type to store",
    "Asynchronous scheduling",
)

_HOLE = re.compile(r"\{(\w+):(\w+)\}")


@functools.cache
def messages() -> tuple[Message, ...]:
    """All messages, compiled once, in the order of the table."""
    rows: list[Message] = []
    lines = [line for line in TABLE.splitlines() if line and not line.startswith("#")]
    while lines:
        key, versions, file, flag, anchor = lines.pop(0).split(" | ")
        parts: list[str] = []
        while lines and lines[0].startswith(" "):
            parts.append(lines.pop(0).strip())
        first, last = versions.split("..")
        refusal = RefusalKind(flag[1:]) if flag[0] == "!" else None
        event = Event(flag[1:]) if flag[0] == "@" else None
        pattern, holes = compile_holes(" ".join(parts))
        needle = _needle(anchor, " ".join(parts))
        rows.append(Message(key, first, last, file, refusal, event, anchor, needle, pattern, holes))
    return tuple(rows)


#: What a match may lack: optional groups, figures, and characters that stand for others.
_OPTIONAL = re.compile(r"\(\?[:!=][^()]*(?:\([^()]*\)[^()]*)*\)\??|\{\w+:\w+\}|.\?|\\[a-zA-Z]|\.\*")


def _needle(anchor: str, text: str) -> str:
    """The first needle that stands in every line a row can match."""
    certain = anchor + "\0" + _OPTIONAL.sub("\0", text).replace("\\", "")
    return next(needle for needle in NEEDLES if needle in certain)


@functools.cache
def by_needle() -> tuple[tuple[str, tuple[Message, ...]], ...]:
    """The rows by the needle that every match of them contains."""
    return tuple((needle, tuple(row for row in messages() if row.needle == needle)) for needle in NEEDLES)


def compile_holes(text: str) -> tuple[re.Pattern[str], tuple[Hole, ...]]:
    """A row's text as a pattern, and its holes in the order of the groups."""
    holes: list[Hole] = []

    def fill(match: re.Match[str]) -> str:
        expression, unit, digits = KINDS[match[2]]
        holes.append(Hole(match[1], unit, digits))
        return expression

    return re.compile(_HOLE.sub(fill, text)), tuple(holes)
