"""vLLM as an engine: what its start leaves for the pool, the pool in blocks, its start rules, its scheduler's users.

    requested - weights - activation - non_torch - CUDA graphs      `profile`
    -> blocks                                                       `pool`
    -> starts, users                                                `admission`

`membudget pool` shows the details of this same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from membudget.budgets.settings import Settings
from membudget.data.defaults import DEFAULT_OVERHEAD, DRAWN, MAX_CTX
from membudget.engines import share
from membudget.engines.base import Answer, Bucket, Limit, Line, Load, Note, Prepared, Rank, Refusal, sums_of
from membudget.engines.search import largest
from membudget.engines.vllm import command
from membudget.engines.vllm.admission import Binds, StartQuestion, Users, runs, starts, users
from membudget.engines.vllm.admission.users import OLDEST
from membudget.engines.vllm.parallel import layouts
from membudget.engines.vllm.pool.plan import plan_pool
from membudget.engines.vllm.pool.result import Pool
from membudget.engines.vllm.profile import Available, Estimate, RankAvailable, available
from membudget.engines.vllm.profile.defaults import steps
from membudget.engines.vllm.profile.loaded_weights import ranks as loaded
from membudget.engines.vllm.settings import SettingsError, VllmSettings, vllm_settings
from membudget.formats import Format, kv
from membudget.machines import Machine
from membudget.model import Model
from membudget.model.length import longest as model_longest
from membudget.units import both

#: Plans that are kept on a model.
MOST_KEPT = 32
#: Contexts above this make no other profile run: the most tokens of a step, and of a video.
_FAR = 16_384
#: The bucket of each part of a start.
_BUCKETS = {
    "weights": Bucket.WEIGHTS,
    "drafter": Bucket.WEIGHTS,
    "activation": Bucket.ACTIVATIONS,
    "non_torch": Bucket.OVERHEAD,
    "cuda_graphs": Bucket.OVERHEAD,
}


@dataclass(frozen=True)
class Start:
    """One start of vLLM for requests of one length."""

    #: What was profiled, and the parts of every pipeline stage as they count here.
    profiled: Available
    parts: tuple[tuple[Estimate, ...], ...]
    #: Bytes for the pool of every pipeline stage, and the same at the low end of what is bounded.
    stages: tuple[int, ...]
    low: tuple[int, ...]
    pool: Pool

    @property
    def least(self) -> int:
        """The pipeline stage with the fewest blocks."""
        return min(
            range(len(self.stages)),
            key=lambda at: self.stages[at] // self.pool.stages[at] if self.pool.stages[at] else self.stages[at],
        )


@dataclass(frozen=True)
class VllmDetails:
    """What vLLM's answer is made of."""

    start: Start
    served: Users
    settings: VllmSettings

    @property
    def version(self) -> str:
        """Whose rules these are."""
        return self.settings.rules.name

    def as_json(self) -> dict[str, Any]:
        """The pool by `Pool.as_json`, the parts that left it, and what binds the users."""
        profiled = self.start.profiled
        return {
            **self.start.pool.as_json(),
            "gpu_memory_utilization": self.settings.utilization,
            "max_num_seqs": profiled.steps.sequences,
            "requested": profiled.part("requested").bytes,
            "parts": [
                {"name": part.name, "bytes": part.bytes, "low": part.low, "high": part.high, "why": part.why}
                for part in self.start.parts[self.start.least]
            ],
            "users": self.served.users,
            "binds": self.served.binds.value,
            "users_exact": self.served.exact,
        }


