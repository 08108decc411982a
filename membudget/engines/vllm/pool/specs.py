"""What vLLM allocates for each layer: one `Spec` a layer, as its `get_kv_cache_spec` builds them.

From `CacheSpec` (what the model keeps) to blocks and pages (what the engine takes).
vLLM: v1/kv_cache_interface.py, platforms/interface.py, model_executor/layers/attention.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm
from typing import NamedTuple

from membudget.engines.vllm.pool import states
from membudget.engines.vllm.pool.derive import SpecError, kv_dtype
from membudget.engines.vllm.versions import Rules
from membudget.model.caches import CacheSpec
from membudget.model.config import Config

#: Bytes a token of DeepSeek-V3.2's indexer keys: 128 of fp8 and one fp32 scale a 128.
INDEXER_BLOCK = 128


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


#: Models whose caches vLLM packs by rules of their own, which are not restated here.
NOT_KNOWN = {
    "minimax_m3": "a sparse index beside keys and values",
}


class Spec(NamedTuple):
    """One layer's pages, as vLLM would group them: equal specs share a group.

    kind: full, mla, sliding, chunked, mamba, cross.
    block: tokens a block.  page: bytes a block of this layer takes, padding included.
    unit: bytes a token, unpadded (0 for mamba).  window: tokens, for sliding and chunked.
    fixed: blocks of a request that do not depend on its length (mamba; 0: by length).
    shape: what distinguishes layers of one kind (heads, dims, dtype).
    """

    kind: str
    block: int
    page: int
    unit: int
    window: int = 0
    fixed: int = 0
    shape: tuple[int | str, ...] = ()

    def blocks(self, length: int, flight: int, extra: int, dcp: int, encoder: int) -> int:
        """Blocks that one request of `length` tokens may hold (max_memory_usage_bytes / page_size_bytes).

        flight: tokens in flight.  extra: tokens a multi-module drafter keeps below the window.
        dcp: decode context parallel size.  encoder: tokens of the encoder's input.
        """
        if self.kind == "mamba":
            return self.fixed or cdiv(length, self.block)
        if self.kind == "sliding":
            return cdiv(min(self.window - 1 + extra + flight, length), self.block) + 1
        if self.kind == "chunked":
            return cdiv(min(self.window + flight, length), self.block)
        if self.kind == "cross":
            return cdiv(encoder, self.block)
        return cdiv(cdiv(length, dcp), self.block)


class Bucket(NamedTuple):
    """Entries of vLLM's cache that are alike: their spec, and the model's layers they belong to."""

    spec: Spec
    layers: list[int]


class Layers(NamedTuple):
    """All layers and what decides them: primary block size, mamba mode and page, and the reasons in words."""

    buckets: list[Bucket]
    block: int
    mamba_mode: str
    mamba_page: int
    why: tuple[str, ...]


class Setting(NamedTuple):
    """What the specs depend on.

    dtype: of the model's computation.  kv_dtype: resolved kv_cache_dtype, ``auto`` is the model's.
    tp, draft: tensor-parallel size, draft tokens.  block: --block-size or None.
    prefix_caching: None for vLLM's default.  kernel: the smallest block of the attention kernel, None: vLLM's choice.
    capability: CUDA compute capability.
    """

    rules: Rules
    config: Config
    dtype: str
    kv_dtype: str
    platform: str
    tp: int
    draft: int
    block: int | None
    prefix_caching: bool | None
    mamba_cache_dtype: str
    mamba_ssm_cache_dtype: str
    mamba_cache_mode: str | None
    kernel: int | None
    capability: tuple[int, int]


def heads_per_rank(heads: int, tp: int, source: str) -> int:
    """KV heads of one rank: divided, or replicated when there are fewer than ranks (config/model.py)."""
    if heads >= tp and heads % tp:
        raise SpecError(f"{source}: {heads} KV heads are not divisible by tensor_parallel_size {tp}")
    if heads < tp and tp % heads:
        raise SpecError(f"{source}: tensor_parallel_size {tp} is not a multiple of the {heads} KV heads")
    return max(1, heads // tp)


def kernel_block(setting: Setting, latent: bool, indexer: bool) -> tuple[int, bool, str]:
    """The attention kernel's smallest block, whether it takes no other, and its name.

    CUDA as vLLM 0.32 chooses: FlashAttention and FlashAttention MLA take multiples of 16,
    sparse MLA and FlashMLA (fp8 latent caches on SM 9.0) 64, FlashInfer MLA (SM 10) 32.
    """
    if setting.kernel is not None:
        return setting.kernel, False, "as given"
    if setting.platform == "cpu":
        return (16, True, "CPU_MLA") if latent else (setting.rules.cpu_kernel, False, "CPU_ATTN")
    if indexer:
        return 64, False, "sparse MLA"
    if latent:
        major = setting.capability[0]
        if setting.rules.version < (0, 18, 0):
            return (128, False, "CUTLASS MLA") if major == 10 else (64, False, "FlashMLA")
        if major == 10:
            return 32, False, "FlashInfer MLA"
        if major == 9 and setting.kv_dtype not in ("auto", "bfloat16", "float16"):
            return 64, False, "FlashMLA"
        return 16, False, "MLA"
    return 16, False, "FlashAttention"


def build(setting: Setting, caches: Iterable[CacheSpec]) -> Layers:
    """Every layer's spec; `SpecError` or `StateError` where vLLM refuses or the rule is not known."""
    caches = tuple(caches)
    why: list[str] = []
    if (special := NOT_KNOWN.get(setting.config.model_type)) is not None:
        raise SpecError(
            f"{setting.config.source}: vLLM keeps {special}; its pool is not supported. "
            "Ask the installed vLLM: membudget oracle"
        )
    latent = any(c.kind == "latent" for c in caches)
    indexer = any(c.index for c in caches)
    if indexer:
        setting = _sparse_dtype(setting, why)
    kernel, only, name = kernel_block(setting, latent, indexer)
    block = _primary_block(setting, kernel, only, name, why)
    attention = next((c for c in caches if c.per_token and c.kind in ("full", "latent")), None)
    recurrent = any(c.states for c in caches)
    mode, page, shape = "none", 0, None
    if recurrent:
        shape = states.shapes(setting.config, setting.tp, setting.draft)
        page, text = states.page_bytes(shape, setting.dtype, setting.mamba_cache_dtype, setting.mamba_ssm_cache_dtype)
        mode = _mamba_mode(setting, shape, attention is not None, why)
        why.append(f"state of a recurrent layer: {text} = {page:,} B (layers/mamba/mamba_utils.py)")
        if attention is not None and setting.platform == "cpu" and not setting.rules.cpu_align:
            why.append(f"no alignment of attention and state pages on the CPU (platforms/cpu.py, {setting.rules.name})")
        elif attention is not None:
            block = _align(setting, block, kernel, page, attention, shape, mode, why)
            page = block * _unit(setting, attention)
    mamba = _mamba_spec(setting, shape, page, block, mode) if shape is not None else None
    known: dict[tuple[object, ...], list[Bucket]] = {}
    buckets: dict[Spec, Bucket] = {}
    for cache in caches:
        key = cache[1:]
        mine = known.get(key)
        if mine is None:
            mine = known[key] = [
                buckets.setdefault(spec, Bucket(spec, [])) for spec in _entries(setting, cache, block, kernel, mamba)
            ]
        for bucket in mine:
            bucket.layers.append(cache.layer)
    return Layers(list(buckets.values()), block, mode, page if recurrent else 0, tuple(why))


