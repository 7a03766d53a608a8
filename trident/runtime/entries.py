"""What a batch gives to one partition of a state: rows for any state, columns for one that takes numbers in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from trident.arrow import schema_of
from trident.graph import Aggregation
from trident.runtime.aggregates import is_plain_key, merging_kernel, rows_of
from trident.state.columns import Combine

__all__ = ["ColumnEntries", "Entries", "RowEntries", "as_columns", "takes_columns"]


@dataclass(frozen=True)
class RowEntries:
    """Keys, and what each is combined with; of an updater rows, and None for each."""

    keys: Sequence[Any]
    given: Sequence[Any]

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, places: Sequence[int]) -> RowEntries:
        """Return some of them."""
        return RowEntries([self.keys[at] for at in places], [self.given[at] for at in places])


@dataclass(frozen=True)
class ColumnEntries:
    """The same as a table, for `multi_combine`: the columns of the key, then what is combined, and how."""

    table: pa.Table
    aggregation: Aggregation
    function: Combine

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def update(self, state: Any) -> Any | None:
        """Update a state; return the column of new values, None (and nothing is written) if the state takes rows only."""
        *parts, values = self.table.columns
        return state.multi_combine([part.to_pylist() for part in parts], values.to_numpy(), self.function)

    def with_values(self, new: Any) -> pa.Table:
        """Return the keys and other values."""
        schema = self.table.schema
        return pa.table([*self.table.columns[:-1], pa.array(new, schema.types[-1])], schema=schema)

    def rows(self) -> RowEntries:
        """Return the same as rows."""
        return RowEntries(*rows_of(self.table, self.aggregation))


Entries = RowEntries | ColumnEntries


def takes_columns(aggregation: Aggregation | None, states: Sequence[Any]) -> bool:
    """Whether a batch may go to the state as columns: known before the first one.

    Not where Python would tell more keys or numbers apart than Arrow, or fewer, nor where keys go to several partitions.
    """
    if aggregation is None or not (aggregation.grouped and aggregation.combines) or merging_kernel(aggregation) is None:
        return False
    *keys, number = schema_of(aggregation.partial).types
    fit = all(map(is_plain_key, keys)) and number in (pa.int64(), pa.float64())
    return fit and len(states) == 1 and hasattr(states[0], "multi_combine")


def as_columns(table: pa.Table, aggregation: Aggregation) -> ColumnEntries | None:
    """Return merged partials as columns; None where one of them is null."""
    if table.columns[-1].null_count:
        return None
    return ColumnEntries(table, aggregation, cast(Combine, merging_kernel(aggregation)))
