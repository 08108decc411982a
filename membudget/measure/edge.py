"""The largest number for which something still works, found by trying: doubling, then halving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from membudget.errors import MembudgetError


@dataclass(frozen=True)
class Edge:
    """Where it breaks."""

    most: int  # the largest number that worked; 0 if not even 1 did
    tried: list[tuple[int, bool]]  # (number, worked), in order
    capped: bool  # everything up to the limit worked, so the edge itself was not seen


@dataclass(frozen=True)
class Looking:
    """A try that begins."""

    number: int
    low: int  # the most that worked so far; 0 for none
    high: int | None  # the least that did not; None so far


def informed(step: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The step with what the trace found: where an edge begins, what a sandwich needs; any other step as it is."""
    if step["do"] == "sandwich" and (need := in_all(found.get("trace_prefill_last", {}))) is not None:
        return {**step, "need": need}
    users = found.get("trace_edge", {}).get("users")
    if step["do"] != "edge" or users is None:
        return dict(step)
    return {**step, "near": max(users, 1), "most": max(step["most"], 2 * users + 8)}


def in_all(traced: Mapping[str, Any]) -> int | None:
    """Bytes that a traced forward takes with the model: reserved on CUDA, live tensors on the CPU; None untraced."""
    if "peak" not in traced:
        return None
    return int(traced.get("reserved") or traced["weights"] + traced["buffers"] + traced["peak"])


def no_trace(traced: Mapping[str, Any]) -> str:
    """Why a line has nothing to be compared with, for people."""
    return f"nothing to compare with: {traced.get('unknown') or traced.get('error') or 'the trace did not run'}"


def find_edge(
    fits: Callable[[int], bool], near: int = 1, most: int = 2**20, tell: Callable[[Looking], None] | None = None
) -> Edge:
    """Search [1, most] for the last number that fits, given that what fits more fits less.

    tell: called before each try, for a progress bar.
    near: where to begin, a prediction; it is tried first, and then in doubling steps from there.
    A prediction that is right costs two tries.
    """
    if most < 1:
        raise MembudgetError(f"most is {most}; allowed is a whole number >= 1")
    tried: list[tuple[int, bool]] = []
    low, high = 0, most + 1  # low fits (0 always does), high does not or is out of bounds

    def ask(number: int) -> bool:
        if tell is not None:
            tell(Looking(number, low, high if high <= most else None))
        worked = fits(number)
        tried.append((number, worked))
        return worked

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
