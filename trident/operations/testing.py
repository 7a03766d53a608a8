"""The operations of Trident's own tests, for topologies that come with them."""

from __future__ import annotations

import json
from typing import Any

from trident.operations.interfaces import Aggregator, Filter, Function
from trident.tuples import TridentCollector, TridentTuple


class StringLength(Function):
    """The number of characters of a text.

    Different from Storm: null gives null (Storm fails on it), and characters beyond U+FFFF count once, not twice.
    """

    output_types = ("int",)

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        collector.emit([None if tuple[0] is None else len(tuple[0])])


class TrueFilter(Filter):
    """Keeps every tuple."""

    def is_keep(self, tuple: TridentTuple) -> bool:
        return True


class TuplifyArgs(Function):
    """Reads a text as JSON, a list of lists, and emits each of them: `[["a", 1], ["b", 2]]`.

    The output fields declare the types: `each("args", TuplifyArgs(), "word: string, n: int")`.
    """

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        lists: Any = json.loads(tuple[0])
        if not isinstance(lists, list) or not all(isinstance(values, list) for values in lists):
            raise ValueError(f"{tuple[0]!r} is not a JSON list of lists")
        for values in lists:
            collector.emit(values)


class CountAsAggregator(Aggregator[int]):
    """`Count` as an `Aggregator`: emits the number of tuples, 0 for an empty batch."""

    output_types = ("bigint",)

    def init(self, batch_id: Any, collector: TridentCollector) -> int:
        return 0

    def aggregate(self, val: int, tuple: TridentTuple, collector: TridentCollector) -> int:
        return val + 1

    def complete(self, val: int, collector: TridentCollector) -> None:
        collector.emit([val])
