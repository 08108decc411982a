"""What llama.cpp allocates for a model's cache: cells of keys and values, and recurrent states.

`slot` is what a plan pays for one user; `cache_parts` is all that a server allocates, by part, with any options.

llama.cpp allocates everything when it starts: a cell a token of the context for layers that
attend to everything; fewer for layers with a window, but never fewer than window + ubatch:

    cells of a window = pad(min(ctx, window x (slots if unified else 1) + ubatch), 256)

One stream of cells serves all slots when the cache is unified; else each slot has its own.
A latent (MLA) layer keeps its one compressed row as keys and no values (since 2026-01).
Recurrent states are fp32, one a slot, with one column less than the convolution's kernel.

Sources: llama.cpp src/llama-kv-cache-iswa.cpp, src/llama-kv-cache.cpp, src/llama-hparams.cpp
(n_embd_r, n_embd_s), src/llama-context.cpp (n_ctx_seq; blocks of a quantized cache divide a head), pull request
19067 (no values for MLA), issue 17037 (the padding).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from membudget.formats import FormatError, kv
from membudget.model import CacheSpec, Model

PAD = 256
UBATCH = 512
#: model_types whose window llama.cpp keeps apart (its architectures with an interleaved window).
WINDOWED = frozenset(
    (
        "afmoe",
        "cohere2",
        "exaone4",
        "exaone_moe",
        "gemma2",
        "gemma3_text",
        "gemma3n_text",
        "gemma4_text",
        "gemma4_unified_text",
        "gpt_oss",
        "llama4_text",
        "mimo_v2_flash",
        "olmo3",
        "step3p5",
        "step3p7",
    )
)
#: model_types with a window that llama.cpp ignores: it keeps every token.
UNWINDOWED = frozenset(
    (
        "mistral",
        "mixtral",
        "ministral",
        "ministral3",
        "phi3",
        "phimoe",
        "starcoder2",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
    )
)


class CacheCellsError(FormatError):
    """A model whose cache in llama.cpp is not known, or an argument out of range."""


class Part(NamedTuple):
    """Layers that llama.cpp keeps in one cache.

    name: ``full``, ``window`` or ``recurrent``.  cells: of one stream (recurrent: of one slot, 1).
    keys, values: bytes of all layers and streams; a recurrent part's are its conv and its state.
    """

    name: str
    layers: int
    cells: int
    keys: int
    values: int

    @property
    def bytes(self) -> int:
        """Keys and values together."""
        return self.keys + self.values


class SlotBytes(NamedTuple):
    """The cache of one slot (``-np``) that is not unified, in bytes: what a user takes from the start.

    grows: ((bytes of a cell in all its layers, window or 0 for every token), ...), by window.
    fixed: recurrent states.  ubatch: cells that a window has beside its own.
    """

    grows: tuple[tuple[int, int], ...]
    fixed: int
    ubatch: int

    def bytes(self, tokens: int) -> int:
        """Bytes of a slot of `tokens` tokens: the same for all that are padded to the same number of cells."""
        cells, total = pad(tokens), self.fixed
        for size, window in self.grows:
            total += size * (window_cells(window, cells, ubatch=self.ubatch) if window else cells)
        return total

    def read(self, tokens: int) -> int:
        """Bytes that a step cannot do without: the tokens in sight, of the cells that lie there, and the states."""
        return self.fixed + sum(size * (min(tokens, window) if window else tokens) for size, window in self.grows)

    def why(self, tokens: int) -> str:
        """`bytes` as a formula with its numbers in it."""
        cells, parts = pad(tokens), []
        for size, window in self.grows:
            own = window_cells(window, cells, ubatch=self.ubatch) if window else cells
            kept = f" of window {window:,} + ubatch {self.ubatch:,}" if window and own < cells else ""
            parts.append(f"{size:,} bytes x {own:,} cells{kept}")
        if self.fixed:
            parts.append(f"{self.fixed:,} bytes of recurrent state")
        return " + ".join(parts) or "no cache"

    def per_token(self, length: int = 1) -> int:
        """Bytes of the cell for token number `length`, of layers that have one for it; cells come 256 at a time."""
        return sum(size for size, window in self.grows if not window or length <= pad(window + self.ubatch))

    @property
    def bends(self) -> tuple[int, ...]:
        """Lengths from which on fewer layers grow."""
        return tuple(pad(window + self.ubatch) for _, window in self.grows if window)


def pad(tokens: int, to: int = PAD) -> int:
    """`tokens` rounded up to a multiple of `to`."""
    return -(-tokens // to) * to


def window_cells(window: int, ctx: int, *, slots: int = 1, unified: bool = False, ubatch: int = UBATCH) -> int:
    """Cells of a layer that sees `window` tokens: 1,536 for a window of 1,024 and ubatch 512."""
    return pad(min(ctx, window * (slots if unified else 1) + ubatch))


def cache_parts(
    model: Model,
    ctx: int,
    *,
    type_k: str = "f16",
    type_v: str = "f16",
    slots: int = 1,
    unified: bool = False,
    ubatch: int = UBATCH,
    swa_full: bool = False,
) -> list[Part]:
    """The caches that llama-server allocates for `ctx` tokens in all (``-c``), by part.

    type_k, type_v: ``-ctk`` and ``-ctv``.  slots: ``-np``.  unified: ``-kvu``.  swa_full: ``--swa-full``.
    Raises `CacheCellsError` for a model whose layers' cells are not known, and
    `membudget.formats.FormatError` for a type whose blocks do not divide a row.
    """
    if ctx < 1 or slots < 1 or ubatch < 1:
        raise CacheCellsError(f"ctx {ctx}, slots {slots} and ubatch {ubatch} must be at least 1")
    streams = 1 if unified else slots
    cells = pad(pad(ctx) // streams)
    parts = []
    grouped, recurrent = _grouped(model)
    for window, specs in grouped.items():
        own = cells
        if window and not swa_full:
            own = window_cells(window, cells, slots=slots, unified=unified, ubatch=ubatch)
        keys, values = _row(specs, type_k, type_v)
        name = "window" if window else "full"
        parts.append(Part(name, len(specs), own, keys * own * streams, values * own * streams))
    if recurrent:
        conv, state = _states(recurrent, model)
        parts.append(Part("recurrent", len(recurrent), 1, conv * slots, state * slots))
    return parts


def slot(model: Model, dtype: str, ubatch: int = UBATCH) -> SlotBytes:
    """One of ``-np`` users' slots under ``-c`` ctx x users, keys and values in `dtype`; summed once for a model.

    So many users take so many times its bytes: (users x ctx padded to 256) / users, padded, is ctx padded.
    Raises as `cache_parts`.
    """
    if ubatch < 1:
        raise CacheCellsError(f"ubatch {ubatch} must be at least 1")
    key = ("llama.cpp", dtype)
    found = model.memo.get(key)
    if found is None:
        grouped, recurrent = _grouped(model)
        grows = tuple((sum(_row(specs, dtype, dtype)), window) for window, specs in grouped.items())
        found = model.memo[key] = SlotBytes(grows, sum(_states(recurrent, model)), UBATCH)
    assert isinstance(found, SlotBytes)
    return found if ubatch == UBATCH else found._replace(ubatch=ubatch)


def cache_bytes(model: Model, ctx: int, **options: Any) -> int:
    """All parts of `cache_parts`, with the same options, in bytes."""
    return sum(part.bytes for part in cache_parts(model, ctx, **options))


def _grouped(model: Model) -> tuple[dict[int, list[CacheSpec]], list[CacheSpec]]:
    """Layers with cells by the window that llama.cpp keeps, 0 for every token, and layers with a recurrent state."""
    windows: dict[int, list[CacheSpec]] = {}
    recurrent: list[CacheSpec] = []
    for spec in model.caches:
        if spec.states:
            recurrent.append(spec)
        if spec.kind in ("shared", "none") or not spec.per_token:
            continue
        windows.setdefault(_window(spec, model), []).append(spec)
    return dict(sorted(windows.items())), recurrent


def _window(spec: CacheSpec, model: Model) -> int:
    """The window that llama.cpp keeps for this layer, 0 where it keeps every token."""
    if spec.entry or spec.kind == "cross" or spec.index:
        raise CacheCellsError(
            f"{model.name}: how llama.cpp keeps layer {spec.layer} ({model.model_type}) is not supported"
        )
    if not spec.window or model.model_type in UNWINDOWED:
        return 0
    if model.model_type not in WINDOWED:
        raise CacheCellsError(
            f"{model.name}: whether llama.cpp keeps the window of {model.model_type} apart is not supported; "
            f"known are {', '.join(sorted(WINDOWED | UNWINDOWED))}"
        )
    return spec.window


def _row(specs: list[CacheSpec], type_k: str, type_v: str) -> tuple[int, int]:
    """(keys, values) of one token in these layers, in bytes."""
    k, v = kv.get(type_k, engine="llama.cpp"), kv.get(type_v, engine="llama.cpp")
    keys = values = 0
    for spec in specs:
        # blocks lie along a row of all heads, and llama.cpp refuses those that do not divide a head
        keys += spec.kv_heads * k.token_bytes(CacheSpec(spec.layer, "full", 1, spec.k_dim, 0))
        keys += k.token_bytes(CacheSpec(spec.layer, "full", 1, spec.latent + spec.rope, 0))
        values += spec.kv_heads * v.token_bytes(CacheSpec(spec.layer, "full", 1, 0, spec.v_dim))
    return keys, values


def _states(specs: list[CacheSpec], model: Model) -> tuple[int, int]:
    """(convolution, state) of one slot in these layers, in bytes of fp32."""
    conv = state = 0
    for spec in specs:
        for each in spec.states:
            if each.columns:
                conv += each.elements // each.columns * (each.columns - 1)
            elif each.name == "ssm":
                state += each.elements
            else:
                raise CacheCellsError(
                    f"{model.name}: how llama.cpp keeps the state {each.name!r} of {model.model_type} is not supported"
                )
    return 4 * conv, 4 * state


__all__ = ["CacheCellsError", "Part", "SlotBytes", "cache_bytes", "cache_parts", "pad", "slot", "window_cells"]
