"""How many requests run at once on the pool of a start, and the blocks that they hold."""

from __future__ import annotations

from membudget.engines.base import Limit
from membudget.engines.vllm.admission import Binds, Users, runs, users
from membudget.engines.vllm.admission.users import OLDEST
from membudget.engines.vllm.pool.result import Pool
from membudget.engines.vllm.start import Starts


class Serving:
    """The scheduler on the pools of `Starts`; every question is asked once."""

    def __init__(self, starts: Starts) -> None:
        self.starts, self.asked = starts, starts.asked
        self._served: dict[tuple[int, bool], Users] = {}
        self._runs: dict[tuple[int, int], bool] = {}

    def served(self, ctx: int, *, steps: bool = True) -> Users:
        """How many requests of `ctx` tokens run at once.  steps: by the scheduler's steps, else in the worst case."""
        key = (ctx, steps)
        found = self._served.get(key)
        if found is None:
            found = self._served[key] = self.users_of(self.starts.start(ctx).pool, ctx, steps)
        return found

    def users_of(self, pool: Pool, ctx: int, steps: bool) -> Users:
        """The requests of `ctx` tokens that run at once on one pool."""
        taken, drafter = self.starts.start(ctx).profiled.steps, self.asked.drafter
        return users(
            pool,
            ctx,
            rules=self.asked.rules,
            max_num_seqs=taken.sequences,
            max_num_batched_tokens=taken.tokens,
            async_scheduling=self.asked.overlap,
            draft_tokens=drafter.speculative_tokens if drafter else 0,
            dcp=self.asked.dcp,
            pp=self.asked.pp,
            steps=steps,
        )

    def held(self, ctx: int) -> int:
        """Blocks that one request holds while it decodes at `ctx` tokens, at most."""
        pool, served = self.starts.start(ctx).pool, self.served(ctx, steps=False)
        if served.held or not pool.groups:
            return served.held
        return self.users_of(pool._replace(starts=True, num_blocks=max(pool.num_blocks, 2)), ctx, False).held

    def serves(self, ctx: int, users: int) -> bool:
        """Whether so many requests run at once, by the scheduler's steps where they are known."""
        exact = self._served.get((ctx, True))
        worst = self.served(ctx, steps=False)
        if exact is not None or not self.stepped or (worst.users == 0 and worst.binds is Binds.START):
            return users <= (exact or worst).users
        key, taken = (ctx, users), self.starts.start(ctx).profiled.steps
        found = self._runs.get(key)
        if found is None:
            found = self._runs[key] = runs(
                self.starts.start(ctx).pool,
                ctx,
                users,
                rules=self.asked.rules,
                max_num_seqs=taken.sequences,
                max_num_batched_tokens=taken.tokens,
                async_scheduling=self.asked.overlap,
            )
        return found

    @property
    def stepped(self) -> bool:
        """Whether the scheduler's steps are known: one pipeline stage, no drafter, a version that was read."""
        return self.asked.pp == 1 and self.asked.drafter is None and self.asked.rules.version >= OLDEST

    def blocks(self, ctx: int, users: int) -> int:
        """Blocks that so many requests take; more than the pool has where it is blocks that they lack."""
        pool, held = self.starts.start(ctx).pool, self.held(ctx)
        if not pool.groups:
            return 0
        if pool.starts and self.serves(ctx, users):
            return min(users * held, max(pool.num_blocks - 1, 0))
        if pool.starts and self.crowded(ctx, users) is not None:
            return min(users * held, max(pool.num_blocks - 1, 0))
        return max(users * held, pool.num_blocks + 1, 0 if pool.starts else pool.blocks_per_request)

    def crowded(self, ctx: int, users: int) -> Limit | None:
        """Whether it is max_num_seqs or max_num_batched_tokens that keeps so many requests out."""
        served = self.served(ctx, steps=False)
        limits = {Binds.SEQUENCES: Limit.SEQUENCES, Binds.TOKENS: Limit.TOKENS}
        return limits.get(served.binds) if users > served.users else None
