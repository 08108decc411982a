"""What one request asks of the pool: blocks by group, bytes by pipeline stage, the longest that fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from membudget.engines.vllm.pool.groups import Group
from membudget.engines.vllm.pool.specs import Bucket, Spec
from membudget.engines.vllm.versions import Rules


class Need(NamedTuple):
    """What decides the blocks of a request beside its length.

    flight: tokens in flight.  extra: tokens a drafter of several modules keeps below a window.
    dcp: decode context parallel size.  encoder: tokens of the encoder's input.
    """

    flight: int
    extra: int
    dcp: int
    encoder: int


class Demand:
    """One model's demand, for any request length.

    stages: layer indices of each pipeline stage.  widths: bytes a block takes on each.
    """

    __slots__ = ("alike", "buckets", "groups", "mixed", "need", "rules", "stages", "widths")

    def __init__(
        self,
        rules: Rules,
        groups: Sequence[Group],
        buckets: Sequence[Bucket],
        stages: Sequence[range],
        widths: Sequence[int],
        need: Need,
    ) -> None:
        self.rules, self.groups, self.buckets = rules, groups, buckets
        self.stages, self.widths, self.need = stages, widths, need
        alike: dict[Spec, int] = {}
        for group in groups:
            if not group.mixed:
                spec = group.buckets[0].spec
                alike[spec] = alike.get(spec, 0) + 1
        self.alike = tuple(alike.items())
        self.mixed = tuple(group for group in groups if group.mixed)

    def of_group(self, group: Group, length: int) -> int:
        """Blocks of a request in one group."""
        if group.mixed:
            return max(spec.blocks(length, *self.need) for spec, _ in group.buckets)
        return group.buckets[0].spec.blocks(length, *self.need)

    def blocks(self, length: int) -> int:
        """Blocks of a request: every group draws its own from the one pool."""
        total = 0
        for group in self.mixed:
            total += self.of_group(group, length)
        for spec, count in self.alike:
            total += count * spec.blocks(length, *self.need)
        return total

    def bytes(self, stage: int, length: int) -> int:
        """Bytes that the start-up check asks on this stage for a request of this length.

        0.8.5 to 0.13: the stage's layers one by one.  0.14 to 0.18: the first group only
        (hybrids are under-checked).  Since 0.19: the blocks of all groups.
        """
        if self.rules.need == "layers":
            here = self.stages[stage]
            return sum(
                spec.page * spec.blocks(length, *self.need) * sum(layer in here for layer in layers)
                for spec, layers in self.buckets
            )
        if self.rules.need == "first":
            return self.widths[stage] * self.of_group(self.groups[0], length)
        return self.widths[stage] * self.blocks(length)


def longest_that_fits(demand: Demand, available: Sequence[int], most: int, only: int | None = None) -> int:
    """The longest request of 1 .. most tokens that fits on every stage (or on `only`); 0 when 1 does not.

    vLLM's own binary search, so that it also lands where vLLM lands.
    """
    stages = range(len(available)) if only is None else (only,)

    def fits(length: int) -> bool:
        return all(demand.bytes(stage, length) <= available[stage] for stage in stages)

    if not fits(1):
        return 0
    low, high, best = 1, most, 1
    while low <= high:
        middle = (low + high) // 2
        if fits(middle):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best
