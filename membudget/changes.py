"""What would make a budget fit: the smallest single change first, else one combination."""

from __future__ import annotations

from membudget import formats
from membudget.budget import Budget
from membudget.capacity import fits, held, kv_request, max_ctx, max_users, total_of
from membudget.records import NamedTuple

#: Formats to suggest, from the least compressed on.
SMALLER = ("fp8", "q8_0", "awq", "q4_k_m")


class Change(NamedTuple):
    """What makes a budget fit: the change in words, the bytes it frees, the budget's fields it sets."""

    text: str
    frees: int
    values: dict[str, str | int]


def suggest(budget: Budget) -> list[Change]:
    """Changes after each of which this budget, which does not fit, would; those that free the least come first."""
    found = []
    request = kv_request(budget, budget.ctx)
    users = max_users(budget)
    if users:
        text = f"{users_text(users)} instead of {budget.users:,}"
        found.append(Change(text, request * (budget.users - users), {"users": users}))
    ctx = max_ctx(budget)
    if ctx:
        text = f"{ctx:,} tokens of context instead of {budget.ctx:,}"
        found.append(Change(text, (request - kv_request(budget, ctx)) * budget.users, {"ctx": ctx}))
    fp8 = budget._replace(kv_cache_dtype="fp8")
    if fits(fp8):
        frees = (request - kv_request(fp8, budget.ctx)) * budget.users
        found.append(Change("an fp8 KV cache", frees, {"kv_cache_dtype": "fp8"}))
    for name in SMALLER:
        smaller = _with_format(budget, name)
        if smaller and fits(smaller):
            frees = budget.format.weigh(budget.model).total - smaller.format.weigh(budget.model).total
            found.append(Change(f"{name} weights", frees, {"format": name}))
            break
    return sorted(found, key=lambda change: change.frees) or _together(budget)


def _together(budget: Budget) -> list[Change]:
    """No single change is enough: the least compressed weights that fit some users with an fp8 cache."""
    for name in (budget.format.name, *SMALLER):
        smaller = _with_format(budget, name)
        if smaller is None:
            continue
        smaller = smaller._replace(kv_cache_dtype="fp8")
        users = min(budget.users, max_users(smaller))
        if users:
            values: dict[str, str | int] = {"kv_cache_dtype": "fp8", "users": users}
            text = f"an fp8 KV cache and {users_text(users)}"
            if name != budget.format.name:
                values["format"] = name
                text = f"{name} weights, {text}"
            frees = total_of(budget) - total_of(smaller._replace(users=users))
            return [Change(text + " together", frees, values)]
    return []


def _with_format(budget: Budget, name: str) -> Budget | None:
    """The budget in another format; None where that format does not apply to the model's shapes."""
    if name == budget.format.name:
        return budget
    smaller = budget._replace(format=formats.get(name))
    try:
        smaller.format.weigh(budget.model)
        held(smaller)
    except formats.FormatError:
        return None
    return smaller


def users_text(number: int) -> str:
    """``1 user``, ``8 users``."""
    return f"{number:,} user{'s' if number != 1 else ''}"
