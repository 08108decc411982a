"""Which graph an architecture has, and the buffer it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from membudget.engines.llama_cpp.allocator import CPU_ALIGNMENT, DEVICE_ALIGNMENT, buffer_size
from membudget.engines.llama_cpp.cells import window_cells
from membudget.engines.llama_cpp.compute.altup import AltUp
from membudget.engines.llama_cpp.compute.decoder import Deci, Decoder, Gemma4
from membudget.engines.llama_cpp.compute.header import ComputeError, Header
from membudget.engines.llama_cpp.compute.indexed import Dots3, Indexed
from membudget.engines.llama_cpp.compute.kda import Kda
from membudget.engines.llama_cpp.compute.latent import Latent
from membudget.engines.llama_cpp.compute.lightning import Lightning
from membudget.engines.llama_cpp.compute.parts import Build
from membudget.engines.llama_cpp.compute.states import Delta, Hybrid, JoinedDelta, OneEach, Parallel, States
from membudget.engines.llama_cpp.compute.tape import Tape
from membudget.engines.llama_cpp.settings import Settings

#: Architectures whose graph is built here, and by which class.
GRAPHS: dict[str, type[Decoder]] = {
    **dict.fromkeys(("deepseek2", "mistral4", "minicpm3"), Latent),
    **dict.fromkeys(("deepseek32", "glm-dsa"), Indexed),
    "dots3note": Dots3,
    **dict.fromkeys(("kimi-linear", "bailingmoe3"), Kda),
    **dict.fromkeys(("qwen35", "qwen35moe"), Delta),
    **dict.fromkeys(("mamba", "mamba2"), States),
    **dict.fromkeys(("jamba", "granitehybrid", "lfm2", "lfm2moe"), Hybrid),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), OneEach),
    "falcon-h1": Parallel,
    "minimax-01": Lightning,
    "gemma3n": AltUp,
    "gemma4": Gemma4,
    "deci": Deci,
    "qwen3next": JoinedDelta,
}


#: Architectures whose graphs are other than what is built here: more than 2% off llama.cpp's own answer.
OTHER = frozenset(
    ("deepseek4", "minimax-m3", "plamo2", "qwen4exp")
)  # fmt: skip


def proven(arch: str) -> bool:
    """Whether the graph of this architecture was held against llama.cpp's own (fixtures/llama_cpp/census.json)."""
    return arch not in OTHER


def compute_buffer(header: Header, settings: Settings, alignment: int = CPU_ALIGNMENT) -> int:
    """Bytes of the compute buffer with every step on one backend.

    Raises `ComputeError` for an architecture whose graph is not supported.
    """
    _known(header)
    return _once(header, settings, lambda plain: graph(header, plain).tape.size(alignment), "compute", alignment)


def _once(header: Header, settings: Settings, size: Callable[[Settings], int], *what: object) -> int:
    """A size that was asked for before, whatever is on which device."""
    plain = replace(settings, n_gpu_layers=None, n_cpu_moe=0, override_tensor=(), tensor_split=(), kv_offload=True)
    if (*what, plain) not in header.memo:
        header.memo[*what, plain] = size(plain)
    return header.memo[*what, plain]


def _known(header: Header) -> None:
    if not proven(header.arch):
        raise ComputeError(
            f"the compute buffer of {header.arch} is not supported; ask llama.cpp: membudget oracle --engine llama_cpp"
        )


def split_buffers(header: Header, settings: Settings, alignment: int = DEVICE_ALIGNMENT) -> tuple[int, int]:
    """(device, host) bytes of the compute buffers with all layers on one device.

    The host has the inputs and the rows of the embedding table, which stays there; the device has copies of them at
    the start of its part of the graph, and the rest.  Source: ggml-backend.cpp (ggml_backend_sched_split_graph).
    """
    _known(header)

    def device(plain: Settings) -> int:
        tape = graph(header, plain).tape
        header.memo["host", plain] = _host(tape)
        return _device(tape, alignment)

    size = _once(header, settings, device, "device", alignment)
    return size, _once(header, settings, lambda plain: _host(graph(header, plain).tape), "host")


def _host(tape: Tape) -> int:
    inputs = (*tape.inputs, tape.order[0])
    return sum(-(-tape.nodes[number].nbytes // CPU_ALIGNMENT) * CPU_ALIGNMENT for number in inputs)


def _device(tape: Tape, alignment: int) -> int:
    nodes, order = list(tape.nodes), list(tape.order)
    rows = order[0]
    given = tape.inputs[:2]
    copied = [rows]
    for number in order[1:]:
        copied += [source for source in nodes[number].sources if nodes[source].first and source not in copied]
    copied = [number for number in copied if number not in given]
    for number in copied:
        nodes[number] = nodes[number]._replace(op="COPY", sources=(), first=False)
    return buffer_size(nodes, [*copied, *order[1:]], alignment)


def graph(header: Header, settings: Settings) -> Build:
    """The graph that llama.cpp reserves for a whole batch."""
    kind = GRAPHS.get(header.arch, Decoder)
    trained = header.key("context_length")
    total, each = settings.cells(trained)
    tokens = min(total, settings.ubatch(trained))
    seqs = settings.slots
    tokens = -(-tokens // seqs) * seqs
    build = Build(header, settings, tokens, seqs, settings.outputs(trained))
    caches = {False: each}
    if header.windows or header.arch == "dots3note":
        window = header.key("attention.sliding_window")
        caches[True] = (
            each
            if settings.swa_full
            else window_cells(window, each, slots=seqs, unified=settings.unified, ubatch=settings.ubatch(trained))
        )
    kind(build, caches).run()
    return build


__all__ = ["GRAPHS", "OTHER", "ComputeError", "compute_buffer", "graph", "proven", "split_buffers"]
