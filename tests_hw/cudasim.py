"""A CUDA device without one: torch's caching allocator, written a second time, below a dispatch mode on fake tensors.

It stands in for the card in tests of the measurements, and shares no line with `membudget.measure.allocator`, which
predicts: native algorithm, one stream, default settings (c10/cuda/CUDACachingAllocator.cpp).
"""

from __future__ import annotations

import bisect
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_MIB = 1 << 20


class _Block:
    __slots__ = ("asked", "before", "behind", "free", "order", "size", "small")

    def __init__(self, size: int, small: bool) -> None:
        self.size, self.small = size, small
        self.before: _Block | None = None
        self.behind: _Block | None = None
        self.free, self.order, self.asked = False, 0, 0


class Card:
    """Memory figures as torch.cuda's; `limit` as set_per_process_memory_fraction sets it."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.allocated = self.reserved = self.requested = 0
        self.peak_allocated = self.peak_reserved = self.peak_requested = 0
        self._free: dict[bool, list[tuple[int, int, _Block]]] = {True: [], False: []}
        self._count = 0

    def malloc(self, asked: int) -> _Block:
        """Best fit, else a new segment; torch.OutOfMemoryError where that is over the limit."""
        size = max(512, -(-asked // 512) * 512)
        small = size <= _MIB
        free = self._free[small]
        place = bisect.bisect_left(free, (size, 0))
        if place < len(free):
            block = free.pop(place)[2]
            block.free = False
        else:
            block = self._segment(size, small)
        rest = block.size - size
        if rest >= 512 if small else rest > _MIB:
            other = _Block(rest, small)
            block.size = size
            other.before, other.behind = block, block.behind
            if block.behind is not None:
                block.behind.before = other
            block.behind = other
            self._insert(other)
        block.asked = asked
        self.allocated += block.size
        self.requested += asked
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_requested = max(self.peak_requested, self.requested)
        return block

    def free(self, block: _Block) -> None:
        """Merge with free neighbours and keep."""
        self.allocated -= block.size
        self.requested -= block.asked
        for other in (block.before, block.behind):
            if other is None or not other.free:
                continue
            self._remove(other)
            block.size += other.size
            if other is block.before:
                block.before = other.before
                if block.before is not None:
                    block.before.behind = block
            else:
                block.behind = other.behind
                if block.behind is not None:
                    block.behind.before = block
        self._insert(block)

    def empty(self) -> None:
        """Whole segments go back."""
        for small, free in self._free.items():
            kept = [item for item in free if item[2].before is not None or item[2].behind is not None]
            self.reserved -= sum(item[0] for item in free) - sum(item[0] for item in kept)
            self._free[small] = kept

    @property
    def inactive_split(self) -> int:
        """Free parts of segments."""
        return sum(
            size
            for free in self._free.values()
            for size, _, block in free
            if block.before is not None or block.behind is not None
        )

    def reset(self) -> None:
        """reset_peak_memory_stats."""
        self.peak_allocated, self.peak_reserved, self.peak_requested = self.allocated, self.reserved, self.requested

    def _segment(self, size: int, small: bool) -> _Block:
        whole = 2 * _MIB if small else 20 * _MIB if size < 10 * _MIB else -(-size // (2 * _MIB)) * 2 * _MIB
        if self.limit is not None and self.reserved + whole > self.limit:
            self.empty()
            if self.reserved + whole > self.limit:
                raise torch.OutOfMemoryError(f"{size:,} bytes over {self.reserved:,} reserved under {self.limit:,}")
        self.reserved += whole
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return _Block(whole, small)

    def _insert(self, block: _Block) -> None:
        self._count += 1
        block.order, block.free = self._count, True
        bisect.insort(self._free[block.small], (block.size, block.order, block))

    def _remove(self, block: _Block) -> None:
        free = self._free[block.small]
        del free[bisect.bisect_left(free, (block.size, block.order))]
        block.free = False


class On(TorchDispatchMode):
    """Every storage that an operation makes is allocated on a card, and freed with it."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card
        self._known: dict[int, _Block] = {}

    def own(self, tensor: Any) -> None:
        """Allocate a tensor's storage, once."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known and storage.nbytes():
            self._known[storage._cdata] = self.card.malloc(int(storage.nbytes()))
            weakref.finalize(storage, self._gone, storage._cdata)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.own(tensor)
        return out

    def _gone(self, key: int) -> None:
        block = self._known.pop(key, None)
        if block is not None:
            self.card.free(block)
