"""How vLLM groups layers so that all groups draw blocks from one pool (v1/core/kv_cache_utils.py).

Every group has a block table of its own; layer i of every group shares one region, so
a block of the pool is as wide as the widest group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from membudget.engines.vllm.specs import Layer, Spec, cdiv
from membudget.engines.vllm.versions import Rules


class GroupError(ValueError):
    """Layers that this version of vLLM cannot put into one pool; the text is for the reader."""


class Group(NamedTuple):
    """Layers that share a block table.

    spec: of every layer, or of the widest where pages differ (`mixed`).
    layers: the members.  mixed: one group of layers whose pages differ (UniformTypeKVCacheSpecs).
    """

    spec: Spec
    layers: tuple[Layer, ...]
    mixed: bool = False

    def width(self, stage: range | None = None) -> int:
        """Bytes that one block takes for the group's layers (of a pipeline stage)."""
        if stage is None:
            return sum(layer.spec.page for layer in self.layers)
        return sum(layer.spec.page for layer in self.layers if layer.index in stage)


def group(layers: Sequence[Layer], rules: Rules, hybrid: bool, why: list[str]) -> tuple[Group, ...]:
    """`get_kv_cache_groups`: appends its reasons to `why`; raises `GroupError` where vLLM would fail."""
    if not layers:
        return ()
    layers = list(layers)
    if not rules.hybrid:
        layers = _promote(layers)
        why.append(f"sliding layers count as full attention beside full ones (kv_cache_utils.py, {rules.name})")
    elif not hybrid:
        layers = _promote(layers)
        why.append("hybrid KV cache manager off: windows count as full attention (kv_cache_utils.py)")
        if len({layer.spec for layer in layers}) > 1 and not _same_kind(layers):
            raise GroupError(
                "the hybrid KV cache manager is off, and the layers cannot be made one type: vLLM fails to start"
            )
    if len({layer.spec for layer in layers}) == 1:
        return (Group(layers[0].spec, tuple(layers)),)
    if rules.version >= (0, 11, 0) and _same_kind(layers):
        widest = max((layer.spec for layer in layers), key=lambda spec: spec.page)
        why.append("layers of one kind with pages of different size make one group (UniformTypeKVCacheSpecs)")
        return (Group(widest, tuple(layers), mixed=True),)
    if not rules.hybrid:
        raise GroupError(f"vLLM {rules.name} has no pool for layers of different kinds")
    unified = _unify(layers, rules, why)
    return (unified,) if isinstance(unified, Group) else _by_size(unified, rules, why)


def _promote(layers: list[Layer]) -> list[Layer]:
    """Sliding and chunked layers as full attention, where there is a full layer beside them."""
    full = {layer.spec.block for layer in layers if layer.spec.kind in ("full", "mla")}
    if not full:
        return layers
    block = full.pop() if len(full) == 1 else None
    return [
        layer._replace(spec=_as_full(layer.spec, block or layer.spec.block))
        if layer.spec.kind in ("sliding", "chunked")
        else layer
        for layer in layers
    ]


def _as_full(spec: Spec, block: int) -> Spec:
    return spec._replace(kind="full", block=block, page=block * spec.unit, window=0)


def _same_kind(layers: Sequence[Layer]) -> bool:
    """`UniformTypeKVCacheSpecs.is_uniform_type`: one block size, always the same number of token slots."""
    first = layers[0].spec
    if len({layer.spec.block for layer in layers}) > 1:
        return False
    if first.kind in ("full", "mla"):
        return all(layer.spec.kind in ("full", "mla") for layer in layers)
    if first.kind == "mamba":
        return all(
            layer.spec.kind == "mamba" and (layer.spec.page, layer.spec.fixed) == (first.page, first.fixed)
            for layer in layers
        )
    return all(layer.spec.kind == first.kind and layer.spec.window == first.window for layer in layers)


def _unify(layers: list[Layer], rules: Rules, why: list[str]) -> list[Layer] | Group:
    """`unify_kv_cache_spec_page_size`: one page size for all layers, by larger blocks or by padding."""
    pages = {layer.spec.page for layer in layers}
    if len(pages) == 1:
        return layers
    if rules.unify == "no":
        raise GroupError(f"vLLM {rules.name} needs one page size; these layers have {_sizes(pages)}")
    largest = max(pages)
    out: list[Layer] = []
    done: dict[Spec, Spec] = {}
    for layer in layers:
        spec = layer.spec
        if spec not in done:
            unified = _to_page(spec, largest, rules)
            if unified is None:
                return _fallback(layers, largest, why)
            if unified != spec:
                how = f"block {unified.block}" if unified.block != spec.block else "padding"
                why.append(f"{spec.kind} pages of {spec.page:,} B become {largest:,} B by {how} (kv_cache_utils.py)")
            done[spec] = unified
        out.append(layer._replace(spec=done[spec]))
    return out


def _to_page(spec: Spec, page: int, rules: Rules) -> Spec | None:
    if spec.page == page:
        return spec
    if spec.kind == "mamba" and rules.version >= (0, 26, 0):
        return spec._replace(page=page)
    if page % spec.page == 0 and spec.kind != "mamba":
        ratio = page // spec.page
        return spec._replace(block=spec.block * ratio, page=page)
    if rules.unify == "pad" and spec.kind not in ("mla", "mamba"):
        return spec._replace(page=page)
    return None


def _fallback(layers: list[Layer], page: int, why: list[str]) -> Group:
    """Pages that cannot be made equal: sliding layers beside MLA ones count as full attention (since 0.27)."""
    kinds = {layer.spec.kind for layer in layers}
    if kinds == {"mla", "sliding"}:
        promoted = _promote(layers)
        if _same_kind(promoted):
            why.append("pages cannot be made equal: sliding layers count as full attention (kv_cache_utils.py)")
            widest = max((layer.spec for layer in promoted), key=lambda spec: spec.page)
            return Group(widest, tuple(promoted), mixed=True)
    raise GroupError(
        f"page sizes {_sizes({layer.spec.page for layer in layers})} cannot be made {page:,} B: vLLM fails to start"
    )


def _by_size(layers: list[Layer], rules: Rules, why: list[str]) -> tuple[Group, ...]:
    """`_get_kv_cache_groups_uniform_page_size`: buckets of equal layers, cut into groups of one size."""
    buckets: dict[Spec, list[Layer]] = {}
    for layer in layers:
        buckets.setdefault(layer.spec, []).append(layer)
    sizes = [len(members) for members in buckets.values()]
    size, most = min(sizes), max(sizes)
    if rules.group_ratio and most < size * rules.group_ratio:
        size = most
    out: list[Group] = []
    for spec, members in buckets.items():
        count = cdiv(len(members), size)
        if missing := -len(members) % size:
            why.append(
                f"{missing} padding layers: {len(members)} {spec.kind} layers in groups of {size}, "
                f"at most {100 * missing / len(members):.2f}% of the pool is wasted (kv_cache_utils.py)"
            )
        for i in range(count):
            if rules.version >= (0, 11, 0):
                out.append(Group(spec, tuple(members[i::count])))
            else:
                out.append(Group(spec, tuple(members[i * size : (i + 1) * size])))
    return tuple(out)


def _sizes(pages: set[int]) -> str:
    return ", ".join(f"{page:,}" for page in sorted(pages)) + " B"
