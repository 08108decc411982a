"""How much a budget takes and how much would fit: integers alone, and fast, for searches.

`membudget.planning.ledger` says the same line by line, with reasons.
"""

from __future__ import annotations

from collections.abc import Callable

from membudget.budgets.budget import Budget
from membudget.engines.llama_cpp.cells import SlotBytes
from membudget.engines.transformers import activations
from membudget.formats import kv
from membudget.units import short

#: No search looks further; a plan beyond is memory without a model to use it.
MAX_CTX = 2**30
MAX_USERS = 2**24


def held(budget: Budget) -> tuple[Budget, ...]:
    """What one rank of each pipeline stage holds, as budgets of one machine; the budget itself where it names one.

    Raises `membudget.engines.vllm.parallel.ranks.RankError` for a layout that vLLM refuses or that is not known.
    """
    if budget.machines == 1:
        return (budget,)
    from membudget.engines.vllm.parallel.ranks import stages

    found = stages(budget.model, budget.format, budget.tensor_parallel, budget.pipeline_parallel)
    one = budget._replace(machines=1, tensor_parallel=1, pipeline_parallel=1)
    return tuple(one._replace(model=stage.model) for stage in found)


def user_cache(budget: Budget) -> kv.KvBytes | SlotBytes:
    """What one user's cache takes by its tokens: what a sequence keeps, of llama.cpp the cells of a slot.

    Raises `membudget.engines.llama_cpp.cells.CacheCellsError` where llama.cpp's cells are not known for the model.
    """
    if budget.engine.name != "llama_cpp":
        return kv.cache(budget.model, budget.kv_cache_dtype)
    from membudget.engines.llama_cpp.cells import slot

    return slot(budget.model, budget.kv_cache_dtype, budget.engine.max_num_batched_tokens)


def kv_request(budget: Budget, ctx: int) -> int:
    """Bytes that one user's cache of `ctx` tokens takes."""
    return user_cache(budget).bytes(ctx)


def kv_read(budget: Budget) -> int:
    """Bytes of all users' caches that one decode step cannot do without: of llama.cpp's cells those of tokens."""
    cache = user_cache(budget)
    each = cache.bytes(budget.ctx) if isinstance(cache, kv.KvBytes) else cache.read(budget.ctx)
    return each * budget.users


def kv_growth(budget: Budget, position: int) -> int:
    """Bytes that token number `position` adds to one user's cache; of llama.cpp those of its cell."""
    return user_cache(budget).per_token(position)


def activation_peak(budget: Budget, ctx: int, users: int) -> activations.Peak:
    """The larger of a decode step for all users and one prefill step."""
    engine, width = budget.engine, activation_width(budget)
    tokens, sequences = _step(budget, ctx, users)
    prefill = activations.prefill(
        budget.model, tokens, sequences=sequences, attention=engine.attention, logits=engine.logits, width=width
    )
    return max(prefill, activations.decode(budget.model, users, width), key=lambda peak: peak.bytes)


def activation_width(budget: Budget) -> int:
    """Bytes of an activation's element."""
    return 4 if budget.format.name == "fp32" else 2


def _step(budget: Budget, ctx: int, users: int) -> tuple[int, int]:
    """(tokens, sequences) of the largest prefill step."""
    if budget.engine.name == "transformers":
        # A plain forward takes every prompt at once.
        return ctx * users, users
    return budget.engine.max_num_batched_tokens, 1


def engine_limit(budget: Budget) -> int | None:
    """Bytes that the engine may claim by gpu_memory_utilization, None if there is no such limit."""
    share = budget.engine.gpu_memory_utilization
    return None if share is None else int(_shared_memory(budget) * share)


def _shared_memory(budget: Budget) -> int:
    """Bytes that a gpu_memory_utilization is a share of."""
    total = budget.machine.cuda_total if budget.convention == "reported" else None
    return total or budget.capacity


def share_room(budget: Budget) -> int | None:
    """What the engine's claim leaves of the memory beside the operating system's part; None where nothing bounds it.

    The engine claims its share whatever the users, so less than 0 does not fit, whatever the users.
    """
    claim = engine_limit(budget)
    return None if claim is None or not budget.os_bytes else budget.capacity - budget.os_bytes - claim


def takes_the_systems(budget: Budget) -> bool:
    """Whether gpu_memory_utilization claims what the operating system is left."""
    room = share_room(budget)
    return room is not None and room < 0


def share_that_leaves(budget: Budget) -> float | None:
    """The largest gpu_memory_utilization, in hundredths, that leaves the operating system its part; None for none."""
    hundredths = (budget.capacity - budget.os_bytes) * 100 // _shared_memory(budget)
    return min(hundredths, 100) / 100 if hundredths > 0 else None


