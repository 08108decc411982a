"""A budget's prediction against what its author expects: does it hold, and where not.

verdict = check(budget)
verdict.passed, verdict.broken      membudget.report.failure makes the message
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from membudget.budgets.budget import Budget
from membudget.budgets.tolerance import Expectation
from membudget.engines import activations
from membudget.engines.base import Limit
from membudget.engines.buckets import width_of
from membudget.errors import MembudgetError
from membudget.formats import kv
from membudget.planning.ledger import BUCKETS, Ledger, predict
from membudget.units import short


class Finding(NamedTuple):
    """One expectation and what the arithmetic says.

    field: ``kv_cache``, ``fits``, ``break[0].logits``.  predicted: bytes or a count; a bool
    for fits, a word for an outcome.  why: where the prediction comes from.
    line: of the field in its file; of the budget where it is a default.
    """

    field: str
    predicted: Any
    expected: Any
    holds: bool
    why: str
    line: int


class Verdict(NamedTuple):
    """A judged budget.  findings: whether it fits comes first.  error: why nothing could be predicted, or ""."""

    budget: Budget
    ledger: Ledger | None
    findings: tuple[Finding, ...]
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether everything is as expected."""
        return not self.error and not self.broken

    @property
    def broken(self) -> list[Finding]:
        """What is not as expected."""
        return [item for item in self.findings if not item.holds]


def check(budget: Budget) -> Verdict:
    """Predict a budget and hold it against its `expect` and `break`; without `fits` it must fit."""
    try:
        ledger = predict(budget)
        findings = [_fits(ledger)]
        for field, expected in budget.expect.items():
            if field != "fits":
                predicted, why = _VALUES[field](ledger)
                findings.append(_finding(budget, field, f"expect.{field}", predicted, expected, why))
        for place, broken in enumerate(budget.breaks):
            findings += _breakage(ledger, place, broken)
    except MembudgetError as error:  # a format that does not apply to this model, a config that contradicts itself
        return Verdict(budget, None, (), str(error))
    return Verdict(budget, ledger, tuple(findings))


def bucket_why(ledger: Ledger, bucket: str) -> str:
    """The formulas of a bucket's lines."""
    lines = [line for line in ledger.lines if line.bucket == bucket]
    return lines[0].why if len(lines) == 1 else " + ".join(f"{line.part} {short(line.bytes)}" for line in lines)


def _fits(ledger: Ledger) -> Finding:
    budget = ledger.budget
    expected = budget.expect.get("fits", True)
    line = budget.where.get("expect.fits", budget.line)
    if expected and ledger.answer.limiting is Limit.SHARE:
        line = budget.where.get(f"engine.{budget.engine.name}.{Limit.SHARE}", line)
    return Finding("fits", ledger.fits, expected, ledger.fits == expected, ledger.verdict, line)


def _finding(budget: Budget, field: str, path: str, predicted: int, expected: Expectation, why: str) -> Finding:
    line = budget.where.get(path, budget.line)
    return Finding(field, predicted, expected, expected.holds(predicted), why, line)


def _breakage(ledger: Ledger, place: int, broken: dict[str, Any]) -> list[Finding]:
    """A plain forward of `users` prompts, cache kept, under the ceiling of the budget."""
    budget, name, ceiling = ledger.budget, f"break[{place}]", ledger.budget.ceiling
    if ceiling is None:
        raise MembudgetError("break needs a ceiling: the most memory that it may take, as in `ceiling: 40 GiB`")
    model, width = budget.model, width_of(budget.format)
    ctx, users = broken.get("ctx", budget.ctx), broken.get("users", 1)
    attention, logits = broken.get("attention", "sdpa"), broken.get("logits", "last")
    peak = activations.prefill(model, ctx * users, sequences=users, attention=attention, logits=logits, width=width)
    cache = kv.cache(model, budget.kv_cache_dtype).bytes(ctx) * users  # a plain forward's, whatever the engine
    weights = budget.format.weigh(model).total  # a plain forward's too
    total = weights + cache + peak.bytes
    why = (
        f"weights {short(weights)} + cache {short(cache)} + {peak.moment} {short(peak.bytes)} "
        f"= {short(total)} under a ceiling of {short(ceiling)}; {peak.why}"
    )
    outcome = "fits" if total <= ceiling else "out_of_memory"
    line = budget.where.get(f"{name}.outcome", budget.line)
    found = [Finding(f"{name}.outcome", outcome, broken["outcome"], outcome == broken["outcome"], why, line)]
    values = {
        "logits": activations.logits_bytes(model, ctx * users, width),
        "scores": activations.eager_scores(model, ctx, width),
        "activations": peak.bytes,
    }
    for field, expected in broken.get("expect", {}).items():
        found.append(_finding(budget, f"{name}.{field}", f"{name}.expect.{field}", values[field], expected, why))
    return found


