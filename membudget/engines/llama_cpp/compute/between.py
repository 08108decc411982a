"""Sizes of buffers for searches: between three contexts on a line what lies on it, elsewhere the graph itself.

A buffer is the largest of sums that grow with the cells, so between two contexts whose middle lies on their line it
is that line.  A search asks for dozens of contexts; an answer is always of its own graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from membudget.engines.llama_cpp.compute.header import Header
from membudget.engines.llama_cpp.settings import Settings

#: Cells below which every context has its own graph: batches and windows bend there.
FIRST = 4096

Sizes = tuple[int, ...]


def between(header: Header, settings: Settings, exact: Callable[[Settings], Sizes]) -> Sizes:
    """What `exact` says of these settings, in bytes; by three other contexts where they lie on a line."""
    total, each = settings.cells(header.key("context_length"))
    if each < FIRST:
        return exact(settings)
    low = FIRST
    while 2 * low <= each:
        low *= 2
    streams = total // each
    start, middle, end = (exact(replace(settings, ctx_size=cells * streams)) for cells in (low, 3 * low // 2, 2 * low))
    if any(a + c != 2 * b for a, b, c in zip(start, middle, end, strict=True)):
        return exact(settings)
    return tuple(a + (c - a) * (each - low) // low for a, c in zip(start, end, strict=True))


__all__ = ["FIRST", "between"]
