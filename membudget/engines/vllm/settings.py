"""What a start of vLLM is told, typed, out of a budget's settings; and what its profile and its pool are asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from membudget.budgets.settings import Settings
from membudget.engines import share
from membudget.engines.vllm import speculative
from membudget.engines.vllm.pool.derive import model_dtype
from membudget.engines.vllm.pool.result import PoolRequest
from membudget.engines.vllm.profile import ProfileSettings
from membudget.engines.vllm.speculative import Drafter, Speculative
from membudget.engines.vllm.versions import DEFAULT, Rules, rules
from membudget.errors import MembudgetError
from membudget.formats import Format
from membudget.formats.dtypes import DENSE_FORMATS, TORCH_DTYPES
from membudget.machines import Machine
from membudget.model import Model, build
from membudget.sources.locate import locate

#: torch's name of a dense format: bf16 -> bfloat16.
_TORCH = {DENSE_FORMATS[header]: name for name, header in reversed(TORCH_DTYPES.items()) if header in DENSE_FORMATS}
#: Backends of vLLM that the pool knows, by platform.
_PLATFORMS = {"cpu": "cpu"}


class SettingsError(MembudgetError):
    """Flags that contradict each other or the machine: names both."""


@dataclass(frozen=True)
class VllmSettings:
    """Flags of `vllm serve`, resolved as far as they are known without the model's length."""

    #: Whose rules decide.
    rules: Rules
    #: The share of the device, as given, the version's, or what leaves the operating system its part.
    utilization: float
    #: Whether nobody gave the share, and the version's own was lowered for the operating system.
    lowered: bool
    #: Tokens of one step, sequences at once; None for the version's default on this device.
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    #: The longest request; None for the plan's own context.
    max_model_len: int | None
    #: Tensor, pipeline and decode-context parallel sizes, and replicas (data parallel).
    tp: int
    pp: int
    dcp: int
    dp: int
    #: ``auto`` or torch's name of the model's dtype.
    dtype: str | None
    #: By vLLM's name, ``auto`` for the model's own dtype.
    kv_cache_dtype: str
    #: Bytes that fix the pool, or None.
    kv_cache_memory_bytes: int | None
    #: The speculative_config, and what it adds to the pool; None for nothing.
    speculative: Speculative | None
    drafter: Drafter | None
    #: Every other flag, as given.
    given: Mapping[str, Any]

    def profile(self, length: int) -> ProfileSettings:
        """What the profile run is asked for requests of `length` tokens."""
        limits = self.given.get("limit_mm_per_prompt")
        return ProfileSettings(
            utilization=self.utilization,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=length,
            tp=self.tp,
            pp=self.pp,
            dp=self.dp,
            dtype=self.dtype,
            enforce_eager=bool(self.given.get("enforce_eager")),
            chunked_prefill=self.given.get("enable_chunked_prefill", True),
            enable_expert_parallel=bool(self.given.get("enable_expert_parallel")),
            language_model_only=bool(self.given.get("language_model_only")),
            max_loras=int(self.given.get("max_loras", 1)) if self.given.get("enable_lora") else 0,
            max_lora_rank=int(self.given.get("max_lora_rank", 16)),
            mm_limits=tuple(limits.items()) if limits else None,
            speculative=self.speculative.method if self.speculative else None,
            speculative_tokens=self.drafter.speculative_tokens if self.drafter else 0,
        )

    def request(
        self,
        model: Model,
        machine: Machine,
        available: int | Sequence[int] | None,
        length: int | None,
        batched: int | None,
    ) -> PoolRequest:
        """What the pool is asked: bytes of every pipeline stage, tokens of a request and of a step.

        length: None for the model's own, -1 for the longest that fits.
        """
        given, drafter = self.given, self.drafter
        off = given.get("disable_hybrid_kv_cache_manager")
        return PoolRequest(
            model,
            available,
            max_model_len=length,
            max_num_batched_tokens=batched,
            kv_cache_dtype=self.kv_cache_dtype,
            dtype=self.dtype,
            tp=self.tp,
            pp=self.pp,
            dcp=self.dcp,
            block_size=given.get("block_size"),
            prefix_caching=given.get("enable_prefix_caching"),
            kv_cache_memory_bytes=self.kv_cache_memory_bytes,
            num_gpu_blocks_override=given.get("num_gpu_blocks_override"),
            speculative_tokens=drafter.speculative_tokens if drafter else 0,
            draft_layers=drafter.draft_layers if drafter else 0,
            draft_model=drafter.draft_model if drafter else None,
            multi_module=bool(drafter and drafter.multi_module),
            async_scheduling=given.get("async_scheduling"),
            hybrid_manager=None if off is None else not off,
            mamba_cache_dtype=given.get("mamba_cache_dtype", "auto"),
            mamba_ssm_cache_dtype=given.get("mamba_ssm_cache_dtype", "auto"),
            mamba_cache_mode=given.get("mamba_cache_mode"),
            version=self.rules.name,
            platform=_PLATFORMS.get(machine.platform, "cuda"),
            capability=machine.compute_capability or (9, 0),
            device_memory=machine.cuda_total or machine.memory,
            device_name=machine.title,
        )

    @property
    def overlap(self) -> bool:
        """Whether the next step is scheduled before the last one's output is there (async scheduling)."""
        asked: bool | None = self.given.get("async_scheduling")
        return self.rules.in_flight if asked is None else asked


def vllm_settings(settings: Settings, model: Model, weights: Format | None, machine: Machine) -> VllmSettings:
    """Read a budget's settings.  weights: None where only the pool is asked for.

    Raises `VersionError` for a version that is not known, `SettingsError` for flags that contradict each other.
    """
    given = settings.options
    r = rules(str(given.get("version", DEFAULT)))
    dcp = int(given.get("decode_context_parallel_size", 1))
    if settings.tensor_parallel % dcp:
        raise SettingsError(
            f"decode_context_parallel_size {dcp} does not divide tensor_parallel_size {settings.tensor_parallel}"
        )
    own = r.utilization / 100
    utilization = settings.gpu_memory_utilization
    lowered = utilization is None and share.assumed(machine, own) < own
    if utilization is None:
        utilization = share.assumed(machine, own)
    asked = speculative.read(given.get("speculative_config"))
    dtype = given.get("dtype") or (_TORCH.get(weights.name) if weights else None)
    return VllmSettings(
        rules=r,
        utilization=utilization,
        lowered=lowered,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=given.get("max_num_seqs"),
        max_model_len=given.get("max_model_len"),
        tp=settings.tensor_parallel,
        pp=settings.pipeline_parallel,
        dcp=dcp,
        dp=int(given.get("data_parallel_size", 1)),
        dtype=dtype,
        kv_cache_dtype=cache_dtype(settings.kv_cache_dtype, dtype, model),
        kv_cache_memory_bytes=given.get("kv_cache_memory_bytes"),
        speculative=asked,
        drafter=None if asked is None else speculative.drafter(asked, model, _found),
        given=given,
    )


def _found(name: str) -> Model:
    """A drafter's model, by its name or path."""
    located = locate(name)
    if located.config is None:
        raise SettingsError(f"speculative_config: {name} has weights and no config.json")
    return build(located.config, name)


def cache_dtype(name: str, dtype: str | None, model: Model) -> str:
    """vLLM's name of a KV cache dtype: ``auto`` where it is the model's own dtype."""
    theirs = _TORCH.get(name, name)
    return "auto" if theirs == model_dtype(model.config, dtype)[0] else theirs
