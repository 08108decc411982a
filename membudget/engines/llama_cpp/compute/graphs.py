"""Which graph an architecture has, and the buffer it needs."""

from __future__ import annotations

from membudget.engines.llama_cpp.allocator import CPU_ALIGNMENT
from membudget.engines.llama_cpp.cells import window_cells
from membudget.engines.llama_cpp.compute.decoder import Decoder, header_windows
from membudget.engines.llama_cpp.compute.header import ComputeError, Header
from membudget.engines.llama_cpp.compute.latent import Latent
from membudget.engines.llama_cpp.compute.parts import Build
from membudget.engines.llama_cpp.compute.states import Delta, Hybrid, OneEach, Parallel, States
from membudget.engines.llama_cpp.settings import Settings

#: Architectures whose graph is built here, and by which class.
GRAPHS: dict[str, type[Decoder]] = {
    **dict.fromkeys(("deepseek2", "mistral4", "minicpm3"), Latent),
    **dict.fromkeys(("qwen35", "qwen35moe"), Delta),
    **dict.fromkeys(("mamba", "mamba2"), States),
    **dict.fromkeys(("jamba", "granitehybrid", "lfm2", "lfm2moe"), Hybrid),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), OneEach),
    "falcon-h1": Parallel,
}


def supported(arch: str) -> bool:
    """Whether this architecture's graph is known here."""
    return arch in GRAPHS


def compute_buffer(header: Header, settings: Settings, alignment: int = CPU_ALIGNMENT) -> int:
    """Bytes of the compute buffer with every step on one backend.

    Raises `ComputeError` for an architecture whose graph is not known here.
    """
    return graph(header, settings).tape.size(alignment)


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
    if header_windows(header):
        window = header.key("attention.sliding_window")
        caches[True] = each if settings.swa_full else window_cells(
            window, each, slots=seqs, unified=settings.unified, ubatch=settings.ubatch(trained)
        )
    kind(build, caches).run()
    return build


__all__ = ["GRAPHS", "ComputeError", "compute_buffer", "graph", "supported"]
