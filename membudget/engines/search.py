"""The largest number that still fits."""

from __future__ import annotations

from collections.abc import Callable


def largest(left: Callable[[int], int], most: int, near: int) -> int:
    """The largest n in [0, most] for which left(n) >= 0, given that left falls; 0 if not even 1.

    near: where the slope is taken, 1 or more.  On a straight line that slope leads to the answer at once; else
    the search goes from there in steps that double, and halves what is between.
    """
    if left(1) < 0:
        return 0
    here = left(near)
    slope = here - left(near + 1)
    middle = min(max(near + here // slope if slope else near, 2), most)  # 1 fits already
    step, low, high = 1, 1, most + 1  # low fits; high does not, or nobody looks there
    while high - low > 1:
        if not low < middle < high:
            middle = (low + high) // 2
        if left(middle) >= 0:
            low, middle = middle, middle + step
        else:
            high, middle = middle, middle - step
        step *= 2
    return low
