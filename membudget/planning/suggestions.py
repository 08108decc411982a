"""What would make a budget fit: the smallest single change first, else one combination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from membudget import formats
from membudget.budgets.budget import Budget
from membudget.budgets.settings import Smaller, gguf_engine, kind_of, parallel_sizes
from membudget.data.defaults import IDLE_SHARE, MOST_SHARE, SPARK_GPU
from membudget.engines.base import Load
from membudget.errors import MembudgetError
from membudget.formats import kv
from membudget.machines import Machine
from membudget.planning.capacity import (
    engine_limit,
    fits,
    kv_request,
    max_ctx,
    max_users,
    prepared,
    share_that_leaves,
    takes_the_systems,
    total_of,
)
from membudget.planning.words import users_text

#: The values of a change that are the budget's own, and those that are `Settings`; others are the engine's options.
_BUDGET_VALUES = ("format", "kv_cache_dtype", "ctx", "users", "machines")
#: Devices of one host that are tried where one is not enough.
_DEVICES = (2, 3, 4, 6, 8)
#: Tensor parallel sizes that are tried.
_RANKS = (2, 4, 8)
ENGINE_VALUES = ("gpu_memory_utilization", "attention", "logits", "max_num_batched_tokens")


class Suggestion(NamedTuple):
    """What makes a budget fit: the change in words, the bytes it frees, the fields that it sets.

    values: by their names in a budget; those of `ENGINE_VALUES` are the engine's (`applied` sets them all).
    """

    text: str
    frees: int
    values: dict[str, str | int | float]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return self._asdict()


def suggest(budget: Budget) -> list[Suggestion]:
    """Changes after each of which this budget, which does not fit, would; those that free the least come first."""
    if takes_the_systems(budget):
        return _with_a_smaller_share(budget)
    found = []
    request = kv_request(budget, budget.ctx)
    users = max_users(budget)
    if users and fits(replace(budget, users=users)):
        text = f"{users_text(users)} instead of {budget.users:,}"
        found.append(Suggestion(text, request * (budget.users - users), {"users": users}))
    ctx = max_ctx(budget)
    if ctx and fits(replace(budget, ctx=ctx)):
        text = f"{ctx:,} tokens of context instead of {budget.ctx:,}"
        found.append(Suggestion(text, (request - kv_request(budget, ctx)) * budget.users, {"ctx": ctx}))
    small = _with_small_cache(budget)
    if small is not budget and fits(small):
        frees = (request - kv_request(small, budget.ctx)) * budget.users
        found.append(Suggestion(_cache_text(small), frees, {"kv_cache_dtype": small.kv_cache_dtype}))
    kind = kind_of(budget.engine.name)
    found += _started(budget)
    found += _of_its_own(budget)
    found += _lighter(budget, kind.smaller)
    for other in _lighter_engines(budget):
        if fits(other):
            found.append(_of_engine(budget, other))
    devices = _more_devices(budget)
    found = (
        sorted(found, key=lambda change: change.frees)
        or _together(budget, kind.smaller)
        or _lighter(budget, kind.smallest)
        or _together(budget, kind.smallest)
        or ([] if devices else _with_the_lightest_engine(budget))
    )
    return [*found, *devices]  # what needs another purchase comes last


def _started(budget: Budget) -> list[Suggestion]:
    """What the engine's own refusals would start with, each alone, where the budget then fits."""
    found = []
    for refusal in prepared(budget).answer(Load(budget.ctx, budget.users)).starts:
        for name, value in refusal.values:
            if name not in kind_of(budget.engine.name).fields.fields or name == "max_model_len":
                continue  # a shorter request is another context
            shown = str(value).lower() if isinstance(value, bool) else f"{value:,}"
            change = Suggestion(f"{name} {shown}", 0, {name: value})
            if fits(applied(budget, change)):
                found.append(change)
    return found


def _of_its_own(budget: Budget) -> list[Suggestion]:
    """What the engine can put elsewhere: layers or experts into RAM."""
    changes = prepared(budget).changes(Load(budget.ctx, budget.users))
    return [Suggestion(change.text, change.frees, dict(change.values)) for change in changes]


def _more_devices(budget: Budget) -> list[Suggestion]:
    """The fewest devices that are enough, where the engine shares a model among them in a way that is known."""
    kind = kind_of(budget.engine.name)
    if not (kind.stages or (kind.several and kind.claims)) or budget.machine.platform in ("cpu", "metal"):
        return []
    if budget.machine.unified and kind.stages:
        return []
    if budget.breaks or any(name.endswith("_parallel_size") for name in budget.engine.options):
        return []  # what is provoked is provoked on one machine; sizes that are named are kept
    for many in _DEVICES if kind.stages else _RANKS:
        if many <= budget.machines:
            continue
        try:
            more = applied(budget, Suggestion("", 0, {"machines": many}))
            if fits(more):
                return [Suggestion(more.machine_name, total_of(budget) - total_of(more), {"machines": many})]
        except MembudgetError:
            continue  # a layout that is refused, or whose bytes are not known
    return []


