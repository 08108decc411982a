"""How many devices so many users need: a lower bound in bytes, and what tensor parallelism makes of it.

The bound divides all bytes by one device's bytes.  Fewer devices do not have the bytes as
sold; it proves no sharding layout, so the layouts that hold the plan stand beside it where
the model's config is known (`membudget.planning.node_layouts`), and the tensor-parallel sizes that divide.
Devices are counted as they are sold, in decimal GB: an H100 has 80,000,000,000 bytes here.
A machine's reserve is taken off: what is left to the operating system holds no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from membudget import machines
from membudget.budgets.budget import Budget
from membudget.engines.vllm.parallel.sharding import (
    TensorParallel,
    attention_heads,
    head_problem,
    repeated_projections,
    request_bytes,
    split,
    split_bytes,
    width_problem,
)
from membudget.errors import MembudgetError
from membudget.formats import Format
from membudget.machines import Machine
from membudget.model import CacheSpec, Model
from membudget.planning.node_layouts import MOST_DEVICES, Layout, every, fewest
from membudget.planning.words import users_text

#: A published assumption for prefill: 4.5 GB, and 0.00035 GB for every token of the prompt.
PREFILL_BASE, PREFILL_PER_TOKEN = 4_500_000_000, 350_000
#: The same source's allowance for the CUDA context and NCCL.
CUDA_AND_NCCL = 3_500_000_000
#: Bytes a parameter where only the number of parameters is known: every one is stored alike.
PARAMETER_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
#: Devices that the bound is given for, and the node that a plan is held against.
DEFAULT_DEVICES, DEFAULT_NODE = ("h100-80gb", "h200-141gb"), ("h100-80gb", 8)
#: Tensor-parallel sizes that are always looked at, as far as a node that is named has so many devices.
SIZES = (1, 2, 4, 8, 16, 32)


BOUND = "a lower bound: it divides bytes by bytes, and an aggregate bound proves no sharding layout"


class FleetError(MembudgetError):
    """An input that is refused: names the field, what it was, and what is allowed."""


class Part(NamedTuple):
    """One part of the total: bytes, and the formula with its numbers."""

    name: str
    bytes: int
    why: str


class Count(NamedTuple):
    """At least `devices` of a machine, each `marketed` bytes as sold, of which `reserve` are the system's."""

    machine: str
    marketed: int
    devices: int
    reserve: int = 0


class Kind(NamedTuple):
    """A device kind: how many by bytes, and the layout on the fewest of them, of up to `tried`; None if none fits.

    unknown: whether a layout that was tried is not supported, so none is known to fit.
    """

    machine: str
    by_bytes: int
    tried: int
    layout: Layout | None
    unknown: bool = False


