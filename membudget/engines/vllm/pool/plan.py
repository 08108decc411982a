"""vLLM's KV pool, to the block: from a model and a budget to blocks, tokens, concurrency and vLLM's verdict.

The arithmetic of v1/core/kv_cache_utils.py, restated; every rule that was applied is
a line of `Pool.why` with the vLLM file it is in.  `oracle` asks an installed vLLM the
same question.
"""

from __future__ import annotations

from collections.abc import Sequence

from membudget.engines.vllm.pool import derive, packed
from membudget.engines.vllm.pool.demand import Demand, Need, longest_that_fits
from membudget.engines.vllm.pool.derive import SpecError
from membudget.engines.vllm.pool.groups import Group, GroupError, group
from membudget.engines.vllm.pool.result import Pool, PoolError, PoolGroup, PoolRequest
from membudget.engines.vllm.pool.specs import Bucket, Layers, Setting, Spec, build
from membudget.engines.vllm.pool.states import StateError
from membudget.engines.vllm.versions import Rules, VersionError, rules
from membudget.formats import FormatError
from membudget.model.length import longest as longest_of

__all__ = ["Pool", "PoolError", "PoolGroup", "PoolRequest", "plan_pool"]


def plan_pool(request: PoolRequest) -> Pool:
    """Carve the pool.  Raises `PoolError` when the question itself is wrong or has no known answer.

    A start that vLLM would refuse is an answer: ``starts`` is False and ``error`` has vLLM's words.
    """
    try:
        return _plan(request)
    except (FormatError, SpecError, StateError, VersionError) as error:
        raise PoolError(str(error)) from None


def _plan(q: PoolRequest) -> Pool:
    r = rules(q.version)
    why: list[str] = [r.note] if r.note else []
    _check(q)
    dtype, text = derive.model_dtype(q.model.config, q.dtype)
    why.extend(filter(None, (text,)))
    kv_dtype, text = derive.kv_cache_dtype(q.model.config, q.kv_cache_dtype, r)
    why.extend(filter(None, (text,)))
    setting = Setting(
        rules=r,
        config=q.model.config,
        dtype=dtype,
        kv_dtype=kv_dtype,
        platform=q.platform,
        tp=q.tp,
        draft=q.speculative_tokens,
        block=q.block_size,
        prefix_caching=q.prefix_caching,
        mamba_cache_dtype=q.mamba_cache_dtype,
        mamba_ssm_cache_dtype=q.mamba_ssm_cache_dtype,
        mamba_cache_mode=q.mamba_cache_mode,
        kernel=q.kernel_block,
        capability=q.capability,
    )
    packs = q.model.config.model_type in packed.TYPES
    built = packed.build(setting, len(q.model.caches)) if packs else build(setting, q.model.caches)
    why.extend(built.why)
    if packs and (q.draft_layers or q.draft_model is not None):
        raise PoolError(f"{q.model.name}: where the pages of a drafter go beside DeepSeek-V4's is not known")
    buckets, stages = _place(q, built, setting)
    hybrid = _hybrid_manager(q, buckets, r, why)
    length, text = derive.max_model_len(q.model.config, q.max_model_len, r)
    why.extend(filter(None, (text,)))
    windows = any(spec.kind in ("sliding", "chunked") for spec, _ in buckets)
    need = _in_flight(q, r, windows, length, why)
    available = _available(q, len(stages))
    if not buckets:
        return _attention_free(q, r, built.block, length, kv_dtype, available, why)
    try:
        groups = tuple(map(Group, packed.pack(buckets))) if packs else group(buckets, r, hybrid, why)
    except GroupError as error:
        raise PoolError(f"{q.model.name}: {error}") from None
    return _carve(q, r, groups, buckets, stages, available, length, need, built.block, built.mamba_mode, kv_dtype, why)


def _check(q: PoolRequest) -> None:
    for name in ("tp", "pp", "dcp"):
        if getattr(q, name) < 1:
            raise PoolError(f"{name} is {getattr(q, name)}: a parallel size is 1 or more")
    if q.platform not in ("cuda", "cpu"):
        raise PoolError(f"platform {q.platform!r} is not known: cuda or cpu")
    heads = q.model.config.get("num_attention_heads")
    if isinstance(heads, int) and heads % q.tp:
        raise PoolError(f"{q.model.name}: {heads} attention heads are not divisible by tensor_parallel_size {q.tp}")
    if q.speculative_tokens < 0 or q.draft_layers < 0:
        raise PoolError("speculative_tokens and draft_layers are 0 or more")
    if q.block_size is not None and q.block_size < 1:
        raise PoolError(f"block_size {q.block_size} is not a number of tokens")
    if q.num_gpu_blocks_override is not None and q.num_gpu_blocks_override < 1:
        raise PoolError(f"num_gpu_blocks_override {q.num_gpu_blocks_override}: a pool has 1 block or more")


