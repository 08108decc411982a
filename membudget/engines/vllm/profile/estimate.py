"""One figure of the profile run: value, lowest, highest, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """Bytes of one part of a start.

    name: ``weights``, ``activation``, ``non_torch``, ``cuda_graphs``, ``requested``.
    bytes: the value.  low, high: the range, low <= bytes <= high.
    why: the sum in words and numbers.  source: the file or the rows it rests on.
    measured: whether a start on this very machine took so much (`learned`).
    """

    name: str
    bytes: int
    low: int
    high: int
    why: str
    source: str
    measured: bool = False

    def __post_init__(self) -> None:
        assert self.low <= self.bytes <= self.high, self


def exact(name: str, size: int, why: str, source: str) -> Estimate:
    """A figure without a range."""
    return Estimate(name, size, size, size, why, source)


def spread(center: int, deviations: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """(lowest, highest) of a sum whose parts may each be so much lower and higher than their values.

    The parts are independent, so their deviations add up as squares: the ends of all ranges at once are not expected.
    """
    below = above = 0
    for down, up in deviations:
        below += down * down
        above += up * up
    return center - math.isqrt(below), center + math.isqrt(above)
