"""What a budget says of llama.cpp, as llama-server's settings for a load: slots, contexts, places."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from membudget.budgets.settings import Settings as Budgeted
from membudget.engines.llama_cpp.options import BATCH, UBATCH
from membudget.engines.llama_cpp.settings import (
    MAX_SEQ,
    FlashAttention,
    Settings,
    SettingsError,
    overrides,
    pad,
    shares,
)
from membudget.formats import kv

#: llama.cpp's names of the plain dtypes (common/arg.cpp kv_cache_types).
TYPES = {"fp16": "f16", "fp32": "f32"}
#: ``--cpu-moe``: more layers than any model has.
_EVERY = 10_000
#: ``--spec-draft-n-max`` where nobody says it (common/common.h).
DRAFT_MAX = 3


@dataclass(frozen=True)
class Asked:
    """A budget's settings, read once."""

    #: settings that no load changes
    plain: Settings
    #: as given: tokens of all slots, 0 for the model's own length, None for what the users need
    ctx_size: int | None
    #: as given: slots, None for as many as users
    parallel: int | None
    unified: bool
    #: ``-sm none``: one device has all
    one_device: bool
    mmproj: str
    mmproj_offload: bool
    draft: str
    #: bytes of RAM that may be taken beside the devices, None where nobody says
    host_memory: int | None
    #: the options by their names
    given: dict[str, Any]

    def slots(self, users: int) -> int:
        """``-np`` of so many users."""
        return self.parallel or users

    def total(self, ctx: int, users: int) -> int:
        """``-c``: as given, else what the users need."""
        if self.ctx_size is not None:
            return self.ctx_size
        return ctx * users if self.unified else pad(ctx) * self.slots(users)

    def of(self, ctx: int, users: int) -> Settings:
        """The server of a load.  Raises `SettingsError` for more slots than llama.cpp has."""
        return replace(self.plain, ctx_size=self.total(ctx, users), parallel=self.slots(users), kv_unified=self.unified)

    def room(self, ctx: int, users: int, trained: int) -> int:
        """Users of `ctx` tokens that its slots have room for, at so many slots."""
        slots = self.slots(users)
        if slots > MAX_SEQ:
            return 0
        if self.ctx_size is None:
            return slots
        _, each = self.of(ctx, users).cells(trained)
        return min(slots, each // ctx) if self.unified else slots if each >= ctx else 0


def read(settings: Budgeted) -> Asked:
    """A budget's engine options.  Raises `SettingsError` for what llama.cpp refuses."""
    given = dict(settings.options)
    kept = "fp16" if settings.kv_cache_dtype == "auto" else kv.get(settings.kv_cache_dtype, engine="llama.cpp").name
    types = [str(given.get(f"cache_type_{side}", TYPES.get(kept, kept))) for side in "kv"]
    layers = given.get("n_gpu_layers")
    ctx = given.get("ctx_size")
    spec = str(given.get("spec_type", "draft-simple" if "model_draft" in given else "none"))
    if spec == "draft-simple" and "model_draft" not in given:
        raise SettingsError("spec_type draft-simple needs a draft model: --model-draft FILE")
    mtp = spec == "draft-mtp"
    drafted = int(given.get("spec_draft_n_max", DRAFT_MAX)) if spec != "none" else 0
    ubatch = settings.max_num_batched_tokens or UBATCH
    plain = Settings(
        batch_size=int(given.get("batch_size", BATCH)),
        ubatch_size=ubatch,
        flash_attn=FlashAttention(str(given.get("flash_attn", "auto"))),
        cache_type_k=types[0],
        cache_type_v=types[1],
        swa_full=bool(given.get("swa_full", False)),
        n_gpu_layers=None if layers in (None, "auto", "all") else int(layers),
        n_cpu_moe=_EVERY if given.get("cpu_moe") else int(given.get("n_cpu_moe", 0)),
        override_tensor=overrides(str(given["override_tensor"])) if "override_tensor" in given else (),
        tensor_split=shares(str(given["tensor_split"])) if "tensor_split" in given else (),
        kv_offload=bool(given.get("kv_offload", True)),
        op_offload=bool(given.get("op_offload", True)),
        draft_max=drafted,
        mtp=mtp,
    )
    return Asked(
        plain,
        None if ctx is None else int(ctx),
        given.get("parallel"),
        bool(given.get("kv_unified", False)),
        given.get("split_mode") == "none",
        str(given.get("mmproj", "")),
        bool(given.get("mmproj_offload", True)),
        str(given.get("model_draft", "")),
        given.get("host_memory"),
        given,
    )


__all__ = ["TYPES", "Asked", "read"]
