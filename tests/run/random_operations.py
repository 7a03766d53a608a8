"""What the random topologies run: operations of each kind, over `k: string, v: bigint`, and the same in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.compute as pc

from trident import TridentCollector, TridentTuple
from trident.operations import (
    Aggregator,
    Function,
    GroupedMultiReducer,
    MultiReducer,
    ReducerAggregator,
    arrow_function,
)

Row = tuple[Any, ...]


def small(bound: int) -> Callable[[int | None], bool]:
    return lambda v: v is not None and v < bound


def plus(value: int) -> Callable[[Any], Row]:
    return lambda row: (row[0], None if row[1] is None else row[1] + value)


def up_to(v: int | None) -> Iterator[int]:
    yield from range(min(v or 0, 4))


def grouped_sum(batch: list[Row]) -> dict[Any, int]:
    sums: dict[Any, int] = {}
    for key, value in batch:
        sums[key] = sums.get(key, 0) + (value or 0)
    return sums


@arrow_function("twice: bigint")
def doubled(values: Any) -> Any:
    return pc.multiply(values, 2)


@arrow_function("piece: string", flat=True)
def pieces(texts: Any) -> Any:
    return pc.split_pattern(texts, "b")


class Sized(Function):
    """Emits the length of a text that is not empty."""

    output_types = ("bigint",)

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        if tuple[0]:
            collector.emit([len(tuple[0])])


class Latest(ReducerAggregator[int]):
    """The greatest value, at least 0."""

    output_types = ("bigint",)

    def init(self) -> int:
        return 0

    def reduce(self, curr: int, tuple: TridentTuple) -> int:
        return max(curr, tuple[0] or 0)


class Positive(Aggregator[int]):
    """Emits the tuples with a positive value, and at the end how many tuples there were."""

    output_types = ("string", "bigint")

    def init(self, batch_id: Any, collector: TridentCollector) -> int:
        return 0

    def aggregate(self, val: int, tuple: TridentTuple, collector: TridentCollector) -> int:
        if tuple[1] is not None and tuple[1] > 0:
            collector.emit(tuple.values)
        return val + 1

    def complete(self, val: int, collector: TridentCollector) -> None:
        collector.emit(["end", val])


class Difference(MultiReducer[list[int]]):
    """The sum of the first stream less that of the second."""

    output_types = ("bigint",)

    def init(self, collector: TridentCollector) -> list[int]:
        return [0, 0]

    def execute(self, state: list[int], stream_index: int, input: TridentTuple, collector: TridentCollector) -> None:
        state[stream_index] += input["v"] or 0

    def complete(self, state: list[int], collector: TridentCollector) -> None:
        collector.emit([state[0] - state[1]])


class GroupDifference(GroupedMultiReducer[list[int]]):
    """As `Difference`, key by key."""

    def init(self, collector: TridentCollector, group: TridentTuple) -> list[int]:
        return [0, 0]

    def execute(
        self, state: list[int], stream_index: int, group: TridentTuple, input: TridentTuple, collector: TridentCollector
    ) -> None:
        state[stream_index] += input["v"] or 0

    def complete(self, state: list[int], group: TridentTuple, collector: TridentCollector) -> None:
        collector.emit([group[0], state[0] - state[1]])
