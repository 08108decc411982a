"""One slot's cache as it grows with its cells, in bytes, of all layers wherever they lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from membudget.engines.llama_cpp.cells import pad, window_cells
from membudget.engines.llama_cpp.compute.header import Header
from membudget.engines.llama_cpp.memory import caches, has_cells, is_recurrent, is_sparse, known, row, states, value_row
from membudget.engines.llama_cpp.settings import Settings
from membudget.formats import FormatError
from membudget.formats.ggml import TYPES

#: Cells over which the growth of compressed cells, which come 256 at a time, is one figure.
_FAR = 2**18


class Growing(Protocol):
    """What one slot takes."""

    def bytes(self, cells: int) -> int:
        """Of so many cells."""

    def read(self, tokens: int) -> int:
        """Bytes that a decode step cannot do without."""

    def per_cell(self, position: int) -> int:
        """Of the cell for token number `position`."""

    @property
    def bends(self) -> tuple[int, ...]:
        """Lengths from which on fewer layers grow."""


@dataclass(frozen=True)
class Growth:
    """One slot's cache by its cells, in bytes, of all layers wherever they lie."""

    #: of a cell in layers that keep every token
    full: int
    #: of a cell in layers with a window, and the window; 0 for none
    windowed: int
    window: int
    #: recurrent states
    fixed: int
    ubatch: int

    def bytes(self, cells: int) -> int:
        """Of so many cells."""
        own = window_cells(self.window, cells, ubatch=self.ubatch) if self.windowed else 0
        return self.full * cells + self.windowed * own + self.fixed

    def read(self, tokens: int) -> int:
        """Bytes that a decode step reads: the tokens in sight, and the states."""
        return self.full * tokens + self.windowed * min(tokens, self.window) + self.fixed

    def per_cell(self, position: int) -> int:
        """Of the cell for token number `position`, in layers that have one for it."""
        return self.full + (self.windowed if position <= pad(self.window + self.ubatch) else 0)

    @property
    def bends(self) -> tuple[int, ...]:
        """Lengths from which on windows do not grow."""
        return (pad(self.window + self.ubatch),) if self.windowed else ()


@dataclass(frozen=True)
class SparseGrowth:
    """Of sparse attention: an indexer, compressed cells."""

    header: Header
    settings: Settings

    def bytes(self, cells: int) -> int:
        """Of so many cells."""
        one = replace(self.settings, ctx_size=cells, parallel=1, kv_unified=False)
        return sum(part.bytes for part in caches(self.header, one))

    def read(self, tokens: int) -> int:
        """The indexer's cells and states: which others are read is chosen by each token."""
        one = replace(self.settings, ctx_size=pad(tokens), parallel=1, kv_unified=False)
        return sum(part.bytes for part in caches(self.header, one) if part.name in ("indexer", "recurrent"))

    def per_cell(self, position: int) -> int:
        """Of one more cell, on average over many."""
        near = pad(position)
        return (self.bytes(near + _FAR) - self.bytes(near)) // _FAR

    @property
    def bends(self) -> tuple[int, ...]:
        """Of windows, after which nothing but full and compressed cells grows."""
        window = self.header.key("attention.sliding_window", 0)
        return (pad(window + self.settings.ubatch(self.header.key("context_length"))),) if window else ()


def growth(header: Header, settings: Settings) -> Growing:
    """One slot's cache.  Raises as `caches`."""
    known(header)
    if is_sparse(header):
        return SparseGrowth(header, settings)
    sums = {False: 0, True: 0}
    for layer in header.layers:
        if has_cells(header, layer):
            k, v = row(header, layer)
            keys = TYPES[settings.cache_type_k.upper()].row(k)
            kept = header.window(layer) and not settings.swa_full
            sums[kept] += keys + TYPES[settings.cache_type_v.upper()].row(value_row(header, v, settings))
            _whole(header.head_dims(layer), settings)
    window = header.key("attention.sliding_window") if sums[True] else 0
    conv, state = states(header)
    recurrent = sum(map(is_recurrent, header.layers)) * (1 + settings.draft_max)
    ubatch = settings.ubatch(header.key("context_length"))
    return Growth(sums[False], sums[True], window, 4 * (conv + state) * recurrent, ubatch)


def _whole(heads: tuple[int, int], settings: Settings) -> None:
    """llama.cpp refuses a quantized cache whose blocks do not divide a head (llama-context.cpp)."""
    for width, name in zip(heads, (settings.cache_type_k, settings.cache_type_v), strict=True):
        kind = TYPES[name.upper()]
        if width % kind.weights:
            raise FormatError(f"a {name} cache has blocks of {kind.weights}, and this model has rows of {width}")


__all__ = ["Growing", "Growth", "SparseGrowth", "growth"]
