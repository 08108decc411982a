"""The search for the edge and the comparison of lines: no machine needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget.budgets.tolerance import parse
from membudget.measure.comparison import Comparison, Row, judged
from membudget.measure.edge import find_edge
from membudget.report.worksheet import headline, lines, markdown
from membudget.units import GIB, MIB

pytestmark = pytest.mark.suite


@given(st.integers(0, 5000), st.integers(1, 6000), st.integers(1, 6000))
def test_edge_is_found_from_anywhere(true: int, near: int, most: int) -> None:
    """Whatever the guess: the last number that fits, no number tried twice, and all within bounds."""
    found = find_edge(lambda number: number <= true, near, most)
    assert found.most == min(true, most)
    assert found.capped == (true >= most)
    numbers = [number for number, _ in found.tried]
    assert len(set(numbers)) == len(numbers)
    assert all(1 <= number <= most for number in numbers)
    assert len(numbers) <= 2 * most.bit_length() + 2


@given(st.integers(1, 5000))
def test_right_guess_costs_two_tries(true: int) -> None:
    """A prediction that is right is tried, and one more."""
    assert find_edge(lambda number: number <= true, true, 10_000).tried == [(true, True), (true + 1, False)]


def test_edge_needs_a_range() -> None:
    """A search among nothing is an error."""
    with pytest.raises(ValueError, match="most is 0"):
        find_edge(lambda _: True, 1, 0)


def test_a_lines_verdict() -> None:
    """Over, under, differs, recorded and not measured."""
    row = Row("weights", "weights", 100 * MIB, allowed=parse("within +64 MiB"))
    assert judged(row, 150 * MIB).verdict == "ok"
    assert judged(row, 200 * MIB).verdict == "over"
    assert judged(row, 99 * MIB).verdict == "under"
    assert judged(row, None).verdict == "not measured"
    assert judged(replace(row, allowed=None), 5).verdict == "recorded"
    assert judged(replace(row, allowed=parse("below 1 GiB"), predicted=None), 2 * GIB).verdict == "over"
    word = Row("break[0].outcome", "break", "out_of_memory", unit="word", allowed=parse("exact"))
    assert judged(word, "fits").verdict == "differs"
    assert headline(judged(word, "fits")) == "break[0].outcome is fits: out_of_memory expected"


def test_a_worksheet_says_it_all() -> None:
    """Predicted, measured, off by, allowed and verdict, as text and as Markdown."""
    row = judged(Row("kv_cache", "growth", 8 * GIB, allowed=parse("within 1%"), why="why | so"), 12 * GIB)
    text = "\n".join(lines([row]))
    assert "kv_cache  8.000 GiB  12.000 GiB  +4,096.0 MiB  within 1%  <- over" in text
    assert headline(row) == "kv_cache is 4.00 GiB over: 12.00 GiB measured, 8.00 GiB predicted (allowed within 1%)"
    page = markdown([Comparison("llama.dgx-spark", (row,))], "Worksheets")
    assert "| kv_cache | 8.000 GiB | 12.000 GiB | +4,096.0 MiB | within 1% | <- over | why \\| so |" in page
