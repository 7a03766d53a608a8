"""One partition of a state, and one batch: the entries that the batch has for it, and their commit, here or in a task.

R16: no two partitions of a state write one key in one batch, as only a user's updater could. The driver compares what the
partitions write before any of them commits. Of an opaque state that tasks commit it compares afterwards, before the batch is
recorded: what an attempt wrote that is not recorded counts as never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from trident.arrow import one_array, schema_of, strict_cast
from trident.errors import KeyConflictError, StateError
from trident.graph import Aggregation, JoinWithinNode, PersistNode, WindowNode
from trident.naming import shown
from trident.operations.metrics import counting
from trident.runtime.engine.routing import RowFrame
from trident.runtime.steps.aggregates import (
    Merging,
    combining,
    is_native,
    is_plain_key,
    merge_partials,
    merged,
    merging_function,
    rows_of,
)
from trident.runtime.steps.bounds import DEFAULT_BOUNDS, Bounds
from trident.runtime.steps.failures import StepFailed, TupleErrors, calls_user_code, failing_at
from trident.runtime.steps.key_columns import keys_of, partition_of_total, partitions_of, without_removed
from trident.runtime.steps.rows import Emitted, column_of, columns_of, tuples_of
from trident.runtime.windows.firing import update_over_time
from trident.runtime.windows.shares import Share
from trident.state.encoding.codec import decode, encode_tuples
from trident.state.encoding.equal_keys import OneForm, canonical_keys
from trident.state.interfaces import Key, State
from trident.state.key_counts import NO_KEYS, KeyCounts, counting_keys
from trident.state.txid import Txid
from trident.state.values import CombinerUpdates, ReducerValueUpdater
from trident.tuples import TridentTuple

Reach = Callable[[str, str], None]
"""Called with a point of a state's commit and its name: `"begin_commit"` before anything is written, `"put"` between the update
and the commit, `"commit"` when the state has committed; what it raises fails the batch there."""

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

    def __len__(self) -> int:
        return (len(self.keys) if self.table is None else int(self.table.num_rows)) + len(self.removed)


@calls_user_code
def inputs_of(
    node: PersistNode, tables: list[pa.Table], partitions: int, columns: Merging | None
) -> dict[int, Entries]:
    """Return the entries of a batch for each partition that it touches; `columns`: see `merging_columns`.

    A user's combine or zero may raise.
    """
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
    if node.aggregation is not None and not node.aggregation.grouped:
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
        return _grouped_rows(aggregation, tables)
    is_many = sum(table.num_rows for table in tables) > PIECE
    if (columns is not None or is_many) and (table := merged(aggregation, tables)) is not None:
        return Entries(table=table, merging=columns)
    keys, values = merge_partials(aggregation, tables)
    if keys or aggregation.grouped:
        return Entries(keys, values)
    zero = aggregation.aggregator.zero()  # as in Storm, one value per batch even if it is empty
    return Entries() if zero is None else Entries([()], [zero])


def _grouped_rows(aggregation: Aggregation, tables: list[pa.Table]) -> Entries:
    groups: dict[Key, list[Any]] = {}
    for table in tables:
        keys = keys_of(table, aggregation.group.names)
        for key, row in zip(keys, tuples_of(table, aggregation.inputs), strict=True):
            groups.setdefault(key, []).append(row)
    return Entries(OneForm(groups), list(groups.values()))


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


@dataclass
class PartitionCommit:
    """The commit of one partition of a state: `begin`, then `end`.

    `given`: what the batch has for the partition; None: nothing, so that only the sentinel moves.
    `wanted`: whether any step reads the new values.
    `bounds`: how many rows a step may give.
    `reach`: see `Reach`.
    `stages`: whether the state stages, and the driver publishes, in place of the state's `commit`.

    What becomes of it:

    `values`: the rows that the partition gives: new values, if they are wanted, or what a window or join gives.
    `staged`: what the driver has yet to publish.
    `counts`, `keys`, `failure`: of steps that were run `apart`: what operations and maps counted, or why they failed.
    """

    node: PersistNode
    state: Any
    txid: Txid
    given: Entries | Share | None = None
    wanted: bool = False
    bounds: Bounds = DEFAULT_BOUNDS
    reach: Reach = lambda point, state: None
    stages: bool = False
    values: pa.Table | None = None
    staged: bytes = b""
    counts: Mapping[str, int] = field(default_factory=dict)
    keys: KeyCounts = NO_KEYS
    failure: StepFailed | None = None

    def begin(self) -> None:
        """Compare and move the sentinel, then update: nothing of it counts yet."""
        self.reach("begin_commit", self.node.state)
        self.state.begin_commit(self.txid)
        if isinstance(self.given, Share):
            assert isinstance(self.node, (WindowNode, JoinWithinNode)), self.node
            self.values = update_over_time(self.node, self.state, self.given)
        elif self.given is not None:
            self.values = self._update(self.given)

    def end(self) -> None:
        """Make durable what was put, and commit."""
        self.reach("put", self.node.state)
        if self.stages:
            self.staged = self.state.stage(self.txid)
        else:
            self.state.commit(self.txid)
        self.reach("commit", self.node.state)

    def run(self, steps: Steps = (begin, end)) -> None:
        """Take steps; what they raise is a failure of the node."""
        with failing_at(self.node.id):
            for step in steps:
                step(self)

    def apart(self, steps: Steps) -> None:
        """Take steps in whichever thread this is; keep what they count, and their failure as data."""
        try:
            with counting_keys() as keys, counting() as self.counts:
                self.run(steps)
            self.keys = keys.counts
        except StepFailed as error:
            self.failure = error

    def _update(self, given: Entries) -> pa.Table | None:
        table, values = given.table, None
        if table is None:
            values = self._new_values(self._rows(given) if given.keys or not given.removed else [])
        elif (column := self._combined(table, given.merging)) is None:
            assert self.node.aggregation is not None, self.node
            once = table.num_rows > PIECE  # then no two pieces have a key
            pieces = [table.slice(start, PIECE) for start in range(0, max(1, table.num_rows), PIECE)]
            tables = [
                self._new_values(self._rows(Entries(*rows_of(one, self.node.aggregation)), once)) for one in pieces
            ]
            values = pa.concat_tables(tables) if self.wanted else None
        elif self.wanted:
            name, type_ = table.schema.names[-1], table.schema.types[-1]
            typed = strict_cast(column if isinstance(column, pa.Array) else pa.array(column, type_), type_, name)
            values = pa.table([*table.columns[:-1], typed], schema=table.schema)
        if given.removed:
            self.state.multi_remove(given.removed)
        return values

    def _combined(self, table: pa.Table, merging: Merging | None) -> Any | None:
        """Update the state by columns; return the column of new values, None (and nothing is written) if it takes rows only."""
        if merging is None:
            return None
        *parts, values = map(one_array, table.columns)
        if isinstance(merging, str):
            has_null = bool(values.null_count)
        else:  # but a mean may be null
            has_null = any(
                one.null_count for one, what in zip(values.flatten(), merging, strict=True) if what != "mean"
            )
        return None if has_null else self.state.multi_combine(parts, values, merging)

    def _new_values(self, rows: Sequence[Any]) -> pa.Table | None:
        fields = self.node.fields
        return pa.table(columns_of(self.node.id, fields, rows), schema=schema_of(fields)) if self.wanted else None

    @calls_user_code
    def _rows(self, given: Entries, once: bool = False) -> Sequence[Any]:
        """Update rows; return them as they are then. `once`: none of the keys comes again in the batch."""
        node, state, aggregation = self.node, self.state, self.node.aggregation
        if aggregation is None:
            out = Emitted(node.id, node.fields, TupleErrors(bounds=self.bounds), len(given))
            node.updater.update_state(state.given, given.keys, out)
            return out.rows
        aggregator = aggregation.aggregator
        updaters: Sequence[Any]
        if aggregation.combines:
            updaters = CombinerUpdates(aggregator.combine, given.given, combining(aggregator), is_native(aggregator))
        else:
            updaters = [ReducerValueUpdater(aggregator.init, aggregator.reduce, rows) for rows in given.given]
        if aggregation.grouped:
            values = (state.multi_update_once if once else state.multi_update)(given.keys, updaters)
            rows = [(*key, value) for key, value in zip(given.keys, values, strict=True)]
        else:
            rows = [(state.update(updaters[0]),)]
        if rows and aggregation.output.types[0] and not is_native(aggregator):
            group, width = aggregation.group, len(aggregation.group)
            column_of(  # raises if user code made a value that the declared type does not have
                node.id,
                aggregation.output,
                [row[-1] for row in rows],
                lambda at: TridentTuple(group, rows[at][:width]) if width else None,
            )
        return rows


Steps = Sequence[Callable[[PartitionCommit], None]]


_MOST_BYTES = 64  # of a mark; a longer key is represented by its hash
_HASH_BYTES = 16


def marks_of(state: State) -> list[bytes]:
    """Return a mark for each key that the commit under way writes; nothing for a state that is no map."""
    return [
        key
        if len(key) <= _MOST_BYTES
        else key[: _MOST_BYTES - _HASH_BYTES] + blake2b(key, digest_size=_HASH_BYTES).digest()
        for key in encode_tuples(canonical_keys(list(state.written_keys())))
    ]


def check_one_writer(state: str, written: Mapping[int, Sequence[bytes]], txid: int) -> None:
    """Compare the marks of the partitions.

    Raises `KeyConflictError`: two partitions write one key.
    """
    writers: dict[bytes, int] = {}
    for partition, marks in sorted(written.items()):
        for mark in marks:
            other = writers.setdefault(mark, partition)
            if other != partition:
                raise KeyConflictError(state, _shown(mark), other, partition, int(txid))


def _shown(mark: bytes) -> str:
    try:
        return f"the key {shown(tuple(decode(mark)))}"
    except (StateError, TypeError):
        return "a long key"