def foreign_formats() -> tuple[str, ...]:
    """Those among the suggested formats that the GGUF engine reads and the others do not."""
    kind = gguf_engine()
    return tuple(dict.fromkeys(one.format for one in (*kind.smaller, *kind.smallest)))


def applied(budget: Budget, change: Suggestion) -> Budget:
    """The budget with a change made: its own fields, the engine's, and the engine's options by their names."""
    own = {name: value for name, value in change.values.items() if name in _BUDGET_VALUES}
    engine = {name: value for name, value in change.values.items() if name in ENGINE_VALUES}
    options = {name: value for name, value in change.values.items() if name not in (*own, *engine)}
    fields: dict[str, Any] = own | ({"format": formats.get(str(own["format"]))} if "format" in own else {})
    if "machines" in own:
        sizes = parallel_sizes(int(own["machines"]), budget.engine)
        fields |= dict(zip(("tensor_parallel", "pipeline_parallel"), sizes, strict=True))
    settings: dict[str, Any] = engine | ({"options": {**budget.engine.options, **options}} if options else {})
    return replace(budget, engine=replace(budget.engine, **settings), **fields)


def nothing_helps(budget: Budget) -> str:
    """What was tried where `suggest` has nothing: ``not even 1 user with 1 token with awq weights ...``."""
    kind = kind_of(budget.engine.name)
    share = share_that_leaves(budget) if takes_the_systems(budget) else None
    light = _lightest(budget if share is None else _shared(budget, share))
    *_, least = [light, *_smaller(light, (*kind.smaller, *kind.smallest))]
    parts = [_engine_text(budget, light)] if light.engine != budget.engine else []
    parts += [_weights_text(least)] if least.format is not budget.format else []
    small = _with_small_cache(least)
    parts += [_cache_text(small)] if small is not least else []
    changed = f" with {' and '.join(parts)}" if parts else ""
    return f"no known change fits: not even 1 user with 1 token{changed}"


def _with_a_smaller_share(budget: Budget) -> list[Suggestion]:
    """The largest share that leaves the operating system its part, alone or with what else is then too much."""
    share = share_that_leaves(budget)
    if share is None:
        return []
    smaller = _shared(budget, share)
    frees = (engine_limit(budget) or 0) - (engine_limit(smaller) or 0)
    text, values = f"gpu_memory_utilization {share}", {"gpu_memory_utilization": share}
    if fits(smaller):
        return [Suggestion(f"{text} instead of {budget.engine.gpu_memory_utilization}", frees, {**values})]
    return [
        Suggestion(f"{text} with {change.text}", frees + change.frees, {**values, **change.values})
        for change in suggest(smaller)
    ]


def most_share(machine: Machine) -> float:
    """The most that is suggested of a machine: of a DGX Spark what an idle one was seen to give."""
    return IDLE_SHARE if SPARK_GPU in machine.title else MOST_SHARE


def _largest_share(budget: Budget) -> float | None:
    """The most that the engine may be given, where that is more than it is; never the operating system's part."""
    share, most = prepared(budget).claimed, most_share(budget.machine)
    if share is None:
        return None
    if budget.os_bytes:
        most = min(share_that_leaves(budget) or 0.0, most)
    return most if most > share else None


def _shared(budget: Budget, share: float) -> Budget:
    return replace(budget, engine=replace(budget.engine, gpu_memory_utilization=share))


def _lighter_engines(budget: Budget) -> Iterator[Budget]:
    """The budget with one setting of its engine changed: the smallest share that is enough, a lighter step."""
    engine, most, share = budget.engine, _largest_share(budget), prepared(budget).claimed
    if share is not None and most is not None and fits(_shared(budget, most)):
        low, high = int(share * 100), round(most * 100)  # high / 100 is enough, low / 100 is not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(_shared(budget, middle / 100)) else (middle, high)
        yield _shared(budget, high / 100)
    light = _lightest(budget).engine
    for name in ("attention", "logits", "max_num_batched_tokens"):
        if getattr(light, name) != getattr(engine, name):
            yield replace(budget, engine=replace(engine, **{name: getattr(light, name)}))


def _lightest(budget: Budget) -> Budget:
    """The budget with every setting of its engine at its lightest."""
    engine = budget.engine
    step, small = engine.max_num_batched_tokens, kind_of(engine.name).small_step
    if small is not None and prepared(budget).step_tokens > small:
        step = small
    share = _largest_share(budget) or engine.gpu_memory_utilization
    light = replace(engine, attention="sdpa", logits="last", max_num_batched_tokens=step, gpu_memory_utilization=share)
    return replace(budget, engine=light)


