"""What a person typed under `expect`, held against the prediction."""

from __future__ import annotations

from membudget.engines import activations
from membudget.ledger import Ledger
from membudget.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from membudget.tolerance import Expectation


class Unmet(NamedTuple):
    """One expectation that does not hold: the field, both sides in words, its line in the file, and why."""

    field: str
    predicted: str
    expected: str
    line: int
    why: str = ""

    def __str__(self) -> str:
        text = f"{self.field}: {self.predicted} predicted, {self.expected} expected"
        return f"{text}: {self.why}" if self.why else text


def predicted(ledger: Ledger, field: str) -> int:
    """The number that `expect.<field>` is about: bytes or a count."""
    budget = ledger.budget
    count = budget.model.count
    if field in ("params", "active", "checkpoint"):
        return int(getattr(count, field))
    if field == "logits":
        return activations.logits_bytes(budget.model, budget.ctx)
    return int(getattr(ledger, field))


def unmet(ledger: Ledger) -> list[Unmet]:
    """Every expectation of the budget that the prediction does not meet; `fits: true` where nothing is said."""
    budget = ledger.budget
    found = []
    fits = budget.expect.get("fits", True)
    if ledger.fits != fits:
        says = ("true", "false") if ledger.fits else ("false", "true")
        line = budget.where.get("expect.fits", budget.where.get("expect", budget.line))
        found.append(Unmet("fits", *says, line, ledger.verdict.rstrip(".")))
    for field, expected in budget.expect.items():
        if field != "fits":
            line = budget.where.get(f"expect.{field}", budget.line)
            found += _compare(field, predicted(ledger, field), expected, line)
    for place, breakage in enumerate(budget.breaks):
        found += _breakage(ledger, place, breakage)
    return found


def _breakage(ledger: Ledger, place: int, breakage: dict[str, Any]) -> list[Unmet]:
    budget = ledger.budget
    ctx, users = breakage.get("ctx", budget.ctx), breakage.get("users", 1)
    attention, logits = breakage.get("attention", "sdpa"), breakage.get("logits", "last")
    found = []
    for field, expected in breakage.get("expect", {}).items():
        if field == "logits":
            size = activations.logits_bytes(budget.model, ctx * users)
        elif field == "scores":
            size = activations.eager_scores(budget.model, ctx) * users
        else:
            size = activations.prefill(
                budget.model, ctx * users, sequences=users, attention=attention, logits=logits
            ).bytes
        path = f"break[{place}].expect.{field}"
        found += _compare(path, size, expected, budget.where.get(path, budget.line))
    return found


def _compare(field: str, value: int, expected: Expectation, line: int) -> list[Unmet]:
    from membudget.tolerance import describe

    if expected.holds(value):
        return []
    return [Unmet(field, describe(value, expected.unit), str(expected), line)]
