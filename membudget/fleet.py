"""How many devices so many users need: a lower bound in bytes, and what tensor parallelism makes of it.

The bound divides all bytes by one device's bytes.  It proves that fewer devices cannot
do; it proves no sharding layout, so the sizes that do divide the model stand beside it.
Devices are counted as they are sold, in decimal GB: an H100 has 80,000,000,000 bytes here.
"""

from __future__ import annotations

from collections.abc import Sequence

from membudget import machines
from membudget.formats import Format
from membudget.machines import Machine
from membudget.model import CacheSpec, Model
from membudget.records import NamedTuple
from membudget.sharding import (
    TensorParallel,
    attention_heads,
    head_problem,
    repeated_projections,
    request_bytes,
    split,
    split_bytes,
    width_problem,
)
from membudget.units import GB, GIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: A published assumption for prefill: 4.5 GB, and 0.00035 GB for every token of the prompt.
PREFILL_BASE, PREFILL_PER_TOKEN = 4_500_000_000, 350_000
#: The same source's allowance for the CUDA context and NCCL.
CUDA_AND_NCCL = 3_500_000_000
#: Bytes a parameter where only the number of parameters is known: every one is stored alike.
PARAMETER_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
#: Devices that the bound is given for, and the node that a plan is held against.
DEFAULT_DEVICES, DEFAULT_NODE = ("h100-80gb", "h200-141gb"), ("h100-80gb", 8)
BOUND = "a lower bound: it divides bytes by bytes, and an aggregate bound proves no sharding layout"
#: Tensor-parallel sizes that are always looked at.
SIZES = (1, 2, 4, 8, 16, 32)


class FleetError(ValueError):
    """An input that is refused: names the field, what it was, and what is allowed."""


class Part(NamedTuple):
    """One part of the total: bytes, and the formula with its numbers."""

    name: str
    bytes: int
    why: str


class Count(NamedTuple):
    """At least `devices` of a machine, each `marketed` bytes."""

    machine: str
    marketed: int
    devices: int