def _sparse_dtype(setting: Setting, why: list[str]) -> Setting:
    """Sparse MLA: fp8 is stored as fp8_ds_mla, except by FlashInfer (SM 10); GLM takes fp8 there by default."""
    dtype, blackwell = setting.kv_dtype, setting.capability[0] == 10
    if (
        dtype == "auto"
        and blackwell
        and setting.config.model_type == "glm_moe_dsa"
        and setting.rules.version >= (0, 32, 0)
    ):
        dtype = "fp8_e4m3"
        why.append("kv_cache_dtype auto is fp8_e4m3: sparse GLM on SM 10 (models/config.py)")
    if dtype.startswith("fp8") and dtype != "fp8_ds_mla" and not blackwell:
        why.append(f"kv_cache_dtype {dtype} is stored as fp8_ds_mla, 656 B a token (mla/flashmla_sparse.py)")
        dtype = "fp8_ds_mla"
    return setting._replace(kv_dtype=dtype)


def _primary_block(setting: Setting, kernel: int, only: bool, name: str, why: list[str]) -> int:
    rules, asked = setting.rules, setting.block
    where = f"{setting.platform}, {name}"
    if only:
        if asked not in (None, kernel):
            why.append(f"block size {kernel}: {where} takes no other, {asked} is overridden (platforms/cpu.py)")
        else:
            why.append(f"block size {kernel}: {where} takes no other (platforms/cpu.py)")
        return kernel
    if asked is not None:
        if asked % kernel:
            raise SpecError(f"block size {asked}: {where} takes multiples of {kernel}")
        why.append(f"block size {asked}: as given")
        return asked
    if setting.platform == "cpu":
        why.append(f"block size {rules.cpu_block}: the default on the CPU (platforms/cpu.py, {rules.name})")
        return rules.cpu_block
    block = 16 if 16 % kernel == 0 else kernel
    why.append(f"block size {block}: default 16, {name} takes multiples of {kernel} (platforms/interface.py)")
    return block


