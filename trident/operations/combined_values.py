"""A combiner's second half: it merges what the partitions have combined already."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trident.graph import Member
from trident.operations.builtin import Count, First, Last, Max, Min, Sum
from trident.operations.interfaces import CombinerAggregator
from trident.tuples import TridentTuple

__all__ = ["MergedCombiner", "merging_member"]


class MergedCombiner(CombinerAggregator[Any]):
    """Combines values that a combiner gave; the combiner is prepared where it made them."""

    def __init__(self, combiner: CombinerAggregator[Any]) -> None:
        self.combiner = combiner

    def init(self, tuple: TridentTuple) -> Any:
        """Return the value as it is."""
        return tuple[0]

    def combine(self, val1: Any, val2: Any) -> Any:
        """Combine both."""
        return self.combiner.combine(val1, val2)

    def zero(self) -> Any:
        """Return the combiner's identity."""
        return self.combiner.zero()


def merging_member(member: Member) -> Member:
    """Return the member of an aggregate that merges what a combiner's own member gave in part."""
    return replace(member, inputs=member.outputs, aggregator=_merging(member.aggregator))


def _merging(combiner: Any) -> Any:
    """The combiner of partial results. The built-in ones keep their Arrow kernels: counts are summed."""
    if type(combiner) is Count:
        return Sum()
    keeps_kernel = type(combiner) in (Sum, Min, Max) or (type(combiner) in (First, Last) and combiner.by is None)
    return combiner if keeps_kernel else MergedCombiner(combiner)
