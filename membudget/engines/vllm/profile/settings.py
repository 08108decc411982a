"""What a start is told: the flags and variables that the profile run depends on."""

from __future__ import annotations

from dataclasses import dataclass

from membudget.engines.vllm.parallel.cut import Experts
from membudget.errors import MembudgetError


class ProfileError(MembudgetError):
    """A start whose profile run is not known, or a setting that vLLM refuses."""


@dataclass(frozen=True)
class ProfileSettings:
    """Flags of `vllm serve`, by their names; None: what the version takes where nothing is said.

    utilization: gpu_memory_utilization.  max_num_seqs, max_num_batched_tokens, max_model_len, enforce_eager,
        performance_mode, language_model_only, skip_mm_profiling, enable_expert_parallel, max_loras,
        max_lora_rank: as vLLM names them.
    tp, pp, dp: tensor_parallel_size, pipeline_parallel_size, data_parallel_size.
    nodes: hosts that the ranks are on (nnodes, or what Ray spreads them over).
    dtype: of the model: ``bfloat16``, ``float16``, ``float32`` or ``auto``.
    usage: ``server`` (vllm serve), ``llm`` (the LLM class) or ``engine`` (AsyncLLMEngine in a program): their defaults
        differ.
    chunked_prefill: off makes max_num_batched_tokens at least max_model_len.
    mm_limits: limit_mm_per_prompt as (modality, count) pairs; None: the model's own limits.
    speculative: the method (``eagle3``, ``mtp``, ``ngram`` ...), speculative_tokens how many it drafts.
    flashinfer_sampler: VLLM_USE_FLASHINFER_SAMPLER.  v2_runner: VLLM_USE_V2_MODEL_RUNNER.
    estimate_graphs: VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS.
    cudagraph_mode: ``FULL_AND_PIECEWISE``, ``PIECEWISE``, ``FULL``, ``FULL_DECODE_ONLY`` or ``NONE``.
    capture_sizes: cudagraph_capture_sizes.
    compile_cache: ``warm`` (this model was compiled here before), ``cold``, or None, not known: the figure is the
        warm start's, and the range reaches to the cold one's.
    total: bytes of the device as its driver reports them, where they are known better than the machine's entry.
    """

    utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    nodes: int = 1
    dtype: str | None = None
    enforce_eager: bool = False
    usage: str = "server"
    chunked_prefill: bool = True
    performance_mode: str | None = None
    enable_expert_parallel: bool = False
    language_model_only: bool = False
    skip_mm_profiling: bool = False
    mm_limits: tuple[tuple[str, int], ...] | None = None
    max_loras: int = 0
    max_lora_rank: int = 16
    speculative: str | None = None
    speculative_tokens: int = 0
    flashinfer_sampler: bool | None = None
    v2_runner: bool | None = None
    estimate_graphs: bool | None = None
    cudagraph_mode: str | None = None
    capture_sizes: tuple[int, ...] | None = None
    compile_cache: str | None = None
    total: int | None = None

    @property
    def experts(self) -> Experts:
        """How the ranks share a mixture's experts."""
        return Experts.of(self.tp, self.dp, self.enable_expert_parallel)
