"""docs/accuracy.md and its pictures are what `python tools/accuracy.py` writes."""

from __future__ import annotations

import pytest

from tools import accuracy

pytestmark = pytest.mark.math


def test_the_page_is_made_of_the_rows() -> None:
    """Text and both pictures."""
    assert accuracy.PAGE.read_text(encoding="utf-8") == accuracy.page()
    for theme in accuracy.THEMES:
        assert accuracy.picture_of(theme).read_text(encoding="utf-8") == accuracy.picture(theme)


def test_the_first_predictions_are_kept_as_they_came_out() -> None:
    """24 of 31 starts on cards within 1% of the device, and their median."""
    cards = [row for row in accuracy.first() if row.name[0] in "PF"]
    assert (len(cards), sum(abs(row.share) <= 0.01 for row in cards)) == (31, 24)


def test_the_third_predictions_are_kept_as_they_came_out() -> None:
    """8 of 9 within 1% of the device, 6 inside their range."""
    third = [row for row in accuracy.first() if row.name[0] == "J"]
    assert (len(third), sum(abs(row.share) <= 0.01 for row in third), sum(row.inside for row in third)) == (9, 8, 6)
