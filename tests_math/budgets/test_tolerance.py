from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget.budgets.tolerance import EXACT, Expectation, Tolerance, parse, parse_expectation
from membudget.units import UnitError
from tests_math.strategies import sizes, tolerances

pytestmark = pytest.mark.math

MIB, GIB = 2**20, 2**30


@given(st.one_of(tolerances("bytes"), tolerances("count")))
def test_printed_tolerance_reads_back_equal(tolerance: Tolerance) -> None:
    """What is printed in a failure can be pasted into a budget."""
    assert parse(str(tolerance), "count" if tolerance.unit == "count" else "bytes") == tolerance


@given(sizes, tolerances())
def test_printed_expectation_reads_back_equal(value: int, tolerance: Tolerance) -> None:
    """Value and tolerance survive printing, whatever both are."""
    expected = Expectation(None if tolerance.kind == "below" else value, tolerance)
    assert parse_expectation(str(expected)) == expected


@given(st.integers(-(2**60), 2**60), tolerances())
def test_printed_headroom_reads_back_equal(value: int, tolerance: Tolerance) -> None:
    """A negative number keeps its sign."""
    expected = Expectation(None if tolerance.kind == "below" else value, tolerance)
    assert parse_expectation(str(expected), signed=True) == expected


@given(sizes, tolerances("count"))
def test_printed_count_reads_back_equal(value: int, tolerance: Tolerance) -> None:
    """A count has digits in groups and no unit."""
    expected = Expectation(None if tolerance.kind == "below" else value, tolerance, "count")
    assert parse_expectation(str(expected), "count") == expected


@given(sizes, tolerances())
def test_the_expected_value_is_allowed(value: int, tolerance: Tolerance) -> None:
    """No difference is within every tolerance; only `below` is a limit of its own."""
    assert tolerance.kind == "below" or tolerance.allows(value, value)


@given(sizes, st.integers(0, 2**60), tolerances())
def test_a_wider_tolerance_allows_more(expected: int, measured: int, tolerance: Tolerance) -> None:
    """What is allowed stays allowed when the amount doubles."""
    wider = replace(tolerance, amount=tolerance.amount * 2)
    assert not tolerance.allows(expected, measured) or tolerance.kind == "exact" or wider.allows(expected, measured)


@pytest.mark.parametrize(
    ("text", "expected", "inside", "outside"),
    [
        ("exact", 100, [100], [99, 101]),
        ("within 1%", 10_000, [9_900, 10_100], [9_899, 10_101]),
        ("within 0.5%", 10_000, [9_950, 10_050], [9_949, 10_051]),
        ("within 64 MiB", GIB, [GIB - 64 * MIB, GIB + 64 * MIB], [GIB - 64 * MIB - 1, GIB + 64 * MIB + 1]),
        ("within +64 MiB", GIB, [GIB, GIB + 64 * MIB], [GIB - 1, GIB + 64 * MIB + 1]),
        ("within +1%", 10_000, [10_000, 10_100], [9_999, 10_101]),
        ("below 1 GiB", 0, [0, GIB - 1], [GIB, GIB + 1]),
    ],
)
def test_bounds_are_inclusive_and_exact(text: str, expected: int, inside: list[int], outside: list[int]) -> None:
    """`within` includes its bound to the byte, `+` never goes under, `below` excludes its limit."""
    tolerance = parse(text)
    assert [tolerance.allows(expected, value) for value in inside + outside] == [True] * len(inside) + [False] * len(
        outside
    )