def _of_engine(budget: Budget, other: Budget) -> Suggestion:
    values = {
        name: getattr(other.engine, name)
        for name in ENGINE_VALUES
        if getattr(other.engine, name) != getattr(budget.engine, name)
    }
    return Suggestion(_engine_text(budget, other), total_of(budget) - total_of(other), values)


def _engine_text(budget: Budget, other: Budget) -> str:
    mine, theirs = budget.engine, other.engine
    step = kind_of(mine.name).step
    parts = []
    if theirs.gpu_memory_utilization != mine.gpu_memory_utilization:
        own = prepared(budget).claimed
        parts.append(f"gpu_memory_utilization {theirs.gpu_memory_utilization} instead of {own}")
    if theirs.attention != mine.attention:
        parts.append(f"{theirs.attention} attention instead of {mine.attention}")
    if theirs.logits != mine.logits:
        parts.append("logits of the last position instead of every")
    if theirs.max_num_batched_tokens != mine.max_num_batched_tokens:
        parts.append(f"{step} {theirs.step_tokens:,} instead of {prepared(budget).step_tokens:,}")
    return " and ".join(parts)


def _with_the_lightest_engine(budget: Budget) -> list[Suggestion]:
    """Nothing is enough with the engine as it is: what is with its settings at their lightest."""
    light = _lightest(budget)
    if light.engine == budget.engine:
        return []
    change = _of_engine(budget, light)
    if fits(light):
        return [change]
    return [
        Suggestion(f"{change.text} with {more.text}", change.frees + more.frees, {**change.values, **more.values})
        for more in suggest(light)
    ]


def _lighter(budget: Budget, names: Sequence[Smaller]) -> list[Suggestion]:
    """The first of some formats that fits by itself."""
    for smaller in _smaller(budget, names):
        if all(map(fits, _planned_for(smaller))):
            frees = budget.format.weigh(budget.model).total - smaller.format.weigh(budget.model).total
            return [Suggestion(_weights_text(smaller), frees, {"format": smaller.format.name})]
    return []


def _together(budget: Budget, names: Sequence[Smaller]) -> list[Suggestion]:
    """No single change is enough: the least compressed weights that fit some users with an 8-bit cache.

    Fewer users at the same context come before a shorter context for one.
    """
    ways = [_with_small_cache(way) for way in (budget, *_smaller(budget, names))]
    for way in ways:
        users = min(budget.users, *map(max_users, _planned_for(way)))
        if users:
            return [_combined(budget, replace(way, users=users))]
    for way in ways:
        ctx = min(map(max_ctx, _planned_for(replace(way, users=1))))
        if ctx:
            return [_combined(budget, replace(way, users=1, ctx=min(ctx, budget.ctx)))]
    return []


def _combined(budget: Budget, other: Budget) -> Suggestion:
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
    return Suggestion(text, total_of(budget) - total_of(other), values)


def _smaller(budget: Budget, names: Sequence[Smaller]) -> Iterator[Budget]:
    """The budget in each of some formats that is smaller and applies to the model's shapes."""
    own = budget.format.weigh(budget.model).total
    for name in (one.format for one in names):
        if name == budget.format.name:
            continue
        smaller = replace(budget, format=formats.get(name))
        try:
            weights = smaller.format.weigh(budget.model).total
            for way in _planned_for(smaller):
                prepared(way)
        except formats.FormatError:
            continue
        if weights < own:
            yield smaller


def _planned_for(budget: Budget) -> tuple[Budget, ...]:
    """The budget; where another engine reads its weights, the same for that engine too: both must fit."""
    if not _is_foreign(budget):
        return (budget,)
    other = gguf_engine()
    dtype = budget.kv_cache_dtype if kv.get(budget.kv_cache_dtype).engine in ("any", other.kv) else "fp16"
    engine = replace(budget.engine, name=other.name, max_num_batched_tokens=other.batched_tokens, options={})
    return budget, replace(budget, engine=engine, kv_cache_dtype=dtype)


def _with_small_cache(budget: Budget) -> Budget:
    """The budget with its engine's 8-bit KV cache; itself where there is none, or none that is smaller."""
    name = kind_of(budget.engine.name).small_cache
    if not name or _is_foreign(budget):
        return budget
    small = replace(budget, kv_cache_dtype=name)
    try:
        return small if kv_request(small, budget.ctx) < kv_request(budget, budget.ctx) else budget
    except formats.FormatError:
        return budget


def _is_foreign(budget: Budget) -> bool:
    """Whether another engine reads these weights: it has no cache dtypes of this one."""
    other = gguf_engine()
    return budget.engine.name != other.name and budget.format.name in foreign_formats()


def _cache_text(budget: Budget) -> str:
    return f"{'an' if budget.kv_cache_dtype.startswith('fp8') else 'a'} {budget.kv_cache_dtype} KV cache"


def _weights_text(budget: Budget) -> str:
    """``fp8 weights``; what another engine reads says so."""
    return f"{budget.format.name} weights{f' (GGUF, for {gguf_engine().title})' if _is_foreign(budget) else ''}"