def _place(q: PoolRequest, built: Layers, setting: Setting) -> tuple[list[Bucket], list[range]]:
    """The model's and the drafter's layers, and each pipeline stage's layers (the drafter runs on the last)."""
    count = max((cache.layer for cache in q.model.caches), default=-1) + 1
    stages = derive.stages(count, q.pp, q.pp_layers)
    buckets = built.buckets
    drafts: list[tuple[Spec, int]] = []
    if q.draft_model is not None:
        own = setting._replace(config=q.draft_model.config, block=built.block)
        drafts = [(spec, len(layers)) for spec, layers in build(own, q.draft_model.caches).buckets]
    elif q.draft_layers:
        full = [spec for spec, _ in buckets if spec.kind in ("full", "mla")]
        if not full:
            raise PoolError(f"{q.model.name}: no full-attention layer for a draft layer to be like")
        drafts = [(full[-1], q.draft_layers)]
    at = count
    for spec, layers in drafts:
        mine = next((bucket for bucket in buckets if bucket.spec == spec), None)
        if mine is None:
            mine = Bucket(spec, [])
            buckets.append(mine)
        mine.layers.extend(range(at, at + layers))
        at += layers
    stages[-1] = range(stages[-1].start, at)
    return buckets, stages


def _hybrid_manager(q: PoolRequest, buckets: Sequence[Bucket], r: Rules, why: list[str]) -> bool:
    if q.hybrid_manager is not None:
        return q.hybrid_manager
    if not any(spec.kind == "chunked" for spec, _ in buckets):
        return True
    if q.speculative_tokens:
        why.append("hybrid KV cache manager off: chunked attention with a drafter (config/vllm.py)")
        return False
    if not r.chunked_hybrid:
        why.append(f"hybrid KV cache manager off by default: chunked attention (config/vllm.py, {r.name})")
    return r.chunked_hybrid


def _in_flight(q: PoolRequest, r: Rules, windows: bool, length: int, why: list[str]) -> Need:
    """Tokens that are scheduled but not settled: a window keeps their blocks too."""
    cross = any(cache.kind == "cross" for cache in q.model.caches)
    if not windows and not cross:
        return Need(0, 0, q.dcp, 0)
    batched, text = derive.batched_tokens(
        q.max_num_batched_tokens, q.platform, q.device_memory, q.device_name, q.tp * q.pp
    )
    if batched is None:
        raise PoolError(
            f"{q.model.name} has layers whose blocks depend on max_num_batched_tokens: give it, "
            "or the device's memory that vLLM takes its default from"
        )
    why.extend(filter(None, (text,)))
    batches = 1
    if r.in_flight:
        overlap = q.platform == "cuda" if q.async_scheduling is None else q.async_scheduling
        batches = q.pp
        if overlap and r.runner_v2:
            batches = q.pp + 1
        elif overlap and q.pp == 1:
            batches = 2
        if windows:
            why.append(
                f"{batches * batched:,} tokens in flight: {batches} concurrent batches x {batched:,} "
                f"(config/vllm.py max_in_flight_tokens, {r.name})"
            )
    elif windows:
        why.append(f"windows reserve max_num_batched_tokens {batched:,} beyond themselves (kv_cache_interface.py)")
    extra = max(0, q.speculative_tokens - 1) if q.multi_module and r.version >= (0, 28, 0) else 0
    encoder = q.encoder_tokens if q.encoder_tokens is not None else batched
    return Need(batches * batched, extra, q.dcp, encoder)


def _available(q: PoolRequest, stages: int) -> list[int]:
    if q.kv_cache_memory_bytes is not None:
        return [q.kv_cache_memory_bytes] * stages
    if q.available is None:
        raise PoolError("nothing to carve: give the available bytes or kv_cache_memory_bytes")
    if isinstance(q.available, int):
        return [q.available] * stages
    given = list(q.available)
    if len(given) == stages:
        return given
    if len(given) == q.tp * q.pp:  # one number a rank, ranks of a stage together
        return [min(given[i * q.tp : (i + 1) * q.tp]) for i in range(stages)]
    raise PoolError(f"{len(given)} numbers of available bytes for {stages} pipeline stages of {q.tp} ranks")


