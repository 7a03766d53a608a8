"""The entries of a batch for each partition of a state: rows for any state, columns for a state that takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from trident.arrow import one_array, schema_of, strict_cast
from trident.graph import Aggregation, PersistNode
from trident.runtime.engine.routing import RowFrame
from trident.runtime.steps.aggregates import (
    Merging,
    is_plain_key,
    merge_partials,
    merged,
    merging_function,
    rows_of,
)
from trident.runtime.steps.failures import calls_user_code, failing_at
from trident.runtime.steps.key_columns import keys_of, partition_of_total, partitions_of, without_removed
from trident.runtime.steps.rows import tuples_of
from trident.state.encoding.equal_keys import OneForm
from trident.state.interfaces import Key


@dataclass(frozen=True)
class RowEntries:
    """Keys in their one form, each with the value to combine; for an updater, rows, each with None."""

    keys: list[Any]
    given: Sequence[Any]

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, places: Sequence[int]) -> RowEntries:
        """Return some of them."""
        return RowEntries(type(self.keys)(self.keys[at] for at in places), [self.given[at] for at in places])


@dataclass(frozen=True)
class ColumnEntries:
    """The same as a table, for `multi_combine`: the key's columns, then the values to combine, and the function.

    `arrays` are the columns of the table.
    """

    table: pa.Table
    arrays: list[pa.Array]
    function: Merging

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def update(self, state: Any) -> Any | None:
        """Update a state; return the column of new values, None (and nothing is written) if the state takes rows only."""
        *parts, values = self.arrays
        return state.multi_combine(parts, values, self.function)

    def with_values(self, new: Any) -> pa.Table:
        """Return a table of the keys and the given values."""
        schema = self.table.schema
        values = new if isinstance(new, pa.Array) else pa.array(new, schema.types[-1])
        typed = strict_cast(values, schema.types[-1], schema.names[-1])
        return pa.table([*self.table.columns[:-1], typed], schema=schema)


@dataclass(frozen=True)
class PiecedEntries:
    """Many keys, each with the value to combine, as a table; they become rows one piece after the other.

    As Python objects they would take ten times the memory.
    """

    table: pa.Table
    aggregation: Aggregation

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def pieces(self) -> Iterator[RowEntries]:
        """Give all of them; no key is in two pieces."""
        for start in range(0, len(self), PIECE):
            yield RowEntries(*rows_of(self.table.slice(start, PIECE), self.aggregation))


@dataclass(frozen=True)
class EntriesAndRemovals:
    """Entries, and the keys that the batch removes, of which none is in the entries."""

    updates: RowEntries | ColumnEntries | PiecedEntries
    removed: list[Key]

    def __len__(self) -> int:
        return len(self.updates) + len(self.removed)


Entries = RowEntries | ColumnEntries | PiecedEntries | EntriesAndRemovals

PIECE = 1 << 17
"""How many keys are updated at once."""


def row_entries(table: pa.Table, aggregation: Aggregation) -> RowEntries | PiecedEntries:
    """Return merged partials as rows."""
    if table.num_rows > PIECE:
        return PiecedEntries(table, aggregation)
    return RowEntries(*rows_of(table, aggregation))


def merging_columns(aggregation: Aggregation | None, states: Sequence[Any]) -> Merging | None:
    """Return what merges batches that go to the state as columns, None if they do not; this is known before the first batch.

    They do not if Python and Arrow differ on which keys or numbers are equal, or if keys go to several partitions.
    """
    if aggregation is None or not (aggregation.grouped and aggregation.combines):
        return None
    value = schema_of(aggregation.output).types[0]
    numbers = [field.type for field in value] if pa.types.is_struct(value) else [value]
    fit = all(map(is_plain_key, aggregation.group.types)) and {pa.int64(), pa.float64()}.issuperset(numbers)
    return merging_function(aggregation) if fit and len(states) == 1 and states[0].facts.keeps_columns else None


def _as_columns(table: pa.Table, function: Merging) -> ColumnEntries | None:
    """Return merged partials as columns; None where one of them is null, if it is no mean."""
    arrays = [one_array(column) for column in table.columns]
    values = arrays[-1]
    if isinstance(function, str):
        has_null = values.null_count > 0
    else:
        has_null = any(
            field.null_count for field, what in zip(values.flatten(), function, strict=True) if what != "mean"
        )
    return None if has_null else ColumnEntries(table, arrays, function)


@calls_user_code
def inputs_of(
    node: PersistNode, tables: list[pa.Table], partitions: int, columns: Merging | None
) -> dict[int, Entries]:
    """Return the entries of a batch for each partition that it touches; `columns`: see `merging_columns`."""
    if not node.removals:
        return _updates_of(node, tables, partitions, columns)
    assert node.aggregation is not None, node
    updates, removed = without_removed(node.aggregation.group, tables)
    found = _updates_of(node, updates, partitions, columns)
    for partition, ats in partitions_of(removed, partitions).items():
        others = found.get(partition, RowEntries([], []))
        found[partition] = EntriesAndRemovals(others, type(removed)(removed[at] for at in ats))
    return dict(sorted(found.items()))


def _updates_of(node: PersistNode, tables: list[pa.Table], partitions: int, columns: Merging | None) -> dict[int, Any]:
    with failing_at(node.id):  # a user's combine or zero
        entries = _entries(node, tables, columns)
    if partitions == 1:
        return {0: entries} if len(entries) else {}
    if isinstance(entries, PiecedEntries):
        entries = RowEntries(*rows_of(entries.table, entries.aggregation))
    assert isinstance(entries, RowEntries), "columns are for one partition"
    if node.aggregation is not None and not node.aggregation.grouped:
        return {partition_of_total(partitions): entries} if len(entries) else {}
    places = partitions_of([tuple(key) for key in entries.keys], partitions)
    return {partition: entries.take(ats) for partition, ats in places.items()}


def inputs_kept(node: PersistNode, arrived: Sequence[RowFrame]) -> dict[int, Entries]:
    """Return the rows of a batch for each partition of an updater's state, which is the stream's partition that they are in."""
    frames = sorted((frame for frame in arrived if not frame.step), key=lambda frame: (frame.port, frame.order))
    tables: dict[int, list[pa.Table]] = {}
    for frame in frames:
        tables.setdefault(frame.partition, []).append(frame.data)
    return {partition: _entries(node, tables[partition], None) for partition in sorted(tables)}


def _entries(
    node: PersistNode, tables: list[pa.Table], columns: Merging | None
) -> RowEntries | ColumnEntries | PiecedEntries:
    aggregation = node.aggregation
    if aggregation is None:
        rows = [row for table in tables for row in tuples_of(table, node.inputs)]
        return RowEntries(rows, [None] * len(rows))
    if not aggregation.combines:
        return _grouped_rows(aggregation, tables)
    if columns is not None and (table := merged(aggregation, tables)) is not None:
        return _as_columns(table, columns) or row_entries(table, aggregation)
    if sum(table.num_rows for table in tables) > PIECE and (table := merged(aggregation, tables)) is not None:
        return PiecedEntries(table, aggregation)
    keys, values = merge_partials(aggregation, tables)
    return RowEntries(keys, values) if keys or aggregation.grouped else _total_of_nothing(aggregation)


def _total_of_nothing(aggregation: Aggregation) -> RowEntries:
    """As in Storm, one value per batch even if it is empty."""
    zero = aggregation.aggregator.zero()
    return RowEntries([], []) if zero is None else RowEntries([()], [zero])


def _grouped_rows(aggregation: Aggregation, tables: list[pa.Table]) -> RowEntries:
    groups: dict[Key, list[Any]] = {}
    for table in tables:
        keys = keys_of(table, aggregation.group.names)
        for key, row in zip(keys, tuples_of(table, aggregation.inputs), strict=True):
            groups.setdefault(key, []).append(row)
    return RowEntries(OneForm(groups), list(groups.values()))
