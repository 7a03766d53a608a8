"""Assemblies: several operations under one name, for `Stream.apply_assembly`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trident.errors import TopologyError
from trident.fields import is_nested, unquote
from trident.operations.interfaces import Aggregator
from trident.setting_types import Whole, check_arguments
from trident.tuples import TridentCollector, TridentTuple

if TYPE_CHECKING:
    from trident.stream import Stream


@runtime_checkable
class Assembly(Protocol):
    """A piece of a topology: takes a stream, declares steps on it, returns the resulting stream."""

    def apply(self, input: Stream) -> Stream:
        """Declare the steps on `input` and return the stream that they give."""


class FirstN:
    """The first `n` tuples of each batch: `apply_assembly(FirstN(10, "count", reverse=True))`.

    Parameters
    ----------
    n
        How many at most. Zero gives none.
    sort_field
        The field to sort by, the smallest first; nulls come last, a NaN is greater than any number. None: in the order
        in which they come.
    reverse
        The largest first; nulls still come last.
    """

    @check_arguments
    def __init__(self, n: Whole, sort_field: str | None = None, reverse: bool = False) -> None:
        self.n, self.reverse = n, reverse
        self.sort_field = None if sort_field is None else unquote(sort_field)

    def apply(self, input: Stream) -> Stream:
        """Take the first of each partition, then the first of those."""
        if self.sort_field is not None:
            (type_,) = input.fields.select([self.sort_field], input.get_name()).types
            if is_nested(type_):
                raise TopologyError(
                    f"stream {input.get_name()!r}: FirstN cannot sort by {self.sort_field!r}, which is {type_}"
                )
        first = FirstRows(self.n, self.sort_field, self.reverse)
        part = input.partition_aggregate(input.fields, first, input.fields)
        return part.global_().partition_aggregate(input.fields, first, input.fields)


class FirstRows(Aggregator[list[TridentTuple]]):
    """Emits the first `n` tuples of a partition; parameters as of `FirstN`."""

    def __init__(self, n: int, sort_field: str | None = None, reverse: bool = False) -> None:
        self.n, self.sort_field, self.reverse = n, sort_field, reverse

    def init(self, batch_id: Any, collector: TridentCollector) -> list[TridentTuple]:
        return []

    def aggregate(
        self, val: list[TridentTuple], tuple: TridentTuple, collector: TridentCollector
    ) -> list[TridentTuple]:
        if self.sort_field is not None or len(val) < self.n:  # without sorting, at most n
            val.append(tuple)
        return val

    def complete(self, val: list[TridentTuple], collector: TridentCollector) -> None:
        rows, field = val, self.sort_field
        if field is not None:
            numbers = [row for row in rows if row[field] is not None and row[field] == row[field]]
            nans = [row for row in rows if row[field] is not None and row[field] != row[field]]
            nulls = [row for row in rows if row[field] is None]
            numbers.sort(key=lambda row: row[field], reverse=self.reverse)
            rows = [*nans, *numbers, *nulls] if self.reverse else [*numbers, *nans, *nulls]
        for row in rows[: self.n]:  # equal ones in the order in which they came
            collector.emit(row.values)
