"""What moved between two runs: which line of which budget, by how much, first in which version, and likely why.

Machine, flags and settings that differ are named before any number; a budget whose
settings changed is not compared at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from membudget.budgets.tolerance import EXACT, Tolerance, parse
from membudget.history.changes import Change, Known, known_changes
from membudget.history.record import Entry, Line, Record
from membudget.history.versions import version_key
from membudget.units import UnitError

#: A measured line that says nothing of its own may differ by so much between two runs.
DEFAULT_TOLERANCE = "within 1%"
SIDES = ("measured", "predicted")
#: The source of a run that was read from a vLLM log.
LOG = "vllm log"


class Difference(NamedTuple):
    """Something that is not the same in two runs.  kind: ``machine``, ``flag``, ``version`` or ``setting``."""

    kind: str
    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.before or 'not set'} -> {self.after or 'not set'}"


class Since(NamedTuple):
    """Two runs next to each other between which a line moved, and the versions that differ between them."""

    before: Record
    after: Record
    versions: tuple[Difference, ...]


class Move(NamedTuple):
    """A line that is not what it was.

    side: ``measured`` or ``predicted``.  before, after: bytes, a count or a word.  beyond: past its tolerance.
    since: where it moved first, None where the history does not say.  changes: known changes that fit.
    """

    budget: str
    line: str
    side: str
    before: int | str
    after: int | str
    unit: str
    allowed: str
    beyond: bool
    since: Since | None = None
    changes: tuple[Known, ...] = ()

    @property
    def off(self) -> int:
        """After minus before; 0 for words."""
        if isinstance(self.before, int) and isinstance(self.after, int):
            return self.after - self.before
        return 0

    @property
    def share(self) -> float | None:
        """The part of `before` that it moved by."""
        return self.off / abs(self.before) if isinstance(self.before, int) and self.before else None

    @property
    def explained(self) -> bool:
        """Whether a known change of a version in between says so."""
        return any(known.certain for known in self.changes)


class Drift(NamedTuple):
    """Two runs compared.

    differences: of machine, flags and versions.  moves: lines that differ at all, those beyond tolerance first.
    changed: budgets that ask something else now, with what; not compared.  same: lines that are as they were.
    only_before, only_after: budgets that one run has and the other has not.
    lost: ``budget line`` measured before and not now.
    """

    old: Record
    new: Record
    differences: tuple[Difference, ...]
    moves: tuple[Move, ...]
    changed: dict[str, tuple[Difference, ...]]
    same: int
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def beyond(self) -> list[Move]:
        """Moves past their tolerance."""
        return [move for move in self.moves if move.beyond]

    @property
    def compared(self) -> int:
        """How many lines both runs have."""
        return self.same + len(self.moves)

    @property
    def unexplained(self) -> list[Move]:
        """Those that no known change explains."""
        return [move for move in self.beyond if not move.explained]

    def named(self, *kinds: str) -> list[Difference]:
        """The differences of some kinds."""
        return [item for item in self.differences if item.kind in kinds]


def compare(
    old: Record,
    new: Record,
    runs: Iterable[Record] = (),
    changes: Sequence[Change] | None = None,
    budgets: Iterable[str] | None = None,
) -> Drift:
    """Compare two runs.  runs: the history, to say since when.  budgets: only these."""
    changes = known_changes() if changes is None else changes
    differences = tuple(_differences(old, new))
    wanted = set(old.budgets) | set(new.budgets) if budgets is None else set(budgets)
    moves: list[Move] = []
    changed: dict[str, tuple[Difference, ...]] = {}
    lost: list[str] = []
    same = 0
    history = tuple(runs)
    for name in (name for name in new.budgets if name in old.budgets and name in wanted):
        before, after = old.budgets[name], new.budgets[name]
        settings = tuple(_table("setting", before.settings, after.settings))
        if settings and LOG not in (old.source, new.source):
            changed[name] = settings
            continue
        for move in _moved(name, before, after):
            if move is None:
                same += 1
                continue
            first = since(move, old, new, history)
            moves.append(_explain(move._replace(since=first), old, new, after.settings, changes))
        lost += [
            f"{name} {line}"
            for line, value in before.lines.items()
            if value.measured is not None and after.lines.get(line, Line()).measured is None
        ]
    moves.sort(key=lambda move: (not move.beyond, move.side != "measured"))
    return Drift(
        old,
        new,
        differences,
        tuple(moves),
        changed,
        same,
        tuple(name for name in old.budgets if name not in new.budgets and name in wanted),
        tuple(name for name in new.budgets if name not in old.budgets and name in wanted),
        tuple(lost),
    )


def moved(before: int | str, after: int | str, side: str, allowed: str) -> bool:
    """Whether a value is past its tolerance.  A tolerance to one side is taken to both: a drift has no good side."""
    if not isinstance(before, int) or not isinstance(after, int):
        return before != after
    tolerance = EXACT if side == "predicted" else drift_tolerance(allowed)
    return not tolerance.allows(before, after)


def drift_tolerance(allowed: str) -> Tolerance:
    """How far a measured line may go between two runs, from what its budget allows beside the prediction."""
    for text in (allowed, DEFAULT_TOLERANCE):
        for unit in ("bytes", "count"):
            try:
                found = parse(text, unit)
            except UnitError:
                continue
            if found.kind != "below":
                return replace(found, kind="within") if found.kind == "within+" else found
    raise AssertionError(DEFAULT_TOLERANCE)


def since(move: Move, old: Record, new: Record, runs: Iterable[Record]) -> Since | None:
    """The first two neighbours between which a line moved.

    Where one package alone differs between the two runs, the runs of that package's versions
    in between are taken in the order of the versions; else all runs in between in the order of time.
    """
    package = _one_package(old, new)
    settings = new.budgets[move.budget].settings
    between = [old, new]
    for run in runs:
        entry = run.budgets.get(move.budget)
        if entry is None or run.id in (old.id, new.id) or run.machine_name != new.machine_name:
            continue
        line = entry.lines.get(move.line)
        if line is None or getattr(line, move.side) is None or (entry.settings != settings and run.source != LOG):
            continue
        if package is None:
            inside = min(old.time, new.time) < run.time < max(old.time, new.time)
        else:
            inside = _within(package, run, old, new)
        if inside:
            between.append(run)
    if package is None:
        between.sort(key=lambda run: (run.time, run.id))
    else:
        between.sort(key=lambda run: (version_key(run.versions[package]), run.time))
    values = [(run, getattr(run.budgets[move.budget].lines[move.line], move.side)) for run in between]
    for (first, one), (second, other) in itertools.pairwise(values):
        if moved(one, other, move.side, move.allowed):
            return Since(first, second, tuple(_table("version", first.versions, second.versions)))
    return None


def _one_package(old: Record, new: Record) -> str | None:
    differ = _table("version", old.versions, new.versions)
    names = [item.name for item in differ if item.before and item.after and item.name != "membudget"]
    return names[0] if len(names) == 1 else None


def _within(package: str, run: Record, old: Record, new: Record) -> bool:
    version = run.versions.get(package)
    if version is None:
        return False
    ends = sorted((version_key(old.versions[package]), version_key(new.versions[package])))
    others = [name for name in old.versions if name not in (package, "membudget")]
    alike = all(run.versions.get(name) == old.versions[name] for name in others)
    return alike and ends[0] < version_key(version) < ends[1]


def _differences(old: Record, new: Record) -> Iterable[Difference]:
    if old.machine and new.machine:
        yield from _table("machine", old.machine, new.machine)
    yield from _table("flag", old.flags, new.flags)
    yield from _table("version", old.versions, new.versions)
    if LOG in (old.source, new.source):
        # A log prints what its version prints: only what both say can differ, and numbers are compared all the same.
        for name in (name for name in new.budgets if name in old.budgets):
            before, after = old.budgets[name].settings, new.budgets[name].settings
            both = before.keys() & after.keys()
            yield from _table("flag", {key: before[key] for key in both}, {key: after[key] for key in both})


def _table(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    found = []
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name), after.get(name)
        if one != other:
            found.append(Difference(kind, name, _shown(one), _shown(other)))
    return found


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _moved(budget: str, before: Entry, after: Entry) -> Iterable[Move | None]:
    """Each line and side that both have: a move, or None where nothing did."""
    for name, new in after.lines.items():
        old = before.lines.get(name)
        if old is None:
            continue
        for side in SIDES:
            one, other = getattr(old, side), getattr(new, side)
            if one is None or other is None:
                continue
            if one == other:
                yield None
                continue
            beyond = moved(one, other, side, new.allowed)
            yield Move(budget, name, side, one, other, new.unit, new.allowed, beyond)


def _explain(move: Move, old: Record, new: Record, settings: dict[str, Any], changes: Sequence[Change]) -> Move:
    pairs = {item.name: (item.before, item.after) for item in _table("version", old.versions, new.versions)}
    if move.since is not None:
        pairs = {item.name: (item.before, item.after) for item in move.since.versions}
    found = [
        known
        for change in changes
        if (known := change.fits(move.line, move.off, pairs, settings.get("caches"), settings.get("model"))) is not None
    ]
    return move._replace(changes=tuple(found))
