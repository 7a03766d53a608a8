"""The entries of a batch for each partition of a state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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

PIECE = 1 << 17
"""How many keys are updated at once."""


@dataclass(frozen=True)
class Entries:
    """What a batch has for one partition of a state: rows, or a table of merged partials until rows of it are needed.

    `keys`, `given`: keys in their one form, each with the value to combine; for an updater, rows, each with None.
    `table`: the key's columns, then the values to combine. As Python objects they would take ten times the memory.
    `merging`: the function by which a state of columns combines those of the table; None: it takes rows.
    `removed`: the keys that the batch removes, of which none is among the others.
    """

    keys: Sequence[Any] = ()
    given: Sequence[Any] = ()
    table: pa.Table | None = None
    merging: Merging | None = None
    removed: Sequence[Key] = ()

    @property
    def updates(self) -> int:
        """How many keys are updated, or rows for an updater."""
        return len(self.keys) if self.table is None else int(self.table.num_rows)

    def __len__(self) -> int:
        return self.updates + len(self.removed)

    def take(self, places: Sequence[int]) -> Entries:
        """Return some of the rows."""
        return Entries(type(self.keys)(self.keys[at] for at in places), [self.given[at] for at in places])  # type: ignore[call-arg]

    def combine(self, state: Any) -> Any | None:
        """Update a state by columns; return the column of new values, None (and nothing is written) if it takes rows only."""
        if self.merging is None or self.table is None:
            return None
        *parts, values = map(one_array, self.table.columns)
        return None if _has_null(values, self.merging) else state.multi_combine(parts, values, self.merging)

    def with_values(self, new: Any) -> pa.Table:
        """Return the table with the given values."""
        assert self.table is not None, "there were columns to combine"
        schema = self.table.schema
        values = new if isinstance(new, pa.Array) else pa.array(new, schema.types[-1])
        typed = strict_cast(values, schema.types[-1], schema.names[-1])
        return pa.table([*self.table.columns[:-1], typed], schema=schema)

    def pieces(self, aggregation: Aggregation) -> Iterator[tuple[Entries, bool]]:
        """Give the table as rows: of many keys some at a time; and whether these are several, of which no two have a key."""
        assert self.table is not None, "there are rows"
        count = self.table.num_rows
        for start in range(0, max(1, count), PIECE):
            yield Entries(*rows_of(self.table.slice(start, PIECE), aggregation)), count > PIECE


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


def _has_null(values: pa.Array, function: Merging) -> bool:
    """Whether a merged partial is null, or has a null that is no mean."""
    if isinstance(function, str):
        return bool(values.null_count)
    return any(field.null_count for field, what in zip(values.flatten(), function, strict=True) if what != "mean")


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
        others = found.get(partition, Entries())
        found[partition] = replace(others, removed=type(removed)(removed[at] for at in ats))
    return dict(sorted(found.items()))


def _updates_of(
    node: PersistNode, tables: list[pa.Table], partitions: int, columns: Merging | None
) -> dict[int, Entries]:
    with failing_at(node.id):  # a user's combine or zero
        entries = _entries(node, tables, columns)
    if partitions == 1:
        return {0: entries} if len(entries) else {}
    if entries.table is not None:
        assert node.aggregation is not None, node
        entries = Entries(*rows_of(entries.table, node.aggregation))
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


def _entries(node: PersistNode, tables: list[pa.Table], columns: Merging | None) -> Entries:
    aggregation = node.aggregation
    if aggregation is None:
        rows = [row for table in tables for row in tuples_of(table, node.inputs)]
        return Entries(rows, [None] * len(rows))
    if not aggregation.combines:
        return _grouped_rows(aggregation, tables)
    is_many = sum(table.num_rows for table in tables) > PIECE
    if (columns is not None or is_many) and (table := merged(aggregation, tables)) is not None:
        return Entries(table=table, merging=columns)
    keys, values = merge_partials(aggregation, tables)
    return Entries(keys, values) if keys or aggregation.grouped else _total_of_nothing(aggregation)


def _total_of_nothing(aggregation: Aggregation) -> Entries:
    """As in Storm, one value per batch even if it is empty."""
    zero = aggregation.aggregator.zero()
    return Entries() if zero is None else Entries([()], [zero])


def _grouped_rows(aggregation: Aggregation, tables: list[pa.Table]) -> Entries:
    groups: dict[Key, list[Any]] = {}
    for table in tables:
        keys = keys_of(table, aggregation.group.names)
        for key, row in zip(keys, tuples_of(table, aggregation.inputs), strict=True):
            groups.setdefault(key, []).append(row)
    return Entries(OneForm(groups), list(groups.values()))
