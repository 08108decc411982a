"""Feed-forward blocks: gated and plain MLPs, mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from membudget.model.blocks import Block, Flag, Layer, Size, flag, linear, size
from membudget.model.tensors import Tensor

GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")


def glu(
    *,
    width: Size = "intermediate_size",
    bias: Flag = False,
    fused: str | None = None,
    name: str = "mlp.",
    names: tuple[str, str, str] = GATE_UP_DOWN,
    role: str = "mlp",
) -> Block:
    """Gated MLP: gate and up (width, hidden), down (hidden, width).  fused: name of gate and up in one."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        hidden, inner, b = c.integer("hidden_size"), size(layer, width), flag(layer, bias)
        if fused:
            yield from linear(at + fused, 2 * inner, hidden, role, b)
        else:
            yield from linear(at + names[0], inner, hidden, role, b)
            yield from linear(at + names[1], inner, hidden, role, b)
        yield from linear(at + names[2], hidden, inner, role, b)

    return Block(tensors)


def mlp(
    *,
    width: Size = "intermediate_size",
    bias: Flag = True,
    transposed: bool = False,
    name: str = "mlp.",
    names: tuple[str, str] = ("up_proj", "down_proj"),
    role: str = "mlp",
) -> Block:
    """Plain MLP: up (width, hidden), down (hidden, width).  transposed: GPT-2's Conv1D, (in, out)."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        hidden, inner, b = c.integer("hidden_size"), size(layer, width), flag(layer, bias)
        for part, out, into in ((names[0], inner, hidden), (names[1], hidden, inner)):
            yield Tensor(f"{at}{part}.weight", (into, out) if transposed else (out, into), role)
            if b:
                yield Tensor(f"{at}{part}.bias", (out,), role)

    return Block(tensors)


def half_gated(name: str, width: str) -> Block:
    """Gated MLP whose gate and up share `width` (Moshi): fc1 (width, hidden), fc2 (hidden, width / 2)."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        hidden, both = c.integer("hidden_size"), c.integer(width)
        if both % 2:
            raise c.error(width, f"is {both}", "an even number: gate and up share it")
        yield Tensor(at + "fc1.weight", (both, hidden), "mlp")
        yield Tensor(at + "fc2.weight", (hidden, both // 2), "mlp")

    return Block(tensors)


def four_times(layer: Layer) -> int:
    """intermediate_size, or four times hidden_size where it is null (GPT-2's n_inner)."""
    c = layer.config
    return c.integer("intermediate_size", 4 * c.integer("hidden_size"))


@dataclass(frozen=True)
class Router:
    """What sends a token to its experts."""

    #: The whole name of its weight.
    name: str = "gate.weight"
    #: The name of a bias that is a parameter.
    bias: str | None = None
    #: The name of a bias that is a buffer: in the checkpoint, not in the model.
    buffer: str | None = None
    #: Routes beside the experts (LongCat's zero experts, which pass a token on and have no weights).
    more: Size = 0
    #: Experts a token is sent to.
    top_k: Size = "num_experts_per_tok"


@dataclass(frozen=True)
class Shared:
    """An expert that is always active."""

    #: Its width; 0: none.
    width: Size = 0
    #: What its modules' names begin with; ends in a dot.
    name: str = "shared_experts."
    #: Of its matrices; None: as the experts'.
    names: tuple[str, ...] | None = None
    bias: Flag = False
    #: The name of one projection for gate and up.
    fused: str | None = None
    #: The whole name of its gate's weight.
    gate: str | None = None


@dataclass(frozen=True)
class Latent:
    """A width that tokens are projected to before the experts (Nemotron's latent experts)."""

    #: 0: none.
    width: Size = 0
    bias: Flag = False


@dataclass(frozen=True)
class Stacked:
    """Two tensors that hold all experts."""

    #: Of gate and up together, and of down; None: every expert's matrices stand alone.
    names: tuple[str, str] | None = None
    #: Whether each has a bias.
    bias: bool = False
    #: Whether each expert's are (in, out).
    transposed: bool = False


PLAIN_ROUTER, NO_SHARED, NO_LATENT, APART = Router(), Shared(), Latent(), Stacked()


def moe(
    *,
    width: Size = "moe_intermediate_size",
    experts: Size = "num_experts",
    router: Router = PLAIN_ROUTER,
    names: tuple[str, ...] = GATE_UP_DOWN,
    shared: Shared = NO_SHARED,
    latent: Latent = NO_LATENT,
    stacked: Stacked = APART,
    name: str = "mlp.",
) -> Block:
    """A mixture of experts behind a router; a token is sent to top_k of them.

    names: gate, up and down (three: gated), or up and down (two: plain).
    """

    def tensors(layer: Layer) -> Iterator[Tensor]:
        c, at = layer.config, layer.prefix + name
        hidden, inner, count = c.integer("hidden_size"), size(layer, width), size(layer, experts)
        active = (
            c.integer(router.top_k, count, maximum=count)
            if isinstance(router.top_k, str)
            else size(layer, router.top_k)
        )
        routes = count + size(layer, router.more)
        yield Tensor(at + router.name, (routes, hidden), "mlp.router")
        if router.bias:
            yield Tensor(at + router.bias, (routes,), "mlp.router")
        if router.buffer:
            yield Tensor(at + router.buffer, (routes,), "mlp.router", part="checkpoint")
        low = size(layer, latent.width)
        into = low or hidden
        if stacked.names:
            for part, (rows, columns) in zip(stacked.names, ((2 * inner, into), (into, inner)), strict=True):
                shape = (columns, rows) if stacked.transposed else (rows, columns)
                yield Tensor(at + part, shape, "mlp.experts", count, active)
                if stacked.bias:
                    yield Tensor(f"{at}{part}_bias", (rows,), "mlp.experts", count, active)
        else:
            for part in names[:-1]:
                yield Tensor(f"{at}experts.*.{part}.weight", (inner, into), "mlp.experts", count, active)
            yield Tensor(f"{at}experts.*.{names[-1]}.weight", (into, inner), "mlp.experts", count, active)
        if low:
            b = flag(layer, latent.bias)
            yield from linear(at + "fc1_latent_proj", low, hidden, "mlp.experts", b)
            yield from linear(at + "fc2_latent_proj", hidden, low, "mlp.experts", b)
        shared_width = size(layer, shared.width)
        if shared_width:
            parts = shared.names or names
            if len(parts) == 3:
                expert = glu(
                    width=shared_width, bias=shared.bias, fused=shared.fused, name=name + shared.name,
                    names=(parts[0], parts[1], parts[2]), role="mlp.shared",
                )  # fmt: skip
            else:
                expert = mlp(
                    width=shared_width, bias=shared.bias, name=name + shared.name, names=(parts[0], parts[1]),
                    role="mlp.shared",
                )  # fmt: skip
            yield from expert.tensors(layer)
            if shared.gate:
                yield Tensor(f"{at}{shared.gate}", (1, hidden), "mlp.shared")

    return Block(tensors)


def times(width: str, count: str, default: int = 0) -> Size:
    """The width of `count` shared experts side by side; `default` of them where the key is null."""

    def product(layer: Layer) -> int:
        number = layer.config.size(count, default)
        return number * layer.config.integer(width) if number else 0

    return product


def optional(key: str) -> Size:
    """A width that may be null, absent or 0: then the part does not exist."""
    return lambda layer: layer.config.size(key)
