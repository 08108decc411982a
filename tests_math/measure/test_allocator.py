"""The caching allocator's algorithm: torch's constants, what torch's own tests hold, and its invariants."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membudget.measure import allocator
from membudget.measure.allocator import CachingAllocator, OutOfMemory
from membudget.units import GIB, KIB, MIB

pytestmark = pytest.mark.math


def test_sizes_are_torchs() -> None:
    """The constants of the installed torch's c10/core/AllocatorConfig.h."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("torch is not installed")
    header = Path(spec.submodule_search_locations[0], "include", "c10", "core", "AllocatorConfig.h")
    if not header.exists():
        pytest.skip("this torch has no c10/core/AllocatorConfig.h")
    text = header.read_text(encoding="utf-8")
    found = {name: int(size) for name, size in re.findall(r"constexpr size_t (k\w+) = (\d+);", text)}
    assert found["kMinBlockSize"] == allocator.MIN_BLOCK
    assert found["kSmallSize"] == allocator.SMALL_SIZE
    assert found["kSmallBuffer"] == allocator.SMALL_BUFFER
    assert found["kMinLargeAlloc"] == allocator.MIN_LARGE_ALLOC
    assert found["kRoundLarge"] == allocator.ROUND_LARGE
    large = found.get("kLargeBuffer") or int(re.findall(r"large_segment_size_\{(\d+)\}", text)[0])
    assert large == allocator.LARGE_BUFFER


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        # 1 MiB or less is not split off a large block: it counts as allocated, and was not requested
        (11 * MIB, 12 * MIB, 12 * MIB),
        (19 * MIB, 20 * MIB, 20 * MIB),
        (256 * MIB, 256 * MIB, 256 * MIB),
    ],
)
def test_one_block(size: int, allocated: int, reserved: int) -> None:
    """What one tensor of so many bytes counts as, and takes."""
    device = CachingAllocator()
    device.malloc(size)
    assert (device.requested, device.allocated, device.reserved) == (size, allocated, reserved)


def test_the_lesson() -> None:
    """4 x 256 MiB, freed: still reserved, then given back by empty_cache."""
    device = CachingAllocator()
    blocks = [device.malloc(256 * MIB) for _ in range(4)]
    assert (device.allocated, device.reserved) == (GIB, GIB)
    for block in blocks:
        device.free(block)
    assert (device.allocated, device.reserved) == (0, GIB)
    device.empty_cache()
    assert device.reserved == 0


def test_a_split_segment_is_not_given_back() -> None:
    """One small tensor in a large freed segment: empty_cache returns nothing, and inactive_split says how much."""
    device = CachingAllocator()
    whole = device.malloc(512 * MIB)
    device.free(whole)
    kept = device.malloc(2 * MIB)
    device.empty_cache()
    assert device.reserved == 512 * MIB
    assert device.stats.inactive_split == 510 * MIB
    device.free(kept)
    assert device.stats.inactive_split == 0
    device.empty_cache()
    assert device.reserved == 0


def test_a_growing_tensor_fragments_and_expandable_segments_do_not() -> None:
    """Each step's copy is a little larger than what was freed: segments are reserved anew, pages are remapped."""
    reserved = {}
    for expandable in (False, True):
        device = CachingAllocator(capacity=80 * GIB, expandable=expandable)
        held = device.malloc(64 * MIB)
        for step in range(1, 200):
            larger = device.malloc(64 * MIB + step * 3 * MIB)
            device.free(held)
            held = larger
        reserved[expandable] = device.reserved - device.allocated
    assert reserved[True] < reserved[False] / 3


def test_the_limit_counts_segments() -> None:
    """Under a limit whole free segments are released first; what is still too much is out of memory."""
    device = CachingAllocator(limit=120 * MIB)
    blocks = [device.malloc(40 * MIB) for _ in range(3)]
    with pytest.raises(OutOfMemory):
        device.malloc(40 * MIB)
    assert (device.stats.ooms, device.stats.retries) == (1, 1)
    for block in blocks:
        device.free(block)
    device.malloc(120 * MIB)  # the three segments are given back for it (torch's test_max_split_expandable)
    assert (device.reserved, device.stats.retries) == (120 * MIB, 2)
    small = CachingAllocator(limit=MIB)
    with pytest.raises(OutOfMemory):
        small.malloc(1)  # its segment alone is 2 MiB


def test_expandable_pages() -> None:
    """Memory comes in pages of 20 MiB (2 MiB for small ones) at one end of the addresses, and whole pages go back."""
    device = CachingAllocator(capacity=8 * GIB, expandable=True)
    first, second = device.malloc(30 * MIB), device.malloc(5 * MIB)
    assert device.reserved == 40 * MIB
    third = device.malloc(100 * MIB)
    assert device.reserved == 140 * MIB
    device.free(first)
    device.empty_cache()
    assert device.reserved == 120 * MIB  # its second page is shared with `second`
    again = device.malloc(30 * MIB)  # 10 MiB are free before `second`: not enough, the page before is mapped again
    assert device.reserved == 140 * MIB
    for block in (again, second, third):
        device.free(block)
    device.empty_cache()
    assert (device.reserved, device.allocated) == (0, 0)
    device.malloc(KIB)
    assert device.reserved == 2 * MIB


@given(
    expandable=st.booleans(),
    limit=st.sampled_from([None, 64 * MIB, 700 * MIB]),
    steps=st.lists(st.tuples(st.integers(1, 48 * MIB), st.integers(0, 9), st.booleans()), max_size=60),
)
@settings(max_examples=150, deadline=None)
def test_invariants(expandable: bool, limit: int | None, steps: list[tuple[int, int, bool]]) -> None:
    """Figures are those of the blocks; reserved never exceeds the limit; freeing all and emptying leaves nothing."""
    device = CachingAllocator(limit=limit, capacity=4 * GIB, expandable=expandable)
    held: list[allocator.Block] = []
    for size, which, empty in steps:
        try:
            held.append(device.malloc(size))
        except OutOfMemory:
            assert limit is not None
        if which < len(held) and which % 2:
            device.free(held.pop(which))
        if empty:
            device.empty_cache()
        segments = device.snapshot()
        assert device.reserved == sum(segment["total_size"] for segment in segments)
        assert device.allocated == sum(segment["allocated_size"] for segment in segments)
        blocks = [block for segment in segments for block in segment["blocks"]]
        assert device.requested == sum(block["requested_size"] for block in blocks)
        if not expandable:
            free = [
                block["size"]
                for segment in segments
                if len(segment["blocks"]) > 1
                for block in segment["blocks"]
                if block["state"] == "inactive"
            ]
            assert device.stats.inactive_split == sum(free)
        assert limit is None or device.reserved <= limit
        assert device.requested <= device.allocated <= device.reserved
    for block in held:
        device.free(block)
    device.empty_cache()
    assert (device.allocated, device.requested, device.reserved, device.stats.inactive_split) == (0, 0, 0, 0)
