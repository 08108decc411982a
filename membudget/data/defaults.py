"""What is assumed where nothing was measured or given: every default once, with where it comes from."""

from __future__ import annotations

_MIB = 2**20

#: No search looks further; memory beyond is without a model to use it.
MAX_CTX = 2**30
MAX_USERS = 2**24
#: Tokens of context where none are given, or the model's own if less.
DEFAULT_CTX = 8192
#: Tokens of one prefill step: what vLLM's server takes from 70 GiB on (engine/arg_utils.py, 0.32.0).
DEFAULT_BATCHED_TOKENS = 8192
#: A prefill step that is suggested where a larger one does not fit: llama.cpp's own ``-ub``.
SMALL_STEP = 512
#: Overhead beside the operating system until it is measured, 1.5 GiB in all.
DEFAULT_OVERHEAD = {"cuda_context": 512 * _MIB, "allocator": 512 * _MIB, "cuda_graphs": 512 * _MIB}
#: The GPU of a DGX Spark, by its name.
SPARK_GPU = "GB10"
#: The share of its memory that an idle DGX Spark was seen to give an engine: 113.07 of 121.69 GiB were available
#: (fixtures/doctor/spark.json), and 12 of them must stay free.
IDLE_SHARE = 0.83
#: Above this share a DGX Spark was seen to hang (docs/hardware.md).
SPARK_SHARE = 0.85
#: The most that is suggested of a card of its own: CUDA's context and what vLLM does not foresee need the rest.
MOST_SHARE = 0.95
#: Buckets in the order in which they are added up and drawn: the one at the line is the limiting one.
DRAWN = ("overhead", "weights", "activations", "kv_cache")
#: GGUF mixes below 4 bits that are suggested where nothing else helps, the least compressed first.
SMALLEST_GGUF = ("q3_k_m", "q2_k", "iq2_xxs", "iq1_s")
