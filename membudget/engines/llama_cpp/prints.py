"""Lines that llama.cpp prints when it starts, read into figures: caches, buffers by device, layers, splits.

One reader for what a library that is asked says and for what a server's log holds.  The forms are those of llama.cpp
from 2023 (llama_new_context_with_model, llama_kv_cache_init) to v0.4.0 (llama_context, sched_reserve).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: llama.cpp prints MiB with two decimals; so a figure is known to half of one.
HALF = 5243


@dataclass(frozen=True)
class CacheLine:
    """One cache: ``size = 1024.00 MiB (8192 cells, 32 layers, 1/1 seqs), K (f16): ..., V (f16): ...``."""

    #: bytes of keys and values, to the print's half hundredth of a MiB
    size: int
    #: cells of one stream; 0 where an old build does not say
    cells: int
    #: layers in it; 0 where an old build does not say
    layers: int
    #: sequences it has streams for
    seqs: int
    #: as printed: f16, q8_0
    type_k: str
    type_v: str
    keys: int
    values: int
    #: a window's cache, by the line before it
    window: bool = False


@dataclass(frozen=True)
class StateLine:
    """Recurrent states: ``llama_memory_recurrent: size = 50.25 MiB (1 cells, 32 layers, 1 seqs), R ..., S ...``."""

    size: int
    #: states kept: one a sequence, and one more a drafted token
    cells: int
    layers: int
    conv: int
    state: int


@dataclass(frozen=True)
class Prints:
    """All figures that were found, in the order of the text."""

    caches: tuple[CacheLine, ...] = ()
    states: tuple[StateLine, ...] = ()
    #: bytes by buffer type (``CUDA0``, ``CPU_Mapped``, ``Vulkan_Host``)
    model: dict[str, int] = field(default_factory=dict)
    kv: dict[str, int] = field(default_factory=dict)
    rs: dict[str, int] = field(default_factory=dict)
    output: dict[str, int] = field(default_factory=dict)
    compute: dict[str, int] = field(default_factory=dict)
    #: values that contexts print of themselves: n_ctx, n_batch, n_ubatch, n_seq_max, flash_attn, kv_unified
    context: dict[str, str] = field(default_factory=dict)
    #: (layers on devices, layers in all), the output layer counted
    offloaded: tuple[int, int] | None = None
    splits: int | None = None
    nodes: int | None = None

    @property
    def cache_bytes(self) -> int:
        """Keys and values of all caches."""
        return sum(cache.size for cache in self.caches)

    @property
    def state_bytes(self) -> int:
        """Recurrent states."""
        return sum(state.size for state in self.states)


_MIB = r"([0-9]+(?:\.[0-9]+)?) Mi?B"
_SIZE = r"\"?([0-9]+(?:\.[0-9]+)?) (B|KiB|MiB|GiB)\"?"
_CACHE = re.compile(
    rf"size *= *{_MIB} *\( *(\d+) cells, *(\d+) layers, *(\d+)(?:/ *(\d+))? seqs\), *K \(([\w.]+)\): *{_MIB}, "
    rf"*V \(([\w.]+)\): *{_MIB}"
)
_OLD_CACHE = re.compile(
    rf"KV self size *= *{_MIB}, *(?:K|c\^KV) \(([\w.]+)\): *{_MIB}(?:, *(?:V|kv\^T) \(([\w.]+)\): *{_MIB})?"
)
_STATE = re.compile(
    rf"size *= *{_MIB} *\( *(\d+) cells, *(\d+) layers, *(\d+) seqs[^)]*\), *R \(([\w.]+)\): *{_MIB}, "
    rf"*S \(([\w.]+)\): *{_MIB}"
)
#: DeepSeek-V4's compressor states: ``csa ratio = 4, state = 8 x 1024, streams = 2, rs_seq = 3, layers = 21, size =``.
_COMPRESSOR = re.compile(
    rf"\w+ ratio *= *\d+, state *= *\d+ x \d+, streams *= *(\d+), rs_seq *= *(\d+), layers *= *(\d+), size *= *{_MIB}"
)
_COMPRESSOR_BUFFER = re.compile(rf"([A-Za-z][\w.\[\]:/()-]*) +DSV4 \w+ state buffer size *= *{_MIB}")
_BUFFER = re.compile(rf"([A-Z][\w.\[\]:/()-]*) +(?:(model|KV|RS|output|compute|input) )?buffer size *= *{_MIB}")
#: Ollama's own runner, which has llama.cpp's devices and not its words.
_OLLAMA = re.compile(
    rf'msg="(model weights|kv cache|compute graph)".*? (?:device|buffer|buffer_type)=(\S+) size={_SIZE}'
)
_OLLAMA_KINDS = {"model weights": "model", "kv cache": "kv", "compute graph": "compute"}
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_CONTEXT = re.compile(
    r"\b(n_ctx|n_ctx_seq|n_ctx_per_seq|n_batch|n_ubatch|n_seq_max|flash_attn|kv_unified|n_rs_seq|n_outputs_max)"
    r" *= *([\w.]+) *$"
)
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_GRAPH = re.compile(r"graph (splits|nodes) *= *(\d+)")
_WINDOW = re.compile(r"creating +(non-SWA|SWA) KV cache")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_COMMA = re.compile(r"(\d),(\d\d?)(?= Mi?B)")
_KINDS = {"model": "model", "KV": "kv", "RS": "rs", "output": "output", "compute": "compute", "input": "compute"}


def mib(text: str) -> int:
    """Bytes of a printed number of MiB."""
    return round(float(text) * 2**20)


def plain(text: str) -> str:
    """Without colours, and with decimal points."""
    return _COMMA.sub(r"\1.\2", _COLOUR.sub("", text))


def read(text: str) -> Prints:
    """Every figure in `text`; a form that no pattern knows is passed over.

    Colours, time stamps and names of services before a line do no harm; decimal commas are read as points.
    """
    caches: list[CacheLine] = []
    states: list[StateLine] = []
    buffers: dict[str, dict[str, int]] = {name: {} for name in dict.fromkeys(_KINDS.values())}
    context: dict[str, str] = {}
    offloaded: tuple[int, int] | None = None
    graph: dict[str, int] = {}
    window = False
    for line in plain(text).splitlines():
        if found := _WINDOW.search(line):
            window = found[1] == "SWA"
        elif found := _CACHE.search(line):
            size, cells, layers, seqs, _, type_k, keys, type_v, values = found.groups()
            caches.append(
                CacheLine(mib(size), int(cells), int(layers), int(seqs), type_k, type_v, mib(keys), mib(values), window)
            )
        elif found := _OLD_CACHE.search(line):
            size, type_k, keys, type_v, values = found.groups()
            parts = (type_k, type_v or type_k, mib(keys), mib(values or "0"))
            caches.append(CacheLine(mib(size), 0, 0, 0, *parts))
        elif found := _STATE.search(line):
            size, cells, layers, _, _, conv, _, state = found.groups()
            states.append(StateLine(mib(size), int(cells), int(layers), mib(conv), mib(state)))
        elif found := _COMPRESSOR.search(line):
            streams, drafts, layers, size = found.groups()
            # keys and gates, as much of each
            half = mib(size) // 2
            states.append(StateLine(mib(size), int(streams) * (1 + int(drafts)), int(layers), half, half))
        elif found := _COMPRESSOR_BUFFER.search(line):
            buffers["rs"][found[1]] = buffers["rs"].get(found[1], 0) + mib(found[2])
        elif found := _BUFFER.search(line):
            place = buffers[_KINDS[found[2] or "model"]]
            place[found[1]] = place.get(found[1], 0) + mib(found[3])
        elif found := _OLLAMA.search(line):
            place = buffers[_OLLAMA_KINDS[found[1]]]
            # it prints a graph's size once more as it grows
            place[found[2]] = max(place.get(found[2], 0), round(float(found[3]) * _UNITS[found[4]]))
        elif found := _CONTEXT.search(line):
            context.setdefault(found[1], found[2])
        elif found := _OFFLOADED.search(line):
            offloaded = (int(found[1]), int(found[2]))
        elif found := _GRAPH.search(line):
            graph[found[1]] = int(found[2])
    return Prints(
        tuple(caches),
        tuple(states),
        **buffers,
        context=context,
        offloaded=offloaded,
        splits=graph.get("splits"),
        nodes=graph.get("nodes"),
    )