def share_text(budget: Budget) -> str:
    """What a gpu_memory_utilization that `takes_the_systems` takes, in one sentence."""
    claim = engine_limit(budget) or 0
    return (
        f"gpu_memory_utilization {budget.engine.gpu_memory_utilization} claims {short(claim)} of "
        f"{short(budget.capacity)} and leaves {short(max(budget.capacity - claim, 0))} of the operating system's "
        f"{short(budget.os_bytes)}"
    )


def limit_text(budget: Budget, machine: bool = True) -> str:
    """The memory that counts, in words; machine: also where it is the machine's own."""
    limit = engine_limit(budget)
    if limit is not None and limit + budget.os_bytes < budget.capacity:
        given = f"gpu_memory_utilization {budget.engine.gpu_memory_utilization} gives {budget.engine.name}"
        return f"the {short(limit)} that {given} on {budget.machine.name}"
    return f"the {short(budget.capacity)} of {budget.machine.name}" if machine else short(budget.capacity)


def headroom(budget: Budget, total: int) -> int:
    """What is left of the memory, or of what the engine may claim, when `total` bytes are taken.

    Where the claim itself takes what the operating system is left, what is missing of that is missing here.
    """
    left = budget.capacity - total
    limit = engine_limit(budget)
    if limit is None:
        return left
    left = min(left, limit - (total - budget.os_bytes))
    room = share_room(budget)
    # room beside the claim is not the engine's to use: it says nothing about what is left of the claim
    return left if room is None or room >= 0 else min(left, room)


def left_over(budget: Budget) -> Callable[[int, int], int]:
    """The headroom as a function of (ctx, users): what `predict` finds, without its lines; of the tightest rank."""
    parts = [_left_over(part) for part in held(budget)]
    return lambda ctx, users: min([part(ctx, users) for part in parts])


def _left_over(budget: Budget) -> Callable[[int, int], int]:
    engine, width, model = budget.engine, activation_width(budget), budget.model
    overhead = sum(budget.overhead.values())
    held = budget.format.weigh(model).total + overhead
    capacity, limit = budget.capacity - budget.os_bytes - held, engine_limit(budget)
    room = capacity if limit is None else min(capacity, limit - held)
    request = user_cache(budget).bytes
    wide, attention, logits = activations.widths(model), engine.attention, engine.logits
    per_user = activations.decode_bytes(wide, 1, width)

    def left(ctx: int, users: int) -> int:
        step = activations.prefill_bytes(wide, *_step(budget, ctx, users), attention, logits, width)
        return room - request(ctx) * users - max(step, per_user * users)

    beside = share_room(budget)
    if beside is None or beside >= 0:
        return left
    return lambda ctx, users: min(left(ctx, users), beside)


def total_of(budget: Budget) -> int:
    """Bytes of all four buckets."""
    return (
        budget.format.weigh(budget.model).total
        + kv_request(budget, budget.ctx) * budget.users
        + activation_peak(budget, budget.ctx, budget.users).bytes
        + sum(budget.overhead.values())
        + budget.os_bytes
    )


def fits(budget: Budget) -> bool:
    """Whether everything fits."""
    return left_over(budget)(budget.ctx, budget.users) >= 0


def max_users(budget: Budget) -> int:
    """The most users that fit at the budget's context, 0 if none."""
    left, ctx = left_over(budget), budget.ctx
    return largest(lambda users: left(ctx, users), MAX_USERS, budget.users)


def max_ctx(budget: Budget) -> int:
    """The longest context that fits for the budget's users, 0 if none; not capped by the model's own."""
    left, users = left_over(budget), budget.users
    step = 1
    if budget.engine.name == "llama_cpp":
        from membudget.engines.llama_cpp.cells import PAD

        step = PAD  # contexts between two steps take as much as the upper one
    near = -(-budget.ctx // step)
    return step * largest(lambda steps: left(steps * step, users), MAX_CTX // step, near)


def largest(left: Callable[[int], int], most: int, near: int) -> int:
    """The largest n in [0, most] for which left(n) >= 0, given that left falls; 0 if not even 1.

    near: where the slope is taken, 1 or more.  On a straight line that slope leads to the answer at once; else
    the search goes from there in steps that double, and halves what is between.
    """
    if left(1) < 0:
        return 0
    here = left(near)
    slope = here - left(near + 1)
    middle = min(max(near + here // slope if slope else near, 2), most)  # 1 fits already
    step, low, high = 1, 1, most + 1  # low fits; high does not, or nobody looks there
    while high - low > 1:
        if not low < middle < high:
            middle = (low + high) // 2
        if left(middle) >= 0:
            low, middle = middle, middle + step
        else:
            high, middle = middle, middle - step
        step *= 2
    return low
