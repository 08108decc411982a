"""llama.cpp as an engine: llama-server's slots on one device, on several that share the layers, or beside RAM.

a budget's settings      `asked`      -> -c, -np, cache types, what stays in RAM
a file's header          `files`      -> every tensor's bytes, every layer's cache
lines by place           `plan`       -> weights, cells, states, buffers, llama.cpp's own overhead
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from membudget.budgets.settings import Settings as Budgeted
from membudget.budgets.settings import kind_of
from membudget.data.defaults import DEFAULT_OVERHEAD, DRAWN, MAX_CTX
from membudget.engines.base import (
    Answer,
    Bucket,
    Change,
    LayoutError,
    Limit,
    Line,
    Load,
    Note,
    Prepared,
    Rank,
    Refusal,
    sums_of,
)
from membudget.engines.llama_cpp import changes, command
from membudget.engines.llama_cpp.asked import Asked, read
from membudget.engines.llama_cpp.cells import CacheCellsError
from membudget.engines.llama_cpp.compute.header import ComputeError
from membudget.engines.llama_cpp.details import LlamaDetails
from membudget.engines.llama_cpp.files import draft_of, projector_of, server_of
from membudget.engines.llama_cpp.growth import Growing, growth
from membudget.engines.llama_cpp.offload import HOST, device_of
from membudget.engines.llama_cpp.plan import Plan, Server
from membudget.engines.llama_cpp.settings import MAX_DEVICES, MAX_SEQ, Settings, SettingsError, pad
from membudget.engines.search import largest
from membudget.formats import Format
from membudget.machines import Machine
from membudget.model import Model
from membudget.units import both

#: Questions that are kept.
_MOST_KEPT = 4096


class LlamaPlan:
    """One file on one device, on several, or on none, asked of many loads."""

    def __init__(self, model: Model, weights: Format, machine: Machine, settings: Budgeted) -> None:
        self.model, self.weights, self.machine, self.settings = model, weights, machine, settings
        self.asked: Asked = read(settings)
        many = max(settings.pipeline_parallel, settings.tensor_parallel)
        self.devices = 0 if machine.platform == "cpu" else 1 if self.asked.one_device else many
        _known(machine, many, model)
        self.server = self._server()
        self.growth: Growing = growth(self.server.header, self.asked.plain)
        self.trained = self.server.header.key("context_length")
        self._one_cache_type()
        self._plans: dict[tuple[int, int, bool, bool], Plan] = {}

    def _server(self) -> Server:
        asked, weights = self.asked, self.weights
        found = replace(server_of(self.model, weights), platform=self.machine.platform, devices=self.devices)
        if asked.plain.mtp and not found.header.key("nextn_predict_layers", 0):
            raise SettingsError("spec_type draft-mtp: the file has no prediction layers (nextn_predict_layers)")
        if asked.mmproj:
            projector = projector_of(asked.mmproj, self.model, weights, offload=asked.mmproj_offload)
            found = replace(found, projector=projector)
        return replace(found, draft=draft_of(asked.draft, weights)) if asked.draft else found

    def _one_cache_type(self) -> None:
        """llama_init_from_model refuses unlike types for the one latent row of MLA, which is keys and values."""
        k, v = self.asked.plain.cache_type_k, self.asked.plain.cache_type_v
        if k != v and self.server.header.key("attention.key_length_mla", 0):
            raise SettingsError(
                f"cache_type_k {k} and cache_type_v {v} differ: {self.model.name} has MLA, whose keys and values are "
                f"one row, and llama.cpp refuses unlike types for it; allowed is one for both, as -ctk {k} -ctv {k}"
            )

    # -- places -----------------------------------------------------------------------------------

    @property
    def shared(self) -> bool:
        """Whether host and device have one memory, so that all is counted in one sum."""
        return not self.devices or self.machine.unified

    def _reserve(self, plan: Plan) -> int:
        """What is left to the system: beside Metal's working set lies what llama.cpp has on the host, too."""
        reserve = self.machine.os_reserve
        return max(reserve - plan.total(HOST), 0) if self.machine.platform == "metal" and self.devices else reserve

    def plan(self, ctx: int, users: int, *, ranges: bool = False, many: bool = False) -> Plan:
        """Every line of a load, by place.  ranges, many: as `Server.ask`."""
        key = (self.asked.total(ctx, users), self.asked.slots(users), ranges, many)
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= _MOST_KEPT:
                self._plans.clear()
            found = self._plans[key] = self.server.ask(self.asked.of(ctx, users), ranges=ranges, many=many)
        return found

    def lines_of(self, plan: Plan, device: int) -> tuple[Line, ...]:
        """What counts against one device's memory."""
        places = (str(device), HOST) if self.shared else (str(device),)
        found = []
        for line in plan.lines:
            if line.place not in places or (line.bucket == Bucket.OVERHEAD and not self._own_overhead):
                continue
            on_host = self.shared and self.devices and line.place == HOST
            found.append(self._line(line, f"{line.part}, host" if on_host else line.part))
        if not self._own_overhead:
            said = self.settings.overhead.items()
            found += [Line(Bucket.OVERHEAD, part, size, f"{both(size)} as the budget says") for part, size in said]
        reserve = self._reserve(plan)
        if reserve:
            why = f"{both(reserve)} left to the operating system"
            if reserve < self.machine.os_reserve:
                why += f", of the {both(self.machine.os_reserve)} beside Metal's working set"
            found.append(Line(Bucket.OVERHEAD, "os_reserve", reserve, why))
        order = list(Bucket)
        return tuple(sorted(found, key=lambda line: order.index(line.bucket)))

    def host_lines(self, plan: Plan) -> tuple[Line, ...]:
        """What lies in RAM beside the devices' memory."""
        if self.shared:
            return ()
        return tuple(replace(self._line(line, line.part), place=HOST) for line in plan.lines if line.place == HOST)

    def _line(self, line: Any, part: str) -> Line:
        low, high = (None, None) if line.low == line.bytes == line.high else (line.low, line.high)
        if line.bucket == "weights" and line.part == "model":
            part = part.replace("model", self.weights.name, 1)
        return Line(Bucket(line.bucket), part, line.bytes, line.why, low, high, line.source)

    @property
    def _own_overhead(self) -> bool:
        """Whether the budget names no overhead: then it is llama.cpp's own, and none of torch's."""
        return self.settings.overhead is DEFAULT_OVERHEAD or dict(self.settings.overhead) == DEFAULT_OVERHEAD

    def left(self, plan: Plan, device: int, *, worst: bool = False) -> int:
        """Bytes of one device that are left."""
        places = (str(device), HOST) if self.shared else (str(device),)
        used = self._reserve(plan)
        for line in plan.lines:
            if line.place in places and (self._own_overhead or line.bucket != Bucket.OVERHEAD):
                used += line.high if worst else line.bytes
        if not self._own_overhead:
            used += sum(self.settings.overhead.values())
        return self.machine.memory - used

    def left_on_host(self, plan: Plan) -> int | None:
        """Bytes of RAM that are left where `host_memory` bounds it."""
        limit = self.asked.host_memory
        return None if limit is None or self.shared else limit - plan.total(HOST)

    def _tightest(self, plan: Plan) -> int:
        return min(range(max(self.devices, 1)), key=lambda device: self.left(plan, device))

    # -- loads ------------------------------------------------------------------------------------

    def headroom(self, ctx: int, users: int, *, many: bool = False) -> int:
        """Bytes of the tightest device that are left; negative where it, or a bounded RAM, is short."""
        if self.asked.slots(users) > MAX_SEQ:
            return -(2**62)
        plan = self.plan(ctx, users, many=many)
        left = self.left(plan, self._tightest(plan))
        host = self.left_on_host(plan)
        return left if host is None else min(left, host)

    def fits(self, ctx: int, users: int) -> bool:
        """Whether it starts and has a slot of `ctx` tokens for every user."""
        return users <= self.asked.room(ctx, users, self.trained) and self.headroom(ctx, users) >= 0

    def total(self, ctx: int, users: int) -> int:
        """Bytes of the tightest device."""
        plan = self.plan(ctx, min(users, MAX_SEQ))
        return self.machine.memory - self.left(plan, self._tightest(plan))

    def request(self, ctx: int) -> int:
        """Bytes of one user's cells and states, wherever they lie."""
        return self.growth.bytes(pad(ctx)) if ctx > 0 else 0

    @property
    def claimed(self) -> float | None:
        """None: llama.cpp takes what it needs."""
        return None

    @property
    def step_tokens(self) -> int:
        """``-ub``."""
        return self.asked.plain.ubatch_size

    @property
    def bends(self) -> tuple[int, ...]:
        """Contexts from which on windows do not grow."""
        return self.growth.bends

    def users(self, ctx: int, near: int = 1) -> int:
        """The most slots of `ctx` tokens that fit, 0 for none."""
        if self.asked.parallel is not None:
            if self.asked.ctx_size is not None or not self.asked.unified:
                fits = self.headroom(ctx, 1) >= 0
                return self.asked.room(ctx, 1, self.trained) if fits else 0
            return self._most(lambda users: (ctx, users), self.asked.parallel, near)
        most = MAX_SEQ
        if self.asked.ctx_size is not None:
            most = min(MAX_SEQ, (self.asked.ctx_size or self.trained) // ctx)
        return self._most(lambda users: (ctx, users), most, near)

    def longest(self, users: int, near: int = 1) -> int:
        """The longest context of so many users, in steps of 256, 0 for none; not capped by the model's own."""
        if self.asked.slots(users) > MAX_SEQ or users > self.asked.slots(users):
            return 0
        if self.asked.ctx_size is not None:
            _, each = self.asked.of(1, users).cells(self.trained)
            return (each // users if self.asked.unified else each) if self.headroom(1, users) >= 0 else 0
        most = MAX_CTX // 256 // (users if self.asked.unified else self.asked.slots(users))
        return 256 * self._most(lambda steps: (256 * steps, users), most, -(-near // 256), many=True)

    def _most(self, load: Callable[[int], tuple[int, int]], most: int, near: int, *, many: bool = False) -> int:
        """The largest number whose load fits, 0 for none: searched quickly, then asked of its own graph."""
        if most < 1:
            return 0
        found = largest(lambda number: self.headroom(*load(number), many=many), most, min(max(near, 1), most))
        while found and self.headroom(*load(found)) < 0:
            found -= 1
        return found

    def changes(self, load: Load) -> tuple[Change, ...]:
        """What fits with a part of it in RAM."""
        return changes.changes(self, load)

    def answer(self, load: Load) -> Answer:
        """All of it."""
        ctx, users = load.ctx, min(load.users, MAX_SEQ)
        plan = self.plan(ctx, users, ranges=True)
        at, settings = self._tightest(plan), self.asked.of(ctx, users)
        lines, headroom = self.lines_of(plan, at), self.headroom(ctx, users)
        most, room = self.users(ctx, users), self.asked.room(ctx, users, self.trained)
        refused = self._refusals(load, room, settings)
        fits = not refused and headroom >= 0 and load.users <= most
        bounded = any(line.high is not None for line in lines)
        worst = min(self.left(plan, device, worst=True) for device in range(max(self.devices, 1)))
        return Answer(
            load=load,
            lines=lines,
            headroom=headroom,
            limiting=None if fits else self._limiting(lines, plan, headroom),
            limit=None,
            claimed=None,
            starts=refused,
            users=most,
            longest=self.longest(load.users, ctx),
            request=self.request(ctx),
            token=self.growth.per_cell(1),
            token_at_ctx=self.growth.per_cell(ctx + 1),
            read=self.weights.weigh(self.model).active + self.growth.read(ctx) * load.users,
            headroom_low=worst if bounded else None,
            command=command.serve(self.model, self.weights, self.asked, settings),
            notes=self._notes(plan, settings, ctx),
            ranks=self._ranks(plan),
            details=LlamaDetails(settings, self._offloaded(settings), self.host_lines(plan)),
            host=self.host_lines(plan),
        )

    def _refusals(self, load: Load, room: int, settings: Settings) -> tuple[Refusal, ...]:
        """A context that no slot has room for: llama-server starts, and takes no such request."""
        if self.asked.ctx_size is None or room >= load.users or load.users > self.asked.slots(load.users):
            return ()
        total, each = settings.cells(self.trained)
        if self.asked.unified:
            need = load.ctx * load.users
            text = f"{load.users} users of {load.ctx:,} tokens need {need:,} cells, and -c {total:,} has {each:,}"
        else:
            need = pad(load.ctx) * settings.slots
            text = f"a slot has {each:,} cells (-c {total:,}, -np {settings.slots}), and a user needs {load.ctx:,}"
        return (Refusal("slot_too_short", text, f"-c {need}", (("ctx_size", need),)),)

    def _limiting(self, lines: tuple[Line, ...], plan: Plan, headroom: int) -> Bucket | Limit:
        sums, running = sums_of(lines), 0
        for name in DRAWN:
            running += sums[name]
            if running > self.machine.memory:
                return Bucket(name)
        if headroom < 0:
            return Limit.HOST if (self.left_on_host(plan) or 0) < 0 else Bucket.KV_CACHE
        return Limit.START if self.asked.ctx_size is not None else Limit.SLOTS

    def _ranks(self, plan: Plan) -> tuple[Rank, ...]:
        if self.devices < 2:
            return ()
        found, settings, count = [], self.asked.plain, len(self.server.header.layers)
        where = [device_of(layer, count, settings, self.devices) for layer in range(count)]
        for device in range(self.devices):
            lines, left = self.lines_of(plan, device), self.left(plan, device)
            own = [layer for layer, place in enumerate(where) if place == str(device)]
            span = (own[0], own[-1] + 1) if own else (0, 0)
            short = None if left >= 0 else self._limiting(lines, plan, left)
            found.append(Rank(device, device, 0, span, self.model, lines, left, short))
        return tuple(found)

    def _offloaded(self, settings: Settings) -> tuple[int, int]:
        count = len(self.server.header.layers) + 1
        wanted = count if settings.n_gpu_layers is None else min(settings.n_gpu_layers, count)
        return (wanted if self.devices else 0), count

    def _notes(self, plan: Plan, settings: Settings, ctx: int) -> tuple[Note, ...]:
        found = [Note(code, text) for code, text in plan.notes]
        if settings.ubatch_size > settings.batch_size:
            text = f"-ub {settings.ubatch_size:,} is more than -b: llama.cpp takes {settings.batch_size:,}"
            found.append(Note("ubatch_capped", text))
        if ctx > self.trained:
            text = f"llama-server caps a slot at the {self.trained:,} tokens that the model was trained with"
            found.append(Note("slot_capped", text))
        host = plan.total(HOST)
        if self.devices and not self.shared and self.asked.host_memory is None and host > 2**30:
            found.append(
                Note("host_unchecked", f"{both(host)} of RAM are needed beside the device, which is not checked here")
            )
        return tuple(found)


def _known(machine: Machine, many: int, model: Model) -> None:
    """Raises `LayoutError` for devices of several hosts, and for more than ggml has."""
    if many > 1 and (machine.unified or machine.platform == "cpu"):
        raise HostsError(f"{model.name} over {many} hosts: llama.cpp's --rpc is not planned here; GPUs of one host are")
    if many > MAX_DEVICES:
        raise LayoutError(f"{many} devices: llama.cpp has at most {MAX_DEVICES} of one host")


class HostsError(LayoutError):
    """Layers over several hosts: what --rpc takes is unknown."""

    default_code = "unknown_layout"
    known = False


class LlamaCpp:
    """llama.cpp."""

    name = "llama_cpp"

    def prepare(self, model: Model, weights: Format, machine: Machine, settings: Budgeted) -> Prepared:
        """Weigh a model once; kept on the model for the last questions.

        Raises `MembudgetError` for weights that are no GGUF, a model that llama.cpp does not know, a setting that it
        refuses, and `CacheCellsError` where its caches are not known.
        """
        if why := kind_of(self.name).refuses(weights):
            raise SettingsError(why)
        told = repr(sorted(settings.options.items()))
        overhead = tuple(settings.overhead.items())
        sizes = (settings.kv_cache_dtype, settings.max_num_batched_tokens, settings.pipeline_parallel)
        key = (weights.key, machine, sizes, told, overhead)
        plans: dict[object, LlamaPlan] = model.memo.setdefault("llama.cpp", {})
        if key not in plans:
            while len(plans) >= 32:
                plans.pop(next(iter(plans)))
            try:
                plans[key] = LlamaPlan(model, weights, machine, settings)
            except ComputeError as error:
                raise CacheCellsError(f"{model.name}: {error}") from None
        return plans[key]

    def ask(self, model: Model, weights: Format, machine: Machine, settings: Budgeted, load: Load) -> Answer:
        """`prepare`, then the answer."""
        return self.prepare(model, weights, machine, settings).answer(load)

    def advice(self, model: Model, weights: Format, settings: Budgeted) -> str:
        """Nothing: any number of devices of one host share the layers."""
        return ""


ENGINE = LlamaCpp()
