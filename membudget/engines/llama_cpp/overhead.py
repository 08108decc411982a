"""What a llama.cpp process takes on a device beside its buffers, by backend, with where each figure is from.

There is no torch here: a CUDA or HIP context, cuBLAS's workspace, and a pool for weights that are dequantized on the
way (ggml-cuda's VMM pool grows with use).  Nothing of it is printed; a range stands for each.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class Overhead:
    """Bytes on one device, with their range."""

    #: the middle of what was seen
    value: int
    #: least and most that was seen or can be
    low: int
    high: int
    #: what it is made of
    why: str
    #: public logs it was read from
    source: str


_CUDA = Overhead(
    400 * MIB, 264 * MIB, 650 * MIB,
    "CUDA context 264 to 506 MiB (total less free before a model is loaded), cuBLAS workspace and pools after it",
    "RTX 3090 24124 = 23860 + ...: github.com/ollama/ollama/issues/17482; RTX 5090 32111 = 31605 + ...: "
    "github.com/ggml-org/llama.cpp/pull/25465; RTX 4070 Laptop 7805, 7546 free: "
    "github.com/ggml-org/llama.cpp/pull/20184; at least 457 MiB kept by Ollama: github.com/ollama/ollama/issues/12431",
)  # fmt: skip
_ROCM = Overhead(
    500 * MIB, 250 * MIB, 1024 * MIB,
    "HIP context, rocBLAS workspace and pools: assumed as CUDA's, with a wider range",
    "assumed; what Ollama keeps free on any device is 457 to 512 MiB: github.com/ollama/ollama/issues/12847",
)  # fmt: skip
_VULKAN = Overhead(
    150 * MIB, 50 * MIB, 512 * MIB,
    "Vulkan device, pipelines and staging buffers",
    "assumed; what Ollama keeps free on any device is at most 512 MiB: github.com/ollama/ollama/issues/12847",
)  # fmt: skip
_METAL = Overhead(
    0, 0, 512 * MIB,
    "Metal keeps its buffers in the process; recommendedMaxWorkingSetSize is the limit, and the machine's",
    "512 MiB minimum that Ollama keeps on Metal: github.com/ollama/ollama/issues/12847",
)  # fmt: skip
_CPU = Overhead(0, 0, 64 * MIB, "work buffers of threads", "ggml-cpu: a plan's work size, of one operation")
#: By platform of a machine.
OVERHEAD = {"cuda": _CUDA, "rocm": _ROCM, "vulkan": _VULKAN, "metal": _METAL, "mps": _METAL, "cpu": _CPU}


def overhead(platform: str) -> Overhead:
    """The overhead on one device of this platform; an unknown one is taken as CUDA's."""
    return OVERHEAD.get(platform, _CUDA)


__all__ = ["OVERHEAD", "Overhead", "overhead"]
