"""How vLLM groups layers so that all groups draw blocks from one pool (v1/core/kv_cache_utils.py).

Every group has a block table of its own; layer i of every group shares one region, so
a block of the pool is as wide as the widest group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from membudget.engines.vllm.pool.specs import Bucket, Spec, cdiv
from membudget.engines.vllm.versions import Rules
from membudget.errors import MembudgetError


class GroupError(MembudgetError):
    """Layers that this version of vLLM cannot put into one pool; the text is for the reader."""


class Group(NamedTuple):
    """Layers that share a block table.

    buckets: the members by spec; more than one where their pages differ (UniformTypeKVCacheSpecs).
    """

    buckets: tuple[Bucket, ...]

    @property
    def spec(self) -> Spec:
        """The spec of the group, of the widest layers where pages differ."""
        buckets = self.buckets
        if len(buckets) == 1:
            return buckets[0].spec
        return max((bucket.spec for bucket in buckets), key=lambda spec: spec.page)

    @property
    def mixed(self) -> bool:
        """Whether pages differ within the group."""
        return len(self.buckets) > 1

    @property
    def size(self) -> int:
        """How many layers."""
        return sum(len(bucket.layers) for bucket in self.buckets)

    def width(self, stage: range | None = None) -> int:
        """Bytes that one block takes for the group's layers (of a pipeline stage)."""
        total = 0
        for spec, layers in self.buckets:
            count = len(layers) if stage is None else sum(layer in stage for layer in layers)
            total += count * spec.page
        return total


def group(buckets: Sequence[Bucket], rules: Rules, hybrid: bool, why: list[str]) -> tuple[Group, ...]:
    """`get_kv_cache_groups`: appends its reasons to `why`; raises `GroupError` where vLLM would fail."""
    if not buckets:
        return ()
    if not rules.hybrid or not hybrid:
        promoted = _promote(buckets)
        if promoted != buckets:
            reason = f"vLLM {rules.name} has one group" if not rules.hybrid else "hybrid KV cache manager off"
            why.append(f"{reason}: windows count as full attention beside full layers (kv_cache_utils.py)")
            buckets = promoted
        if len(buckets) > 1 and not _same_kind(buckets):
            raise GroupError(f"layers of different kinds and one group only: vLLM {rules.name} fails to start")
    if len(buckets) == 1:
        return (Group(tuple(buckets)),)
    if rules.version >= (0, 11, 0) and _same_kind(buckets):
        why.append("layers of one kind with pages of different size make one group (UniformTypeKVCacheSpecs)")
        return (Group(tuple(buckets)),)
    unified = _unify(buckets, rules, why)
    return (unified,) if isinstance(unified, Group) else _by_size(unified, rules, why)


def _merge(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Buckets whose specs became equal, as one; layers in the model's order."""
    merged: dict[Spec, list[int]] = {}
    for spec, layers in buckets:
        merged.setdefault(spec, []).extend(layers)
    return [Bucket(spec, sorted(layers)) for spec, layers in merged.items()]


def _promote(buckets: Sequence[Bucket]) -> Sequence[Bucket]:
    """Sliding and chunked layers as full attention, where there is a full layer beside them."""
    full = {spec.block for spec, _ in buckets if spec.kind in ("full", "mla")}
    if not full or not any(spec.kind in ("sliding", "chunked") for spec, _ in buckets):
        return buckets
    block = full.pop() if len(full) == 1 else None
    return _merge(
        [
            Bucket(_as_full(spec, block or spec.block), layers) if spec.kind in ("sliding", "chunked") else each
            for each in buckets
            for spec, layers in (each,)
        ]
    )


def _as_full(spec: Spec, block: int) -> Spec:
    return spec._replace(kind="full", block=block, page=block * spec.unit, window=0)


def _same_kind(buckets: Sequence[Bucket]) -> bool:
    """`UniformTypeKVCacheSpecs.is_uniform_type`: one block size, always the same number of token slots."""
    first = buckets[0].spec
    specs = [spec for spec, _ in buckets]
    if any(spec.block != first.block for spec in specs):
        return False
    if first.kind in ("full", "mla"):
        return all(spec.kind in ("full", "mla") for spec in specs)
    if first.kind == "mamba":
        return all(spec.kind == "mamba" and (spec.page, spec.fixed) == (first.page, first.fixed) for spec in specs)
    return all(spec.kind == first.kind and spec.window == first.window for spec in specs)


def _unify(buckets: Sequence[Bucket], rules: Rules, why: list[str]) -> list[Bucket] | Group:
    """`unify_kv_cache_spec_page_size`: one page size for all layers, by larger blocks or by padding."""
    pages = {spec.page for spec, _ in buckets}
    if len(pages) == 1:
        return list(buckets)
    if rules.unify == "no":
        raise GroupError(f"vLLM {rules.name} needs one page size; these layers have {_sizes(pages)}")
    largest = max(pages)
    out: list[Bucket] = []
    for spec, layers in buckets:
        unified = _to_page(spec, largest, rules)
        if unified is None:
            return _fallback(buckets, largest, why)
        if unified != spec:
            how = f"block {unified.block}" if unified.block != spec.block else "padding"
            why.append(f"{spec.kind} pages of {spec.page:,} B become {largest:,} B by {how} (kv_cache_utils.py)")
        out.append(Bucket(unified, layers))
    return _merge(out)


def _to_page(spec: Spec, page: int, rules: Rules) -> Spec | None:
    if spec.page == page:
        return spec
    if spec.kind == "mamba":
        return spec._replace(page=page) if rules.version >= (0, 26, 0) else None
    if page % spec.page == 0:
        return spec._replace(block=spec.block * (page // spec.page), page=page)
    if rules.unify == "pad" and spec.kind != "mla":
        return spec._replace(page=page)
    return None


def _fallback(buckets: Sequence[Bucket], page: int, why: list[str]) -> Group:
    """Pages that cannot be made equal: sliding layers beside MLA ones count as full attention (since 0.27)."""
    if {spec.kind for spec, _ in buckets} == {"mla", "sliding"}:
        promoted = _promote(buckets)
        if _same_kind(promoted):
            why.append("pages cannot be made equal: sliding layers count as full attention (kv_cache_utils.py)")
            return Group(tuple(promoted))
    pages = _sizes({spec.page for spec, _ in buckets})
    raise GroupError(f"page sizes {pages} cannot be made {page:,} B: vLLM fails to start")


def _by_size(buckets: Sequence[Bucket], rules: Rules, why: list[str]) -> tuple[Group, ...]:
    """`_get_kv_cache_groups_uniform_page_size`: buckets of equal layers, cut into groups of one size."""
    sizes = [len(layers) for _, layers in buckets]
    size, most = min(sizes), max(sizes)
    if rules.group_ratio and most < size * rules.group_ratio:
        size = most
    out: list[Group] = []
    for spec, layers in buckets:
        count = cdiv(len(layers), size)
        if missing := -len(layers) % size:
            why.append(
                f"padding layers {missing}: {len(layers)} {spec.kind} layers in groups of {size}, "
                f"at most {100 * missing / len(layers):.2f}% of the pool is wasted (kv_cache_utils.py)"
            )
        for i in range(count):
            # distributed in turn since 0.11.0, so that every pipeline stage has layers of each group
            members = layers[i::count] if rules.version >= (0, 11, 0) else layers[i * size : (i + 1) * size]
            out.append(Group((Bucket(spec, members),)))
    return tuple(out)


def _sizes(pages: set[int]) -> str:
    return ", ".join(f"{page:,}" for page in sorted(pages)) + " B"
