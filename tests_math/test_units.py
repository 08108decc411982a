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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "cannot read 'x' as a size: write for example '8 GiB', '64 MiB', '16 GB', '4096 B'"),
        ("8", "'8' has no unit: write 8 B, 8 GiB or 8 GB"),
        ("0.3 B", "'0.3 B' is not a whole number of bytes"),
        ("01 GiB", "'01 GiB' is octal to some readers: write it without the leading 0"),
        ("01GiB", "'01GiB' is octal to some readers: write it without the leading 0"),
        (-1024, "-1,024 is negative: a size in bytes is 0 or more"),
        (1.5, "1.5 is not a size: write for example '8 GiB', '64 MiB', '16 GB', '4096 B'"),
        ("1" * 5000, f"'{'1' * 20}'... has 5,000 characters: no number is that long"),
        ("8 gb", "unknown unit 'gb' in '8 gb': write GiB (x 1,073,741,824) or GB (x 1,000,000,000)"),
        ("8k", "unknown unit 'k' in '8k': write KiB (x 1,024) or kB (x 1,000)"),
        ("8 parsecs", "unknown unit 'parsecs' in '8 parsecs': known are B, kB, KB, MB, GB, TB, KiB, MiB, GiB, TiB"),
    ],
)
def test_a_refused_size_says_what_to_write(text: str | int, says: str) -> None:
    """Whoever reads the error can copy the right spelling from it."""
    with pytest.raises(units.UnitError) as error:
        units.parse_bytes(text)
    assert str(error.value) == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "cannot read 'x' as a count: write for example '8192', '8_192', '32Ki'"),
        ("32k", "'32k' has two readings: write 32Ki for 32,768 or 32,000 in full"),
        ("1.5K", "'1.5K' has two readings: write 1.5Ki for 1,536 or 1,500 in full"),
        ("2m", "'2m' has two readings: write 2Mi for 2,097,152 or 2,000,000 in full"),
        ("2M", "'2M' has two readings: write 2Mi for 2,097,152 or 2,000,000 in full"),
        ("8G", "unknown unit 'G' in '8G': a count takes none, Ki (x 1,024) or Mi (x 1,048,576)"),
        ("0.3", "'0.3' is not a whole number of units"),
    ],
)
def test_a_refused_count_says_what_to_write(text: str, says: str) -> None:
    """As sizes do; both readings of k and m are given in full."""
    with pytest.raises(units.UnitError) as error:
        units.parse_count(text)
    assert str(error.value) == says


def test_a_hundred_characters_are_read() -> None:
    """The longest number that is read has 98 digits and a unit; one more is refused."""
    assert units.parse_bytes("9" * 98 + " B") == 10**98 - 1
    with pytest.raises(units.UnitError, match="101 characters: no number is that long"):
        units.parse_bytes("9" * 99 + " B")


@pytest.mark.parametrize("value", [True, False, 1.5, None, [1]])
def test_other_types_are_no_counts(value: object) -> None:
    """A boolean is no number of users."""
    with pytest.raises(units.UnitError):
        units.parse_count(value)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(("text", "count"), [("1.5k", 1536), ("1.5M", 1_572_864), (" 2 m ", 2_097_152), ("0.5K", 512)])
def test_parts_of_a_context(text: str, count: int) -> None:
    """Half a thousand is 512."""
    assert units.parse_context(text) == count


@pytest.mark.parametrize("text", ["8X", "abck", ".5k", "5.k", "1.2.3k", "k", ".k", "-1k"])
def test_a_refused_context_is_named_as_typed(text: str) -> None:
    """The error has the text that was typed, not what became of it."""
    with pytest.raises(units.UnitError) as error:
        units.parse_context(text)
    assert repr(text) in str(error.value)


def test_the_unit_that_fits() -> None:
    """Each unit from its own size on; below 1,000 bytes both systems are one; signs stay."""
    assert [units.short(size) for size in (0, 1023, 1024, 2**20 - 1, 2**20, 2**30, 2**40, -(2**30))] == [
        "0 B", "1,023 B", "1.00 KiB", "1,024.00 KiB", "1.00 MiB", "1.00 GiB", "1.00 TiB", "-1.00 GiB",
    ]  # fmt: skip
    assert [units.both(size) for size in (999, -999, 1000, 1024, -1000, 10**6, 10**12)] == [
        "999 B", "-999 B", "1,000 B (1.00 kB)", "1.00 KiB (1.02 kB)", "-1,000 B (-1.00 kB)",
        "976.56 KiB (1.00 MB)", "931.32 GiB (1.00 TB)",
    ]  # fmt: skip
    assert [units.exact(size) for size in (0, 1, 1024, 1025, 3 * 2**30, 2**40)] == [
        "0 B", "1 B", "1 KiB", "1025 B", "3 GiB", "1 TiB",
    ]  # fmt: skip
    assert units.gib(3 * 2**29, 1) == "1.5 GiB"
    assert units.gib(2**41) == "2,048.000 GiB"


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
