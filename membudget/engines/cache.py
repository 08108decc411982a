"""What a sequence's cache takes when nothing is padded: every layer's bytes, to the byte.

This is the floor that every engine starts from.  What an engine adds (blocks, pages,
windows kept whole) is in `membudget.engines.transformers` and `membudget.engines.vllm`.
"""

from __future__ import annotations

from membudget.formats import kv
from membudget.model import Model
from membudget.records import NamedTuple


class CacheBytes(NamedTuple):
    """The bytes of one sequence's cache, summed over layers that behave alike.

    grows: ((bytes a token, window or 0 for no bound), ...).  fixed: bytes of recurrent states.
    entries: ((bytes an entry, tokens it stands for), ...), of layers that compress tokens.
    """

    grows: tuple[tuple[int, int], ...]
    fixed: int
    entries: tuple[tuple[int, int], ...] = ()

    def request(self, tokens: int) -> int:
        """Bytes of one sequence of `tokens` tokens."""
        total = self.fixed
        for size, window in self.grows:
            total += size * (window if 0 < window < tokens else tokens)
        for size, rate in self.entries:
            total += size * (tokens // rate)
        return total

    def growth(self, position: int) -> int:
        """Bytes that token number `position` (from 1) adds; fewer once windows are full, entries on average."""
        grown = sum(size for size, window in self.grows if not window or position <= window)
        return grown + sum(-(-size // rate) for size, rate in self.entries)


def cache_bytes(model: Model, dtype: str) -> CacheBytes:
    """The cache of `model` in this KV dtype (a name of `membudget.formats.kv`); kept on the model.

    Raises `membudget.formats.FormatError` where the dtype does not apply to the model's layers.
    """
    key = ("cache_bytes", dtype)
    found = model.memo.get(key)
    if found is None:
        kind = kv.get(dtype)
        grows: dict[int, int] = {}
        entries: dict[int, int] = {}
        fixed = 0
        for spec in model.caches:
            if spec.kind in ("shared", "none", "cross"):
                continue
            if spec.per_token:
                grows[spec.window] = grows.get(spec.window, 0) + kind.token_bytes(spec)
            if spec.entry:
                entries[spec.rate] = entries.get(spec.rate, 0) + kind.entry_bytes(spec)
            fixed += sum(kind.state_bytes(state) for state in spec.states)
        found = model.memo[key] = CacheBytes(_sorted(grows), fixed, _sorted(entries))
    return found


def _sorted(sizes: dict[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple((size, bound) for bound, size in sorted(sizes.items()))
