"""The entries of a batch for each partition of a state, and the check that no two partitions write one key (R16).

Only a user's updater could. The driver compares what the partitions write before any commits; of an opaque state that tasks
commit before the batch is recorded: what an attempt wrote that is not recorded counts as never written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from trident.arrow import schema_of
from trident.engine.routing import RowFrame
from trident.errors import KeyConflictError, StateError
from trident.graph import Aggregation, PersistNode
from trident.naming import shown
from trident.state.encoding.codec import decode, encode_tuples
from trident.state.encoding.equal_keys import CanonicalKeys, canonical_keys
from trident.state.interfaces import Key, State
from trident.steps.aggregates import Merging, is_plain_key, merge_all, merge_partials, merging_function, rows_of
from trident.steps.failures import calls_user_code
from trident.steps.key_columns import keys_of, partition_of_total, partitions_of, without_removed
from trident.steps.rows import tuples_of

PIECE = 1 << 17  # how many keys are updated at once


@dataclass(frozen=True)
class Entries:
    """What a batch has for one partition of a state: rows, or a table of merged partials until rows of it are needed."""

    keys: Sequence[Any] = ()  # in their one form, each with the value to combine; for an updater, rows, each with None
    given: Sequence[Any] = ()
    table: pa.Table | None = None  # as Python objects, its keys and values would take ten times the memory
    merging: Merging | None = None  # how a state of columns combines those of the table; None: it takes rows
    removed: Sequence[Key] = ()  # none of them is among the others

    def __len__(self) -> int:
        return (len(self.keys) if self.table is None else int(self.table.num_rows)) + len(self.removed)

    def pieces(self) -> list[pa.Table]:
        """Return the table, in several if it has many keys; no two of them have a key."""
        assert self.table is not None, "there are rows"
        rows = self.table.num_rows
        return [self.table] if rows <= PIECE else [self.table.slice(start, PIECE) for start in range(0, rows, PIECE)]


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
    entries = _entries(node, tables, columns)
    if partitions == 1:
        return {0: entries} if len(entries) else {}
    if entries.table is not None:
        assert node.aggregation is not None, node
        entries = Entries(*rows_of(entries.table, node.aggregation))
    if node.aggregation is not None and not node.aggregation.group.names:
        return {partition_of_total(partitions): entries} if len(entries) else {}
    keys, given = entries.keys, entries.given
    places = partitions_of([tuple(key) for key in keys], partitions)
    return {
        partition: Entries(type(keys)(keys[at] for at in ats), [given[at] for at in ats])  # type: ignore[call-arg]
        for partition, ats in places.items()
    }


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
        groups: dict[Key, list[Any]] = {}
        for table in tables:
            of_rows = keys_of(table, aggregation.group.names)
            for key, row in zip(of_rows, tuples_of(table, aggregation.inputs), strict=True):
                groups.setdefault(key, []).append(row)
        return Entries(CanonicalKeys(groups), list(groups.values()))
    is_many = sum(map(len, tables)) > PIECE
    if (columns is not None or is_many) and (table := merge_all(aggregation, tables)) is not None:
        return Entries(table=table, merging=columns)
    keys, values = merge_partials(aggregation, tables)
    if keys or aggregation.group.names:
        return Entries(keys, values)
    zero = aggregation.aggregator.zero()  # as in Storm, one value per batch even if it is empty
    return Entries() if zero is None else Entries([()], [zero])


def merging_columns(aggregation: Aggregation | None, states: Sequence[Any]) -> Merging | None:
    """Return what merges batches that go to the state as columns; None: they go as rows."""
    if aggregation is None or not (aggregation.group.names and aggregation.combines):
        return None
    value = schema_of(aggregation.outputs).types[0]
    numbers = [field.type for field in value] if pa.types.is_struct(value) else [value]
    # Python and Arrow have to agree on which keys and numbers are equal, and keys to go to one partition.
    fit = all(map(is_plain_key, aggregation.group.types)) and {pa.int64(), pa.float64()}.issuperset(numbers)
    fit = fit and len(states) == 1 and states[0].facts.keeps_columns
    return merging_function(aggregation.aggregator) if fit else None


_MOST_BYTES = 64  # of a mark; a longer key is represented by its hash
_HASH_BYTES = 16


def marks_of(state: State) -> list[bytes]:
    """Return a mark for each key that the commit under way writes; nothing for a state that is no map."""
    return [
        key
        if len(key) <= _MOST_BYTES
        else key[: _MOST_BYTES - _HASH_BYTES] + blake2b(key, digest_size=_HASH_BYTES).digest()
        for key in encode_tuples(canonical_keys(list(state.facts.written_keys())))
    ]


def check_one_writer(state: str, written: Mapping[int, Sequence[bytes]], txid: int) -> None:
    """Compare the marks of the partitions; `KeyConflictError` if two of them write one key."""
    writers: dict[bytes, int] = {}
    for partition, marks in sorted(written.items()):
        for mark in marks:
            other = writers.setdefault(mark, partition)
            if other != partition:
                raise KeyConflictError(state, _key_text(mark), other, partition, int(txid))


def _key_text(mark: bytes) -> str:
    try:
        return f"the key {shown(tuple(decode(mark)))}"
    except (StateError, TypeError):
        return "a long key"
