"""One key changed: what transformers builds, and what we count."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

from membudget.model import ConfigError, build
from tests_math.model import family_reference as ref
from tests_math.model.one_key import Change, changes

#: What a class raises on a config that it does not take.
REFUSALS: tuple[type[Exception], ...] = (
    *ref.refusals(), ArithmeticError, IndexError, RecursionError, NotImplementedError,
)  # fmt: skip
#: Whether the installed version is the one whose classes the recipes follow.
NEWEST = int(version("transformers").split(".")[0]) >= 5


class Difference(NamedTuple):
    """type, key, value: the change.  ours: parameters, or the refusal's text.  theirs: parameters.

    noted: we counted without this key and named it in a note.
    """

    type: str
    key: str
    value: Any
    ours: int | str
    theirs: int
    noted: bool = False


def theirs(model_type: str, config: Mapping[str, Any], under: str | None) -> int | None:
    """Parameters by the installed transformers; None where the class refuses the config."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ref.reference(model_type, dict(config), under, names=False).params
    except REFUSALS:
        return None


def ours(
    model_type: str, config: Mapping[str, Any], under: str | None, *, newest: bool = True
) -> tuple[int | str, tuple[str, ...]]:
    """(parameters by us, or the refusal's text; the keys that are not read); anything but a refusal is raised."""
    try:
        model = build(ref.raw(model_type, dict(config), under))
    except ConfigError as error:
        return str(error), ()
    return model.count.params + (ref.beyond(model) if newest else 0), model.not_read


def base(model_type: str, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The first config of the census that the installed version builds as we count it; None where there is none."""
    for one in row["random"]:
        count = theirs(model_type, one["config"], row.get("under"))
        if count is not None and count == ours(model_type, one["config"], row.get("under"), newest=NEWEST)[0]:
            return dict(one["config"])
    return None


def differences(
    model_type: str, row: Mapping[str, Any], sample: int | None = None, seed: str = ""
) -> tuple[int, list[Difference]]:
    """(compared, what differs) for one type; sample: only so many changes, drawn by the seed."""
    start = base(model_type, row)
    if start is None:
        return 0, []
    defaults, under = ref.text_defaults(model_type)
    todo = list(changes(start, defaults))
    if sample is not None:
        todo = random.Random(model_type + seed).sample(todo, min(sample, len(todo)))
    return compare(model_type, start, under, todo)


def compare(
    model_type: str, start: Mapping[str, Any], under: str | None, todo: list[Change]
) -> tuple[int, list[Difference]]:
    """Each change by both sides; what transformers refuses is not compared."""
    compared, found = 0, []
    for change, known in _known(model_type, start, under, todo):
        compared += 1
        count, not_read = ours(model_type, change.apply(start), under, newest=NEWEST)
        if count != known:
            found.append(Difference(model_type, change.key, change.value, count, known, change.key in not_read))
    return compared, found


def _known(
    model_type: str, start: Mapping[str, Any], under: str | None, todo: list[Change]
) -> Iterator[tuple[Change, int]]:
    for change in todo:
        known = theirs(model_type, change.apply(start), under)
        if known is not None:
            yield change, known