class Fleet:
    """The bound and all that led to it.  All sizes in bytes.

    parts: weights, kv_cache, prefill, cuda_and_nccl.  counts: one a device kind.
    node, node_devices: what the plan is held against.  tensor_parallel: by size; asked: sizes that were named.
    mha_bf16: the cache with a KV head for every attention head in 16 bits, None where heads are unknown.
    budget: what one device of the node would be asked for, None where no config is known.
    """

    def __init__(self, ctx: int, users: int, parts: tuple[Part, ...], devices: Sequence[Machine]) -> None:
        self.ctx, self.users, self.parts, self.devices = ctx, users, parts, devices
        self.sums = {part.name: part.bytes for part in parts}
        self.total = sum(self.sums.values())
        self.counts = [
            Count(machine.name, machine.marketed, -(-self.total // given(machine)), machine.os_reserve)
            for machine in devices
        ]
        self.node: Machine = devices[0]
        self.node_devices = 1
        self.tensor_parallel: list[TensorParallel] = []
        self.asked: tuple[int, ...] = ()
        self.mha_bf16: int | None = None
        self.budget: Budget | None = None
        self._layouts: list[Layout] | None = None
        self._kinds: list[Kind] | None = None

    @property
    def weights(self) -> int:
        """Bytes of the weights."""
        return self.sums["weights"]

    @property
    def kv_cache(self) -> int:
        """Bytes of every user's cache at the full context."""
        return self.sums["kv_cache"]

    @property
    def reserve(self) -> int:
        """Bytes of workspace: prefill, CUDA and NCCL."""
        return self.sums["prefill"] + self.sums["cuda_and_nccl"]

    @property
    def node_bytes(self) -> int:
        """Bytes that the node can give, decimal as sold, without what is left to its operating systems."""
        return given(self.node) * self.node_devices

    @property
    def node_count(self) -> int:
        """Devices of the node's kind that have the total's bytes."""
        return -(-self.total // given(self.node))

    @property
    def within_bound(self) -> bool:
        """Whether the total is within the node's bytes."""
        return self.total <= self.node_bytes

    @property
    def layouts(self) -> list[Layout] | None:
        """The node's layouts that vLLM has, tried as `membudget plan` does; None where no config is known."""
        if self._layouts is None and self.budget is not None:
            self._layouts = every(self.budget, self.node_devices)
        return self._layouts

    @property
    def kinds(self) -> list[Kind]:
        """For every device kind the layout on the fewest; up to twice as many as by bytes are looked at, or 8."""
        if self._kinds is None and self.budget is not None:
            self._kinds = []
            for machine, count in zip(self.devices, self.counts, strict=True):
                tried = min(max(8, 2 * count.devices), MOST_DEVICES)
                found = fewest(replace(self.budget, machine=machine), tried)
                self._kinds.append(Kind(machine.name, count.devices, tried, *found))
        return self._kinds or []

    @property
    def fits(self) -> bool:
        """Whether the total is within the node's bytes and, where a config is known, a layout of the node holds it."""
        layouts = self.layouts
        return self.within_bound and (layouts is None or any(layout.fits for layout in layouts))

    @property
    def max_users(self) -> int:
        """Users whose caches the node's bytes can hold beside weights and reserve, 0 if none."""
        request = self.kv_cache // self.users
        left = self.node_bytes - self.weights - self.reserve
        return max(left // request, 0) if request else self.users * (left >= 0)


@dataclass(frozen=True)
class CacheShape:
    """What a model's KV cache is made of, where no config is known."""

    layers: int
    kv_heads: int
    head_dim: int
    #: Query heads, for the tensor-parallel check and the comparison with MHA; None where they are not known.
    heads: int | None = None


@dataclass(frozen=True)
class FleetLoad:
    """Whom a fleet serves, and on what it is tried."""

    #: Tokens of each user.
    ctx: int
    users: int
    kv_cache_dtype: str = "bf16"
    #: The kinds of device that are counted; none for `DEFAULT_DEVICES`.
    devices: Sequence[Machine] = ()
    #: The node that the plan is held against, and how many devices it has; None for `DEFAULT_NODE`.
    node: tuple[Machine, int] | None = None
    #: Tensor-parallel sizes to look at beside `SIZES`.
    sizes: Sequence[int] = ()


def for_params(params: str | int, shape: CacheShape, load: FleetLoad, format: str = "bf16") -> Fleet:
    """Size a fleet from a model's size in billions of parameters (decimal: 70, "70.6") and its cache shape.

    Weights are parameters x `PARAMETER_BYTES` of the format; other formats need a config.
    Raises `FleetError` naming the field.
    """
    count = parameters(params)
    heads, kv_heads = shape.heads, shape.kv_heads
    for name in ("layers", "kv_heads", "head_dim"):
        _positive(name, getattr(shape, name))
    if heads is not None:
        _positive("heads", heads)
        if heads % kv_heads:
            raise FleetError(f"heads is {heads:,}; allowed is a multiple of kv_heads, {kv_heads:,}")
    width = PARAMETER_BYTES.get(format)
    if width is None:
        raise FleetError(
            f"format is {format!r}; from a number of parameters alone allowed are {', '.join(PARAMETER_BYTES)}: "
            "what other formats take depends on every tensor's shape, so give a model or its config.json"
        )
    weights = Part(
        "weights", count * width, f"{count:,} parameters x {width} byte{'s' if width > 1 else ''} ({format})"
    )
    specs = [CacheSpec(layer, "full", kv_heads, shape.head_dim, shape.head_dim) for layer in range(shape.layers)]
    fleet = _size(weights, specs, load)
    if heads is not None:
        fleet.mha_bf16 = load.users * load.ctx * shape.layers * heads * shape.head_dim * 4
    for size in _sizes(fleet, load):
        problem = None if heads is None else head_problem([heads], size)
        held = -(-weights.bytes // size)
        fleet.tensor_parallel.append(split(size, specs, load.kv_cache_dtype, load.ctx, load.users, held, problem))
    return fleet


def for_model(model: Model, format: Format, load: FleetLoad) -> Fleet:
    """Size a fleet for a model that is known tensor by tensor.  Raises `FleetError` naming the field."""
    ctx, users, dtype = load.ctx, load.users, load.kv_cache_dtype
    made = format.weigh(model)
    fleet = _size(Part("weights", made.total, made.why), model.caches, load)
    heads = attention_heads(model)
    if len(heads) == 1 and all(spec.kind == "full" and spec.k_dim for spec in model.caches):
        fleet.mha_bf16 = users * ctx * sum(heads[0] * (spec.k_dim + spec.v_dim) * 2 for spec in model.caches)
    shared, whole = split_bytes(model, format)
    for size in _sizes(fleet, load):
        problem = head_problem(heads, size) or width_problem(model, size)
        weights = -(-shared // size) + whole + repeated_projections(model, format, size)
        fleet.tensor_parallel.append(split(size, model.caches, dtype, ctx, users, weights, problem))
    fleet.budget = Budget(model.name, model, format, dtype, ctx, users, fleet.node)
    return fleet


def parameters(billions: str | int) -> int:
    """Parameters from a decimal number of billions: 70, "70.6", "70.6B".  Exact."""
    text = str(billions).strip().removesuffix("B").strip() if not isinstance(billions, bool) else "?"
    whole, point, fraction = text.partition(".")
    shown = repr(billions if isinstance(billions, int) or len(billions) <= 40 else billions[:37] + "...")
    fraction = fraction.rstrip("0")
    digits = whole + fraction
    if (
        not (digits.isascii() and digits.isdecimal() and whole)
        or (point and not text.partition(".")[2])
        or len(digits) > 15
    ):
        raise FleetError(f"params is {shown}; allowed is a number of billions above 0, such as 70 or 70.6")
    if len(fraction) > 9:
        raise FleetError(f"params is {shown} billion, which is not a whole number of parameters")
    count = int(digits + "0" * (9 - len(fraction)))
    if not count:
        raise FleetError(f"params is {shown}; allowed is a number of billions above 0, such as 70 or 70.6")
    return count


def given(machine: Machine) -> int:
    """Bytes of a machine that a model can have: as sold, less what is left to the operating system."""
    return machine.marketed - machine.os_reserve


def _size(weights: Part, specs: Sequence[CacheSpec], load: FleetLoad) -> Fleet:
    ctx, users, dtype, node = load.ctx, load.users, load.kv_cache_dtype, load.node
    _positive("ctx (seq_len)", ctx)
    _positive("users", users)
    if node is None:
        node = machines.get(DEFAULT_NODE[0]), DEFAULT_NODE[1]
    _positive("node's devices", node[1])
    devices = load.devices or [machines.get(name) for name in DEFAULT_DEVICES]
    for machine in (*devices, node[0]):
        if given(machine) < 1:
            raise FleetError(
                f"{machine.name}: sold with {machine.marketed:,} bytes, of which {machine.os_reserve:,} are left to "
                "the system: nothing is left for a model; allowed is a machine whose reserve is less than its memory"
            )
    request = request_bytes(specs, dtype, ctx)
    parts = (
        weights,
        Part(
            "kv_cache",
            request * users,
            f"{users_text(users)} x {request:,} bytes at {ctx:,} tokens ({dtype})",
        ),
        Part(
            "prefill",
            PREFILL_BASE + PREFILL_PER_TOKEN * ctx,
            f"assumed: {PREFILL_BASE:,} + {PREFILL_PER_TOKEN:,} x {ctx:,} tokens",
        ),
        Part("cuda_and_nccl", CUDA_AND_NCCL, "assumed"),
    )
    fleet = Fleet(ctx, users, parts, devices)
    fleet.node, fleet.node_devices = node
    fleet.asked = tuple(load.sizes)
    return fleet


def _sizes(fleet: Fleet, load: FleetLoad) -> list[int]:
    """Sizes to look at: those that the node can have where one is named, and what was asked for."""
    for size in load.sizes:
        _positive("tensor_parallel", size)
    # The bound's own counts show why it is not a layout: 9 devices split no model with 64 heads.
    counts = [count.devices for count in fleet.counts if count.devices <= 1024]
    most = max(*SIZES, *counts, 1) if load.node is None else load.node[1]
    return sorted({*load.sizes, *(size for size in (*SIZES, *counts) if size <= most), fleet.node_devices})


def _positive(field: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FleetError(f"{field} is {value!r}; allowed is a whole number >= 1")


__all__ = [
    "BOUND",
    "CacheShape",
    "Fleet",
    "FleetError",
    "FleetLoad",
    "Kind",
    "TensorParallel",
    "for_model",
    "for_params",
]
