"""What people set for llama.cpp, by llama.cpp's own names, and what llama-server takes where they set nothing.

Sources: llama.cpp v0.4.0 common/arg.cpp (names), common/common.h (defaults), tools/server/server.cpp (slots),
tools/server/server-context.cpp and common/speculative.cpp (rows of logits).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from membudget.errors import MembudgetError

#: What llama-server takes for ``-np`` where nobody says it; the cache is then unified.
AUTO_PARALLEL = 4
#: Cache types that llama.cpp takes for ``-ctk`` and ``-ctv``, by their ggml ids.
CACHE_TYPES = {
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7,
}  # fmt: skip
MAX_SEQ = 256
#: Devices of one host at most (ggml: GGML_CUDA_MAX_DEVICES).
MAX_DEVICES = 16


class SettingsError(MembudgetError):
    """A setting that llama.cpp does not take: says which, and what is allowed."""


class FlashAttention(Enum):
    """``-fa``: on, off, or on where the device has a kernel for it."""

    ON = "on"
    OFF = "off"
    AUTO = "auto"


def shares(text: str) -> tuple[float, ...]:
    """``-ts``: shares of devices, from ``3,1`` or ``3/1``.  Raises `SettingsError`."""
    try:
        found = tuple(float(part) for part in re.split("[,/]", text))
    except ValueError:
        found = ()
    if not found or len(found) > MAX_DEVICES or not all(0 <= share < 10**6 for share in found) or not any(found):
        raise SettingsError(f"{text[:60]!r} are no shares; 1 to {MAX_DEVICES} numbers with commas are allowed")
    return found


def overrides(text: str) -> tuple[tuple[str, str], ...]:
    """``-ot``: (pattern, buffer type) pairs, from ``ffn_.*_exps=CPU,attn=CUDA0``.  Raises `SettingsError`."""
    found = []
    for part in text.split(","):
        pattern, equals, place = part.strip().rpartition("=")
        if not equals or not pattern or not re.fullmatch(r"CPU|(CUDA|ROCm|HIP|Vulkan|Metal|MTL|SYCL)\d*", place):
            raise SettingsError(f"{part[:60]!r} is not pattern=PLACE; places are CPU, and devices as CUDA0")
        try:
            re.compile(pattern)
        except re.error as error:
            raise SettingsError(f"{pattern[:60]!r} does not compile: {error}") from None
        found.append((pattern, place))
    return tuple(found)


@dataclass(frozen=True)
class Settings:
    """A server's settings, named as llama.cpp's long options are; every default is llama-server's.

    Raises `SettingsError` for what llama.cpp refuses.
    """

    #: ``-c``: tokens of all slots together; 0 is the model's own length
    ctx_size: int = 0
    #: ``-np``: slots; None is llama-server's own: 4 over a unified cache
    parallel: int | None = None
    #: ``-kvu``: one cache for all slots; None is on where `parallel` is None
    kv_unified: bool | None = None
    #: ``-b``: tokens of a logical batch
    batch_size: int = 2048
    #: ``-ub``: tokens of a physical batch, for which graphs are reserved
    ubatch_size: int = 512
    #: ``-fa``
    flash_attn: FlashAttention = FlashAttention.AUTO
    #: ``-ctk``
    cache_type_k: str = "f16"
    #: ``-ctv``; a quantized one needs flash attention
    cache_type_v: str = "f16"
    #: ``--swa-full``: windows keep all tokens
    swa_full: bool = False
    #: ``-ngl``: layers on devices, the output layer counted as one; None is all
    n_gpu_layers: int | None = None
    #: ``--n-cpu-moe``: experts of so many first layers stay in host memory
    n_cpu_moe: int = 0
    #: ``-ot``: (pattern, buffer type) pairs; ``CPU`` is host memory
    override_tensor: tuple[tuple[str, str], ...] = ()
    #: ``-ts``: shares of devices; empty is by free memory
    tensor_split: tuple[float, ...] = ()
    #: ``--no-kv-offload`` is False: the cache and attention on the host
    kv_offload: bool = True
    #: ``--no-op-offload`` is False
    op_offload: bool = True
    #: rows of logits that a step may return; 0 is one a token of a batch (every build before v0.4.0, and the
    #: library itself); None is what llama-server v0.4.0 sets: one a slot, and one more a drafted token
    outputs_max: int | None = 0
    #: ``--spec-draft-n-max`` of a model's own prediction layers (MTP) or an EAGLE head: recurrent states a slot are
    #: 1 + this; 0: without speculation
    draft_max: int = 0
    #: the draft is the model's own prediction layers: they are loaded and have a context of their own
    mtp: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "ubatch_size"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; at least 1 is allowed")
        for name in ("ctx_size", "n_cpu_moe", "draft_max"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; 0 or more is allowed")
        if self.parallel is not None and not 1 <= self.parallel <= MAX_SEQ:
            raise SettingsError(f"parallel is {self.parallel}; 1 to {MAX_SEQ} are allowed")
        for name in ("cache_type_k", "cache_type_v"):
            if getattr(self, name) not in CACHE_TYPES:
                raise SettingsError(f"{name} is {getattr(self, name)!r}; allowed are {', '.join(CACHE_TYPES)}")
        if self.flash_attn is FlashAttention.OFF and self.cache_type_v not in ("f32", "f16", "bf16"):
            raise SettingsError(f"cache_type_v {self.cache_type_v} needs flash attention: -fa on")

    @property
    def slots(self) -> int:
        """``-np`` as llama-server takes it."""
        return AUTO_PARALLEL if self.parallel is None else self.parallel

    @property
    def unified(self) -> bool:
        """``-kvu`` as llama-server takes it."""
        return self.parallel is None if self.kv_unified is None else self.kv_unified

    @property
    def flash(self) -> bool:
        """Whether graphs are built with flash attention; ``auto`` is on: every backend with a device has the kernel."""
        return self.flash_attn is not FlashAttention.OFF

    def cells(self, trained: int) -> tuple[int, int]:
        """(n_ctx, n_ctx_seq): cells in all and of one sequence, padded as llama.cpp pads them."""
        total = pad(self.ctx_size or trained)
        if self.unified:
            return total, total
        each = pad(total // self.slots)
        return each * self.slots, each

    def batch(self, trained: int) -> int:
        """n_batch: never more than the context asked for."""
        return min(self.batch_size, self.ctx_size or trained)

    def ubatch(self, trained: int) -> int:
        """n_ubatch: never more than n_batch."""
        return min(self.batch(trained), self.ubatch_size)

    def outputs(self, trained: int) -> int:
        """Rows of logits that a graph is reserved for."""
        batch = self.batch(trained)
        limit = self.outputs_max
        if limit is None:
            limit = min(batch, self.slots * (1 + self.draft_max))
        return min(self.ubatch(trained), limit or batch)


def pad(tokens: int, to: int = 256) -> int:
    """`tokens` rounded up to a multiple of `to`."""
    return -(-tokens // to) * to
