"""What a llama.cpp server takes, line by line and place by place: weights, caches, buffers, overhead.

A `Server` answers for a GGUF header, one that was read from a file or one written from a config.json.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from membudget.checkpoint import Checkpoint, read_path
from membudget.checkpoint.gguf_header import tensors
from membudget.checkpoint.gguf_header_keys import metadata
from membudget.engines.llama_cpp.compute.between import between
from membudget.engines.llama_cpp.compute.graphs import compute_buffer, split_buffers
from membudget.engines.llama_cpp.compute.header import ComputeError, Header
from membudget.engines.llama_cpp.memory import (
    Part,
    caches,
    has_cells,
    is_recurrent,
    is_sparse,
    output_buffer,
    row,
    states,
    value_row,
)
from membudget.engines.llama_cpp.offload import HOST, INPUT, device_of, places, weights
from membudget.engines.llama_cpp.overhead import overhead
from membudget.engines.llama_cpp.projector import Projector
from membudget.engines.llama_cpp.settings import Settings
from membudget.engines.llama_cpp.sparse import COMPRESSED, kept
from membudget.formats.ggml import TYPES
from membudget.formats.gguf import Gguf
from membudget.model import Model

#: Contexts that are tried for the longest one that fits.
_STEP = 256
#: A batch of so many rows is computed on a device even where its weights are on the host (offload_op).
_BIG = 32
_MLA = (
    "a deepseek2 file with MLA's own tensors (attn_k_b, attn_v_b) is assumed, as converted since May 2025; an older "
    "one caches keys and values of every head, which is many times as much"
)
_HEADS = (
    "the file has no MLA tensors (attn_k_b, attn_v_b): llama.cpp caches keys and values of every head; a file that is "
    "converted anew caches one latent row a token"
)
_KINDS = {
    "indexer": ": the indexer's keys, beside the layer's own cells",
    "csa": ": compressed, one of 4 tokens",
    "hca": ": compressed, one of as many tokens as the layer's ratio",
}
_GRAPH = "llama-graph.cpp, ggml-alloc.c: the graph built in numbers"


@dataclass(frozen=True)
class Line:
    """One part of a bucket in one place, in bytes."""

    #: weights, kv_cache, activations (llama.cpp's compute buffers) or overhead
    bucket: str
    #: embedding, layers, cache, states, compute, output, context
    part: str
    #: ``host``, or a device's number
    place: str
    bytes: int
    #: the range; equal to `bytes` where the figure is exact
    low: int
    high: int
    #: the figure as a formula or in words
    why: str
    source: str


@dataclass(frozen=True)
class Plan:
    """Lines of all places, and whether they fit."""

    lines: tuple[Line, ...]
    #: limits by place, in bytes, where they were given
    limits: Mapping[str, int]
    #: what was assumed or is not known, in codes with text
    notes: tuple[tuple[str, str], ...] = ()

    def total(self, place: str) -> int:
        """Bytes in one place."""
        return sum(line.bytes for line in self.lines if line.place == place)

    def high(self, place: str) -> int:
        """Bytes in one place in the worst case."""
        return sum(line.high for line in self.lines if line.place == place)

    @property
    def places(self) -> tuple[str, ...]:
        """Devices first, then the host."""
        named = {line.place for line in self.lines}
        return (*sorted(named - {HOST}, key=int), *([HOST] if HOST in named else ()))

    def fits(self, *, worst: bool = False) -> bool:
        """Whether every place with a limit has room for what is there."""
        take = self.high if worst else self.total
        return all(take(place) <= limit for place, limit in self.limits.items())


@dataclass(frozen=True)
class Server:
    """A file and where it is to run; what its settings take, and which settings fit.

    Methods raise as `membudget.engines.llama_cpp.memory.caches`.
    """

    header: Header
    #: bytes of every tensor of the file, by name
    sizes: Mapping[str, int]
    #: cuda, rocm, vulkan, metal
    platform: str = "cuda"
    #: 0 is a build without a GPU backend
    devices: int = 1
    #: bytes that may be taken, by place
    limits: Mapping[str, int] = field(default_factory=dict)
    #: of images and sound, where one is loaded
    projector: Projector | None = None
    #: a draft model's file, where one is loaded
    draft: Server | None = None
    #: how it was read where the file does not say
    notes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def written(cls, model: Model, layout: Gguf) -> Server:
        """Of the file that llama.cpp's converter would write from this model's config."""
        entries = tensors(layout, model)
        shapes = {entry.name: entry.shape for entry in entries}
        sizes = {entry.name: nbytes(entry.kind, entry.shape) for entry in entries}
        header = Header(metadata(model, shapes), shapes)
        # graphs are the same whatever the tensors' types
        header.memo = model.memo.setdefault(("llama.cpp graphs", tuple(shapes.items())), header.memo)
        notes: tuple[tuple[str, str], ...] = ()
        if header.arch == "deepseek2" and any(layer.has("attn_k_b.weight") for layer in header.layers):
            notes = (("mla_assumed", _MLA),)
        return cls(header, sizes, notes=notes)

    @classmethod
    def stored(cls, checkpoint: Checkpoint) -> Server:
        """Of a file's header, or of all parts of one that is split."""
        shapes = {tensor.name: tensor.shape for tensor in checkpoint.entries}
        sizes = {tensor.name: tensor.nbytes for tensor in checkpoint.entries}
        header = Header(checkpoint.metadata, shapes)
        notes: tuple[tuple[str, str], ...] = ()
        latent = [layer for layer in header.layers if layer.has("attn_kv_a_mqa.weight")]
        if latent and not any(layer.has("attn_k_b.weight") for layer in latent):
            notes = (("mla_missing", _HEADS),)
        return cls(header, sizes, notes=notes)

    @classmethod
    def read(cls, path: str) -> Server:
        """Of a file.  Raises `membudget.checkpoint.CheckpointError`."""
        return cls.stored(read_path(path))

    def held(self, settings: Settings) -> Mapping[str, int]:
        """Bytes of the tensors that are loaded: prediction layers (nextn) only for drafts."""
        return self.sizes if settings.mtp else self._trunk

    @functools.cached_property
    def _trunk(self) -> Mapping[str, int]:
        count = len(self.header.layers)
        return {name: size for name, size in self.sizes.items() if _layer(name) < count}

    def ask(self, settings: Settings, *, ranges: bool = True, many: bool = False) -> Plan:
        """What a server with these settings takes.  ranges: also their ends.  many: one of many contexts, quickly."""
        header, devices = self.header, self.devices
        lines = [
            _exact("weights", "model", place, size, _tensors(place), "GGUF header")
            for place, size in sorted(weights(self.held(settings), len(header.layers), settings, devices).items())
            if size
        ]
        notes = list(self.notes)
        if self.projector:
            lines += [Line(*line) for line in self.projector.lines("0" if devices else HOST, notes)]
        lines += _caches(header, settings, devices)
        lines += self._buffers(settings, notes, ranges, many)
        rows = output_buffer(header, settings)
        lines.append(_exact("activations", "output", HOST, rows, "logits of a row a slot, fp32", "output_reserve"))
        lines += self._drafts(settings, notes)
        one = overhead(self.platform if devices else "cpu")
        lines += [
            Line("overhead", "context", str(number), one.value, one.low, one.high, one.why, one.source)
            for number in (range(devices) if devices else (HOST,))
        ]
        return Plan(tuple(lines), dict(self.limits), tuple(notes))

    def _drafts(self, settings: Settings, notes: list[tuple[str, str]]) -> list[Line]:
        """What a draft model or the model's own prediction layers add: a context of the same length."""
        if self.draft:
            own = replace(settings, cache_type_k="f16", cache_type_v="f16", draft_max=0, mtp=False)
            own = replace(own, n_gpu_layers=None, n_cpu_moe=0, override_tensor=())
            found = replace(self.draft, platform=self.platform, devices=self.devices).ask(own)
            notes += found.notes
            return [
                replace(line, part=f"draft, {line.part}", low=0 if line.part == "compute" else line.low)
                for line in found.lines
                if line.bucket != "overhead"
            ]
        extra = self.header.key("nextn_predict_layers", 0) if settings.mtp else 0
        if not extra:
            return []
        header, lines = self.header, []
        k_type, v_type = TYPES[settings.cache_type_k.upper()], TYPES[settings.cache_type_v.upper()]
        full = [one for one in header.layers if has_cells(header, one) and not header.window(one)]
        place = device_of(len(header.layers), len(header.layers), settings, self.devices)
        if full:
            k, v = row(header, full[-1])
            total, each = settings.cells(header.key("context_length"))
            size = extra * total * (k_type.row(k) + v_type.row(value_row(header, v, settings)))
            where = place if settings.kv_offload else HOST
            why = f"{each:,} cells of {extra} prediction layers, in a context of their own"
            lines.append(_exact("kv_cache", "draft", where, size, why, "llama.cpp pull request 22673"))
        logits = 4 * header.vocab * settings.ubatch(header.key("context_length"))
        notes.append(("draft_compute_bounded", "the drafts' context has a compute buffer that is known as a range"))
        lines.append(
            Line("activations", "draft", place, logits, 0, 4 * logits, "logits of a batch; up to four times as much",
                 "Qwen3.5-27B with 6 drafted tokens printed 1512 MiB, 3.1 times its logits")
        )  # fmt: skip
        return lines

    def _buffers(self, settings: Settings, notes: list[tuple[str, str]], ranges: bool, many: bool) -> list[Line]:
        """Compute buffers: exact where all layers are on one device or on none, bounded where they are split."""
        header, devices, layers = self.header, self.devices, len(self.header.layers)
        whole = settings.n_gpu_layers is None or settings.n_gpu_layers > layers
        moved = bool(settings.n_cpu_moe or settings.override_tensor or not settings.kv_offload)
        try:
            borrows = settings.op_offload and settings.ubatch(header.key("context_length")) >= _BIG
            if not devices or not (whole or settings.n_gpu_layers or borrows):
                (size,) = self._sizes(settings, lambda one: (compute_buffer(header, one),), many)
                return [_exact("activations", "compute", HOST, size, "temporaries of a batch", _GRAPH)]
            device, host = self._sizes(settings, lambda one: split_buffers(header, one), many)
            low, top = device, host
            if ranges:
                low = split_buffers(header, replace(settings, outputs_max=None))[0]
                top = host if whole and not moved else compute_buffer(header, settings)
        except ComputeError as error:
            notes.append(("compute_unknown", f"the compute buffer is a wide range: {error}"))
            return self._bounded(settings)
        high = device
        if devices > 1 and whole and not moved:
            notes.append(("compute_bounded", "several devices work as a pipeline: up to four copies of inputs each"))
            high += 4 * host
        if not whole or moved:
            sizes = self.held(settings)
            where = places(sizes, layers, settings, devices)
            left = [name for name, place in where.items() if place == HOST and name not in INPUT]
            if device_of(layers, layers, settings, devices) == HOST and "output.weight" not in where:
                left.append("token_embd.weight")
            biggest = max((sizes.get(name, 0) for name in left), default=0) if borrows else 0
            notes.append(("compute_bounded", "layers on both sides: a weight of the host may be copied to the device"))
            low, high = low if borrows and settings.flash else 0, device + host + biggest
        why = "temporaries of a batch; at least with logits of one row a slot (llama-server from v0.4.0)"
        return [
            *(
                Line("activations", "compute", str(number), device, min(low, device), high, why, _GRAPH)
                for number in range(devices)
            ),
            Line("activations", "compute", HOST, host, host, max(host, top), "inputs of a batch", _GRAPH),
        ]

    def _sizes(self, settings: Settings, exact: Callable[[Settings], tuple[int, ...]], many: bool) -> tuple[int, ...]:
        return between(self.header, settings, exact) if many else exact(settings)

    def _bounded(self, settings: Settings) -> list[Line]:
        """Of a graph that is not known: no less than the logits of a batch, no more than four times a plain graph."""
        header, trained = self.header, self.header.key("context_length")
        ubatch = settings.ubatch(trained)
        rows = max([header.vocab, *(max(shape[:-1], default=0) for shape in header.shapes.values() if len(shape) == 2)])
        logits, scores = 4 * header.vocab * ubatch, 0
        if not settings.flash:
            scores = 4 * max(header.list("attention.head_count"), default=1) * ubatch * settings.cells(trained)[1]
        size = max(logits, scores)
        high = 4 * (size + 4 * ubatch * (rows + 8 * header.hidden))
        why = "no less than a batch's logits, no more than four times a plain graph"
        named = [str(number) for number in range(self.devices)] or [HOST]
        return [Line("activations", "compute", place, size, 0, high, why, "range") for place in named]

    def longest(self, settings: Settings) -> int:
        """The longest ``-c`` that fits, in steps of 256 tokens; 0 where none does."""
        trained = self.header.key("context_length") * (1 if settings.unified else settings.slots)
        low, high = 0, max(1, trained // _STEP)
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.ask(replace(settings, ctx_size=middle * _STEP), ranges=False, many=True).fits()
            low, high = (middle, high) if fits else (low, middle - 1)
        return low * _STEP

    def most_layers(self, settings: Settings) -> int:
        """The largest ``-ngl`` that fits; 0 where not one layer does."""
        counts = range(len(self.header.layers) + 1, 0, -1)
        return next((n for n in counts if self.ask(replace(settings, n_gpu_layers=n)).fits()), 0)

    def least_cpu_moe(self, settings: Settings) -> int:
        """The smallest ``--n-cpu-moe`` that fits; -1 where all experts on the host do not help."""
        counts = range(len(self.header.layers) + 1)
        return next((n for n in counts if self.ask(replace(settings, n_cpu_moe=n)).fits()), -1)


def _tensors(place: str) -> str:
    """What lies where, in words."""
    if place == HOST:
        return "the embedding table, and what -ngl, --n-cpu-moe and -ot leave in RAM"
    return "tensors of the file, by their types; the embedding table stays in RAM"


def _layer(name: str) -> int:
    """The layer that a tensor is in, -1 for none."""
    return int(name.split(".", 2)[1]) if name.startswith("blk.") else -1


def nbytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of this ggml type; the last dimension is a row."""
    return math.prod(shape[:-1]) * TYPES[kind].row(shape[-1])


def _exact(bucket: str, part: str, place: str, size: int, why: str, source: str) -> Line:
    return Line(bucket, part, place, size, size, size, why, source)


def _caches(header: Header, settings: Settings, devices: int) -> list[Line]:
    """Keys, values and states by the device of their layer; the host's with --no-kv-offload."""
    parts = {part.name: part for part in caches(header, settings)}
    streams = 1 if settings.unified else settings.slots
    k_type, v_type = TYPES[settings.cache_type_k.upper()], TYPES[settings.cache_type_v.upper()]
    found: dict[tuple[str, str], int] = {}

    def add(name: str, place: str, size: int) -> None:
        found[name, place] = found.get((name, place), 0) + size

    conv, state = states(header)
    for layer in header.layers:
        place = device_of(layer.number, len(header.layers), settings, devices) if settings.kv_offload else HOST
        if is_sparse(header):
            for one in kept(header, layer, settings):
                add(one.name, place, one.keys + one.values)
            continue
        if has_cells(header, layer):
            name = "window" if header.window(layer) else "full"
            k, v = row(header, layer)
            cell = k_type.row(k) + v_type.row(value_row(header, v, settings))
            add(name, place, cell * parts[name].cells * streams)
        if is_recurrent(layer):
            add("recurrent", place, 4 * (conv + state) * settings.slots * (1 + settings.draft_max))
    return [
        _exact("kv_cache", name, place, size, _why(parts[name], size, header, settings), "llama-kv-cache.cpp")
        for (name, place), size in found.items()
    ]


def _why(part: Part, size: int, header: Header, settings: Settings) -> str:
    """A cache's bytes as a formula with its numbers in it.  size: of the layers in one place."""
    if part.name == "recurrent":
        drafted = f" x (1 + {settings.draft_max} drafted)" if settings.draft_max else ""
        each = size // settings.slots // (1 + settings.draft_max)
        return f"{settings.slots:,} slots{drafted} x {each:,} bytes of fp32 states"
    streams = 1 if settings.unified and header.arch != COMPRESSED else settings.slots
    slots = "one cache for all slots" if streams == 1 and settings.slots > 1 else f"{streams:,} slots"
    found = f"{slots} x {part.cells:,} cells x {size // streams // part.cells:,} bytes"
    if part.name != "window" or settings.swa_full:
        return f"{found}{_KINDS.get(part.name, '')}"
    window, ubatch = header.key("attention.sliding_window"), settings.ubatch(header.key("context_length"))
    wide = f"{window:,} x {settings.slots:,} slots" if settings.unified and streams == 1 else f"{window:,}"
    return f"{found}: window {wide} + ubatch {ubatch:,}, padded to 256, or the context if less"


__all__ = ["Line", "Plan", "Server"]
