"""The largest number for which something still works, found by trying: doubling, then halving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Edge(NamedTuple):
    """Where it breaks.

    most: the largest number that worked, 0 if not even 1 did.  tried: (number, worked), in order.
    capped: everything up to the limit worked, so the edge itself was not seen.
    """

    most: int
    tried: list[tuple[int, bool]]
    capped: bool


def informed(step: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The step of an edge, begun where the trace saw it, if it did; any other step as it is."""
    users = found.get("trace_edge", {}).get("users")
    if step["do"] != "edge" or users is None:
        return dict(step)
    return {**step, "near": max(users, 1), "most": max(step["most"], 2 * users + 8)}


def find_edge(fits: Callable[[int], bool], near: int = 1, most: int = 2**20) -> Edge:
    """Search [1, most] for the last number that fits, given that what fits more fits less.

    near: where to begin, a prediction; it is tried first, and then in doubling steps from there.
    A prediction that is right costs two tries.
    """
    if most < 1:
        raise ValueError(f"most is {most}; allowed is a whole number >= 1")
    tried: list[tuple[int, bool]] = []

    def ask(number: int) -> bool:
        worked = fits(number)
        tried.append((number, worked))
        return worked

    low, high = 0, most + 1  # low fits (0 always does), high does not or is out of bounds
    guess, step = min(max(near, 1), most), 1
    if ask(guess):
        low = guess
        while low < most and high > most:
            guess = min(low + step, most)
            step *= 2
            if ask(guess):
                low = guess
            else:
                high = guess
    else:
        high = guess
        while high > 1 and low == 0:
            guess = max(high - step, 1)
            step *= 2
            if ask(guess):
                low = guess
            else:
                high = guess
    while high - low > 1:
        middle = (low + high) // 2
        if ask(middle):
            low = middle
        else:
            high = middle
    return Edge(low, tried, low == most)
