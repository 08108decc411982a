"""One start of vLLM: what it leaves for the pool, the pool in blocks, and why it would be refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

from membudget.budgets.settings import Settings
from membudget.data.defaults import DEFAULT_OVERHEAD
from membudget.engines.base import Refusal
from membudget.engines.vllm import command
from membudget.engines.vllm.admission import StartQuestion, starts
from membudget.engines.vllm.pool.plan import plan_pool
from membudget.engines.vllm.pool.result import Pool
from membudget.engines.vllm.profile import Available, Estimate, Learned, RankAvailable, available
from membudget.engines.vllm.profile.defaults import steps
from membudget.engines.vllm.profile.loaded_weights import Rank as Loaded
from membudget.engines.vllm.profile.loaded_weights import ranks as loaded
from membudget.engines.vllm.settings import vllm_settings
from membudget.formats import Format, of_config
from membudget.machines import Machine
from membudget.model import Model
from membudget.units import both

#: Contexts above this make no other profile run: the most tokens of a step, and of a video.
_FAR = 16_384


@dataclass(frozen=True)
class Start:
    """One start of vLLM for requests of one length."""

    #: What was profiled, and the parts of every pipeline stage as they count here.
    profiled: Available
    parts: tuple[tuple[Estimate, ...], ...]
    #: Bytes for the pool of every pipeline stage, and the same at both ends of what is bounded.
    stages: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    pool: Pool

    @property
    def least(self) -> int:
        """The pipeline stage with the fewest blocks."""
        return min(
            range(len(self.stages)),
            key=lambda at: self.stages[at] // self.pool.stages[at] if self.pool.stages[at] else self.stages[at],
        )


class Starts:
    """One model on one machine, or on one device of several: a start for requests of any length."""

    def __init__(self, model: Model, weights: Format, machine: Machine, settings: Settings) -> None:
        self.model, self.weights, self.machine, self.settings = model, weights, machine, settings
        self.asked = vllm_settings(settings, model, weights, machine)
        self._towers = any(tensor.role in ("vision", "audio") for tensor in model.tensors)
        self._learned = Learned.on(machine)
        self._profiled: dict[tuple[int, int, int], Available] = {}
        self._starts: dict[int, Start] = {}
        self._refused: dict[int, tuple[Refusal, ...]] = {}
        self.profiled(_FAR)  # a layout that is refused is refused here

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.profiled(_FAR).steps.tokens

    def profiled(self, ctx: int) -> Available:
        """What a start for requests of `ctx` tokens leaves."""
        length = min(ctx, _FAR)
        asked = self.asked.profile(length)
        taken = steps(self.model, self.machine, asked, self.asked.rules)
        key = (taken.sequences, taken.tokens, length if self._towers else 0)
        found = self._profiled.get(key)
        if found is None:
            found = available(self.model, self.weights, self.machine, asked, self.asked.rules.name, self._learned)
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
            high = tuple(size + (rank.high - rank.bytes) for size, rank in zip(stages, profiled.ranks, strict=True))
            pool = self.pool_of(stages, length, profiled)
            found = self._starts[length] = Start(profiled, parts, stages, low, high, pool)
        return found

    def pool_of(self, stages: tuple[int, ...], length: int, profiled: Available) -> Pool:
        """The pool of so many bytes on every stage."""
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
            dp=self.asked.dp,
            experts=any(tensor.role == "mlp.experts" for tensor in self.model.tensors),
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

    def held(self) -> tuple[Loaded, ...]:
        """What a rank of every pipeline stage holds."""
        return loaded(self.model, self.weights, self.machine, self.asked.profile(_FAR), self.asked.rules.version)
