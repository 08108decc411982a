"""What would make a budget fit: the smallest single change first, else one combination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from membudget import formats
from membudget.budget import ENGINES, GGUF, Budget
from membudget.capacity import (
    engine_limit,
    fits,
    held,
    kv_request,
    max_ctx,
    max_users,
    share_that_leaves,
    takes_the_systems,
    total_of,
)
from membudget.records import NamedTuple


class Change(NamedTuple):
    """What makes a budget fit: the change in words, the bytes it frees, the fields that it sets.

    values: by their names in a budget; gpu_memory_utilization is the engine's.
    """

    text: str
    frees: int
    values: dict[str, str | int | float]


def suggest(budget: Budget) -> list[Change]:
    """Changes after each of which this budget, which does not fit, would; those that free the least come first."""
    if takes_the_systems(budget):
        return _with_a_smaller_share(budget)
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
    small = _with_small_cache(budget)
    if small is not budget and fits(small):
        frees = (request - kv_request(small, budget.ctx)) * budget.users
        found.append(Change(_cache_text(small), frees, {"kv_cache_dtype": small.kv_cache_dtype}))
    kind = ENGINES[budget.engine.name]
    found += _lighter(budget, kind.smaller)
    return (
        sorted(found, key=lambda change: change.frees)
        or _together(budget, kind.smaller)
        or _lighter(budget, kind.smallest)
        or _together(budget, kind.smallest)
    )


def nothing_helps(budget: Budget) -> str:
    """What was tried where `suggest` has nothing: ``not even 1 user with 1 token with awq weights ...``."""
    kind = ENGINES[budget.engine.name]
    *_, least = [budget, *_smaller(budget, (*kind.smaller, *kind.smallest))]
    share = share_that_leaves(budget) if takes_the_systems(budget) else None
    parts = [] if share is None else [f"gpu_memory_utilization {share}"]
    parts += [_weights_text(least)] if least is not budget else []
    small = _with_small_cache(least)
    parts += [_cache_text(small)] if small is not least else []
    changed = f" with {' and '.join(parts)}" if parts else ""
    return f"nothing that membudget knows helps: not even 1 user with 1 token{changed}"


def _with_a_smaller_share(budget: Budget) -> list[Change]:
    """The largest share that leaves the operating system its part, alone or with what else is then too much."""
    share = share_that_leaves(budget)
    if share is None:
        return []
    smaller = budget._replace(engine=budget.engine._replace(gpu_memory_utilization=share))
    frees = (engine_limit(budget) or 0) - (engine_limit(smaller) or 0)
    text, values = f"gpu_memory_utilization {share}", {"gpu_memory_utilization": share}
    if fits(smaller):
        return [Change(f"{text} instead of {budget.engine.gpu_memory_utilization}", frees, {**values})]
    return [
        Change(f"{text} with {change.text}", frees + change.frees, {**values, **change.values})
        for change in suggest(smaller)
    ]


def _lighter(budget: Budget, names: Sequence[str]) -> list[Change]:
    """The first of some formats that fits by itself."""
    for smaller in _smaller(budget, names):
        if fits(smaller):
            frees = budget.format.weigh(budget.model).total - smaller.format.weigh(budget.model).total
            return [Change(_weights_text(smaller), frees, {"format": smaller.format.name})]
    return []


def _together(budget: Budget, names: Sequence[str]) -> list[Change]:
    """No single change is enough: the least compressed weights that fit some users with an 8-bit cache.

    Fewer users at the same context come before a shorter context for one.
    """
    ways = [_with_small_cache(way) for way in (budget, *_smaller(budget, names))]
    for way in ways:
        users = min(budget.users, max_users(way))
        if users:
            return [_combined(budget, way._replace(users=users))]
    for way in ways:
        ctx = max_ctx(way._replace(users=1))
        if ctx:
            return [_combined(budget, way._replace(users=1, ctx=min(ctx, budget.ctx)))]
    return []


def _combined(budget: Budget, other: Budget) -> Change:
    values: dict[str, str | int | float] = {"users": other.users}
    parts = []
    if other.kv_cache_dtype != budget.kv_cache_dtype:
        values["kv_cache_dtype"] = other.kv_cache_dtype
        parts.append(_cache_text(other))
    if other.format is not budget.format:
        values["format"] = other.format.name
        parts.insert(0, _weights_text(other))
    last = users_text(other.users)
    if other.ctx != budget.ctx:
        values["ctx"] = other.ctx
        last += f" of {other.ctx:,} tokens"
    text = f"{', '.join(parts)} and {last} together" if parts else last
    return Change(text, total_of(budget) - total_of(other), values)


def _smaller(budget: Budget, names: Sequence[str]) -> Iterator[Budget]:
    """The budget in each of some formats that is smaller and applies to the model's shapes."""
    own = budget.format.weigh(budget.model).total
    for name in names:
        if name == budget.format.name:
            continue
        smaller = budget._replace(format=formats.get(name))
        try:
            weights = smaller.format.weigh(budget.model).total
            held(smaller)
        except formats.FormatError:
            continue
        if weights < own:
            yield smaller


def _with_small_cache(budget: Budget) -> Budget:
    """The budget with its engine's 8-bit KV cache; itself where there is none, or none that is smaller."""
    name = ENGINES[budget.engine.name].small_cache
    if not name or _is_foreign(budget):
        return budget
    small = budget._replace(kv_cache_dtype=name)
    try:
        return small if kv_request(small, budget.ctx) < kv_request(budget, budget.ctx) else budget
    except formats.FormatError:
        return budget


def _is_foreign(budget: Budget) -> bool:
    """Whether another engine reads these weights: it has no cache dtypes of this one."""
    return budget.engine.name != "llama_cpp" and budget.format.name in GGUF


def _cache_text(budget: Budget) -> str:
    return f"{'an' if budget.kv_cache_dtype.startswith('fp8') else 'a'} {budget.kv_cache_dtype} KV cache"


def _weights_text(budget: Budget) -> str:
    """``fp8 weights``; what another engine reads says so."""
    return f"{budget.format.name} weights{' (GGUF, for llama.cpp)' if _is_foreign(budget) else ''}"


def users_text(number: int) -> str:
    """``1 user``, ``8 users``."""
    return f"{number:,} user{'s' if number != 1 else ''}"
