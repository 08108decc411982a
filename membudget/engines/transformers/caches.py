"""What transformers' Cache objects hold: bytes of their tensors, and of the storages behind them.

Two numbers, because they differ.  After a prompt, a sliding layer's keys and values are a
view of the last W - 1 tokens of tensors that hold the whole prompt; the storage is freed
with the first decode step, which leaves W tokens in it.  Memory is what storages take.

Byte-exact for transformers 5.24 on every causal-LM type that runs (tests_math/model/test_caches.py,
fixtures/cache_census.json); how other versions differ is in docs/caches.md.  Counters and
other integer bookkeeping (some bytes a layer) are left out.

Sources: transformers cache_utils.py (DynamicLayer, DynamicSlidingWindowLayer, DynamicIndexedLayer,
LinearAttentionLayer, StaticLayer and their kin), deepseek_v4/modeling_deepseek_v4.py.
"""

from __future__ import annotations

from typing import NamedTuple

from membudget.errors import MembudgetError
from membudget.model import CacheSpec, ConfigError, Model

#: Since this version MLA's compressed latent is cached; before it, the expanded heads.
LATENT_SINCE = (5, 15)
#: The same for models with a sparse indexer.
INDEXED_LATENT_SINCE = (5, 18)
#: From the first of these versions until the second, recurrent states are in the model's dtype.
NARROW_STATES = ((5, 0), (5, 14))
#: Falcon and the names that it was published with.
FALCON = frozenset({"falcon", "RefinedWeb", "RefinedWebModel"})
KINDS = ("dynamic", "static")
STAGES = ("prefill", "decode")


class LayerHeld(NamedTuple):
    """One cache layer's bytes: of its tensors, and of the storages behind them."""

    layer: int
    kind: str
    tensors: int
    storage: int


class CacheHeld(NamedTuple):
    """A cache's bytes: of its tensors, of the storages behind them, and both by layer."""

    tensors: int
    storage: int
    by_layer: tuple[LayerHeld, ...]


class _Run(NamedTuple):
    """What `cache_bytes` was asked, in the words of its arguments."""

    tokens: int
    batch: int
    static: bool
    prefill: bool
    expanded: bool
    narrow: bool
    width: int
    source: int


def kept(model: Model) -> tuple[CacheSpec, ...]:
    """The layers' caches as transformers has them: Falcon's new architecture keeps a head for each query head.

    Source: modeling_falcon.py, `_split_heads`: keys and values are broadcast to the queries before they are cached.
    """
    if model.model_type not in FALCON or not model.config.flag("new_decoder_architecture"):
        return model.caches
    return tuple(spec._replace(kv_heads=model.config.heads) for spec in model.caches)


def cache_bytes(
    model: Model,
    tokens: int,
    batch: int = 1,
    *,
    kind: str = "dynamic",
    stage: str = "decode",
    version: tuple[int, ...] = (5, 24),
    dtype_bytes: int = 2,
    encoder_tokens: int = 0,
) -> CacheHeld:
    """The cache after `tokens` tokens in each of `batch` sequences.

    kind: ``dynamic`` (DynamicCache, generate()'s default) or ``static`` (StaticCache with
        max_cache_len = tokens, allocated whole).
    stage: ``prefill``: the tokens went through in one forward; ``decode``: the last came alone.
    version: of transformers.  dtype_bytes: of the model's dtype; recurrent states that are
        fp32 stay so.  encoder_tokens: the encoder's output length (cross attention).
    Raises `ValueError` for an argument that is not one of these.
    """
    if kind not in KINDS:
        raise MembudgetError(f"kind is {kind!r}; allowed are {' and '.join(KINDS)}")
    if stage not in STAGES:
        raise MembudgetError(f"stage is {stage!r}; allowed are {' and '.join(STAGES)}")
    if min(tokens, encoder_tokens) < 0 or batch < 1 or dtype_bytes < 1:
        raise MembudgetError(
            f"tokens {tokens}, batch {batch}, encoder_tokens {encoder_tokens}, dtype_bytes {dtype_bytes}"
        )
    narrow = NARROW_STATES[0] <= version < NARROW_STATES[1]
    static, prefill, expanded = kind == "static", stage == "prefill", _expanded(model, version)
    run = _Run(tokens, batch, static, prefill, expanded, narrow, dtype_bytes, encoder_tokens)
    layers, known = [], {}
    for spec in kept(model):
        # Most layers are alike: what one keeps does not depend on its index.
        key = spec[1:]
        if key not in known:
            known[key] = _layer(spec, run, model)
        tensors, storage = known[key]
        layers.append(LayerHeld(spec.layer, spec.kind, batch * tensors, batch * storage))
    return CacheHeld(sum(each.tensors for each in layers), sum(each.storage for each in layers), tuple(layers))


