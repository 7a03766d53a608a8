"""The entries of a batch for each partition of a state: rows for any state, columns for a state that takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from trident.arrow import one_array, schema_of
from trident.graph import Aggregation, PersistNode
from trident.runtime.engine.routing import RowFrame
from trident.runtime.steps.aggregates import is_plain_key, merge_partials, merged, merging_kernel, rows_of
from trident.runtime.steps.failures import calls_user_code, failing_at
from trident.runtime.steps.key_columns import keys_in, keys_of, partition_of_total, partitions_of
from trident.runtime.steps.removed_keys import without_removed
from trident.runtime.steps.rows import tuples_of
from trident.state.encoding.equal_keys import OneForm
from trident.state.interfaces import Key
from trident.state.values import Combine


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
    function: Combine

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def update(self, state: Any) -> Any | None:
        """Update a state; return the column of new values, None (and nothing is written) if the state takes rows only."""
        *parts, values = self.arrays
        return state.multi_combine(parts, values, self.function)

    def with_values(self, new: Any) -> pa.Table:
        """Return a table of the keys and the given values."""
        schema = self.table.schema
        return pa.table([*self.table.columns[:-1], pa.array(new, schema.types[-1])], schema=schema)

    def rows(self) -> RowEntries:
        """Return these entries as rows."""
        *parts, values = self.arrays
        return RowEntries(keys_in(parts), values.to_pylist())


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


def takes_columns(aggregation: Aggregation | None, states: Sequence[Any]) -> bool:
    """Whether batches go to the state as columns; this is known before the first batch.

    They do not if Python and Arrow differ on which keys or numbers are equal, or if keys go to several partitions.
    """
    if aggregation is None or not (aggregation.grouped and aggregation.combines) or merging_kernel(aggregation) is None:
        return False
    number = schema_of(aggregation.output).types[0]
    fit = all(map(is_plain_key, aggregation.group.types)) and number in (pa.int64(), pa.float64())
    return fit and len(states) == 1 and states[0].facts.keeps_columns


def _as_columns(table: pa.Table, aggregation: Aggregation) -> ColumnEntries | None:
    """Return merged partials as columns; None where one of them is null."""
    arrays = [one_array(column) for column in table.columns]
    if arrays[-1].null_count:
        return None
    return ColumnEntries(table, arrays, cast(Combine, merging_kernel(aggregation)))


@calls_user_code(lambda local: (local["node"].id, None))
def inputs_of(node: PersistNode, tables: list[pa.Table], partitions: int, columnar: bool) -> dict[int, Entries]:
    """Return the entries of a batch for each partition that it touches; `columnar`: see `takes_columns`."""
    if not node.removals:
        return _updates_of(node, tables, partitions, columnar)
    assert node.aggregation is not None, node
    updates, removed = without_removed(node.aggregation.group, tables)
    found = _updates_of(node, updates, partitions, columnar)
    for partition, ats in partitions_of(removed, partitions).items():
        others = found.get(partition, RowEntries([], []))
        found[partition] = EntriesAndRemovals(others, type(removed)(removed[at] for at in ats))
    return dict(sorted(found.items()))


def _updates_of(node: PersistNode, tables: list[pa.Table], partitions: int, columnar: bool) -> dict[int, Any]:
    with failing_at(node.id):  # a user's combine or zero
        entries = _entries(node, tables, columnar)
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
    return {partition: _entries(node, tables[partition], columnar=False) for partition in sorted(tables)}


def _entries(node: PersistNode, tables: list[pa.Table], columnar: bool) -> RowEntries | ColumnEntries | PiecedEntries:
    aggregation = node.aggregation
    if aggregation is None:
        rows = [row for table in tables for row in tuples_of(table, node.inputs)]
        return RowEntries(rows, [None] * len(rows))
    if not aggregation.combines:
        return _grouped_rows(aggregation, tables)
    if columnar and (table := merged(aggregation, tables)) is not None:
        return _as_columns(table, aggregation) or RowEntries(*rows_of(table, aggregation))
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
