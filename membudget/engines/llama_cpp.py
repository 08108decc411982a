"""What llama.cpp allocates for a model's cache: cells of keys and values, and recurrent states.

llama.cpp allocates everything when it starts: a cell a token of the context for layers that
attend to everything; fewer for layers with a window, but never fewer than window + ubatch:

    cells of a window = pad(min(ctx, window x (slots if unified else 1) + ubatch), 256)

One stream of cells serves all slots when the cache is unified; else each slot has its own.
A latent (MLA) layer keeps its one compressed row as keys and no values (since 2026-01).
Recurrent states are fp32, one a slot, with one column less than the convolution's kernel.

Sources: llama.cpp src/llama-kv-cache-iswa.cpp, src/llama-kv-cache.cpp, src/llama-hparams.cpp
(n_embd_r, n_embd_s), pull request 19067 (no values for MLA), issue 17037 (the padding).
"""

from __future__ import annotations

from membudget.formats import kv
from membudget.model import CacheSpec, Model
from membudget.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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


class CacheCellsError(ValueError):
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
    full: list[CacheSpec] = []
    windows: dict[int, list[CacheSpec]] = {}
    recurrent: list[CacheSpec] = []
    for spec in model.caches:
        if spec.states:
            recurrent.append(spec)
        if spec.kind in ("shared", "none") or not spec.per_token:
            continue
        window = _window(spec, model)
        (windows.setdefault(window, []) if window else full).append(spec)
    parts = []
    if full:
        parts.append(_cells("full", full, cells, streams, type_k, type_v))
    for window, specs in sorted(windows.items()):
        own = cells if swa_full else window_cells(window, cells, slots=slots, unified=unified, ubatch=ubatch)
        parts.append(_cells("window", specs, own, streams, type_k, type_v))
    if recurrent:
        parts.append(_states(recurrent, slots, model))
    return parts


def cache_bytes(model: Model, ctx: int, **options: Any) -> int:
    """All parts of `cache_parts`, with the same options, in bytes."""
    return sum(part.bytes for part in cache_parts(model, ctx, **options))


def _window(spec: CacheSpec, model: Model) -> int:
    """The window that llama.cpp keeps for this layer, 0 where it keeps every token."""
    if spec.entry or spec.kind == "cross" or spec.index:
        raise CacheCellsError(
            f"{model.name}: how llama.cpp keeps layer {spec.layer} ({model.model_type}) is not known here"
        )
    if not spec.window or model.model_type in UNWINDOWED:
        return 0
    if model.model_type not in WINDOWED:
        raise CacheCellsError(
            f"{model.name}: whether llama.cpp keeps the window of {model.model_type} apart is not known here; "
            f"known are {', '.join(sorted(WINDOWED | UNWINDOWED))}"
        )
    return spec.window


def _cells(name: str, specs: list[CacheSpec], cells: int, streams: int, type_k: str, type_v: str) -> Part:
    k, v = kv.get(type_k, engine="llama.cpp"), kv.get(type_v, engine="llama.cpp")
    keys = values = 0
    for spec in specs:
        # A row is all heads of a token: blocks of 32 divide it, not a head.
        row = spec.kv_heads * spec.k_dim + spec.latent + spec.rope
        keys += k.token_bytes(CacheSpec(spec.layer, "full", 1, row, 0))
        values += v.token_bytes(CacheSpec(spec.layer, "full", 1, 0, spec.kv_heads * spec.v_dim))
    return Part(name, len(specs), cells, keys * cells * streams, values * cells * streams)


def _states(specs: list[CacheSpec], slots: int, model: Model) -> Part:
    conv = state = 0
    for spec in specs:
        for each in spec.states:
            if each.columns:
                conv += each.elements // each.columns * (each.columns - 1)
            elif each.name == "ssm":
                state += each.elements
            else:
                raise CacheCellsError(
                    f"{model.name}: how llama.cpp keeps the state {each.name!r} of {model.model_type} is not known here"
                )
    return Part("recurrent", len(specs), 1, 4 * conv * slots, 4 * state * slots)


__all__ = ["CacheCellsError", "Part", "cache_bytes", "cache_parts", "pad", "window_cells"]
