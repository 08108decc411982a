"""DeepSeek-V4 in vLLM: pages of several sizes side by side in a block (v1/core/kv_cache_utils.py, since 0.29.0).

A layer keeps a window of latent vectors; most layers also one latent a few tokens
(compress_ratios: 4 or 128), the state of its compressor, and at ratio 4 an index.
vLLM: models/deepseek_v4, v1/attention/backends/mla/sparse_swa.py, `_get_packed_kv_cache_groups`.
"""

from __future__ import annotations

from collections.abc import Sequence

from membudget.engines.vllm.pool.derive import SpecError
from membudget.engines.vllm.pool.specs import Bucket, Layers, Setting, Spec, cdiv

TYPES = ("deepseek_v4", "deepseek_ref")
#: Bytes of one latent vector in fp8_ds_mla: 448 of fp8, 64 of bf16 RoPE, 8 of scales.
LATENT = 584
ALIGN = 576
BLOCK, WINDOW_BLOCK = 256, 64
#: Tokens a block of compressor states holds, by ratio.
STATE_BLOCK = {4: 4, 128: 8}


def build(setting: Setting, layers: int) -> Layers:
    """Every layer's specs; `SpecError` where this version's or device's layout is not known."""
    config, rules = setting.config, setting.rules
    if rules.version < (0, 29, 0):
        raise SpecError(f"{config.source}: the DeepSeek-V4 pool of vLLM {rules.name} is not known; since 0.29.0 it is")
    if setting.platform != "cuda" or setting.capability[0] != 9 or not setting.kv_dtype.startswith(("auto", "fp8")):
        raise SpecError(
            f"{config.source}: the DeepSeek-V4 pool is known for fp8 caches on CUDA SM 9.0 (FlashMLA) only. "
            "Ask the installed vLLM: membudget oracle"
        )
    ratios = config.integers("compress_ratios")
    if ratios is None or len(ratios) < layers:
        raise SpecError(f"{config.source}: compress_ratios must have one entry a layer")
    window, width, index = config.integer("sliding_window"), config.head_dim, config.integer("index_head_dim")
    buckets: dict[Spec, Bucket] = {}
    for layer, ratio in enumerate(ratios[:layers]):
        specs = [_spec("sliding", WINDOW_BLOCK, WINDOW_BLOCK * LATENT, window, "window")]
        if ratio > 1:
            if ratio not in STATE_BLOCK:
                raise SpecError(f"{config.source}: compress_ratios has {ratio}; vLLM knows 4 and 128")
            overlap = 1 + (ratio == 4)
            block, kept = STATE_BLOCK[ratio], overlap * ratio
            specs.append(_spec("mla", BLOCK, BLOCK // ratio * LATENT, 0, f"latent {ratio}"))
            specs.append(_spec("sliding", block, block * 2 * overlap * width * 4, kept, f"state {ratio}"))
            if ratio == 4:
                specs.append(_spec("mla", BLOCK, BLOCK // ratio * (index + index // 128 * 4), 0, "index"))
                specs.append(_spec("sliding", block, block * 2 * overlap * index * 4, kept, "index state"))
        for spec in specs:
            buckets.setdefault(spec, Bucket(spec, [])).layers.append(layer)
    why = (
        f"block size {BLOCK}: DeepSeek-V4's kernels take no other (v1/attention/backends/mla)",
        f"latent vectors of {LATENT} B (fp8_ds_mla), pages aligned to {ALIGN} B (models/deepseek_v4/attention.py)",
    )
    return Layers(list(buckets.values()), BLOCK, "none", 0, why)


def _spec(kind: str, block: int, size: int, window: int, name: str) -> Spec:
    page = ALIGN * cdiv(size, ALIGN)
    return Spec(kind, block, page, page // block, window, shape=(name,))


def pack(buckets: Sequence[Bucket]) -> list[tuple[Bucket, ...]]:
    """Buckets of one type each, cut so that all groups repeat the layer pattern about equally often."""
    types: dict[tuple[str, int, int], list[Bucket]] = {}
    for bucket in buckets:
        types.setdefault((bucket.spec.kind, bucket.spec.block, bucket.spec.window), []).append(bucket)
    whole = list(types.values())
    balanced = [members for members in whole if len({len(each.layers) for each in members}) == 1]
    floor = max((len(members[0].layers) for members in balanced if len(members) > 1), default=0)
    repeats = _chunk([len(members[0].layers) for members in balanced], floor) if floor else 0
    out: list[tuple[Bucket, ...]] = []
    for members in whole:
        count = cdiv(len(members[0].layers), repeats) if repeats and members in balanced else 1
        for i in range(count):
            out.append(tuple(Bucket(each.spec, each.layers[i::count]) for each in members))
    return out


def _chunk(counts: Sequence[int], floor: int) -> int:
    """The group size from `floor` on that pads the counts least, the larger of equals (`_approximate_gcd`)."""
    return min(range(floor, max(counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size))
