"""Caches of sparse attention: an indexer's keys beside the main cells, and compressed cells (DeepSeek-V4).

Each part is of one layer, so that a plan can put it where the layer is.  Source: llama.cpp v0.4.0
src/llama-kv-cache-dsa.cpp (main and indexer caches), -msa.cpp (the indexer keeps values, too), -dsa-iswa.cpp (windows
beside them), -dsv4.cpp (windows, CSA and HCA compressed cells, indexer, compressor states; a stream a sequence always).
"""

from __future__ import annotations

from typing import NamedTuple

from membudget.engines.llama_cpp.cells import pad, window_cells
from membudget.engines.llama_cpp.compute.header import Header, Layer
from membudget.engines.llama_cpp.settings import Settings
from membudget.formats.ggml import TYPES

#: Main cells and an indexer's beside them.
INDEXED = frozenset(("deepseek32", "glm-dsa", "dots3note", "minimax-m3"))
COMPRESSED = "deepseek4"
#: Compressed cells of a layer whose ratio is this are chosen by an indexer (CSA); the others' are all read (HCA).
_CHOSEN = 4


class Kept(NamedTuple):
    """One part of a layer, in bytes of all streams: full, window, indexer, csa, hca or recurrent."""

    name: str
    #: of one stream; of a state, the sequences
    cells: int
    keys: int
    values: int


def kept(header: Header, layer: Layer, settings: Settings) -> list[Kept]:
    """All that a layer of these architectures keeps.

    Raises `ComputeError` for a header without the keys that say it, and `membudget.formats.FormatError` for a type
    whose blocks do not divide a row.
    """
    return _compressed(header, layer, settings) if header.arch == COMPRESSED else _indexed(header, layer, settings)


def _indexed(header: Header, layer: Layer, settings: Settings) -> list[Kept]:
    trained = header.key("context_length")
    _, each = settings.cells(trained)
    streams = 1 if settings.unified else settings.slots
    k_type, v_type = TYPES[settings.cache_type_k.upper()], TYPES[settings.cache_type_v.upper()]
    windowed = bool(header.each("attention.sliding_window_pattern", layer)) and header.arch == "dots3note"
    name, cells = "full", each
    if windowed:
        name = "window"
        if not settings.swa_full:
            cells = window_cells(
                header.key("attention.sliding_window"), each, slots=settings.slots, unified=settings.unified,
                ubatch=settings.ubatch(trained),
            )  # fmt: skip
    if layer.has("attn_kv_a_mqa.weight"):
        k, v = layer.shape("attn_kv_a_mqa.weight")[0], 0
    else:
        heads, (k, v) = header.heads(layer)[1], header.head_dims(layer)
        k, v = heads * k, heads * v
    found = [Kept(name, cells, k_type.row(k) * cells * streams, v_type.row(v) * cells * streams)]
    if layer.has("indexer.attn_k.weight") or layer.has("indexer.k_proj.weight"):
        k = header.key("attention.indexer.key_length")
        v = 0 if layer.has("attn_kv_a_mqa.weight") else header.head_dims(layer)[1]
        found.append(Kept("indexer", each, k_type.row(k) * each * streams, v_type.row(v) * each * streams))
    return found


def _compressed(header: Header, layer: Layer, settings: Settings) -> list[Kept]:
    trained = header.key("context_length")
    _, each = settings.cells(trained)
    k_type, slots = TYPES[settings.cache_type_k.upper()], settings.slots
    width, indexer = header.key("attention.key_length"), header.key("attention.indexer.key_length")
    cells = each
    if not settings.swa_full:
        cells = window_cells(header.key("attention.sliding_window"), each, ubatch=settings.ubatch(trained))
    found = [Kept("window", cells, k_type.row(width) * cells * slots, 0)]
    ratio = header.each("attention.compress_ratios", layer)
    if ratio:
        cells = pad(-(-each // ratio))
        name = "csa" if ratio == _CHOSEN else "hca"
        found.append(Kept(name, cells, k_type.row(width) * cells * slots, 0))
        found.append(_state(ratio, width, settings))
    if ratio == _CHOSEN:
        found.append(Kept("indexer", cells, k_type.row(indexer) * cells * slots, 0))
        found.append(_state(ratio, indexer, settings))
    return found


def _state(ratio: int, width: int, settings: Settings) -> Kept:
    """A compressor's: fp32 keys and gates of the tokens it gathers; overlapping ones, twice as many and as wide."""
    overlap = 2 if ratio == _CHOSEN else 1
    size = 4 * (overlap * ratio) * (overlap * width) * settings.slots * (1 + settings.draft_max)
    return Kept("recurrent", settings.slots, size, size)


__all__ = ["COMPRESSED", "INDEXED", "Kept", "kept"]