def _bucket(name: str) -> Callable[[Ledger], tuple[int, str]]:
    return lambda ledger: (ledger.sums[name], bucket_why(ledger, name))


def _logits(ledger: Ledger) -> tuple[int, str]:
    budget, width = ledger.budget, width_of(ledger.budget.format)
    size = activations.logits_bytes(budget.model, budget.ctx, width)
    rows = size // (budget.ctx * width)
    return size, f"{budget.ctx:,} positions x {rows:,} words x {width} bytes"


def _parts(ledger: Ledger) -> str:
    return " + ".join(f"{bucket} {short(ledger.sums[bucket])}" for bucket in BUCKETS)


def _cache_formula(ledger: Ledger) -> str:
    """What the layers keep of one token, alike layers together, in elements."""
    alike: dict[str, int] = {}
    for spec in (ledger.tightest_rank or ledger.budget).model.caches:
        parts = [f"{spec.kv_heads} KV heads x ({spec.k_dim} + {spec.v_dim})"] if spec.kv_heads else []
        parts += [f"({spec.latent} + {spec.rope})"] if spec.latent else []
        parts += [f"{spec.index} of the indexer"] if spec.index else []
        if parts:
            inner = " + ".join(parts)
            text = f"{spec.kind} layers x {inner if len(parts) == 1 else f'({inner})'}"
            alike[text] = alike.get(text, 0) + 1
    terms = " + ".join(f"{number} {text}" for text, number in alike.items())
    return f"{terms} elements of {ledger.budget.kv_cache_dtype}" if terms else "no layer keeps tokens"


def _roles(ledger: Ledger) -> str:
    count = ledger.budget.model.count
    return " + ".join(f"{role} {number:,}" for role, number in count.by_role.items() if number)


def _users(ledger: Ledger) -> str:
    return f"{short(ledger.kv_per_request)} of cache a user; {_parts(ledger)}; {short(ledger.capacity)} in all"


_VALUES: dict[str, Callable[[Ledger], tuple[int, str]]] = {
    "params": lambda ledger: (ledger.budget.model.count.params, _roles(ledger)),
    "active": lambda ledger: (ledger.budget.model.count.active, "what one token reads of " + _roles(ledger)),
    "checkpoint": lambda ledger: (ledger.budget.model.count.checkpoint, _roles(ledger)),
    **{bucket: _bucket(bucket) for bucket in BUCKETS},
    "kv_per_token": lambda ledger: (ledger.kv_per_token, _cache_formula(ledger)),
    "kv_per_request": lambda ledger: (ledger.kv_per_request, bucket_why(ledger, "kv_cache")),
    "logits": _logits,
    "total": lambda ledger: (ledger.total, _parts(ledger)),
    "capacity": lambda ledger: (ledger.capacity, f"{ledger.budget.machine_name}, {ledger.budget.convention}"),
    "headroom": lambda ledger: (ledger.headroom, f"{short(ledger.capacity)} less {_parts(ledger)}"),
    "max_users": lambda ledger: (ledger.max_users, _users(ledger)),
    "max_ctx": lambda ledger: (ledger.max_ctx, _users(ledger)),
}
