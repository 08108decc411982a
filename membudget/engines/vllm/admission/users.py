"""How many requests of `ctx` tokens vLLM runs at once without preemption: `users`.

The closed rule: every decoding request holds its full blocks, its windows and its states; the
last one to join needs its prompt's blocks beside them.  Where the rule's worst case and what
the scheduler does could differ by a request (requests take their blocks at different steps),
`schedule.serves` decides: the scheduler's steps in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from membudget.engines.vllm.admission.schedule import ANSWER, Holding, Run, cdiv, serves
from membudget.engines.vllm.pool.result import Pool, PoolGroup
from membudget.engines.vllm.versions import Rules
from membudget.errors import MembudgetError

#: The oldest version whose scheduler was read and run.
OLDEST = (0, 20, 1)


class UsersError(MembudgetError):
    """A request longer than max_model_len, or a setting that is not a number."""


class Binds(Enum):
    """What keeps one more request out."""

    BLOCKS = "blocks"  # the requests' own blocks, all decoding
    PREFILL = "prefill"  # the blocks of one more prompt, beside the requests that decode
    SEQUENCES = "max_num_seqs"
    TOKENS = "max_num_batched_tokens"  # a step decodes a token of each
    START = "start"  # vLLM does not start


@dataclass(frozen=True)
class Users:
    """How many requests run at once.

    users: the largest number that decodes together with no preemption.
    binds: what keeps one more out.
    blocks: of the pool, without the null block.
    held: blocks that one request holds while it decodes at `ctx` tokens, at most.
    joining: blocks that the last prompt needs beside the others, at most.
    exact: whether the scheduler's steps decided; otherwise `users` is what fits in the worst case.
    """

    users: int
    binds: Binds
    blocks: int
    held: int
    joining: int
    exact: bool

    @property
    def why(self) -> str:
        """One sentence: the blocks of a request, of the pool, and what binds."""
        text = f"{self.users:,} at once: {self.held:,} of {self.blocks:,} blocks a request"
        if self.binds is Binds.START:
            return "0 at once: vLLM does not start"
        if self.binds is Binds.SEQUENCES:
            return f"{self.users:,} at once: max_num_seqs"
        if self.binds is Binds.TOKENS:
            return f"{self.users:,} at once: a step of max_num_batched_tokens decodes one token of each"
        if self.binds is Binds.PREFILL:
            return f"{text}, and {self.joining:,} for the prompt of one more"
        return text


def users(
    pool: Pool,
    ctx: int,
    *,
    rules: Rules,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    async_scheduling: bool = True,
    draft_tokens: int = 0,
    dcp: int = 1,
    pp: int = 1,
    answer: int = ANSWER,
    steps: bool = True,
) -> Users:
    """The largest number of `ctx`-token requests that decode together, none preempted, and what binds.

    pool: as `plan_pool` carves it.  draft_tokens: num_speculative_tokens.  dcp, pp: parallel sizes.
    answer: tokens of ctx that a request makes itself (more where it takes longer until the last one has joined).
    steps: False asks what fits in the worst case alone, a lower bound that costs no scheduler's steps.
    The number is exact for one pipeline stage, no drafter and a version since 0.20.1; otherwise
    it is what fits in the worst case (`exact` is False).
    Raises `UsersError` where ctx is not 1 to the pool's max_model_len.
    """
    if not 1 <= ctx <= pool.request_len:
        raise UsersError(f"ctx {ctx} is not 1 to max_model_len {pool.request_len}")
    if max_num_seqs < 1 or max_num_batched_tokens < 1:
        raise UsersError("max_num_seqs and max_num_batched_tokens are 1 or more")
    blocks = pool.num_blocks - 1
    if not pool.starts:
        return Users(0, Binds.START, max(blocks, 0), 0, 0, True)
    if not pool.groups:  # no cache: only the number of sequences binds
        return Users(min(max_num_seqs, max_num_batched_tokens), Binds.SEQUENCES, blocks, 0, 0, True)
    holdings, run = question(
        pool,
        ctx,
        rules=rules,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        async_scheduling=async_scheduling,
        draft_tokens=draft_tokens,
        dcp=dcp,
        answer=answer,
    )
    flight = 1 + draft_tokens if async_scheduling and run.settled else 0
    held = sum(each.count * _held(each, ctx + draft_tokens, flight) for each in holdings)
    joining = sum(each.count * _joining(each, ctx, run) for each in holdings)
    most = min(max_num_seqs, max(max_num_batched_tokens // (1 + draft_tokens) - 1, 1))
    worst = min(blocks // held, 1 + (blocks - joining) // held if blocks >= joining else 0, most)
    exact = steps and pp == 1 and not draft_tokens and rules.version >= OLDEST
    found = _search(holdings, blocks, run, max(worst, 0), most) if exact else max(worst, 0)
    if found >= max_num_seqs:
        binds = Binds.SEQUENCES
    elif found >= most:
        binds = Binds.TOKENS
    else:
        binds = Binds.BLOCKS if (found + 1) * held > blocks else Binds.PREFILL
    return Users(found, binds, blocks, held, joining, exact)


def question(
    pool: Pool,
    ctx: int,
    *,
    rules: Rules,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    async_scheduling: bool = True,
    draft_tokens: int = 0,
    dcp: int = 1,
    answer: int = ANSWER,
) -> tuple[tuple[Holding, ...], Run]:
    """What `schedule.serves` is asked: the groups of a pool by what they hold, and what all requests share."""
    holdings = tuple(_holdings(pool.groups, rules, draft_tokens, dcp))
    aligned = pool.block_size if any(each.kind == "align" for each in holdings) else 0
    return holdings, Run(
        ctx=ctx,
        batched=max_num_batched_tokens,
        seqs=max_num_seqs,
        overlap=async_scheduling,
        settled=rules.version >= (0, 26, 0),
        aligned=aligned,
        gaps=rules.version >= (0, 30, 0),
        replay=rules.version >= (0, 32, 0),
        answer=answer,
    )


def smallest_pool(
    pool: Pool,
    ctx: int,
    n: int,
    *,
    rules: Rules,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    async_scheduling: bool = True,
    answer: int = ANSWER,
) -> int:
    """Blocks of the smallest pool, the null block included, in which n requests of `ctx` tokens run at once.

    Raises `UsersError` where no pool lets them (more than max_num_seqs or max_num_batched_tokens allow).
    """
    holdings, run = question(
        pool,
        ctx,
        rules=rules,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        async_scheduling=async_scheduling,
        answer=answer,
    )
    high = n * sum(each.count * (_held(each, ctx, 1) + _joining(each, ctx, run)) for each in holdings)
    if not serves(holdings, high, n, run):
        raise UsersError(f"{n} requests do not run at once in any pool: max_num_seqs or max_num_batched_tokens")
    low = 0
    while low + 1 < high:
        middle = (low + high) // 2
        if serves(holdings, middle, n, run):
            high = middle
        else:
            low = middle
    return high + 1


def runs(
    pool: Pool,
    ctx: int,
    n: int,
    *,
    rules: Rules,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    async_scheduling: bool = True,
) -> bool:
    """Whether n requests of `ctx` tokens run at once, by the scheduler's steps; `users` asks this many times."""
    holdings, run = question(
        pool, ctx, rules=rules, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens,
        async_scheduling=async_scheduling,
    )  # fmt: skip
    return serves(holdings, pool.num_blocks - 1, n, run)