def _carve(
    q: PoolRequest,
    r: Rules,
    groups: tuple[Group, ...],
    buckets: Sequence[Bucket],
    stages: list[range],
    available: list[int],
    length: int,
    need: Need,
    block: int,
    mode: str,
    kv_dtype: str,
    why: list[str],
) -> Pool:
    widths = [max(each.width(stage if q.pp > 1 else None) for each in groups) for stage in stages]
    if not all(widths):
        raise PoolError(f"{q.model.name}: pipeline stage {widths.index(0)} has no layer with a cache")
    counts = [max(have // width, 0) for have, width in zip(available, widths, strict=True)]
    profiled = list(available)
    blocks = min(counts)
    if q.num_gpu_blocks_override is not None:
        blocks = q.num_gpu_blocks_override
        why.append(f"num_gpu_blocks_override: {blocks:,} blocks instead of {min(counts):,} (kv_cache_utils.py)")
        if r.override_checked:
            profiled = [blocks * width for width in widths]
    checked = profiled
    if r.null_block:
        checked = [have - width for have, width in zip(profiled, widths, strict=True)]
        why.append(f"the start-up check keeps back the null block, {max(widths):,} B (kv_cache_utils.py, {r.name})")
    demand = Demand(r, groups, buckets, stages, widths, need)
    most = max(length, longest_of(q.model.config, r.version).most)
    longest = longest_that_fits(demand, checked, most)
    fitting = min(longest, length)
    error = refusal = None
    if q.max_model_len == -1:
        if r.version < (0, 14, 0):
            raise PoolError(f"max_model_len -1 does not exist in vLLM {r.name} (since 0.14.0)")
        if fitting == 0:
            error, refusal = derive.cannot_fit(), "cannot_fit"
        else:
            length = fitting
            why.append(f"max_model_len {length:,}: the longest request that fits (kv_cache_utils.py, auto-fit)")
    if error is None:
        error, refusal = _refusal(r, demand, checked, length)
    per_request = demand.blocks(length)
    concurrency = blocks / per_request
    smallest = min(each.spec.block for each in groups)
    legacy = blocks // len(groups) * smallest * q.dcp
    if r.tokens == "blocks":
        legacy = blocks * block
        concurrency = legacy / length
    concurrent = int(concurrency * length)
    wide = max(range(len(widths)), key=widths.__getitem__)
    why.extend(_closing(groups, widths, stages, blocks, counts, per_request, length, r))
    return Pool(
        version=r.name,
        platform=q.platform,
        available=min(available),
        request_len=length,
        max_num_batched_tokens=q.max_num_batched_tokens,
        in_flight_tokens=need.flight,
        kv_cache_dtype=kv_dtype,
        block_size=block,
        page_size=max(each.spec.page for each in groups),
        groups=tuple(
            PoolGroup(
                each.spec.kind,
                each.size,
                each.spec.block,
                each.width() if each.mixed else each.spec.page,
                each.spec.window,
                demand.of_group(each, length),
                each.mixed,
                each.spec.fixed,
                mode if each.spec.kind == "mamba" else "",
            )
            for each in groups
        ),
        bytes_per_block=widths[wide],
        stages=tuple(widths),
        num_blocks=blocks,
        tokens=concurrent if r.tokens == "concurrency" else legacy,
        tokens_legacy=legacy,
        tokens_concurrent=concurrent,
        max_concurrency=concurrency,
        blocks_per_request=per_request,
        need=max(demand.bytes(stage, length) for stage in range(len(stages))),
        max_model_len=fitting,
        longest=longest,
        starts=error is None,
        error=error,
        refusal=refusal,
        why=tuple(why),
    )


_TOKENS = {
    "concurrency": "concurrency x max_model_len",
    "groups": "blocks // groups x block size",
    "blocks": "blocks x block size",
}


def _refusal(r: Rules, demand: Demand, checked: Sequence[int], length: int) -> tuple[str | None, str | None]:
    """vLLM's words for the first stage that cannot hold one request and their code, or None when all can."""
    for stage, have in enumerate(checked):
        if have <= 0:
            return derive.no_memory(r), "no_memory"
        needed = demand.bytes(stage, length)
        if needed > have:
            alone = longest_that_fits(demand, checked, length, only=stage)
            return derive.too_long(r, length, needed, have, alone), "too_long"
    return None, None


def _closing(
    groups: Sequence[Group],
    widths: list[int],
    stages: list[range],
    blocks: int,
    counts: list[int],
    per_request: int,
    length: int,
    r: Rules,
) -> list[str]:
    out = [
        f"{max(widths):,} B a block: the widest of {len(groups)} "
        f"{'group' if len(groups) == 1 else 'groups'} (kv_cache_utils.py)",
    ]
    if len(stages) > 1:
        out.append(f"{blocks:,} blocks: the pipeline stage with the fewest of {', '.join(f'{n:,}' for n in counts)}")
    text = _TOKENS[r.tokens]
    out.append(f"concurrency {blocks:,} / {per_request:,} blocks of a request of {length:,} tokens")
    out.append(f"KV cache size: {text} (kv_cache_utils.py, {r.name})")
    return out


def _attention_free(
    q: PoolRequest, r: Rules, block: int, length: int, kv_dtype: str, available: list[int], why: list[str]
) -> Pool:
    """A model without any cache: vLLM keeps one block, the null block."""
    why.append("no layer keeps a cache: one block, the null block (kv_cache_utils.py)")
    return Pool(
        version=r.name,
        platform=q.platform,
        available=min(available),
        request_len=length,
        max_num_batched_tokens=q.max_num_batched_tokens,
        in_flight_tokens=0,
        kv_cache_dtype=kv_dtype,
        block_size=block,
        page_size=0,
        groups=(),
        bytes_per_block=0,
        stages=(0,),
        num_blocks=1,
        tokens=0,
        tokens_legacy=0,
        tokens_concurrent=0,
        max_concurrency=0.0,
        blocks_per_request=0,
        need=0,
        max_model_len=length,
        longest=length,
        starts=True,
        error=None,
        refusal=None,
        why=tuple(why),
    )
