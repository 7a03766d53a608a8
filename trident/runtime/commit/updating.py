"""The update of one state partition, between `begin_commit` and `commit`: the same wherever it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from trident.arrow import schema_of
from trident.graph import Aggregation, JoinWithinNode, PersistNode, WindowNode
from trident.operations.metrics import counting
from trident.runtime.commit.committed import Updated
from trident.runtime.commit.entries import ColumnEntries, Entries, PiecedEntries, RowEntries
from trident.runtime.steps.bounds import Bounds
from trident.runtime.steps.failures import StepFailed, failing_at
from trident.runtime.steps.rows import Emitted, Run, columns_of
from trident.runtime.windows.over_time import update_over_time
from trident.runtime.windows.shares import Moment, Place
from trident.state.abilities import OnceUpdatable
from trident.state.key_counts import counting_keys
from trident.state.txid import Txid
from trident.state.values import CombinerUpdates, ReducerValueUpdater

__all__ = ["Reach", "update_partition", "update_time_partition", "updated"]

Reach = Callable[[str, str], None]


def updated(update: Callable[..., pa.Table | None], *args: Any) -> Updated:
    """Call the update of one partition, in whichever thread this is; return its failure as data."""
    try:
        with counting() as counts, counting_keys() as keys:
            values = update(*args)
    except StepFailed as error:
        return Updated(failure=error)
    return Updated(values, counts, keys=keys.counts)


def update_partition(
    node: PersistNode,
    state: Any,
    txid: Txid,
    entries: Entries,
    wanted: bool,
    reach: Reach,
    bounds: Bounds,
    end: Callable[[Txid], None] | None = None,
) -> pa.Table | None:
    """Apply one partition's input between `begin_commit` and `commit`; return the table of new values if `wanted`.

    `reach` is called with `"begin_commit"` before anything is written, `"put"` between the update and the commit, `"commit"`
    when the state has committed; what it raises fails the batch there. `end` is called in place of the state's `commit`.
    """
    with _committing(node, state, txid, reach, end):
        return _update(node, state, entries, wanted, bounds)


def update_time_partition(
    node: WindowNode | JoinWithinNode,
    state: Any,
    place: Place,
    txid: Txid,
    tables: Sequence[pa.Table],
    moment: Moment,
    run: Run,
    reach: Reach,
    end: Callable[[Txid], None] | None = None,
) -> pa.Table:
    """Do the same for a partition of a window, or of a join over time; return the rows that it gives.

    Parameters
    ----------
    place
        Which partition `state` is, of how many.
    tables
        The rows of this partition, of `shares_of`; there may be none.
    moment
        What all partitions must know of the batch, of `moment_of` all of its rows.
    """
    with _committing(node, state, txid, reach, end):
        return update_over_time(node, state, place, tables, moment, run)


class _committing(failing_at):  # noqa: N801 - used as a function
    """Turn an error in the update of a state partition into a failure of the batch, which is tried again."""

    __slots__ = ("_end", "_name", "_reach", "_state", "_txid")

    def __init__(
        self, node: PersistNode, state: Any, txid: Txid, reach: Reach, end: Callable[[Txid], None] | None = None
    ) -> None:
        super().__init__(node.id)
        self._end = end or state.commit
        self._name, self._state, self._txid, self._reach = node.state, state, txid, reach

    def __enter__(self) -> None:
        """Begin the commit of the partition."""
        with failing_at(self._step):
            self._reach("begin_commit", self._name)
            self._state.begin_commit(self._txid)

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if raised[1] is None:
            with failing_at(self._step):
                self._reach("put", self._name)
                self._end(self._txid)
                self._reach("commit", self._name)


def _update(node: PersistNode, state: Any, entries: Entries, wanted: bool, bounds: Bounds) -> pa.Table | None:
    if isinstance(entries, ColumnEntries):
        values = entries.update(state)
        if values is not None:
            return entries.with_values(values) if wanted else None
        entries = entries.rows()
    if isinstance(entries, PiecedEntries):
        once = state.multi_update_once if isinstance(state, OnceUpdatable) else state.multi_update
        tables = [_new_values(node, _update_keys(node, once, piece), wanted) for piece in entries.pieces()]
        return pa.concat_tables(tables) if wanted else None
    return _new_values(node, _update_rows(node, state, entries, bounds), wanted)


def _new_values(node: PersistNode, rows: Sequence[Any], wanted: bool) -> pa.Table | None:
    return pa.table(columns_of(node.id, node.fields, rows), schema=schema_of(node.fields)) if wanted else None


def _update_rows(node: PersistNode, state: Any, entries: RowEntries, bounds: Bounds) -> Sequence[Any]:
    aggregation = node.aggregation
    if aggregation is None:
        out = Emitted(node.id, node.fields, bounds, len(entries))
        node.updater.update_state(state, entries.keys, out)
        return out.rows
    if not aggregation.grouped:
        return [(state.update(_updaters(aggregation, entries)[0]),)]
    return _update_keys(node, state.multi_update, entries)


def _update_keys(node: PersistNode, update: Callable[..., list[Any]], entries: RowEntries) -> Sequence[Any]:
    assert node.aggregation is not None, node
    values = update(entries.keys, _updaters(node.aggregation, entries))
    return [(*key, value) for key, value in zip(entries.keys, values, strict=True)]


def _updaters(aggregation: Aggregation, entries: RowEntries) -> Sequence[Any]:
    aggregator = aggregation.aggregator
    if aggregation.combines:
        return CombinerUpdates(aggregator.combine, entries.given)
    return [ReducerValueUpdater(aggregator.init, aggregator.reduce, rows) for rows in entries.given]
