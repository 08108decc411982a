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
from membudget.engines.base import Answer, Bucket, Change, Limit, Line, Load, Note, Prepared, Rank, Refusal, sums_of
from membudget.engines.search import largest
from membudget.engines.vllm import command
from membudget.engines.vllm.admission import Users
from membudget.engines.vllm.parallel import layouts
from membudget.engines.vllm.serving import Serving
from membudget.engines.vllm.settings import SettingsError, VllmSettings
from membudget.engines.vllm.start import Start, Starts
from membudget.formats import Format, FormatError, kv
from membudget.machines import Machine
from membudget.model import Model
from membudget.model.length import longest as model_longest
from membudget.units import both

#: Plans that are kept on a model.
MOST_KEPT = 32
#: The bucket of each part of a start.
_BUCKETS = {
    "weights": Bucket.WEIGHTS,
    "lora": Bucket.WEIGHTS,
    "drafter": Bucket.WEIGHTS,
    "activation": Bucket.ACTIVATIONS,
    "non_torch": Bucket.OVERHEAD,
    "cuda_graphs": Bucket.OVERHEAD,
}


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


def _of_sequences(refused: Refusal) -> bool:
    """Whether a lower max_num_seqs is what lifts a refusal."""
    return any(name == "max_num_seqs" for name, _ in refused.values)


