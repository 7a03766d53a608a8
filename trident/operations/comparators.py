"""Aggregators that keep one tuple, the least or the greatest: what `min_by`, `max_by`, `min` and `max` run.

A null of the compared field is skipped; of equal tuples the last one is current, as in Storm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trident.operations.builtin import at_least
from trident.operations.interfaces import Aggregator
from trident.tuples import TridentCollector, TridentTuple

Comparator = Callable[[Any, Any], int]
Kept = tuple[Any, TridentTuple] | None


class MinWithComparator(Aggregator[Kept]):
    """Emits the least tuple by a comparator, nothing where there is none.

    Parameters
    ----------
    comparator
        `comparator(a, b)` is negative, zero or positive, as `a` is less than, equal to or greater than `b`.
    field
        The field whose values it compares; None: it compares whole tuples.
    """

    def __init__(self, comparator: Comparator, field: str | None = None) -> None:
        if not callable(comparator):
            raise TypeError(
                f"{type(self).__name__} takes a function of two values that returns a number; got {comparator!r}"
            )
        self.comparator, self.field = comparator, field

    def init(self, batch_id: Any, collector: TridentCollector) -> Kept:
        return None

    def aggregate(self, val: Kept, tuple: TridentTuple, collector: TridentCollector) -> Kept:
        """Return the tuple to keep, and its value."""
        value = tuple if self.field is None else tuple[self.field]
        if value is None:
            return val
        return (value, tuple) if val is None or self._replaces(value, val[0]) else val

    def complete(self, val: Kept, collector: TridentCollector) -> None:
        if val is not None:
            collector.emit(val[1].values)

    def _replaces(self, value: Any, current: Any) -> bool:
        return self.comparator(value, current) <= 0


class MaxWithComparator(MinWithComparator):
    """Emits the greatest tuple by a comparator, nothing where there is none; parameters as for `MinWithComparator`."""

    def _replaces(self, value: Any, current: Any) -> bool:
        return self.comparator(value, current) >= 0


class MinBy(MinWithComparator):
    """Emits the tuple with the least value of a field. A NaN is greater than any number."""

    def __init__(self, field: str) -> None:
        super().__init__(_compare, field)

    def _replaces(self, value: Any, current: Any) -> bool:
        return at_least(current, value)


class MaxBy(MinBy):
    """Emits the tuple with the greatest value of a field. A NaN is greater than any number."""

    def _replaces(self, value: Any, current: Any) -> bool:
        return at_least(value, current)


def _compare(a: Any, b: Any) -> int:
    return int(a > b) - int(a < b)
