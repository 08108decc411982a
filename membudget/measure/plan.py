"""What will be measured for a budget: the steps, the predictions written before, and what it may take.

Nothing is loaded here.  A `Plan` is what `--dry-run` prints.
"""

from __future__ import annotations

from typing import Any

from membudget.budgets.budget import Budget
from membudget.budgets.schema import measure_defaults
from membudget.budgets.tolerance import EXACT, Tolerance
from membudget.engines import activations
from membudget.engines.transformers.caches import cache_bytes
from membudget.measure.comparison import Row, Unit
from membudget.measure.need import Moment, Need, behind, bound, needed
from membudget.measure.planned import CannotMeasure, Plan
from membudget.units import GIB, short

#: Formats whose tensors transformers holds as they are; others need an engine of their own.
DENSE = ("bf16", "fp16", "fp32")
#: Tokens that are decoded after a prompt: sliding layers let go of the prompt at the first.
DECODE = 2
EDGE_DECODE = 8
#: Prompts at once in a growth measurement, at most; the slope needs no more.
GROWTH_USERS = 4
#: Single-token steps of the fragmentation measurement, and their batch.  On a device 256 are run and more are replayed:
#: the allocator's algorithm takes seconds for what the device takes an hour for.
STEPS, STEPS_CPU, STEPS_USERS, STEPS_REPLAYED = 256, 12, 8, 4000
#: A process with torch in it, beside what it measures.
PROCESS = GIB
#: What the ceiling is proven with before anything relies on it: a cap, what fits under it, and what does not beside.
PREFLIGHT = {"cap": GIB, "fits": GIB // 2, "over": 3 * GIB // 4}
PREFLIGHT_CPU = {name: size // 64 for name, size in PREFLIGHT.items()}
#: How far the ceilings of the sandwich stand from the predicted need, in percent.
SANDWICH = 3
#: Where every live tensor is counted nothing is approximate; on CUDA scratch memory inside one operation is not seen.
EXACT_ON = {
    "cpu": ("weights", "kv_growth", "kv_cache", "activations", "max_users"),
    "cuda": ("weights", "kv_growth", "kv_cache"),  # requested_bytes: no remainders
}


#: What the memory at the edge is made of, in the order in which it adds up to the ceiling.
EDGE_PARTS = {
    "edge_cache": "what the most users' caches hold when the prompt is in",
    "edge_spike": "the prefill beside them: the peak less weights, buffers and cache",
    "edge_fragmentation": "reserved by the allocator at the peak, and not allocated",
    "edge_unused": "of the ceiling: too little for one more user",
}


def plan(budget: Budget, device: str, chunk: int = 0) -> Plan:
    """The measurement of a budget on a device.

    chunk: tokens of each prompt that the capacity search prefills at a time; 0: all at once.
    Raises `CannotMeasure` for a format or KV dtype that transformers does not hold.
    """
    dtype = budget.format.name
    if dtype not in DENSE:
        raise CannotMeasure(
            f"{dtype} weights need an engine of their own; transformers is measured with {', '.join(DENSE)}"
        )
    if budget.kv_cache_dtype != dtype:
        raise CannotMeasure(
            f"a {budget.kv_cache_dtype} KV cache needs an engine that has one; "
            f"transformers keeps {dtype} beside {dtype} weights"
        )
    if budget.model.unknown:
        raise CannotMeasure(f"{budget.model.name} has parts that are not counted: {', '.join(budget.model.unknown)}")
    maker = _Maker(budget, device, chunk)
    maker.proof()
    maker.loading()
    maker.growth()
    maker.static()
    maker.prefills()
    maker.sandwich()
    maker.total()
    maker.breaks()
    maker.fragmentation()
    maker.edge()
    return maker.made(dtype)


def transformers_version() -> tuple[int, ...]:
    """Of the installed transformers, the newest that the arithmetic knows where there is none."""
    from importlib import metadata

    try:
        parts = metadata.version("transformers").split(".")
    except metadata.PackageNotFoundError:
        return (5, 24)
    return tuple(int(part) for part in parts[:2] if part.isdecimal())


def tolerance(budget: Budget, name: str, device: str) -> Tolerance:
    """What the budget says, else this device's default."""
    said = budget.measure.get(name)
    if said is not None:
        return said  # type: ignore[no-any-return]
    return EXACT if name in EXACT_ON.get(device, ()) else measure_defaults()[name]


class _Maker:
    """Collects steps, predictions and the largest moment."""

    def __init__(self, budget: Budget, device: str, chunk: int) -> None:
        self.budget, self.device, self.model, self.chunk = budget, device, budget.model, chunk
        self.width = 4 if budget.format.name == "fp32" else 2
        self.weights = budget.format.weigh(budget.model).total
        self.version = transformers_version()
        self.steps: list[dict[str, Any]] = []
        self.rows: list[Row] = []
        self.moments: list[Moment] = []
        self.ceiling = budget.ceiling or 0
        target: dict[str, Any] = {"device": "cuda" if device == "cuda" else "cpu"}
        if device == "cuda" and budget.machine.compute_capability is not None:
            target["capability"] = list(budget.machine.compute_capability)
        self.target = target

    def made(self, dtype: str) -> Plan:
        need: Need = needed(self.weights, self.moments, {})
        return Plan(
            self.budget,
            self.device,
            dtype,
            tuple(self.steps),
            tuple(self.rows),
            need.bytes,
            self.ceiling or need.bytes + GIB,
            need.why,
            tuple(self.moments),
            self.weights,
        )

    def row(self, name: str, group: str, predicted: Any, why: str, tolerance_of: str = "", **more: Any) -> None:
        allowed = tolerance(self.budget, tolerance_of, self.device) if tolerance_of else None
        self.rows.append(Row(name, group, predicted, allowed=allowed, why=why, **more))

    def proof(self) -> None:
        sizes = PREFLIGHT_CPU if self.device == "cpu" else PREFLIGHT
        self.steps.append({"do": "preflight", **sizes})
        why = f"under a cap of {short(sizes['cap'])} {short(sizes['fits'])} fit, and {short(sizes['over'])} more do not"
        self.row("ceiling", "preflight", "held", why, "kv_cache", unit=Unit.WORD)

    def loading(self) -> None:
        budget = self.budget
        if self.device == "cuda":
            self.steps.append({"do": "context"})
            self.row("cuda_context", "context", None, "the first touch of the device", "cuda_context")
            self.steps.append({"do": "second_context"})
            self.row("context_of_two", "context", None, "a second process has a context of its own", "loading_peak")
        self.steps.append({"do": "weights"})
        self.row("weights", "weights", self.weights, budget.format.weigh(budget.model).why, "weights")
        self.row("buffers", "weights", None, "named tensors that are no parameters: rotary tables, router biases")
        tied = self.model.config.integer("hidden_size") * self.model.config.integer("vocab_size") * self.width
        tied = 0 if self.model.count.by_role["lm_head"] else tied
        self.row(
            "loading_peak",
            "weights",
            self.weights + tied,
            "the weights once" + (f", and a head of {short(tied)} until it is tied" if tied else ""),
            "loading_peak",
        )

    def growth(self) -> None:
        budget = self.budget
        batch = min(budget.users, GROWTH_USERS)
        lengths = sorted({max(budget.ctx // part, DECODE + 1) for part in (4, 2, 1)})
        points = [[batch, length - DECODE] for length in lengths]
        chunk = max(1, budget.engine.step_tokens // batch) if self.device != "cpu" else 0
        chunk = chunk if chunk < budget.ctx else 0
        served = {"do": "trace_served", "name": "trace_growth", "target": self.target, "batch": batch}
        self.steps.append({**served, "tokens": max(lengths), "decode": DECODE, "chunk": chunk})
        self.steps.append({"do": "growth", "points": points, "decode": DECODE, "chunk": chunk})
        first, last = lengths[0], lengths[-1]
        grown = self._held(last) - self._held(first)
        slope = grown // max(last - first, 1)
        self.row(
            "kv_growth",
            "growth",
            slope,
            f"({self._held(last):,} - {self._held(first):,}) bytes / {last - first:,} tokens of a sequence",
            "kv_growth",
        )
        self.row("kv_cache", "growth", self._held(last, batch), self._cache_why(batch, last), "kv_cache")
        self.row("freed", "growth", 0, "without the cache nothing but the weights is left", "kv_cache")
        self._moment("growth", "trace_growth", budget.ctx, batch, step=chunk or budget.ctx)

    def static(self) -> None:
        batch, length = min(self.budget.users, GROWTH_USERS), self.budget.ctx
        self.steps.append({"do": "static", "batch": batch, "length": length, "decode": DECODE})
        self.row(
            "static_cache",
            "static",
            self._held(length, batch, "static"),
            f"the whole length at once: {self._cache_why(batch, length)}",
            "kv_cache",
        )
        self.row("static_growth", "static", 0, "tokens do not make a StaticCache larger", "kv_cache")
        self._moment("static", "", length, batch, step=4, kind="static")

    def prefills(self) -> None:
        tokens = min(self.budget.ctx, self.budget.engine.step_tokens)
        for logits in ("last", "every"):
            name = f"prefill_{logits}"
            self._peak_step(name, 1, tokens, "sdpa", logits)
            form = activations.prefill(self.model, tokens, logits=logits, width=self.width)
            self.row(name, "activations", None, f"the same forward on fake tensors, {tokens:,} tokens", "activations")
            self.row(f"{name}_closed_form", "activations", form.bytes, form.why)
            self._moment("activations", f"trace_{name}", tokens, 1, logits=logits)
        size = activations.logits_bytes(self.model, tokens, self.width)
        vocab = size // (tokens * self.width)
        self.row(
            "logits", "activations", size, f"{tokens:,} positions x {vocab:,} words x {self.width} bytes", "kv_cache"
        )

    def sandwich(self) -> None:
        tokens = min(self.budget.ctx, self.budget.engine.step_tokens)
        self.steps.append({"do": "sandwich", "batch": 1, "tokens": tokens, "percent": SANDWICH})
        for name, outcome, word in (("above", "fits", "more"), ("below", "out_of_memory", "less")):
            why = f"{tokens:,} tokens under a ceiling of {SANDWICH}% {word} than the trace says they need"
            self.row(f"sandwich_{name}", "sandwich", outcome, why, "kv_cache", unit=Unit.WORD)

    def total(self) -> None:
        budget = self.budget
        chunk = max(1, budget.engine.step_tokens // budget.users)
        shape = {
            "batch": budget.users,
            "tokens": budget.ctx,
            "decode": DECODE,
            "chunk": chunk if chunk < budget.ctx else 0,
        }
        if budget.ctx <= DECODE:
            return
        self.steps.append(
            {"do": "trace_served", "name": "trace_total", "target": self.target, "reserve": True, **shape}
        )
        self.steps.append({"do": "total", **shape})
        what = f"{budget.users:,} users x {budget.ctx:,} tokens"
        self.row("total_allocator", "total", None, f"{what} on fake tensors, weights included", "activations")
        if self.device == "cuda":
            self.row("total_reserved", "total", None, f"{what} by the allocator's algorithm", "activations")
            self.row("total_process", "total", None, f"{what}: NVML's figure of the process")
            self.row("total_available", "total", None, f"{what}: what is usable on the device fell by")
        self._moment("total", "trace_total", budget.ctx, budget.users, step=chunk)

    def breaks(self) -> None:
        for place, broken in enumerate(self.budget.breaks):
            name, ctx, users = f"break[{place}]", broken.get("ctx", self.budget.ctx), broken.get("users", 1)
            attention, logits = broken.get("attention", "sdpa"), broken.get("logits", "last")
            self._peak_step(name, users, ctx, attention, logits)
            form = activations.prefill(
                self.model, ctx * users, sequences=users, attention=attention, logits=logits, width=self.width
            )
            why = (
                f"{users:,} x {ctx:,} tokens, {attention}, logits of {logits}: {form.moment} {short(form.bytes)} "
                f"+ cache {short(self._held(ctx, users))} + weights {short(self.weights)} "
                f"under a ceiling of {short(self.ceiling)}"
            )
            self.row(f"{name}.outcome", "break", broken["outcome"], why, "kv_cache", unit=Unit.WORD)
            self.row(f"{name}.peak", "break", None, "the same forward on fake tensors", "activations")
            room = max(self.ceiling - self.weights, 0)
            self._moment("break", f"trace_{name}", ctx, users, attention=attention, logits=logits, room=room)

    def fragmentation(self) -> None:
        cpu = self.device == "cpu"
        steps, batch = (STEPS_CPU if cpu else STEPS), STEPS_USERS
        steps = min(steps, self.budget.ctx)
        kinds = ("dynamic", "static") if self.device != "cuda" else ("dynamic", "static", "expandable")
        for kind in kinds:
            cache = "static" if kind == "static" else "dynamic"
            step: dict[str, Any] = {"do": "fragmentation", "name": f"steps_{kind}", "batch": batch, "steps": steps}
            step |= {"cache": cache, "every": max(1, min(250, steps // 16))}
            if not cpu:
                replayed = {**step, "do": "trace_steps", "name": f"trace_steps_{kind}", "target": self.target}
                self.steps.append({**replayed, "expandable": kind == "expandable"})
                longer = {**replayed, "name": f"trace_long_{kind}", "expandable": kind == "expandable"}
                many = min(STEPS_REPLAYED, max(self.budget.ctx, steps))
                self.steps.append({**longer, "steps": many, "every": max(1, many // 16)})
            if kind == "expandable":
                step["environment"] = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
            self.steps.append(step)
            words = "dynamic cache, expandable segments" if kind == "expandable" else f"{cache} cache"
            why = f"reserved - allocated after {steps:,} single tokens of {batch} sequences and empty_cache, {words}"
            self.row(f"fragmentation_{kind}", "fragmentation", None, why, "fragmentation")
            why = f"the most reserved beside allocated meanwhile, by the allocator's algorithm; {words}"
            self.row(f"spare_{kind}", "fragmentation", None, why)
            if not cpu:
                why = f"the same after {STEPS_REPLAYED:,} tokens, replayed; {words}"
                self.row(f"spare_long_{kind}", "fragmentation", None, why)
        for kind in kinds[1:]:
            why = "a cache of one size, and pages that are mapped anew, leave no more unused than a growing cache"
            self.row(f"{kind}_below_dynamic", "fragmentation", "yes", why, "kv_cache", unit=Unit.WORD)
        size = self._held(steps, batch)
        self.row("steps_cache", "fragmentation", size, self._cache_why(batch, steps), "kv_cache")
        # a step copies what a layer holds; the allocator may keep as much again in pieces
        self._moment("fragmentation", "", steps, batch, step=1, twice=True)

    def edge(self) -> None:
        tokens = self.budget.ctx
        if not self.ceiling or tokens <= EDGE_DECODE:
            return
        most = 0
        while most < 2**14 and self._edge_bytes(most + 1, tokens) <= self.ceiling:
            most += 1
        chunk = self.chunk if self.chunk < tokens - EDGE_DECODE else 0
        search = {"tokens": tokens, "decode": EDGE_DECODE, "chunk": chunk, "near": max(most, 1), "most": 8 * most + 64}
        self.steps.append({"do": "trace_edge", "ceiling": self.ceiling, "target": self.target, **search})
        self.steps.append({"do": "edge", **search})
        spike = f"one prefill of {f'{chunk:,} tokens of ' if chunk else ''}all"
        total = short(self._edge_bytes(most, tokens))
        why = (
            f"weights {short(self.weights)} + {most:,} x cache {short(self._held(tokens - EDGE_DECODE))} + {spike}: "
            f"{total} under a ceiling of {short(self.ceiling)}"
        )
        self.row("max_users", "edge", None, "the same on fake tensors", "max_users", unit=Unit.COUNT)
        self.row("max_users_closed_form", "edge", most, why, unit=Unit.COUNT)
        for name, why in EDGE_PARTS.items():
            self.row(name, "edge", None, why)
        room = max(self.ceiling - self.weights, 0)
        self.moments.append(Moment("edge", "", room, 0, room))

    def _edge_bytes(self, users: int, tokens: int) -> int:
        if not users:
            return self.weights
        tokens -= EDGE_DECODE  # the prompt: its prefill is the peak
        step = users * min(tokens, self.chunk or tokens)
        spike = activations.prefill(self.model, step, sequences=users, width=self.width).bytes
        return self.weights + self._held(tokens, users) + spike

    def _held(self, tokens: int, batch: int = 1, kind: str = "dynamic") -> int:
        """Bytes of the cache object's storages, as the installed transformers keeps them."""
        held = cache_bytes(self.model, tokens, batch, kind=kind, version=self.version, dtype_bytes=self.width)
        return held.storage

    def _peak_step(self, name: str, batch: int, tokens: int, attention: str, logits: str) -> None:
        self._trace(name, batch, tokens, attention, logits)
        step = {"batch": batch, "tokens": tokens, "attention": attention, "logits": logits}
        self.steps.append({"do": "peak", "name": name, **step})

    def _trace(self, name: str, batch: int, tokens: int, attention: str, logits: str) -> None:
        asked = {"batch": batch, "tokens": tokens, "attention": attention, "logits": logits}
        self.steps.append({"do": "trace", "name": f"trace_{name}", "target": self.target, **asked})

    def _moment(
        self,
        group: str,
        trace: str,
        tokens: int,
        batch: int,
        *,
        step: int = 0,
        attention: str = "sdpa",
        logits: str = "last",
        kind: str = "dynamic",
        room: int | None = None,
        twice: bool = False,
    ) -> None:
        """Note what a measurement takes: `batch` sequences of `tokens`, `step` of them at a time (0: all)."""
        at_once = (step or tokens) * batch
        form = activations.prefill(
            self.model, at_once, sequences=batch, attention=attention, logits=logits, width=self.width
        )
        held = self._held(tokens, batch, kind) * (2 if twice else 1)
        most = bound(self.model, form.bytes, at_once, batch, self.width)
        if step and step < tokens:
            most += behind(self.model, held, tokens, batch, step)
        self.moments.append(Moment(group, trace, held, most, room))

    def _cache_why(self, batch: int, tokens: int) -> str:
        return f"{batch:,} sequences x {self._held(tokens):,} bytes at {tokens:,} tokens"