def growth_per_token(model: Model, *, dtype_bytes: int = 2, version: tuple[int, ...] = (5, 24)) -> int:
    """Bytes that one more token of one sequence adds once every window is full; compressed entries on average."""
    total = 0
    for spec in kept(model):
        if spec.kind in ("shared", "none", "cross"):
            continue
        if not _window(spec):
            total += _per_token(spec, dtype_bytes, model, _expanded(model, version))
        if spec.entry:
            total += -(-spec.entry * dtype_bytes // spec.rate)
    return total


def _expanded(model: Model, version: tuple[int, ...]) -> bool:
    """Whether this version caches MLA's heads, not the latent that they are made from."""
    return version < (INDEXED_LATENT_SINCE if any(spec.index for spec in model.caches) else LATENT_SINCE)


def _layer(spec: CacheSpec, run: _Run, model: Model) -> tuple[int, int]:
    """(tensor bytes, storage bytes) of one layer and one sequence."""
    if spec.kind in ("shared", "none"):
        return 0, 0
    size = _per_token(spec, run.width, model, run.expanded)
    if spec.kind == "cross":
        return size * run.source, size * run.source
    wide = run.width if run.narrow else 4
    states = sum(state.elements * (wide if state.fp32 else run.width) for state in spec.states)
    if not run.tokens:
        return 0, 0
    if not run.prefill and not run.static:
        # RecurrentGemma's conv1d is a view without the first column.
        behind = sum(state.elements // state.columns * run.width for state in spec.states if state.name == "conv1d")
    else:
        behind = 0
    window = _window(spec)
    if run.static:
        kept = size * min(run.tokens, spec.window or run.tokens) + states
        return kept, kept
    tensors = stored = run.tokens
    if window:
        tensors, stored = min(run.tokens, window - 1), run.tokens if run.prefill else min(run.tokens, window)
    more, more_stored = _compressed(spec, run) if spec.entry else (0, 0)
    return size * tensors + states + more, size * stored + states + behind + more_stored


def _window(spec: CacheSpec) -> int:
    """The window, 0 for none; a window of 1 keeps everything: keys[-W + 1:] is keys[0:]."""
    return spec.window if spec.window > 1 else 0


def _per_token(spec: CacheSpec, width: int, model: Model, expanded: bool) -> int:
    """Bytes of one token in this layer."""
    size = spec.per_token * width
    if spec.index_fp32:
        size += spec.index * (4 - width)
    if expanded and spec.latent:
        c = model.config
        heads = c.heads * (c.integer("qk_nope_head_dim") + spec.rope + c.integer("v_head_dim"))
        size += (heads - spec.latent - spec.rope) * width
    return size


def _compressed(spec: CacheSpec, run: _Run) -> tuple[int, int]:
    """DeepSeek-V4's compressed entries, and the tokens that wait to be compressed, each with its gate.

    The waiting ones are a view of all that came in the last step.  Where entries overlap
    they are twice as wide, and the last `rate` tokens stay for the next entry, gates in fp32.
    """
    rate, entry, width = spec.rate, spec.entry, run.width
    waiting = 2 * entry * (2 if spec.overlap else 1) * width
    made = run.tokens // rate * entry * width
    if spec.overlap and run.tokens >= rate:
        made += rate * entry * (width + 4)
    came = run.tokens if run.prefill else (run.tokens - 1) % rate + 1
    return made + run.tokens % rate * waiting, made + came * waiting


__all__ = ["LATENT_SINCE", "CacheHeld", "ConfigError", "LayerHeld", "cache_bytes", "growth_per_token"]
