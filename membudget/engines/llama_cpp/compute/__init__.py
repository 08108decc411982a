"""The compute buffer: llama.cpp's graph, built in numbers, and ggml's allocator over it.

`compute_buffer` gives the bytes that llama.cpp prints as ``compute buffer size`` with one backend.
"""

from __future__ import annotations

from membudget.engines.llama_cpp.compute.graphs import compute_buffer, proven
from membudget.engines.llama_cpp.compute.header import ComputeError, Header

__all__ = ["ComputeError", "Header", "compute_buffer", "proven"]