def _mamba_mode(setting: Setting, shape: states.Shapes, hybrid: bool, why: list[str]) -> str:
    rules = setting.rules
    caching = setting.prefix_caching
    if caching is None:
        caching = rules.mamba_caching and hybrid
        says = "on" if caching else "off"
        why.append(f"prefix caching is {says} by default for recurrent layers (config/model.py, {rules.name})")
    if not caching:
        return "none"
    if setting.mamba_cache_mode not in (None, "none"):
        mode = str(setting.mamba_cache_mode)
    elif rules.mamba == "mode" and rules.mamba_all and shape.kind in states.SUPPORTS_ALL:
        mode = "align" if setting.draft and rules.version < (0, 22, 0) else "all"
    elif rules.mamba == "length" and shape.kind in states.SUPPORTS_ALL:
        mode = "all"
    elif rules.mamba == "mode":
        mode = "align"
    else:
        mode = "none"
    if mode == "all" and not (rules.mamba_all or rules.mamba == "length"):
        raise SpecError(f"mamba_cache_mode all does not exist in vLLM {rules.name}")
    why.append(f"mamba_cache_mode {mode}: with prefix caching (models/config.py, {rules.name})")
    return mode


def _align(
    setting: Setting,
    block: int,
    kernel: int,
    page: int,
    attention: CacheSpec,
    shape: states.Shapes,
    mode: str,
    why: list[str],
) -> int:
    """The block size that makes an attention page hold a state (`_align_hybrid_block_size`)."""
    rules, unit = setting.rules, _unit(setting, attention)
    latent = attention.kind == "latent"
    if rules.align_primary:
        step = max(kernel, block)
        if latent:
            step = max(step, rules.mla_hybrid_align if rules.version >= (0, 28, 0) else step)
    else:
        step = rules.mla_hybrid_align if latent else 16
    if mode == "all":
        step = lcm(_chunk_size(setting.config, shape), step)
        wanted = step * cdiv(cdiv(page, unit), step)
    else:
        wanted = step * cdiv(page, step * unit)
    if block < wanted:
        why.append(
            f"block size {wanted}: {step} x ceil({page:,} / ({step} x {unit:,})), "
            f"so that an attention page holds a state (platforms/interface.py, {rules.name})"
        )
        block = wanted
    full = block * unit
    if full > page:
        why.append(f"state page padded by {100 * (full - page) / page:.2f}% to {full:,} B, an attention page")
    return block


def _chunk_size(config: Config, shape: states.Shapes) -> int:
    for key in ("mamba_chunk_size", "chunk_size"):
        if config.get(key) is not None:
            return config.integer(key)
    return 2048 if shape.kind == "mamba1" else 256


def _unit(setting: Setting, cache: CacheSpec) -> int:
    """Bytes a token of one layer on one rank."""
    stored = kv_dtype(setting.kv_dtype, setting.dtype)
    if cache.kind == "latent":
        return stored.latent_bytes(cache.latent, cache.rope)
    heads = heads_per_rank(cache.kv_heads, setting.tp, setting.config.source)
    k = stored.side_bytes(cache.k_dim)
    if setting.rules.version < (0, 14, 0):
        return heads * 2 * k
    return heads * (k + stored.side_bytes(cache.v_dim))


def _mamba_spec(setting: Setting, shape: states.Shapes, page: int, block: int, mode: str) -> Spec:
    rules, draft = setting.rules, setting.draft
    identity = ("mamba", shape.kind)
    if rules.mamba == "one" or (rules.mamba == "length" and mode == "none"):
        return Spec("mamba", block, page, 0, fixed=1, shape=identity)
    if mode == "none":
        return Spec("mamba", block, page, 0, fixed=1 + draft, shape=identity)
    if mode == "align":
        kept = 1 if rules.checkpoint and shape.kind == "mamba2" else 0
        return Spec("mamba", block, page, 0, fixed=2 + draft + kept, shape=identity)
    return Spec("mamba", block, page, 0, shape=identity)


def _entries(setting: Setting, cache: CacheSpec, block: int, kernel: int, mamba: Spec | None) -> list[Spec]:
    """The entries of vLLM's cache for one layer: none for shared ones, two for a layer with attention and a state."""
    if cache.kind in ("shared", "none"):
        return []
    out = [mamba] if cache.states and mamba is not None else []
    if not cache.per_token:
        return out
    unit = _unit(setting, cache)
    shape = (cache.kv_heads, cache.k_dim, cache.v_dim, setting.kv_dtype)
    if cache.kind == "latent":
        if cache.index:
            index = cache.index + 4 * (cache.index // INDEXER_BLOCK)
            out.append(Spec("mla", block, block * index, index, shape=("indexer", index)))
        latent = ("latent", cache.latent + cache.rope, setting.kv_dtype)
        out.append(Spec("mla", block, block * unit, unit, shape=latent))
    elif cache.kind in ("full", "recurrent"):
        out.append(Spec("full", block, block * unit, unit, shape=shape))
    elif cache.kind == "cross":
        out.append(Spec("cross", block, block * unit, unit, shape=shape))
    elif cache.kind in ("sliding", "chunked"):
        own = block
        if cache.kind == "sliding":
            choice = setting.rules.sliding_block
            own = kernel if choice == "smallest" else max(kernel, block // kernel * kernel)
            own = block if choice == "primary" else own
        out.append(Spec(cache.kind, own, own * unit, unit, cache.window, shape=shape))
    else:
        raise SpecError(
            f"{setting.config.source}: how vLLM keeps a cache of kind {cache.kind!r} (layer {cache.layer}) "
            "is not known; ask the installed vLLM: membudget oracle"
        )
    return out