class VllmPlan:
    """One model on one machine, or on one device of several, asked of many loads."""

    def __init__(self, model: Model, weights: Format, machine: Machine, settings: Settings) -> None:
        self.model, self.weights, self.machine, self.settings = model, weights, machine, settings
        self.starts = Starts(model, weights, machine, settings)
        self.serving = Serving(self.starts)
        self.asked = self.starts.asked
        self.share = replace(settings, gpu_memory_utilization=self.asked.utilization)
        #: Data parallel replicas: each has a pool and a scheduler of its own.
        self.replicas = self.asked.dp

    def _on_one(self, users: int) -> int:
        """Of so many users, those of the replica with the most."""
        return -(-users // self.replicas)

    def barred(self, ctx: int) -> bool:
        """Whether no pool of this size serves: vLLM refuses to start, or its claim leaves the OS less than os_reserve.

        A refusal that a lower max_num_seqs lifts is not one: the pool is the same with it, and so is what it serves.
        """
        return any(not _of_sequences(each) for each in self.starts.refusals(ctx)) or self._takes_reserve

    @property
    def _takes_reserve(self) -> bool:
        return self.asked.kv_cache_memory_bytes is None and share.takes_reserve(self.machine, self.share)

    def fits(self, ctx: int, users: int) -> bool:
        """Whether vLLM starts and runs so many requests at once."""
        if ctx > self.starts.length(ctx) or self.starts.refusals(ctx):
            return False
        return self.headroom(ctx, users) >= 0 and self.serving.serves(ctx, self._on_one(users))

    def headroom(self, ctx: int, users: int) -> int:
        """Bytes of the pool that are left over, on the stage with the fewest blocks; negative where they are short."""
        return self._headroom(ctx, users, self.starts.start(ctx).least)

    def _headroom(self, ctx: int, users: int, at: int) -> int:
        start = self.starts.start(ctx)
        fixed = self.asked.kv_cache_memory_bytes
        size = start.stages[at] if fixed is None else fixed
        left = size - self.serving.blocks(ctx, self._on_one(users)) * start.pool.stages[at]
        if fixed is not None:  # the pool is made whatever is left: it must be there
            total = start.profiled.total.bytes - self.machine.os_reserve
            left = min(left, total - sum(part.bytes for part in start.parts[at]) - fixed)
        beside = share.room_beside(self.machine, self.share)
        return left if beside is None or beside >= 0 or fixed is not None else min(left, beside)

    def total(self, ctx: int, users: int) -> int:
        """Bytes of all buckets."""
        start = self.starts.start(ctx)
        at = start.least
        blocks = self.serving.blocks(ctx, self._on_one(users))
        return sum(part.bytes for part in start.parts[at]) + blocks * start.pool.stages[at] + self.machine.os_reserve

    def request(self, ctx: int) -> int:
        """Bytes of the blocks that one request holds."""
        if ctx < 1:
            return 0
        start = self.starts.start(ctx)
        return self.serving.held(ctx) * start.pool.stages[start.least]

    @property
    def claimed(self) -> float | None:
        """The share of the device that is claimed; None where the pool's size is fixed."""
        return None if self.asked.kv_cache_memory_bytes is not None else self.asked.utilization

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.starts.step_tokens

    @property
    def bends(self) -> tuple[int, ...]:
        """Contexts from which on fewer layers grow, in tokens."""
        return self._tokens(self.model).bends

    def _tokens(self, part: Model) -> kv.KvBytes:
        return kv.get(self.settings.kv_cache_dtype, engine="vllm").of(part)

    def users(self, ctx: int, near: int = 1) -> int:
        """The most requests of `ctx` tokens that run at once, 0 for none."""
        return 0 if ctx > self.starts.length(ctx) or self.barred(ctx) else self._served(ctx)

    def _served(self, ctx: int) -> int:
        return self.serving.served(ctx).users * self.replicas

    def longest(self, users: int, near: int = 1) -> int:
        """A context at which so many requests surely run at once, 0 for none: the longest by the worst case."""
        most = min(self.asked.max_model_len or MAX_CTX, model_longest(self.model.config, self.asked.rules.version).most)

        def left(ctx: int) -> int:
            if ctx > self.starts.length(ctx) or self.barred(ctx):
                return -1
            return self.serving.served(ctx, steps=False).users * self.replicas - users

        found = largest(left, most, min(near, most))
        while found and not self.serving.serves(found, self._on_one(users)):
            found -= max(found // 32, 1)
        if near > found and near <= most and self.fits(near, users):
            return near
        return found

    def answer(self, load: Load) -> Answer:
        """All of it."""
        ctx = load.ctx
        if ctx > self.starts.length(ctx):
            raise SettingsError(
                f"ctx {ctx:,} is more than max_model_len {self.starts.length(ctx):,}: vLLM takes no such request"
            )
        start, refused, served = self.starts.start(ctx), self.starts.refusals(ctx), self.serving.served(ctx)
        at, pool = start.least, start.pool
        lines, headroom = self.lines(load, at), self._headroom(ctx, load.users, at)
        low = self._low(ctx, load.users, at)
        fits = not refused and headroom >= 0 and self._served(ctx) >= load.users
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
            users=0 if self.barred(ctx) else self._served(ctx),
            longest=self.longest(load.users, ctx),
            request=self.request(ctx),
            token=token,
            token_at_ctx=more,
            read=self._read(load),
            headroom_low=None if low is None else low[0],
            users_low=None if low is None else low[1],
            concurrency=None if any(not _of_sequences(each) for each in refused) else pool.max_concurrency,
            command="" if refused else command.serve(self.model, self.weights, self.asked, self.settings, ctx),
            notes=self._notes(start),
            ranks=self._ranks(load),
            details=VllmDetails(start, served, self.asked),
        )

    def changes(self, load: Load) -> tuple[Change, ...]:
        """None but what its refusals name."""
        return ()

    def lines(self, load: Load, at: int) -> tuple[Line, ...]:
        """Every part of every bucket of one pipeline stage, in bytes."""
        start, found = self.starts.start(load.ctx), []
        for part in start.parts[at]:
            bucket = _BUCKETS[part.name]
            name = self.weights.name if part.name == "weights" else part.name
            low, high = (None, None) if part.low == part.high else (part.low, part.high)
            found.append(Line(bucket, name, part.bytes, part.why, low, high, part.source))
        users = self._on_one(load.users)
        blocks, held = self.serving.blocks(load.ctx, users), self.serving.held(load.ctx)
        wide = start.pool.stages[at]
        why = (
            f"{users:,} users x {held:,} blocks of {wide:,} bytes at {load.ctx:,} tokens; "
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
        start = self.starts.start(ctx)
        if self.asked.kv_cache_memory_bytes is not None or start.low == start.stages:
            return None
        pool = self.starts.pool_of(start.low, self.starts.length(ctx), start.profiled)
        most = self.serving.users_of(pool, ctx, False).users if pool.starts else 0
        return start.low[at] - self.serving.blocks(ctx, self._on_one(users)) * pool.stages[at], most * self.replicas

    def _each(self, ctx: int, at: int) -> tuple[int, int]:
        """Bytes that a request's first token takes in the pool's pages, and one more at the full context."""
        if self.asked.pp > 1:
            tokens = self._tokens(self.starts.held()[at].model)
            return tokens.per_token(1), tokens.per_token(ctx + 1)
        first = more = 0
        for group in self.starts.start(ctx).pool.groups:
            if group.kind in ("mamba", "cross"):
                continue
            size = group.page_size * (1 if group.mixed else group.layers) // group.block_size
            first += size
            more += 0 if group.window and ctx + 1 > group.window else size
        return first, more

    def _read(self, load: Load) -> int:
        """Bytes that one decode step reads: active weights once, every user's tokens once."""
        read = 0
        for at in range(len(self.starts.start(load.ctx).stages)):
            part = self.starts.held()[at].model
            read += self._active(part) + self._tokens(part).bytes(load.ctx) * self._on_one(load.users)
        return read

    def _active(self, part: Model) -> int:
        """Bytes of the weights that a token reads on a rank; at least its share where kernels pad what they cut."""
        try:
            return self.weights.weigh(part).active
        except FormatError:  # MXFP4: 720 columns are no whole blocks of 32, and the kernel has 768
            return self.weights.weigh(self.model).active // (self.asked.tp * self.asked.pp * self.replicas)

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
        crowded = self.serving.crowded(load.ctx, self._on_one(load.users))
        return Limit.START if self.starts.refusals(load.ctx) or crowded is None else crowded

    def _ranks(self, load: Load) -> tuple[Rank, ...]:
        tp, start = self.asked.tp, self.starts.start(load.ctx)
        if tp * self.asked.pp == 1:
            return ()
        held = self.starts.held()
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
        if self.replicas > 1:
            text = (
                f"each of {self.replicas:,} data parallel replicas has this pool and this concurrency, users are those "
                "of all; what the exchange of experts' inputs between them buffers is not counted"
            )
            found.append(Note("data_parallel", text))
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
