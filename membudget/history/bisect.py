"""The version at which a value moved, found by asking as few versions as there must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from membudget.errors import MembudgetError
from membudget.history.versions import version_key


class CannotAsk(MembudgetError):
    """A version that gives no value: it is not installed, or does not build the model."""


class BisectError(MembudgetError):
    """A question without an answer: ends that are no versions, or the wrong way round."""


class Bisected(NamedTuple):
    """What was found.

    found: whether the value differs between the ends.  before, after: the last version with the good
    value and the first with another; neighbours but for `skipped`, which gave no value.
    values: of every version that was asked.  errors: why others gave none.
    others: further pairs of versions, next to each other among those asked, between which it moved as well.
    """

    found: bool
    before: str
    after: str
    values: dict[str, int]
    errors: dict[str, str]
    skipped: tuple[str, ...] = ()
    others: tuple[tuple[str, str], ...] = ()


def between(versions: Sequence[str], good: str, bad: str) -> list[str]:
    """Released versions from `good` to `bad`, oldest first, without pre-releases but for the ends.

    Raises `BisectError` where an end is not a version.
    """
    from packaging.version import InvalidVersion, Version

    try:
        first, last = Version(good), Version(bad)
    except InvalidVersion as error:
        raise BisectError(f"{error}; write one like 5.8.0") from None
    if first == last:
        raise BisectError(f"--good and --bad are the same version, {good}")
    low, high = min(first, last), max(first, last)
    inside = []
    for text in versions:
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        if low < version < high and not version.is_prerelease:
            inside.append(text)
    ends = sorted((good, bad), key=version_key)
    found = [ends[0], *sorted(set(inside), key=version_key), ends[1]]
    return found if ends[0] == good else found[::-1]


def bisect(
    versions: Sequence[str],
    ask: Callable[[str], int],
    moved: Callable[[int, int], bool] = lambda good, other: good != other,
) -> Bisected:
    """Find two neighbours in `versions` (the first is good, the last is bad) between which the value moved.

    ask: the value of a version, or `CannotAsk`.  A version that gives none is stepped over.
    Where the value moves more than once the search follows the larger move, and `others` names the rest.
    Raises `CannotAsk` where an end gives no value.
    """
    values: dict[str, int] = {}
    errors: dict[str, str] = {}

    def value(version: str) -> int | None:
        if version not in values and version not in errors:
            try:
                values[version] = ask(version)
            except CannotAsk as error:
                errors[version] = str(error)
        return values.get(version)

    good, bad = versions[0], versions[-1]
    for end in (good, bad):
        if value(end) is None:
            raise CannotAsk(f"{end}: {errors[end]}")
    if not moved(values[good], values[bad]):
        return Bisected(False, good, bad, values, errors)
    low, high = 0, len(versions) - 1
    while True:
        middle = _next(low, high, versions, errors)
        if middle is None:
            skipped = tuple(versions[low + 1 : high])
            pair = versions[low], versions[high]
            others = tuple(item for item in _moves(versions, values, moved) if item != pair)
            return Bisected(True, *pair, values, errors, skipped, others)
        found = value(versions[middle])
        if found is None:
            continue
        before, after = values[versions[low]], values[versions[high]]
        # one of the halves holds a move, as the ends differ; where both do, the larger one is the question
        first, second = moved(before, found), moved(found, after)
        if first if first != second else abs(found - before) >= abs(after - found):
            high = middle
        else:
            low = middle


def _moves(
    versions: Sequence[str], values: dict[str, int], moved: Callable[[int, int], bool]
) -> Iterator[tuple[str, str]]:
    """Pairs of versions that were asked one after the other and differ, in the order of the versions."""
    asked = [version for version in versions if version in values]
    for before, after in pairwise(asked):
        if moved(values[before], values[after]):
            yield before, after


def _next(low: int, high: int, versions: Sequence[str], errors: dict[str, str]) -> int | None:
    """The version nearest to the middle that is not known to give no value; None where none is left."""
    inside = [index for index in range(low + 1, high) if versions[index] not in errors]
    return min(inside, key=lambda index: abs(2 * index - low - high)) if inside else None