def test_percentages_are_of_the_size_not_the_sign() -> None:
    """A headroom of -1.4 GiB within 3% is a band around it, as for a positive one."""
    expected = parse_expectation("within 3% of -1.4 GiB", signed=True)
    assert expected.value == -(14 * GIB // 10)
    assert expected.holds(-1_480_000_000)
    assert not expected.holds(-1_400_000_000)


@pytest.mark.parametrize(
    "text", ["within 1", "within", "1%", "within 64", "within -1%", "about 1%", "below", "within 8G", ""]
)
def test_other_words_are_refused_with_what_is_allowed(text: str) -> None:
    """A tolerance without unit or of another form is an error that lists the forms."""
    with pytest.raises(UnitError, match="within 64 MiB"):
        parse(text)


def test_an_approximate_size_need_not_be_whole_bytes() -> None:
    """60.8 GiB are no whole number of bytes: as an exact value an error, within 1% what people mean."""
    with pytest.raises(UnitError, match="whole number of bytes"):
        parse_expectation("60.8 GiB")
    assert parse_expectation("within 1% of 60.8 GiB").value == 65_283_502_899
    assert parse("exact") is EXACT


@pytest.mark.parametrize(
    ("text", "unit", "value", "tolerance"),
    [
        ("8_405_385_216", "bytes", 8_405_385_216, EXACT),
        ("8_030_261_248", "count", 8_030_261_248, EXACT),
        ("8Ki", "count", 8192, EXACT),
        ("1_024 KiB", "bytes", 2**20, EXACT),
        ("within 1.5 MiB of 8 GiB", "bytes", 8 * GIB, Tolerance("within", 3 * MIB // 2, "bytes")),
        # 0.3 MiB are 314,572.8 bytes
        ("within +0.3 MiB of 1_000.5 MB", "bytes", 1_000_500_000, Tolerance("within+", 314_572, "bytes")),
        ("within 2.5% of 100", "count", 100, Tolerance("within", 2_500_000, "%")),
        ("within +2 of 1_000", "count", 1000, Tolerance("within+", 2, "count")),
        ("below 10", "count", None, Tolerance("below", 10, "count")),
        ("below 8 MB", "bytes", None, Tolerance("below", 8_000_000, "bytes")),
        (4096, "bytes", 4096, EXACT),
        (4096, "count", 4096, EXACT),
        (0, "bytes", 0, EXACT),
    ],
)
def test_expectations_are_read(text: str | int, unit: str, value: int | None, tolerance: Tolerance) -> None:
    """Every form of a value and a tolerance, in bytes and in counts."""
    assert parse_expectation(text, unit) == Expectation(value, tolerance, unit)


BYTES = "128 KiB, 16.06 GB, 8_405_385_216, within 1% of 16.06 GB, within +64 MiB of 8 GiB, below 8 MB"
COUNTS = "8_030_261_248, within 1% of 100, within 2 of 100, below 10"


@pytest.mark.parametrize(
    ("text", "unit", "says"),
    [
        # what the units know of a plain value
        ("8G", "bytes", "unknown unit 'G' in '8G': write GiB (x 1,073,741,824) or GB (x 1,000,000,000)"),
        ("32k", "count", "'32k' has two readings: write 32Ki for 32,768 or 32,000 in full"),
        # everything else has all forms
        ("within 8G", "bytes", f"'within 8G' is not an expected value; allowed: {BYTES}"),
        ("below 8", "bytes", f"'below 8' is not an expected value; allowed: {BYTES}"),
        ("exactly", "bytes", f"'exactly' is not an expected value; allowed: {BYTES}"),
        ("-8 GiB", "bytes", f"'-8 GiB' is not an expected value; allowed: {BYTES}"),
        ("within 1 MiB of 8", "count", f"'within 1 MiB of 8' is not an expected value; allowed: {COUNTS}"),
        (True, "bytes", f"True is not an expected value; allowed: {BYTES}"),
        (None, "count", f"None is not an expected value; allowed: {COUNTS}"),
        (-1, "bytes", "-1 is negative: this is 0 or more"),
    ],
)
def test_a_refused_expectation_says_what_is_allowed(text: str | int, unit: str, says: str) -> None:
    """Near spellings are named; else every form is listed."""
    with pytest.raises(UnitError) as error:
        parse_expectation(text, unit)
    assert str(error.value) == says


def test_a_refused_tolerance_says_what_is_allowed() -> None:
    """In bytes and in counts."""
    for unit, size in (("bytes", "64 MiB"), ("count", "2")):
        with pytest.raises(UnitError) as error:
            parse("about", unit)
        words = f"exact, within 1%, within {size}, within +{size} (never under), below {size}"
        assert str(error.value) == f"'about' is not a tolerance; allowed: {words}"


def test_headroom_may_be_negative() -> None:
    """Only where a sign has a meaning."""
    assert parse_expectation("-8 GiB", signed=True).value == -8 * GIB
    assert parse_expectation(-1, signed=True).value == -1
