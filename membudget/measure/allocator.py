"""torch's CUDACachingAllocator as an instrument: what a run reserves beyond what it allocates, and where it breaks.

The algorithms are those of c10/cuda/CUDACachingAllocator.cpp (native, and expandable segments), for one stream and the
default settings: round to 512, best fit, split what is left over, merge with free neighbours, release whole segments
when the limit is reached.  Addresses grow with every segment: where two free blocks are of one size the lower address
is taken, and cudaMalloc's own order is not known.

    allocator = CachingAllocator(limit=40 * GIB)
    block = allocator.malloc(size)
    allocator.free(block)
    allocator.reserved, allocator.allocated, allocator.requested, allocator.inactive_split

Pure: no torch.
"""

from __future__ import annotations

import bisect
from dataclasses import asdict, dataclass
from typing import Any

from membudget.errors import MembudgetError
from membudget.units import GIB, MIB

#: c10/core/AllocatorConfig.h (kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc, kRoundLarge) and
#: large_segment_size's default (kLargeBuffer before 2.10).  A test reads them off the installed torch.
MIN_BLOCK, SMALL_SIZE, SMALL_BUFFER = 512, MIB, 2 * MIB
MIN_LARGE_ALLOC, ROUND_LARGE, LARGE_BUFFER = 10 * MIB, 2 * MIB, 20 * MIB
#: An expandable segment's address space: 9/8 of the device's memory.
_SPACE = (9, 8)
_Key = tuple[int, int]


class OutOfMemory(MembudgetError):
    """The counterpart of torch.OutOfMemoryError, after cached segments were released: says what was asked for."""


@dataclass
class Stats:
    """torch.cuda.memory_stats' figures, in bytes but for the last three."""

    allocated: int = 0  # allocated_bytes.all.current: blocks in use, rounded and with unsplit remainders
    requested: int = 0  # requested_bytes.all.current: what was asked for
    reserved: int = 0  # reserved_bytes.all.current: segments
    inactive_split: int = (
        0  # inactive_split_bytes.all.current: free parts of segments that empty_cache cannot give back
    )
    peak_allocated: int = 0
    peak_requested: int = 0
    peak_reserved: int = 0
    segments: int = 0  # mapped ranges where segments are expandable
    retries: int = 0  # num_alloc_retries
    ooms: int = 0  # num_ooms


class Block:
    """A part of a segment."""

    __slots__ = ("address", "free", "mapped", "next", "pool", "prev", "requested", "size")

    def __init__(self, address: int, size: int, pool: _Pool, mapped: bool = True) -> None:
        self.address, self.size, self.pool, self.mapped = address, size, pool, mapped
        self.prev: Block | None = None
        self.next: Block | None = None
        self.free, self.requested = True, 0


class _Pool:
    """The free blocks of one size class: by size, then address."""

    def __init__(self, small: bool) -> None:
        self.small = small
        self.keys: list[_Key] = []
        self.blocks: dict[_Key, Block] = {}
        self.unmapped: list[Block] = []  # by address

    def insert(self, block: Block) -> None:
        """A block becomes free."""
        key = (block.size, block.address)
        bisect.insort(self.keys, key)
        self.blocks[key] = block

    def erase(self, block: Block) -> None:
        """A block is taken, or its size will change."""
        key = (block.size, block.address)
        del self.keys[bisect.bisect_left(self.keys, key)]
        del self.blocks[key]

    def insert_unmapped(self, block: Block) -> None:
        """A range of addresses without memory."""
        bisect.insort(self.unmapped, block, key=lambda item: item.address)