class Fleet:
    """The bound and all that led to it.  All sizes in bytes.

    parts: weights, kv_cache, prefill, cuda_and_nccl.  counts: one a device kind.
    node, node_devices: what the plan is held against.  tensor_parallel: by size.
    mha_bf16: the cache with a KV head for every attention head in 16 bits, None where heads are unknown.
    """

    def __init__(self, ctx: int, users: int, parts: tuple[Part, ...], devices: Sequence[Machine]) -> None:
        self.ctx, self.users, self.parts = ctx, users, parts
        self.sums = {part.name: part.bytes for part in parts}
        self.total = sum(self.sums.values())
        self.counts = [Count(machine.name, machine.marketed, -(-self.total // machine.marketed)) for machine in devices]
        self.node: Machine = devices[0]
        self.node_devices = 1
        self.tensor_parallel: list[TensorParallel] = []
        self.mha_bf16: int | None = None

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
        """Bytes of the node, decimal as sold."""
        return self.node.marketed * self.node_devices

    @property
    def fits(self) -> bool:
        """Whether the total is within the node's bytes."""
        return self.total <= self.node_bytes

    @property
    def max_users(self) -> int:
        """Users whose caches the node's bytes can hold beside weights and reserve, 0 if none."""
        request = self.kv_cache // self.users
        left = self.node_bytes - self.weights - self.reserve
        return max(left // request, 0) if request else self.users * (left >= 0)

    @property
    def refusal(self) -> str | None:
        """Why the node is refused, with both figures; None when the plan is within it."""
        if self.fits:
            return None
        held = self.weights + self.kv_cache
        node = f"{self.node_devices} x {self.node.name} have {gb(self.node_bytes)}"
        most = f"at most {self.max_users:,} users fit" if self.max_users != 1 else "at most one user fits"
        advice = most if self.max_users else "not even one user fits"
        if held > self.node_bytes:
            return (
                f"refused: exceeds the node: {gb(self.total)} are needed and {node}; "
                f"weights and KV cache alone are {gb(held)}; {advice}"
            )
        return (
            f"refused: an unbudgeted prefill peak: weights and KV cache take {gb(held)}, {node}, "
            f"and the {gb(self.node_bytes - held)} left are less than the reserve of {gb(self.reserve)} "
            f"for prefill, CUDA and NCCL ({gb(self.total)} in all); {advice}"
        )

    @property
    def verdict(self) -> str:
        """One sentence on the node."""
        return self.refusal or (
            f"within one node: {gb(self.total)} of the {gb(self.node_bytes)} of {self.node_devices} x {self.node.name}"
        )

    def lines(self) -> list[str]:
        """The plan as text: decimal GB throughout, the cache in GiB beside it."""
        shown = [f"{self.users:,} user{'s' if self.users != 1 else ''} x {self.ctx:,} tokens"]
        for part in self.parts:
            both = f" = {gib(part.bytes)}" if part.name == "kv_cache" else ""
            shown.append(f"{part.name:<14} {gb(part.bytes):>16}{both}   {part.why}")
        shown.append(f"{'total':<14} {gb(self.total):>16}")
        if self.mha_bf16 is not None and self.kv_cache and self.mha_bf16 != self.kv_cache:
            ratio = f"{self.mha_bf16 / self.kv_cache:.2f}".rstrip("0").rstrip(".")
            shown.append(
                f"one KV head for every attention head in bf16 would take {ratio}x the cache: {gib(self.mha_bf16)}"
            )
        shown += [f"at least {count.devices:,} x {count.machine} ({gb(count.marketed)} each)" for count in self.counts]
        shown += [BOUND, self.verdict]
        for way in self.tensor_parallel:
            if way.weights is None or way.kv_cache is None:
                shown.append(f"tensor parallel {way.size}: no: {way.why}")
                continue
            left = self.node.marketed - way.weights - way.kv_cache
            space = f"leave {gb(left)} of" if left >= 0 else f"are {gb(-left)} more than"
            shown.append(
                f"tensor parallel {way.size}: {way.why}; a device's {gb(way.weights)} weights and "
                f"{gb(way.kv_cache)} KV cache {space} {gb(self.node.marketed)}, before workspace"
            )
        return shown

    def as_json(self) -> dict[str, Any]:
        """The plan as documented JSON: bytes as integers, stable keys."""
        return {
            "ctx": self.ctx,
            "users": self.users,
            **self.sums,
            "reserve": self.reserve,
            "total": self.total,
            "kv_cache_mha_bf16": self.mha_bf16,
            "lower_bound": True,
            "lower_bound_text": BOUND,
            "counts": [count._asdict() for count in self.counts],
            "node": {"machine": self.node.name, "devices": self.node_devices, "bytes": self.node_bytes},
            "fits": self.fits,
            "max_users": self.max_users,
            "refusal": self.refusal,
            "verdict": self.verdict,
            "tensor_parallel": [way._asdict() for way in self.tensor_parallel],
            "parts": [part._asdict() for part in self.parts],
        }


def for_params(
    params: str | int,
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    ctx: int,
    users: int,
    heads: int | None = None,
    format: str = "bf16",
    kv_cache_dtype: str = "bf16",
    devices: Sequence[Machine] = (),
    node: tuple[Machine, int] | None = None,
    sizes: Sequence[int] = (),
) -> Fleet:
    """Size a fleet from a model's size in billions of parameters (decimal: 70, "70.6") and its cache shape.

    Weights are parameters x `PARAMETER_BYTES` of the format; other formats need a config.
    heads: query heads, for the tensor-parallel check and the comparison with MHA.
    Raises `FleetError` naming the field.
    """
    count = parameters(params)
    for name, value in (("layers", layers), ("kv_heads", kv_heads), ("head_dim", head_dim)):
        _positive(name, value)
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
    specs = [CacheSpec(layer, "full", kv_heads, head_dim, head_dim) for layer in range(layers)]
    fleet = _size(weights, specs, kv_cache_dtype, ctx, users, devices, node)
    if heads is not None:
        fleet.mha_bf16 = users * ctx * layers * heads * head_dim * 4
    for size in _sizes(fleet, sizes):
        problem = None if heads is None else head_problem([heads], size)
        fleet.tensor_parallel.append(split(size, specs, kv_cache_dtype, ctx, users, -(-weights.bytes // size), problem))
    return fleet


def for_model(
    model: Model,
    format: Format,
    *,
    ctx: int,
    users: int,
    kv_cache_dtype: str = "bf16",
    devices: Sequence[Machine] = (),
    node: tuple[Machine, int] | None = None,
    sizes: Sequence[int] = (),
) -> Fleet:
    """Size a fleet for a model that is known tensor by tensor.  Raises `FleetError` naming the field."""
    made = format.weigh(model)
    fleet = _size(Part("weights", made.total, made.why), model.caches, kv_cache_dtype, ctx, users, devices, node)
    heads = attention_heads(model)
    if len(heads) == 1 and all(spec.kind == "full" and spec.k_dim for spec in model.caches):
        fleet.mha_bf16 = users * ctx * sum(heads[0] * (spec.k_dim + spec.v_dim) * 2 for spec in model.caches)
    shared, whole = split_bytes(model, format)
    for size in _sizes(fleet, sizes):
        problem = head_problem(heads, size) or width_problem(model, size)
        weights = -(-shared // size) + whole + repeated_projections(model, format, size)
        fleet.tensor_parallel.append(split(size, model.caches, kv_cache_dtype, ctx, users, weights, problem))
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


def gb(size: int) -> str:
    """Bytes as decimal GB, rounded to hundredths: ``"1,233.21 GB"``."""
    return _hundredths(size, GB, "GB")


def gib(size: int) -> str:
    """Bytes as binary GiB, rounded to hundredths: ``"8,000.00 GiB"``."""
    return _hundredths(size, GIB, "GiB")


def _hundredths(size: int, unit: int, name: str) -> str:
    whole, rest = divmod((abs(size) * 200 + unit) // (2 * unit), 100)
    return f"{'-' if size < 0 else ''}{whole:,}.{rest:02} {name}"


def _size(
    weights: Part,
    specs: Sequence[CacheSpec],
    dtype: str,
    ctx: int,
    users: int,
    devices: Sequence[Machine],
    node: tuple[Machine, int] | None,
) -> Fleet:
    _positive("ctx (seq_len)", ctx)
    _positive("users", users)
    if node is None:
        node = machines.get(DEFAULT_NODE[0]), DEFAULT_NODE[1]
    _positive("node's devices", node[1])
    request = request_bytes(specs, dtype, ctx)
    parts = (
        weights,
        Part(
            "kv_cache",
            request * users,
            f"{users:,} user{'s' if users != 1 else ''} x {request:,} bytes at {ctx:,} tokens ({dtype})",
        ),
        Part(
            "prefill",
            PREFILL_BASE + PREFILL_PER_TOKEN * ctx,
            f"assumed: {PREFILL_BASE:,} + {PREFILL_PER_TOKEN:,} x {ctx:,} tokens",
        ),
        Part("cuda_and_nccl", CUDA_AND_NCCL, "assumed"),
    )
    fleet = Fleet(ctx, users, parts, devices or [machines.get(name) for name in DEFAULT_DEVICES])
    fleet.node, fleet.node_devices = node
    return fleet


def _sizes(fleet: Fleet, sizes: Sequence[int]) -> list[int]:
    for size in sizes:
        _positive("tensor_parallel", size)
    # The bound's own counts show why it is no layout: 9 devices split no model with 64 heads.
    counts = [count.devices for count in fleet.counts if count.devices <= 1024]
    return sorted({*SIZES, *sizes, *counts, fleet.node_devices})


def _positive(field: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FleetError(f"{field} is {value!r}; allowed is a whole number >= 1")


__all__ = ["BOUND", "Fleet", "FleetError", "TensorParallel", "for_model", "for_params", "gb", "gib"]
