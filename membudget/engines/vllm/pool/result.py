"""The question `pool` is asked, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from membudget.engines.vllm.versions import DEFAULT
from membudget.errors import MembudgetError
from membudget.model import Model


class PoolError(MembudgetError):
    """A question that has no answer: a wrong setting, or a model whose pages are not known."""


class PoolRequest(NamedTuple):
    """What is asked.  None means vLLM's default.

    available: bytes for the pool, of the smallest rank, or one number a pipeline stage.
    max_model_len: tokens a request; -1 lets vLLM fit it.  max_num_batched_tokens: tokens a step.
    kv_cache_dtype, dtype: vLLM's names.  tp, pp, dcp: parallel sizes; pp_layers: layers a stage.
    kv_cache_memory_bytes: replaces `available`.  num_gpu_blocks_override: replaces the block count.
    speculative_tokens: draft tokens a step; draft_layers: attention layers of the drafter, alike the
    target's full ones; draft_model: a drafter of another shape; multi_module: one MTP module a draft token.
    async_scheduling: two batches in flight.  hybrid_manager: False is --disable-hybrid-kv-cache-manager.
    kernel_block: smallest block of the attention kernel; None as vLLM chooses on `capability`.
    device_memory, device_name: for the default of max_num_batched_tokens.
    encoder_tokens: tokens of the encoder's input, for cross attention.
    """

    model: Model
    available: int | Sequence[int] | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: str = "auto"
    dtype: str | None = None
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    pp_layers: tuple[int, ...] | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    speculative_tokens: int = 0
    draft_layers: int = 0
    draft_model: Model | None = None
    multi_module: bool = False
    async_scheduling: bool | None = None
    hybrid_manager: bool | None = None
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    mamba_cache_mode: str | None = None
    version: str = DEFAULT
    platform: str = "cuda"
    capability: tuple[int, int] = (9, 0)
    kernel_block: int | None = None
    device_memory: int | None = None
    device_name: str = ""
    encoder_tokens: int | None = None


class PoolGroup(NamedTuple):
    """Layers that share a block table.

    kind: full, mla, sliding, chunked, mamba, cross.  layers: how many.  block_size: tokens a block.
    page_size: bytes a block of one layer (of all layers, where `mixed`).  window: tokens, or 0.
    blocks_per_request: what one request at max_model_len may hold.
    fixed: blocks of a request that do not depend on its length, or 0.  mode: mamba_cache_mode, of states.
    """

    kind: str
    layers: int
    block_size: int
    page_size: int
    window: int
    blocks_per_request: int
    mixed: bool
    fixed: int = 0
    mode: str = ""


class Pool(NamedTuple):
    """How vLLM carves its pool.

    available: bytes it has.  block_size: tokens a block (the primary one); page_size: bytes a block of
    one layer takes, of the widest layer.  bytes_per_block: over all layers of the widest group.
    num_blocks: blocks of the pool, the null block included.  tokens: "KV cache size" as this version
    prints it; tokens_legacy: as before 0.20.1; tokens_concurrent: as from 0.20.1.
    blocks_per_request, need: blocks and bytes of one request at max_model_len as the start-up check
    counts them.  max_concurrency: num_blocks / blocks_per_request.
    in_flight_tokens: tokens that windows reserve beyond themselves.
    request_len: tokens of the request it was planned for (--max-model-len).
    max_model_len: the longest request that fits, at most request_len; 0 when none does: where vLLM refuses,
    its "estimated maximum model length".  longest: the same up to the model's own maximum.
    starts: whether vLLM starts.  error: its refusal in its words, or None; refusal: its code.
    stages: bytes_per_block of every pipeline stage.  used: bytes that the blocks take on the widest stage.
    """

    version: str
    platform: str
    available: int
    request_len: int
    max_num_batched_tokens: int | None
    in_flight_tokens: int
    kv_cache_dtype: str
    block_size: int
    page_size: int
    groups: tuple[PoolGroup, ...]
    bytes_per_block: int
    stages: tuple[int, ...]
    num_blocks: int
    tokens: int
    tokens_legacy: int
    tokens_concurrent: int
    max_concurrency: float
    blocks_per_request: int
    need: int
    max_model_len: int
    longest: int
    starts: bool
    error: str | None
    why: tuple[str, ...]
    refusal: str | None = None

    @property
    def used(self) -> int:
        """Bytes that the pool's blocks take on the widest stage."""
        return self.num_blocks * self.bytes_per_block

    def as_json(self) -> dict[str, Any]:
        """Plain values, keys as the fields, and ``used``."""
        out = self._asdict()
        out["groups"] = [each._asdict() for each in self.groups]
        out["stages"], out["why"] = list(self.stages), list(self.why)
        out["used"] = self.used
        return out
