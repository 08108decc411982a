"""What each layer keeps for a sequence: one `CacheSpec` a layer, in elements.

An engine turns these into bytes (`membudget.engines`): how wide an element is,
whether a window is kept exactly, and how blocks are padded is its business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: full: keys and values of every token.  sliding: of the last `window` tokens.
#: chunked: of the current chunk of `window` tokens.  latent: MLA, one compressed
#: vector a token.  recurrent: a state of fixed size.  cross: keys and values of the
#: encoder's tokens.  shared: reads another layer's cache.  none: keeps nothing.
KINDS = ("full", "sliding", "chunked", "latent", "recurrent", "cross", "shared", "none")


class State(NamedTuple):
    """A tensor of fixed size that a recurrent layer keeps a sequence.

    elements: its size.  fp32: kept in fp32 although the model runs in 16 bits.
    columns: of a convolution's inputs, one a step of its kernel (engines keep all, or one less).
    """

    name: str
    elements: int
    fp32: bool = False
    columns: int = 0


class CacheSpec(NamedTuple):
    """What one layer keeps for one sequence.

    layer: its index.  kind: see `KINDS`.
    kv_heads, k_dim, v_dim: keys are kv_heads x k_dim a token, values kv_heads x v_dim.
    window: tokens kept, for sliding and chunked.
    latent, rope, index: MLA's kv_lora_rank, qk_rope_head_dim and the indexer's head_dim.
    states: what does not grow with the sequence.
    index_fp32: the indexer's keys are kept in fp32.
    entry, rate: beside the window, `rate` tokens are compressed to one entry of `entry`
        elements (DeepSeek-V4).  overlap: an entry also sees the `rate` tokens before its own.
    """

    layer: int
    kind: str
    kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    window: int = 0
    latent: int = 0
    rope: int = 0
    index: int = 0  # type: ignore[assignment]  # a dimension here; tuple.index is not called
    states: tuple[State, ...] = ()
    index_fp32: bool = False
    entry: int = 0
    rate: int = 0
    overlap: bool = False

    @property
    def per_token(self) -> int:
        """Elements that one more token adds while the layer still grows."""
        return self.kv_heads * (self.k_dim + self.v_dim) + self.latent + self.rope + self.index

    def tokens(self, length: int) -> int:
        """Tokens kept after `length` tokens."""
        return min(length, self.window) if self.window else length


class CacheShape(NamedTuple):
    """All layers' caches, summed over layers that behave alike.

    grows: ((elements a token, window or 0 for no bound), ...), one entry a window.
    states: elements of fixed size in the cache's dtype; states_fp32: in fp32.
    entries: ((elements an entry, tokens it stands for), ...), of layers that compress tokens.
    """

    grows: tuple[tuple[int, int], ...]
    states: int
    states_fp32: int
    entries: tuple[tuple[int, int], ...] = ()

    def elements(self, length: int) -> int:
        """Elements in the cache's dtype that one sequence of `length` tokens keeps."""
        total = self.states
        for per_token, window in self.grows:
            total += per_token * (min(length, window) if window else length)
        return total + sum(size * (length // rate) for size, rate in self.entries)

    def per_token(self, length: int = 1) -> int:
        """Elements that token number `length` adds: fewer once windows are full; entries on average."""
        grown = sum(size for size, window in self.grows if not window or length <= window)
        return grown + sum(-(-size // rate) for size, rate in self.entries)


def summarize(specs: Iterable[CacheSpec]) -> CacheShape:
    """Group layers by window, so that a plan costs the same for 8 layers and for 80."""
    grows: dict[int, int] = {}
    entries: dict[int, int] = {}
    states = states_fp32 = 0
    for spec in specs:
        if spec.kind in ("shared", "none", "cross"):
            continue
        if spec.per_token:
            grows[spec.window] = grows.get(spec.window, 0) + spec.per_token
        if spec.entry:
            entries[spec.rate] = entries.get(spec.rate, 0) + spec.entry
        for state in spec.states:
            if state.fp32:
                states_fp32 += state.elements
            else:
                states += state.elements
    return CacheShape(_sorted(grows), states, states_fp32, _sorted(entries))


def _sorted(sizes: dict[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple((size, bound) for bound, size in sorted(sizes.items()))
