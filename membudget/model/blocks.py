"""What a model is put together from: layers, blocks, and ways to combine blocks.

A block is made once, with its options, when a family is declared, and called for
every layer.  An option is a constant, the name of a config key, or a function of the
layer; it is evaluated when the block is called.  The blocks themselves are in
`attention`, `latent`, `feedforward` and `state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from membudget.model.caches import CacheSpec
from membudget.model.config import Config
from membudget.model.tensors import Tensor


class Layer:
    """One layer of one model: the config, the index, and what kind of layer it is.

    kind: the attention of this layer, as in config.json's layer_types.
    ffn: its feed-forward part, as in mlp_layer_types (``dense``, ``sparse``).
    prefix: the checkpoint name that its tensors start with (``model.layers.0.``).
    The whole model's own parts (embeddings, final norm) see a layer of index -1.
    """

    __slots__ = ("config", "ffn", "index", "kind", "prefix")

    def __init__(self, config: Config, index: int, kind: str, prefix: str, ffn: str = "dense") -> None:
        self.config, self.index, self.kind, self.prefix, self.ffn = config, index, kind, prefix, ffn

    def at(self, prefix: str) -> Layer:
        """The same layer under a longer name."""
        return Layer(self.config, self.index, self.kind, prefix, self.ffn)


Flag = bool | str | Callable[[Layer], bool]
Size = int | str | Callable[[Layer], int]
Tensors = Callable[[Layer], Iterator[Tensor]]
Cache = Callable[[Layer], CacheSpec]


class Block:
    """tensors(layer) yields the layer's tensors; cache(layer) says what it keeps, or None.

    parts: the blocks that this one is put together from; none for a block of its own.
    """

    __slots__ = ("cache", "parts", "tensors")

    def __init__(self, tensors: Tensors, cache: Cache | None = None, parts: tuple[Block, ...] = ()) -> None:
        self.tensors, self.cache, self.parts = tensors, cache, parts


def size(layer: Layer, option: Size) -> int:
    """An option that is a number: a constant, a key (null and absent are errors), or a function."""
    if isinstance(option, int):
        return option
    return layer.config.integer(option) if isinstance(option, str) else option(layer)


def flag(layer: Layer, option: Flag) -> bool:
    """An option that is true or false."""
    if isinstance(option, bool):
        return option
    return layer.config.flag(option) if isinstance(option, str) else option(layer)


def linear(
    name: str, out: int, into: int, role: str, bias: bool = False, copies: int = 1, active: int | None = None
) -> Iterator[Tensor]:
    """A linear layer: weight (out, into) and, if asked, bias (out,)."""
    yield Tensor(name + ".weight", (out, into), role, copies, active)
    if bias:
        yield Tensor(name + ".bias", (out,), role, copies, active)


def norm(name: str, width: int, bias: bool = False) -> Iterator[Tensor]:
    """A norm's weight (width,) and, for LayerNorm, its bias."""
    yield Tensor(name + ".weight", (width,), "norms")
    if bias:
        yield Tensor(name + ".bias", (width,), "norms")


def norms(*names: str, bias: Flag = False) -> Block:
    """Norms of hidden_size, by name."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        hidden, with_bias = layer.config.integer("hidden_size"), flag(layer, bias)
        for name in names:
            yield from norm(layer.prefix + name, hidden, with_bias)

    return Block(tensors)


def weight(name: str, *shape: Size, role: str = "other") -> Block:
    """One bare tensor; a size that is a key is read from the config."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        yield Tensor(layer.prefix + name, tuple(size(layer, extent) for extent in shape), role)

    return Block(tensors)


def project(name: str, out: Size, into: Size = "hidden_size", role: str = "other", bias: Flag = False) -> Block:
    """One linear layer."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        yield from linear(layer.prefix + name, size(layer, out), size(layer, into), role, flag(layer, bias))

    return Block(tensors)


def buffer(name: str, *shape: Size, role: str = "other") -> Block:
    """A tensor that checkpoints store and that is not a parameter."""

    def tensors(layer: Layer) -> Iterator[Tensor]:
        yield Tensor(layer.prefix + name, tuple(size(layer, extent) for extent in shape), role, part="checkpoint")

    return Block(tensors)


def together(*blocks: Block, cache: Cache | None = None) -> Block:
    """All of `blocks` in one layer; what they keep is kept together."""
    caches = [block.cache for block in blocks if block.cache is not None]

    def tensors(layer: Layer) -> Iterator[Tensor]:
        for block in blocks:
            yield from block.tensors(layer)

    def merged(layer: Layer) -> CacheSpec:
        spec = caches[0](layer)
        for more in caches[1:]:
            other = more(layer)
            grown, still = (spec, other) if spec.per_token else (other, spec)
            spec = grown._replace(states=grown.states + still.states)
        return spec

    return Block(tensors, cache or (caches[0] if len(caches) == 1 else merged if caches else None), blocks)


def when(condition: Flag, block: Block, otherwise: Block | None = None) -> Block:
    """`block` on the layers where `condition` holds, `otherwise` (or nothing) on the others."""
    other = otherwise or NOTHING

    def tensors(layer: Layer) -> Iterator[Tensor]:
        return (block if flag(layer, condition) else other).tensors(layer)

    def cache(layer: Layer) -> CacheSpec:
        keeps = (block if flag(layer, condition) else other).cache
        return keeps(layer) if keeps is not None else CacheSpec(layer.index, "none")

    return Block(tensors, cache if block.cache or other.cache else None, (block, other))


def by_kind(blocks: Mapping[str, Block], otherwise: Block | None = None) -> Block:
    """The block that goes with the layer's kind."""

    def pick(layer: Layer) -> Block:
        block = blocks.get(layer.kind, otherwise)
        if block is None:
            known = ", ".join(sorted(blocks))
            raise layer.config.error("layer_types", f"has {layer.kind!r} for layer {layer.index}", known)
        return block

    def cache(layer: Layer) -> CacheSpec:
        keeps = pick(layer).cache
        return keeps(layer) if keeps is not None else CacheSpec(layer.index, "none")

    parts = tuple(dict.fromkeys(blocks.values()))
    return Block(lambda layer: pick(layer).tensors(layer), cache, parts if otherwise is None else (*parts, otherwise))


def dense_or(sparse: Block, dense: Block) -> Block:
    """`dense` on the layers whose ffn is ``dense``, `sparse` on the others."""
    return when(lambda layer: layer.ffn == "dense", dense, sparse)


def _nothing(layer: Layer) -> Iterator[Tensor]:
    return iter(())


NOTHING = Block(_nothing)
