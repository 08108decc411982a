"""What a llama.cpp server takes, line by line and place by place: weights, caches, buffers, overhead.

A `Server` answers for a GGUF header, one that was read from a file or one written from a config.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from membudget.checkpoint.gguf_file import read_file
from membudget.checkpoint.gguf_header import tensors
from membudget.checkpoint.gguf_header_keys import metadata
from membudget.engines.llama_cpp.compute.graphs import compute_buffer, split_buffers
from membudget.engines.llama_cpp.compute.header import ComputeError, Header
from membudget.engines.llama_cpp.memory import (
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
from membudget.engines.llama_cpp.settings import Settings
from membudget.engines.llama_cpp.sparse import kept
from membudget.formats.ggml import TYPES
from membudget.formats.gguf import Gguf
from membudget.model import Model

#: Contexts that are tried for the longest one that fits.
_STEP = 256
#: A batch of so many rows is computed on a device even where its weights are on the host (offload_op).
_BIG = 32
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
    #: bytes of a projector's file, which lies on the first device
    mmproj: int = 0

    @classmethod
    def written(cls, model: Model, layout: Gguf) -> Server:
        """Of the file that llama.cpp's converter would write from this model's config."""
        entries = tensors(layout, model)
        shapes = {entry.name: entry.shape for entry in entries}
        sizes = {entry.name: nbytes(entry.kind, entry.shape) for entry in entries}
        return cls(Header(metadata(model, shapes), shapes), sizes)

    @classmethod
    def read(cls, path: str) -> Server:
        """Of a file."""
        stored, _, keys = read_file(path)
        shapes = {tensor.name: tensor.shape for tensor in stored}
        return cls(Header(keys, shapes), {tensor.name: tensor.nbytes for tensor in stored})

    def ask(self, settings: Settings) -> Plan:
        """What a server with these settings takes."""
        header, devices = self.header, self.devices
        lines = [
            _exact("weights", "model", place, size, "tensors of the file", "GGUF header")
            for place, size in sorted(weights(self.sizes, len(header.layers), settings, devices).items())
            if size
        ]
        if self.mmproj:
            place = "0" if devices else HOST
            lines.append(_exact("weights", "mmproj", place, self.mmproj, "the projector's file", "--mmproj"))
        lines += _caches(header, settings, devices)
        notes: list[tuple[str, str]] = []
        lines += self._buffers(settings, notes)
        rows = output_buffer(header, settings)
        lines.append(_exact("activations", "output", HOST, rows, "logits of a row a slot, fp32", "output_reserve"))
        one = overhead(self.platform)
        lines += [
            Line("overhead", "context", str(number), one.value, one.low, one.high, one.why, one.source)
            for number in range(devices)
        ]
        return Plan(tuple(lines), dict(self.limits), tuple(notes))

    def _buffers(self, settings: Settings, notes: list[tuple[str, str]]) -> list[Line]:
        """Compute buffers: exact where all layers are on one device or on none, bounded where they are split."""
        header, devices, layers = self.header, self.devices, len(self.header.layers)
        whole = settings.n_gpu_layers is None or settings.n_gpu_layers > layers
        moved = bool(settings.n_cpu_moe or settings.override_tensor or not settings.kv_offload)
        try:
            borrows = settings.op_offload and settings.ubatch(header.key("context_length")) >= _BIG
            if not devices or not (whole or settings.n_gpu_layers or borrows):
                size = compute_buffer(header, settings)
                return [_exact("activations", "compute", HOST, size, "temporaries of a batch", _GRAPH)]
            device, host = split_buffers(header, settings)
            low = split_buffers(header, replace(settings, outputs_max=None))[0]
            top = host if whole and not moved else compute_buffer(header, settings)
        except ComputeError as error:
            notes.append(("compute_unknown", str(error)))
            return []
        high = device
        if devices > 1 and whole and not moved:
            notes.append(("compute_bounded", "several devices work as a pipeline: up to four copies of inputs each"))
            high += 4 * host
        if not whole or moved:
            where = places(self.sizes, layers, settings, devices)
            left = [name for name, place in where.items() if place == HOST and name not in INPUT]
            if device_of(layers, layers, settings, devices) == HOST and "output.weight" not in where:
                left.append("token_embd.weight")
            biggest = max((self.sizes[name] for name in left), default=0) if borrows else 0
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

    def longest(self, settings: Settings) -> int:
        """The longest ``-c`` that fits, in steps of 256 tokens; 0 where none does."""
        trained = self.header.key("context_length") * (1 if settings.unified else settings.slots)
        low, high = 0, max(1, trained // _STEP)
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.ask(replace(settings, ctx_size=middle * _STEP)).fits()
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
    conv, state = states(header)
    for layer in header.layers:
        place = device_of(layer.number, len(header.layers), settings, devices) if settings.kv_offload else HOST
        if is_sparse(header):
            for one in kept(header, layer, settings):
                found[one.name, place] = found.get((one.name, place), 0) + one.keys + one.values
            continue
        if has_cells(header, layer):
            name = "window" if header.window(layer) else "full"
            k, v = row(header, layer)
            size = (k_type.row(k) + v_type.row(value_row(header, v, settings))) * parts[name].cells * streams
            found[name, place] = found.get((name, place), 0) + size
        if is_recurrent(layer):
            size = 4 * (conv + state) * settings.slots * (1 + settings.draft_max)
            found["recurrent", place] = found.get(("recurrent", place), 0) + size
    whys = {
        "full": "cells of every token", "window": "cells of windows: window x slots + ubatch, padded to 256",
        "recurrent": "fp32 states, one a slot and one more a drafted token",
        "indexer": "cells of the indexer's keys, beside the layer's own", "csa": "compressed cells, one of 4 tokens",
        "hca": "compressed cells, one of as many tokens as the layer's ratio",
    }  # fmt: skip
    return [
        _exact("kv_cache", name, place, size, f"{parts[name].cells:,} {whys[name]}", "llama-kv-cache.cpp")
        for (name, place), size in found.items()
    ]


__all__ = ["Line", "Plan", "Server"]