class CachingAllocator:
    """One device's allocator.

    limit: bytes, `set_per_process_memory_fraction`; None for none.  capacity: what the device gives at most, cudaMalloc
    fails beyond; None for any amount.  expandable: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
    """

    def __init__(self, limit: int | None = None, *, capacity: int | None = None, expandable: bool = False) -> None:
        self.limit, self.capacity, self.expandable = limit, capacity, expandable
        self.stats = Stats()
        self._pools = {small: _Pool(small) for small in (True, False)}
        self._heads: dict[int, Block] = {}  # first block of every segment, by address
        self._next_address = 0

    @property
    def allocated(self) -> int:
        """memory_allocated."""
        return self.stats.allocated

    @property
    def requested(self) -> int:
        """What was asked for and is in use."""
        return self.stats.requested

    @property
    def reserved(self) -> int:
        """memory_reserved."""
        return self.stats.reserved

    def malloc(self, size: int) -> Block:
        """A block of at least `size` bytes (> 0).  Raises `OutOfMemory`."""
        rounded = max(MIN_BLOCK, -(-size // MIN_BLOCK) * MIN_BLOCK)
        pool = self._pools[rounded <= SMALL_SIZE]
        block = self._cached(pool, rounded)
        if block is None:
            block = self._new(pool, rounded)
            if block is None:
                self.empty_cache()
                self.stats.retries += 1
                block = self._new(pool, rounded)
            if block is None:
                self.stats.ooms += 1
                raise OutOfMemory(
                    f"{size:,} bytes asked for, {self.reserved:,} reserved, {self.allocated:,} allocated, "
                    f"limit {self.limit if self.limit is not None else self.capacity:,}"
                )
        return self._use(block, rounded, size)

    def free(self, block: Block) -> None:
        """Give a block back."""
        stats = self.stats
        stats.allocated -= block.size
        stats.requested -= block.requested
        block.requested = 0
        split = 0
        for other in (block.prev, block.next):
            split -= self._merge(block, other)
        block.free = True
        block.pool.insert(block)
        if not self.expandable:
            if block.prev is not None or block.next is not None:
                split += block.size
            stats.inactive_split += split

    def empty_cache(self) -> None:
        """Give every segment back that is free as a whole; of expandable ones every free page."""
        for pool in self._pools.values():
            for key in list(pool.keys):
                block = pool.blocks[key]
                if self.expandable:
                    self._unmap(block)
                elif block.prev is None and block.next is None:
                    pool.erase(block)
                    del self._heads[block.address]
                    self.stats.reserved -= block.size
                    self.stats.segments -= 1

    def reset_peaks(self) -> None:
        """torch.cuda.reset_peak_memory_stats."""
        stats = self.stats
        stats.peak_allocated, stats.peak_requested, stats.peak_reserved = (
            stats.allocated, stats.requested, stats.reserved,
        )  # fmt: skip

    def snapshot(self) -> list[dict[str, Any]]:
        """Segments and their blocks, in the form of torch.cuda.memory_snapshot: sizes and states."""
        found = []
        for address, head in sorted(self._heads.items()):
            blocks: list[dict[str, Any]] = []
            block: Block | None = head
            while block is not None:
                if block.mapped:
                    state = "inactive" if block.free else "active_allocated"
                    blocks.append({"size": block.size, "requested_size": block.requested, "state": state})
                block = block.next
            total = sum(item["size"] for item in blocks)
            used = sum(item["size"] for item in blocks if item["state"] != "inactive")
            kind = "small" if head.pool.small else "large"
            found.append(
                {
                    "address": address,
                    "total_size": total,
                    "allocated_size": used,
                    "segment_type": kind,
                    "blocks": blocks,
                }
            )
        return found

    def as_json(self) -> dict[str, int]:
        """The figures by name."""
        return asdict(self.stats)

    def _cached(self, pool: _Pool, size: int) -> Block | None:
        """The smallest free block that is large enough, taken from its pool."""
        place = bisect.bisect_left(pool.keys, (size, -1))
        if place == len(pool.keys):
            return None
        if self.expandable:  # best fit by what a block may grow to
            while place + 1 < len(pool.keys) and _grown(pool.blocks[pool.keys[place + 1]]) < _grown(
                pool.blocks[pool.keys[place]]
            ):
                place += 1
        block = pool.blocks[pool.keys[place]]
        pool.erase(block)
        return block

    def _use(self, block: Block, size: int, requested: int) -> Block:
        stats = self.stats
        split = block.prev is not None or block.next is not None
        rest = block.size - size
        if rest >= MIN_BLOCK if block.pool.small or self.expandable else rest > SMALL_SIZE:
            other = Block(block.address + size, rest, block.pool)
            block.size = size
            other.prev, other.next = block, block.next
            if block.next is not None:
                block.next.prev = other
            block.next = other
            block.pool.insert(other)
            if not self.expandable:
                stats.inactive_split += -size if split else rest
        elif split and not self.expandable:
            stats.inactive_split -= block.size
        block.free, block.requested = False, requested
        stats.allocated += block.size
        stats.requested += requested
        stats.peak_allocated = max(stats.peak_allocated, stats.allocated)
        stats.peak_requested = max(stats.peak_requested, stats.requested)
        return block

    def _merge(self, block: Block, other: Block | None) -> int:
        """Take a free neighbour in; its size, 0 where there is none."""
        if other is None or not other.free or other.mapped != block.mapped:
            return 0
        if other.mapped:
            other.pool.erase(other)
        else:
            other.pool.unmapped.remove(other)
        if other is block.prev:
            if self._heads.get(other.address) is other:
                self._heads[other.address] = block
            block.address, block.prev = other.address, other.prev
            if block.prev is not None:
                block.prev.next = block
        else:
            block.next = other.next
            if block.next is not None:
                block.next.prev = block
        block.size += other.size
        return other.size

    def _room(self, size: int) -> bool:
        most = min((item for item in (self.limit, self.capacity) if item is not None), default=None)
        return most is None or self.stats.reserved + size <= most

    def _new(self, pool: _Pool, size: int) -> Block | None:
        """A free block from the device, not in its pool; None where there is no room."""
        if size <= SMALL_SIZE:
            segment = SMALL_BUFFER
        else:
            segment = LARGE_BUFFER if size < MIN_LARGE_ALLOC else -(-size // ROUND_LARGE) * ROUND_LARGE
        # torch holds the whole segment's size against its limit, also where segments are expandable
        if self.limit is not None and self.stats.reserved + segment > self.limit:
            return None
        if self.expandable:
            return self._expand(pool, size)
        if not self._room(segment):
            return None
        block = Block(self._next_address, segment, pool)
        self._next_address += segment
        self._heads[block.address] = block
        self._reserve(segment)
        return block

    def _reserve(self, size: int) -> None:
        self.stats.reserved += size
        self.stats.segments += 1
        self.stats.peak_reserved = max(self.stats.peak_reserved, self.stats.reserved)

    def _expand(self, pool: _Pool, size: int) -> Block | None:
        """Map pages behind a free block, or at the lowest unmapped address, until `size` bytes are there."""
        block = self._expandable(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            more = block.next
            assert more is not None
            if not self._map(more, min(size - block.size, more.size)):
                return None
            block = more  # it took the free block before it in
        pool.erase(block)
        return block

    def _expandable(self, pool: _Pool, size: int) -> Block:
        for candidate in pool.unmapped:
            block = candidate
            if block.prev is not None and block.prev.free:
                block = block.prev
            there, item = 0, block
            while item is not None and item.free and there < size:
                there += item.size
                item = item.next  # type: ignore[assignment]
            if there >= size:
                return block
        total = self.capacity or self.limit or 1024 * GIB
        page = SMALL_BUFFER if pool.small else LARGE_BUFFER
        space = -(-total * _SPACE[0] // _SPACE[1] // LARGE_BUFFER) * LARGE_BUFFER  # pages begin with their segment
        block = Block(self._next_address, max(space, -(-size // page) * page), pool, mapped=False)
        self._next_address += space
        self._heads[block.address] = block
        pool.insert_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        page = SMALL_BUFFER if block.pool.small else LARGE_BUFFER
        mapped = min(-(-size // page) * page, block.size)
        if not self._room(mapped):
            return False
        pool = block.pool
        pool.unmapped.remove(block)
        block.mapped = True
        if mapped < block.size:
            rest = Block(block.address + mapped, block.size - mapped, pool, mapped=False)
            rest.prev, rest.next = block, block.next
            if block.next is not None:
                block.next.prev = rest
            block.next, block.size = rest, mapped
            pool.insert_unmapped(rest)
        self._merge(block, block.prev)
        self._merge(block, block.next)
        pool.insert(block)
        self._reserve(mapped)
        return True

    def _unmap(self, block: Block) -> None:
        """Give a free block's whole pages back; its ends stay."""
        page = SMALL_BUFFER if block.pool.small else LARGE_BUFFER
        first, last = -(-block.address // page) * page, (block.address + block.size) // page * page
        if last <= first:
            return
        pool, before, after = block.pool, first - block.address, block.address + block.size - last
        pool.erase(block)
        if before:
            kept = Block(block.address, before, pool)
            kept.prev, kept.next = block.prev, block
            if block.prev is not None:
                block.prev.next = kept
            if self._heads.get(block.address) is block:
                self._heads[block.address] = kept
            block.prev = kept
            pool.insert(kept)
        if after:
            kept = Block(last, after, pool)
            kept.prev, kept.next = block, block.next
            if block.next is not None:
                block.next.prev = kept
            block.next = kept
            pool.insert(kept)
        block.address, block.size, block.mapped = first, last - first, False
        self.stats.reserved -= block.size
        self.stats.segments -= 1
        for other in (block.prev, block.next):
            self._merge(block, other)
        pool.insert_unmapped(block)


def _grown(block: Block) -> int:
    """What a free block may grow to: itself and the unmapped range behind it."""
    behind = block.next
    return block.size + (behind.size if behind is not None and not behind.mapped else 0)
