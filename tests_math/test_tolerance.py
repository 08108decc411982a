from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget.tolerance import EXACT, Tolerance, parse, parse_expectation
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
    from membudget.tolerance import Expectation

    expected = Expectation(None if tolerance.kind == "below" else value, tolerance)
    assert parse_expectation(str(expected)) == expected


@given(sizes, tolerances())
def test_the_expected_value_is_allowed(value: int, tolerance: Tolerance) -> None:
    """No difference is within every tolerance; only `below` is a limit of its own."""
    assert tolerance.kind == "below" or tolerance.allows(value, value)


@given(sizes, st.integers(0, 2**60), tolerances())
def test_a_wider_tolerance_allows_more(expected: int, measured: int, tolerance: Tolerance) -> None:
    """What is allowed stays allowed when the amount doubles."""
    wider = tolerance._replace(amount=tolerance.amount * 2)
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
