"""What a batch gives to one partition of a state: rows for any state, columns for one that takes numbers in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from trident.graph import Aggregation
from trident.runtime.aggregates import is_plain_key, merging_kernel, rows_of
from trident.state.columns import Combine

__all__ = ["ColumnEntries", "Entries", "RowEntries", "as_columns"]


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


def as_columns(table: pa.Table, aggregation: Aggregation) -> ColumnEntries | None:
    """Return merged partials as columns; None where Python would tell more keys or numbers apart than Arrow, or fewer."""
    function, types = merging_kernel(aggregation), table.schema.types
    plain = aggregation.grouped and all(map(is_plain_key, types[:-1]))
    number = types[-1] in (pa.int64(), pa.float64()) and not table.columns[-1].null_count
    return ColumnEntries(table, aggregation, cast(Combine, function)) if function and plain and number else None
