from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget import units
from tests_math.strategies import sizes

pytestmark = pytest.mark.math


@given(sizes)
def test_printed_size_reads_back_equal(size: int) -> None:
    """The exact form of a size is lossless."""
    assert units.parse_bytes(units.exact(size)) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8 GiB", 8_589_934_592),
        ("8GiB", 8_589_934_592),
        ("1.5 GiB", 1_610_612_736),
        ("128 KiB", 131_072),
        ("128 GB", 128_000_000_000),
        ("16.06 GB", 16_060_000_000),
        ("8_405_385_216 B", 8_405_385_216),
        ("1,024 MiB", 1_073_741_824),
        ("2 TiB", 2_199_023_255_552),
        ("3 kB", 3_000),
        ("3 KB", 3_000),
        ("3 MB", 3_000_000),
        ("3 TB", 3_000_000_000_000),
        ("0 B", 0),
        (4096, 4096),
        (0, 0),
    ],
)
def test_sizes_are_exact(text: str | int, size: int) -> None:
    """IEC units are powers of 1,024, SI units powers of 1,000 (IEC 80000-13)."""
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("8", "no unit"),
        ("8.5", "no unit"),
        ("8G", "8.*GiB.*GB|GiB"),
        ("8 gb", "GiB"),
        ("8 gib", "GiB"),
        ("-1 GiB", "cannot read"),
        ("1e3 GiB", "cannot read"),
        ("010 GiB GiB", "cannot read"),
        ("", "cannot read"),
        ("1_00,0 GiB", "cannot read"),
        ("1,00 GiB", "cannot read"),
        ("0.3 B", "whole number"),
        ("8 parsecs", "unknown unit"),
        ("010 GiB", "octal"),
        ("9" * 5_000 + " GiB", "no number is that long"),
    ],
)
def test_ambiguous_sizes_are_refused(text: str, says: str) -> None:
    """A size that can be read in two ways, or in none, is an error that says what to write."""
    with pytest.raises(units.UnitError, match=says):
        units.parse_bytes(text)


@pytest.mark.parametrize("value", [True, 1.5, None, -1, [1]])
def test_other_types_are_refused(value: object) -> None:
    """Floats, booleans and negative numbers are no sizes."""
    with pytest.raises(units.UnitError):
        units.parse_bytes(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "count"), [("8Ki", 8192), ("32Ki", 32_768), ("1Mi", 1_048_576), ("8_192", 8192), (7, 7)]
)
def test_counts(text: str | int, count: int) -> None:
    """Ki and Mi are 1,024 and 1,048,576."""
    assert units.parse_count(text) == count


@pytest.mark.parametrize("text", ["32k", "32K", "1m", "1M"])
def test_ambiguous_counts_name_both_readings(text: str) -> None:
    """vLLM reads 1k as 1,000 and 1K as 1,024: a budget file must say which."""
    with pytest.raises(units.UnitError, match=r"two readings: write .*i for [0-9,]+ or [0-9,]+"):
        units.parse_count(text)


@given(st.integers(1, 1024))
def test_context_as_typed(count: int) -> None:
    """On a command line 32k is the 32,768 of a model's name."""
    assert units.parse_context(f"{count}k") == units.parse_context(f"{count}Ki") == count * 1024


def test_both_systems_are_printed() -> None:
    """8B in bf16 is 14.96 GiB and 16.06 GB, and both are shown."""
    assert units.both(16_060_522_496) == "14.96 GiB (16.06 GB)"
    assert units.gib(16_060_522_496) == "14.958 GiB"
    assert units.short(118_784) == "116.00 KiB"


@given(st.text(max_size=20))
def test_any_text_reads_or_is_refused(text: str) -> None:
    """No text crashes the reader, and what is read is a whole number of bytes."""
    for parse in (units.parse_bytes, units.parse_count, units.parse_context):
        with contextlib.suppress(units.UnitError):
            assert isinstance(parse(text), int)