class VllmPlan:
    """One model on one machine, or on one device of several, asked of many loads."""

    def __init__(self, model: Model, weights: Format, machine: Machine, settings: Settings) -> None:
        self.model, self.weights, self.machine, self.settings = model, weights, machine, settings
        self.asked = vllm_settings(settings, model, weights, machine)
        self.share = settings._replace(gpu_memory_utilization=self.asked.utilization)
        self._towers = any(tensor.role in ("vision", "audio") for tensor in model.tensors)
        self._profiled: dict[tuple[int, int, int], Available] = {}
        self._starts: dict[int, Start] = {}
        self._served: dict[tuple[int, bool], Users] = {}
        self._refused: dict[int, tuple[Refusal, ...]] = {}
        self._runs: dict[tuple[int, int], bool] = {}
        self.profiled(_FAR)  # a layout that is refused is refused here

    def profiled(self, ctx: int) -> Available:
        """What a start for requests of `ctx` tokens leaves."""
        length = min(ctx, _FAR)
        asked = self.asked.profile(length)
        taken = steps(self.model, self.machine, asked, self.asked.rules)
        key = (taken.sequences, taken.tokens, length if self._towers else 0)
        found = self._profiled.get(key)
        if found is None:
            found = available(self.model, self.weights, self.machine, asked, self.asked.rules.name)
            self._profiled[key] = found
        return found

    def length(self, ctx: int) -> int:
        """max_model_len: as given, else the plan's context."""
        return self.asked.max_model_len or ctx

    def start(self, ctx: int) -> Start:
        """The start for requests of `ctx` tokens."""
        length = self.length(ctx)
        found = self._starts.get(length)
        if found is None:
            profiled = self.profiled(length)
            parts = tuple(self._parts(rank) for rank in profiled.ranks)
            requested = profiled.part("requested")
            stages = tuple(requested.bytes - sum(part.bytes for part in each) for each in parts)
            low = tuple(size - (rank.bytes - rank.low) for size, rank in zip(stages, profiled.ranks, strict=True))
            found = self._starts[length] = Start(profiled, parts, stages, low, self._pool(stages, length, profiled))
        return found

    def _pool(self, stages: tuple[int, ...], length: int, profiled: Available) -> Pool:
        tokens = profiled.steps.tokens
        return plan_pool(self.asked.request(self.model, self.machine, list(stages), length, tokens))

    def _parts(self, rank: RankAvailable) -> tuple[Estimate, ...]:
        """What is subtracted on a rank: a budget's own overhead in place of what is assumed, a drafter's weights."""
        given = self.settings.overhead
        found = []
        for part in rank.parts[1:]:
            if part.name in ("non_torch", "cuda_graphs") and given is not DEFAULT_OVERHEAD:
                graphs = given.get("cuda_graphs", 0)
                size = graphs if part.name == "cuda_graphs" else sum(given.values()) - graphs
                part = Estimate(part.name, size, size, size, f"{both(size)} as the budget says", "the budget")
            found.append(part)
        drafter = self._drafter(rank)
        return (*found, *drafter)

    def _drafter(self, rank: RankAvailable) -> tuple[Estimate, ...]:
        """The weights of what drafts: on the last stage, and of MTP layers as the file stores them."""
        asked, drafter = self.asked, self.asked.drafter
        if drafter is None or rank.stage != len(self._profiled_ranks()) - 1:
            return ()
        if drafter.draft_model is not None:
            from membudget.formats import of_config

            form = of_config(drafter.draft_model.config)
            size = loaded(drafter.draft_model, form, self.machine, asked.profile(_FAR), asked.rules.version)
            return (replace(size[-1].weights, name="drafter"),)
        heads = [tensor for tensor in self.model.tensors if tensor.role == "mtp"]
        if not drafter.draft_layers or not heads:
            return ()
        size_all = sum(self.weights.layout(tensor, self.model).nbytes * tensor.copies for tensor in heads)
        least = -(-size_all // asked.tp)
        why = f"{size_all:,} B of MTP layers over {asked.tp} ranks"
        return (Estimate("drafter", least, least, size_all, why, "config.json; what ranks share is not read"),)

    def _profiled_ranks(self) -> tuple[RankAvailable, ...]:
        return next(iter(self._profiled.values())).ranks

    def served(self, ctx: int, *, steps: bool = True) -> Users:
        """How many requests of `ctx` tokens run at once.  steps: by the scheduler's steps, else in the worst case."""
        key = (ctx, steps)
        found = self._served.get(key)
        if found is None:
            found = self._served[key] = self._users(self.start(ctx).pool, ctx, steps)
        return found

    def _users(self, pool: Pool, ctx: int, steps: bool) -> Users:
        taken, drafter = self.start(ctx).profiled.steps, self.asked.drafter
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

    def refusals(self, ctx: int) -> tuple[Refusal, ...]:
        """Why vLLM does not start with requests of `ctx` tokens; empty where it does."""
        found = self._refused.get(ctx)
        if found is None:
            found = self._refused[ctx] = self._refusals(ctx)
        return found

    def _refusals(self, ctx: int) -> tuple[Refusal, ...]:
        start, length, given = self.start(ctx), self.length(ctx), self.asked.given
        found = []
        if self.machine.platform == "metal":
            found.append(Refusal("no_metal", f"vLLM has no Metal, as {self.machine.name} needs", "llama.cpp"))
        question = StartQuestion(
            self.model.config,
            max_model_len=length,
            max_num_batched_tokens=start.profiled.steps.tokens,
            max_num_seqs=start.profiled.steps.sequences,
            tp=self.asked.tp,
            dcp=self.asked.dcp,
            expert_parallel=bool(given.get("enable_expert_parallel")),
            chunked_prefill=given.get("enable_chunked_prefill", True),
            total=start.profiled.total.bytes,
            utilization=self.asked.utilization,
            kv_cache_memory_bytes=self.asked.kv_cache_memory_bytes,
            full_graphs=not given.get("enforce_eager") and self.machine.platform != "cpu",
        )
        for each in starts(question, start.pool, self.asked.rules):
            remedy = "; or ".join(" ".join(command.flag(name, value)) for name, value in each.remedies)
            found.append(Refusal(each.code, each.text, remedy, each.remedies))
        return tuple(found)

    def barred(self, ctx: int) -> bool:
        """Whether no number of users helps: vLLM refuses to start, or its claim leaves the OS less than os_reserve."""
        return bool(self.refusals(ctx)) or self._takes_reserve

    @property
    def _takes_reserve(self) -> bool:
        return self.asked.kv_cache_memory_bytes is None and share.takes_reserve(self.machine, self.share)

    def held(self, ctx: int) -> int:
        """Blocks that one request holds while it decodes at `ctx` tokens, at most."""
        pool, served = self.start(ctx).pool, self.served(ctx, steps=False)
        if served.held or not pool.groups:
            return served.held
        return self._users(pool._replace(starts=True, num_blocks=max(pool.num_blocks, 2)), ctx, False).held

    def serves(self, ctx: int, users: int) -> bool:
        """Whether so many requests run at once, by the scheduler's steps where they are known."""
        exact = self._served.get((ctx, True))
        worst = self.served(ctx, steps=False)
        if exact is not None or not self.stepped or (worst.users == 0 and worst.binds is Binds.START):
            return users <= (exact or worst).users
        key, taken = (ctx, users), self.start(ctx).profiled.steps
        found = self._runs.get(key)
        if found is None:
            found = self._runs[key] = runs(
                self.start(ctx).pool,
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
        pool, held = self.start(ctx).pool, self.held(ctx)
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

    def fits(self, ctx: int, users: int) -> bool:
        """Whether vLLM starts and runs so many requests at once."""
        if ctx > self.length(ctx) or self.refusals(ctx):
            return False
        return self.headroom(ctx, users) >= 0 and self.serves(ctx, users)

    def headroom(self, ctx: int, users: int) -> int:
        """Bytes of the pool that are left over, on the stage with the fewest blocks; negative where they are short."""
        return self._headroom(ctx, users, self.start(ctx).least)

    def _headroom(self, ctx: int, users: int, at: int) -> int:
        start = self.start(ctx)
        fixed = self.asked.kv_cache_memory_bytes
        size = start.stages[at] if fixed is None else fixed
        left = size - self.blocks(ctx, users) * start.pool.stages[at]
        if fixed is not None:  # the pool is made whatever is left: it must be there
            total = start.profiled.total.bytes - self.machine.os_reserve
            left = min(left, total - sum(part.bytes for part in start.parts[at]) - fixed)
        beside = share.room_beside(self.machine, self.share)
        return left if beside is None or beside >= 0 or fixed is not None else min(left, beside)

    def total(self, ctx: int, users: int) -> int:
        """Bytes of all buckets."""
        start = self.start(ctx)
        at = start.least
        used = sum(part.bytes for part in start.parts[at]) + self.blocks(ctx, users) * start.pool.stages[at]
        return used + self.machine.os_reserve

    def request(self, ctx: int) -> int:
        """Bytes of the blocks that one request holds."""
        if ctx < 1:
            return 0
        start = self.start(ctx)
        return self.held(ctx) * start.pool.stages[start.least]

    @property
    def claimed(self) -> float | None:
        """The share of the device that is claimed; None where the pool's size is fixed."""
        return None if self.asked.kv_cache_memory_bytes is not None else self.asked.utilization

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.profiled(_FAR).steps.tokens

    @property
    def bends(self) -> tuple[int, ...]:
        """Contexts from which on fewer layers grow, in tokens."""
        return self._tokens(self.model).bends

    def _tokens(self, part: Model) -> kv.KvBytes:
        return kv.get(self.settings.kv_cache_dtype, engine="vllm").of(part)

    def users(self, ctx: int, near: int = 1) -> int:
        """The most requests of `ctx` tokens that run at once, 0 for none."""
        return 0 if ctx > self.length(ctx) or self.barred(ctx) else self.served(ctx).users

    def longest(self, users: int, near: int = 1) -> int:
        """A context at which so many requests surely run at once, 0 for none: the longest by the worst case."""
        most = min(self.asked.max_model_len or MAX_CTX, model_longest(self.model.config, self.asked.rules.version).most)

        def left(ctx: int) -> int:
            if ctx > self.length(ctx) or self.barred(ctx):
                return -1
            return self.served(ctx, steps=False).users - users

        found = largest(left, most, min(near, most))
        while found and not self.serves(found, users):
            found -= max(found // 32, 1)
        if near > found and near <= most and self.fits(near, users):
            return near
        return found

    def answer(self, load: Load) -> Answer:
        """All of it."""
        ctx = load.ctx
        if ctx > self.length(ctx):
            raise SettingsError(
                f"ctx {ctx:,} is more than max_model_len {self.length(ctx):,}: vLLM takes no such request"
            )
        start, refused, served = self.start(ctx), self.refusals(ctx), self.served(ctx)
        at, pool = start.least, start.pool
        lines, headroom = self.lines(load, at), self._headroom(ctx, load.users, at)
        low = self._low(ctx, load.users, at)
        fits = not refused and headroom >= 0 and served.users >= load.users
        token, more = self._each(ctx, at)
        fixed = self.asked.kv_cache_memory_bytes
        limit = start.profiled.part("requested").bytes
        if fixed is not None:
            limit = sum(part.bytes for part in start.parts[at]) + fixed
        return Answer(
            load=load,
            lines=lines,
            headroom=headroom,
            limiting=None if fits else self._limiting(load, lines, limit, headroom),
            limit=limit,
            claimed=self.claimed,
            starts=refused,
            users=0 if self.barred(ctx) else served.users,
            longest=self.longest(load.users, ctx),
            request=self.request(ctx),
            token=token,
            token_at_ctx=more,
            read=self._read(load),
            headroom_low=None if low is None else low[0],
            users_low=None if low is None else low[1],
            concurrency=None if refused else pool.max_concurrency,
            command="" if refused else command.serve(self.model, self.weights, self.asked, self.settings, ctx),
            notes=self._notes(start),
            ranks=self._ranks(load),
            details=VllmDetails(start, served, self.asked),
        )

    def lines(self, load: Load, at: int) -> tuple[Line, ...]:
        """Every part of every bucket of one pipeline stage, in bytes."""
        start, found = self.start(load.ctx), []
        for part in start.parts[at]:
            bucket = _BUCKETS[part.name]
            name = self.weights.name if part.name == "weights" else part.name
            low, high = (None, None) if part.low == part.high else (part.low, part.high)
            found.append(Line(bucket, name, part.bytes, part.why, low, high, part.source))
        blocks, held, wide = self.blocks(load.ctx, load.users), self.held(load.ctx), start.pool.stages[at]
        why = (
            f"{load.users:,} users x {held:,} blocks of {wide:,} bytes at {load.ctx:,} tokens; "
            f"the pool has {start.pool.num_blocks:,} blocks"
        )
        found.append(Line(Bucket.KV_CACHE, self.settings.kv_cache_dtype, blocks * wide, why))
        if self.machine.os_reserve:
            why = f"{both(self.machine.os_reserve)} left to the operating system"
            found.append(Line(Bucket.OVERHEAD, "os_reserve", self.machine.os_reserve, why))
        order = list(Bucket)
        return tuple(sorted(found, key=lambda line: order.index(line.bucket)))

    def _low(self, ctx: int, users: int, at: int) -> tuple[int, int] | None:
        """(bytes left over, users) where everything that is bounded is at its worst; None where nothing is."""
        start = self.start(ctx)
        if self.asked.kv_cache_memory_bytes is not None or start.low == start.stages:
            return None
        pool = self._pool(start.low, self.length(ctx), start.profiled)
        most = self._users(pool, ctx, False).users if pool.starts else 0
        return start.low[at] - self.blocks(ctx, users) * pool.stages[at], most

    def _each(self, ctx: int, at: int) -> tuple[int, int]:
        """Bytes that a request's first token takes in the pool's pages, and one more at the full context."""
        if self.asked.pp > 1:
            tokens = self._tokens(self._stage_model(at))
            return tokens.per_token(1), tokens.per_token(ctx + 1)
        first = more = 0
        for group in self.start(ctx).pool.groups:
            if group.kind in ("mamba", "cross"):
                continue
            size = group.page_size * (1 if group.mixed else group.layers) // group.block_size
            first += size
            more += 0 if group.window and ctx + 1 > group.window else size
        return first, more

    def _stage_model(self, at: int) -> Model:
        return loaded(self.model, self.weights, self.machine, self.asked.profile(_FAR), self.asked.rules.version)[
            at
        ].model

    def _read(self, load: Load) -> int:
        """Bytes that one decode step reads: active weights once, every user's tokens once."""
        read = 0
        for at in range(len(self.start(load.ctx).stages)):
            part = self._stage_model(at) if self.asked.tp * self.asked.pp > 1 else self.model
            read += self.weights.weigh(part).active + self._tokens(part).bytes(load.ctx) * load.users
        return read

    def _limiting(self, load: Load, lines: tuple[Line, ...], limit: int, headroom: int) -> Bucket | Limit:
        if self._takes_reserve:
            return Limit.SHARE
        sums, running = sums_of(lines), -self.machine.os_reserve
        for name in DRAWN:
            running += sums[name]
            if running > limit:
                return Bucket(name)
        if headroom < 0:
            return Bucket.KV_CACHE
        crowded = self.crowded(load.ctx, load.users)
        return Limit.START if self.refusals(load.ctx) or crowded is None else crowded

    def _ranks(self, load: Load) -> tuple[Rank, ...]:
        tp, start = self.asked.tp, self.start(load.ctx)
        if tp * self.asked.pp == 1:
            return ()
        held = loaded(self.model, self.weights, self.machine, self.asked.profile(_FAR), self.asked.rules.version)
        found = []
        for at, part in enumerate(held):
            lines, headroom = self.lines(load, at), self._headroom(load.ctx, load.users, at)
            limit = start.profiled.part("requested").bytes
            short = None if headroom >= 0 else self._limiting(load, lines, limit, headroom)
            layers = [spec.layer for spec in part.model.caches]
            span = (min(layers), max(layers) + 1) if layers else (0, 0)
            found += [Rank(at * tp + place, at, place, span, part.model, lines, headroom, short) for place in range(tp)]
        return tuple(found)

    def _notes(self, start: Start) -> tuple[Note, ...]:
        found = [Note(code, text) for code, text in start.profiled.notes]
        if self.asked.lowered:
            own = self.asked.rules.utilization / 100
            found.append(
                Note(
                    "share_lowered",
                    f"{self.machine.name}: memory is the system's too, so the plan assumes "
                    f"--gpu-memory-utilization {self.asked.utilization:g} in place of vLLM's own {own:g}",
                )
            )
        return tuple(found)


class Vllm:
    """vLLM."""

    name = "vllm"

    def prepare(self, model: Model, weights: Format, machine: Machine, settings: Settings) -> Prepared:
        """Weigh a model once; kept on the model for the last questions.

        Raises `MembudgetError` for a format or dtype that does not apply, a pool that is not known, flags that
        contradict each other, and layouts that vLLM refuses.
        """
        sizes = (settings.kv_cache_dtype, settings.tensor_parallel, settings.pipeline_parallel)
        overhead = (settings.overhead is DEFAULT_OVERHEAD, tuple(settings.overhead.items()))
        told = repr(sorted(settings.options.items()))
        step, part = settings.max_num_batched_tokens, settings.gpu_memory_utilization
        key = (weights.key, machine, step, part, sizes, told, overhead)
        plans: dict[object, VllmPlan] = model.memo.setdefault("vllm", {})
        if key not in plans:
            while len(plans) >= MOST_KEPT:
                plans.pop(next(iter(plans)))
            plans[key] = VllmPlan(model, weights, machine, settings)
        return plans[key]

    def ask(self, model: Model, weights: Format, machine: Machine, settings: Settings, load: Load) -> Answer:
        """`prepare`, then the answer."""
        return self.prepare(model, weights, machine, settings).answer(load)

    def advice(self, model: Model, weights: Format, settings: Settings) -> str:
        """The sizes that vLLM takes for this model."""
        return layouts.advice(model, weights, settings.tensor_parallel, settings.pipeline_parallel)


ENGINE = Vllm()
