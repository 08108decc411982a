"""The caches that llama.cpp allocates for a GGUF header: cells of keys and values by part, and recurrent states.

The same rules as `cells`, read off a file's header instead of a config: so a DeepSeek file without MLA's own tensors
is seen to cache expanded heads, and a layer that reads another's cache to have none.
Source: llama.cpp v0.4.0 src/llama-model.cpp (create_memory), llama-kv-cache*.cpp, llama-memory-recurrent.cpp,
llama-hparams.cpp (n_embd_r, n_embd_s, has_kv).
"""

from __future__ import annotations

from membudget.engines.llama_cpp.cells import Part, window_cells
from membudget.engines.llama_cpp.compute.header import ComputeError, Header, Layer
from membudget.engines.llama_cpp.settings import Settings
from membudget.engines.llama_cpp.sparse import COMPRESSED, INDEXED, kept
from membudget.formats.ggml import TYPES

#: Architectures whose caches are kept in unsupported ways.
_OTHERWISE = frozenset(("qwen4exp", "plamo2"))


def caches(header: Header, settings: Settings) -> list[Part]:
    """Parts of the cache, in bytes: ``full``, ``window``, ``recurrent``; a part without layers is left out.

    Sparse attention has ``indexer``, ``csa`` and ``hca`` beside them (`sparse`).

    Raises `ComputeError` for an architecture whose caches are not supported, and
    `membudget.formats.FormatError` for a type whose blocks do not divide a row.
    """
    known(header)
    if is_sparse(header):
        return _sparse(header, settings)
    trained = header.key("context_length")
    _, each = settings.cells(trained)
    streams = 1 if settings.unified else settings.slots
    own = [layer for layer in header.layers if has_cells(header, layer)]
    found = []
    for name in ("full", "window"):
        layers = [layer for layer in own if header.window(layer) == (name == "window")]
        if not layers:
            continue
        cells = each
        if name == "window" and not settings.swa_full:
            cells = window_cells(
                header.key("attention.sliding_window"), each, slots=settings.slots, unified=settings.unified,
                ubatch=settings.ubatch(trained),
            )  # fmt: skip
        keys = values = 0
        for layer in layers:
            k, v = row(header, layer)
            values_width = value_row(header, v, settings)
            keys += TYPES[settings.cache_type_k.upper()].row(k)
            values += TYPES[settings.cache_type_v.upper()].row(values_width)
        found.append(Part(name, len(layers), cells, keys * cells * streams, values * cells * streams))
    conv, state = states(header)
    recurrent = [layer for layer in header.layers if is_recurrent(layer)]
    if recurrent:
        kept = settings.slots * (1 + settings.draft_max) * len(recurrent)
        found.append(Part("recurrent", len(recurrent), settings.slots, 4 * conv * kept, 4 * state * kept))
    return found


def is_sparse(header: Header) -> bool:
    """Whether `sparse.kept` says what each layer keeps."""
    return header.arch in INDEXED or header.arch == COMPRESSED


def _sparse(header: Header, settings: Settings) -> list[Part]:
    found: dict[str, Part] = {}
    for layer in header.layers:
        for name, cells, keys, values in kept(header, layer, settings):
            old = found.get(name, Part(name, 0, cells, 0, 0))
            found[name] = Part(name, old.layers + 1, cells, old.keys + keys, old.values + values)
    return list(found.values())


def known(header: Header) -> None:
    """Raises `ComputeError` for an architecture whose caches are kept in unknown ways."""
    if header.arch in _OTHERWISE:
        raise ComputeError(
            f"how llama.cpp keeps the caches of {header.arch} is not supported; ask: membudget oracle "
            "--engine llama_cpp"
        )


def is_recurrent(layer: Layer) -> bool:
    """Whether a layer has a state."""
    return any(layer.has(name) for name in ("ssm_conv1d.weight", "shortconv.conv.weight", "ssm_conv1d_q.weight")) or (
        layer.has("attn_norm_2.weight") and layer.has("attn_gate.weight")
    )


def has_cells(header: Header, layer: Layer) -> bool:
    """Whether a layer has cells of its own: it attends, and reads no other layer's cache."""
    if header.arch == "gemma3n":
        return layer.number < 20  # n_layer_kv_from_start
    shared = header.key("attention.shared_kv_layers", 0)
    if shared and layer.number >= len(header.layers) - shared:
        return False
    if header.arch != "falcon-h1" and is_recurrent(layer):
        return False
    if header.arch == "deci":
        return True  # a layer without attention has rows of no keys
    return any(layer.has(f"{name}.weight") for name in ("attn_k", "attn_qkv", "attn_kv_a_mqa", "attn_kv"))


def row(header: Header, layer: Layer) -> tuple[int, int]:
    """Columns of (keys, values) of one token in a layer."""
    if layer.has("attn_kv_a_mqa.weight"):
        if layer.has("attn_k_b.weight"):
            return layer.shape("attn_kv_a_mqa.weight")[0], 0
        heads = header.heads(layer)[0]
        k = header.key("attention.key_length_mla", header.key("attention.key_length"))
        v = header.key("attention.value_length_mla", layer.shape("attn_output.weight")[1] // heads)
        return heads * k, heads * v
    kv_heads = header.heads(layer)[1]
    k, v = header.head_dims(layer)
    return kv_heads * k, kv_heads * v


def value_row(header: Header, own: int, settings: Settings) -> int:
    """Columns of a row of values: as wide as the widest layer's in a cache that is transposed, without flash attention.

    own: the layer's; 0 in MLA's cache, which has keys alone.
    """
    padded = not settings.flash and (own or header.arch == "deci")
    return header.v_width(own) if padded else own


def states(header: Header) -> tuple[int, int]:
    """Elements of (convolution, state) of one sequence in one layer."""
    key, heads = header.key, max(header.list("attention.head_count"), default=0)
    if "shortconv.l_cache" in header.keys:
        return header.hidden * (key("shortconv.l_cache") - 1), 0
    if "kda.head_dim" in header.keys:
        width = key("kda.head_dim")
        return 3 * (key("ssm.conv_kernel") - 1) * heads * width, width * width * heads
    if header.arch == "minimax-01":
        width = key("attention.key_length")
        return 0, width * width * heads
    if "ssm.inner_size" not in header.keys:
        return 0, 0
    inner, state = key("ssm.inner_size"), key("ssm.state_size")
    conv = (key("ssm.conv_kernel") - 1) * (inner + 2 * key("ssm.group_count", 0) * state)
    return conv, state * inner


def output_buffer(header: Header, settings: Settings) -> int:
    """Bytes of the buffer that logits are copied to when a server starts: one row a slot; it grows with use."""
    return 4 * header.vocab * settings.slots


__all__ = [
    "Part",
    "caches",
    "has_cells",
    "is_recurrent",
    "is_sparse",
    "known",
    "output_buffer",
    "row",
    "states",
    "value_row",
]
