"""What another version of vLLM makes of a budget: starts, pool, users, concurrency, and why each moved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from membudget.budgets.budget import Budget
from membudget.engines.vllm.engine import VllmDetails
from membudget.engines.vllm.options import DECLARED
from membudget.errors import MembudgetError
from membudget.planning.ledger import Ledger, predict


@dataclass(frozen=True)
class Side:
    """A budget under one version."""

    version: str
    starts: bool
    #: Why it does not start, or what is not known; empty where it starts.
    refusal: str
    #: Bytes for the pool, its blocks, and tokens as this version prints them.
    available: int
    num_blocks: int
    tokens: int
    #: Requests at once, and the concurrency that this version prints; None where it does not start.
    users: int
    concurrency: float | None
    #: The rules that were applied, and the parts of the start in bytes.
    why: tuple[str, ...]
    parts: tuple[tuple[str, int], ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "why": list(self.why), "parts": dict(self.parts)}


@dataclass(frozen=True)
class Upgrade:
    """One budget before and after."""

    budget: Budget
    before: Side
    after: Side

    @property
    def moved(self) -> tuple[str, ...]:
        """The figures that differ, by name."""
        names = ("starts", "available", "num_blocks", "tokens", "users", "concurrency")
        return tuple(name for name in names if getattr(self.before, name) != getattr(self.after, name))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why: parts of the start that moved, and rules that only one of the versions has."""
        if not self.moved:
            return ()
        old, new = dict(self.before.parts), dict(self.after.parts)
        found = [
            f"{name}: {old.get(name, 0):,} B, then {new.get(name, 0):,} B"
            for name in dict.fromkeys((*old, *new))
            if old.get(name, 0) != new.get(name, 0)
        ]
        before, after = set(map(_plain, self.before.why)), set(map(_plain, self.after.why))
        found += [f"{self.before.version} only: {line}" for line in self.before.why if _plain(line) not in after]
        found += [f"{self.after.version} only: {line}" for line in self.after.why if _plain(line) not in before]
        return tuple(found)

    @property
    def worse(self) -> bool:
        """Whether the new version starts less, or serves fewer users."""
        return (self.before.starts and not self.after.starts) or self.after.users < self.before.users


def upgrade(budget: Budget, before: str, after: str) -> Upgrade:
    """The budget under both versions.  Raises `MembudgetError` for another engine, and where neither is known."""
    if budget.engine.name != DECLARED.name:
        raise MembudgetError(
            f"{budget.id}: an upgrade is of {DECLARED.title}; this is planned for {budget.engine.name}"
        )
    return Upgrade(budget, _side(budget, before), _side(budget, after))


def under(budget: Budget, version: str) -> Budget:
    """The budget by the rules of a version of vLLM; another engine's stays as it is."""
    if budget.engine.name != DECLARED.name:
        return budget
    options = {**budget.engine.options, "version": version}
    return replace(budget, engine=replace(budget.engine, options=options))


def _side(budget: Budget, version: str) -> Side:
    ledger: Ledger = predict(under(budget, version))
    answer, details = ledger.answer, ledger.answer.details
    assert isinstance(details, VllmDetails)
    pool, start = details.start.pool, details.start
    parts = [("requested", start.profiled.part("requested").bytes)]
    parts += [(part.name, part.bytes) for part in start.parts[start.least]]
    return Side(
        version,
        not answer.starts,
        answer.starts[0].text if answer.starts else "",
        pool.available,
        pool.num_blocks,
        pool.tokens,
        answer.users,
        answer.concurrency,
        pool.why,
        tuple(parts),
    )


def _plain(line: str) -> str:
    """A rule without its version and its figures: alike rules of two versions are one."""
    return "".join(letter for letter in line if not letter.isdigit() and letter not in ".,")


__all__ = ["Side", "Upgrade", "under", "upgrade"]