def _search(holdings: Sequence[Holding], blocks: int, run: Run, start: int, most: int) -> int:
    """The largest number that the scheduler's steps serve: from the worst case on, in steps that double."""
    low, high, step = 0, most + 1, 1
    if start < 1 or serves(holdings, blocks, start, run):
        low = max(start, 0)
        while low + step < high and serves(holdings, blocks, low + step, run):
            low, step = low + step, step * 2
        high = min(low + step, high)
    else:
        high = start
        while high - step > 0 and not serves(holdings, blocks, high - step, run):
            high, step = high - step, step * 2
        low = max(high - step, 0)
    while high - low > 1:
        middle = (low + high) // 2
        if serves(holdings, blocks, middle, run):
            low = middle
        else:
            high = middle
    return low


def _holdings(groups: Sequence[PoolGroup], rules: Rules, draft: int, dcp: int) -> list[Holding]:
    """Groups that hold the same, counted."""
    found: dict[Holding, int] = {}
    for group in groups:
        one = _holding(group, rules, draft, dcp)
        found[one] = found.get(one, 0) + 1
    return [Holding(**{**vars(one), "count": count}) for one, count in found.items()]


def _holding(group: PoolGroup, rules: Rules, draft: int, dcp: int) -> Holding:
    block = group.block_size
    if group.kind in ("full", "mla"):
        return Holding(1, "full", block * dcp)
    if group.kind in ("sliding", "chunked"):
        return Holding(1, group.kind, block, group.window, cap=group.blocks_per_request)
    if group.kind == "cross":
        return Holding(1, "fixed", block, fixed=group.blocks_per_request)
    if group.mode == "align":
        return Holding(1, "align", block, spare=draft, checkpoint=group.fixed > 2 + draft)
    if group.mode == "all":  # one state a block of the prompt, freed behind the last computed token
        return Holding(1, "sliding", block, 2, spare=draft)
    return Holding(1, "fixed", block, fixed=max(group.fixed, 1))


def _held(each: Holding, tokens: int, flight: int) -> int:
    """Blocks of one group while a request of `tokens` decodes, at most; `flight`: tokens not settled."""
    if each.kind == "fixed":
        return each.fixed
    full = cdiv(tokens, each.block) + each.spare
    if each.kind == "full":
        return full
    if each.kind == "align":
        return min(full, 1 + each.spare)
    if each.kind == "chunked":
        return min(full, cdiv(each.window + flight, each.block) + 1)
    return min(full, cdiv(each.window + flight - 1, each.block) + 1 + each.spare)


def _joining(each: Holding, tokens: int, run: Run) -> int:
    """Blocks of one group that a prompt of up to `tokens` asks on its way in, at most."""
    if each.kind == "fixed":
        return each.fixed
    full = cdiv(tokens, each.block) + each.spare
    if each.kind == "align":
        return min(full, 2 + each.spare + int(run.overlap) + int(each.checkpoint))
    return full if each.cap is None else min(full, each.cap)
