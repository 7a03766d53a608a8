"""Commits a processed batch to its states: queries, persists and the steps between them, in the plan's order.

The same functions, `update_partition` and `update_time_partition`, update a partition of a state wherever it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import Any

import pyarrow as pa

from trident.arrow import schema_of
from trident.graph import Aggregation, ExchangeNode, JoinWithinNode, PersistNode, QueryNode, WindowNode
from trident.operations.metrics import add_counts, counting
from trident.planner import Exchange, Plan
from trident.planner.plan import most_kept
from trident.runtime.commit.committed import Committed, Updated, check_one_writer, marks_of
from trident.runtime.commit.entries import (
    ColumnEntries,
    Entries,
    EntriesAndRemovals,
    PiecedEntries,
    RowEntries,
    inputs_kept,
    inputs_of,
    merging_columns,
    row_entries,
)
from trident.runtime.commit.flow import Flow, paused_garbage_collection
from trident.runtime.engine.routing import RowFrame
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.steps.aggregates import combining, is_native
from trident.runtime.steps.bounds import DEFAULT_BOUNDS, Bounds
from trident.runtime.steps.failures import StepFailed, TupleErrors, calls_user_code, failing_at
from trident.runtime.steps.rows import Emitted, StepRun, column_of, columns_of
from trident.runtime.windows.firing import update_over_time
from trident.runtime.windows.shares import Moment, Now, PartitionPlace, Shares, moment_of, running_partitions, shares_of
from trident.spout.interfaces import TransactionAttempt
from trident.state.key_counts import counting_keys
from trident.state.kinds import LaterWrite
from trident.state.txid import Txid
from trident.state.values import CombinerUpdates, ReducerValueUpdater
from trident.tuples import TridentTuple


def operations_of_commits(commits: Iterable[Any]) -> list[Any]:
    """Return the user objects that persists and queries themselves call: updaters, query functions, aggregators."""
    operations = []
    for node in commits:
        if isinstance(node, QueryNode):
            operations.append(node.function)
        elif isinstance(node, JoinWithinNode):
            continue  # it calls no user code
        elif isinstance(node, WindowNode):
            operations.append(node.member.aggregator)
        elif isinstance(node, PersistNode):
            operations.append(node.updater if node.aggregation is None else node.aggregation.aggregator)
    return operations


class Committer:
    """Holds the writers of all state partitions of a topology.

    Attributes
    ----------
    is_quick
        Whether all states take columns only, so that no user code is called.

    Parameters
    ----------
    states
        By name, the `State` of each partition.
    in_parallel
        Applies a function to many partitions: `map`, or a thread pool's `map` for stores that answer over a network.
    exchanges
        Returns them by id, with their numbers of partitions.
    reach
        Called at each point of a state's commit with the state's name, see `update_partition`; may raise.
    bounds
        How many rows a step behind a state may give.
    """

    def __init__(
        self,
        plan: Plan,
        states: Mapping[str, Sequence[Any]],
        static_state: Callable[[str], Any],
        in_parallel: Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]] = map,
        exchanges: Callable[[], Mapping[str, Exchange]] | None = None,
        reach: Reach | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self._reach, self._bounds = reach or (lambda point, state: None), bounds
        self._plan, self._states, self._static_state = plan, states, static_state
        persists = (node for node in plan.commits if isinstance(node, PersistNode))
        self._columns = {node.id: merging_columns(node.aggregation, states[node.state]) for node in persists}
        self._later: list[LaterWrite] = []
        self._in_parallel, self._exchanges = in_parallel, exchanges or (lambda: plan.exchanges)
        self.is_quick = all(self._columns.get(node.id) is not None for node in plan.commits)

    def leave_to_record(self, states: Iterable[str]) -> None:
        """From now on leave the writes of some states, of one partition each, to the record of their batch."""
        for name in states:
            self._states[name][0].commit_with_record(self._later.append)

    def commit(
        self,
        txids: Mapping[str, Sequence[Txid]],
        output: TaskOutput,
        now: Now | None = None,
        capture: bool = False,
        elsewhere: Collection[str] = (),
    ) -> Committed:
        """Apply a batch to all states, except the entries `elsewhere`, which executors have committed.

        Parameters
        ----------
        txids
            By state, this batch's txid as each partition must see it.
        output
            The output of the workers for the batch.
        now
            The time of the batch, for windows that use it.
        capture
            Whether tuples that raise are left out.

        Raises
        ------
        StepFailed
            User code or a store raised; the batch has to be tried again with another attempt.
        """
        self._later.clear()
        with paused_garbage_collection(), counting() as counts:
            for state, written in output.written.items():
                with failing_at(self._writer_of(state)):
                    check_one_writer(state, written, txids[state][0])
            for state, staged in output.staged.items():
                self._publish(state, txids[state], staged)
            done = self._commit(txids, output, now, capture, elsewhere)
        add_counts(done.metrics, counts)
        done.later = tuple(self._later)
        return done

    def fence(self, states: Iterable[str], txids: Mapping[str, Sequence[Txid]]) -> dict[str, Sequence[Txid]]:
        """Commit nothing in all partitions of some states, so that no task of an earlier attempt writes there any more.

        Returns
        -------
        dict
            The txids as tasks of this attempt must see the partitions now.

        Raises
        ------
        StepFailed
            As `commit`.
        """
        seen = dict(txids)
        for name in states:
            with failing_at(self._writer_of(name)):
                for state, txid in zip(self._states[name], txids[name], strict=True):
                    state.begin_commit(txid)
                    state.commit(txid)
            seen[name] = [txid.for_partition(txid.sentinel) for txid in txids[name]]
        return seen

    def _publish(self, name: str, txids: Sequence[Txid], staged: Mapping[int, bytes]) -> None:
        """Commit what tasks staged for the partitions of a state."""
        for partition, data in sorted(staged.items()):
            with failing_at(self._writer_of(name)):
                self._states[name][partition].publish(txids[partition], data)

    def _writer_of(self, name: str) -> str:
        """Return the step that writes a state."""
        (step,) = (node.id for node in self._plan.commits if isinstance(node, PersistNode) and node.state == name)
        return step

    def _commit(
        self,
        txids: Mapping[str, Sequence[Txid]],
        output: TaskOutput,
        now: Now | None,
        capture: bool,
        elsewhere: Collection[str],
    ) -> Committed:
        done = Committed(
            {to: list(tables) for to, tables in output.sinks.items()},
            frames=output.frames,
            touched=dict(output.touched),
            keys=dict(output.keys),
            key_counts=dict(output.key_counts),
            timers=list(output.timers),
        )
        on_error = TupleErrors(capture, done.captured, self._bounds)
        run = StepRun(_attempt_of(txids), on_error, self._static_state, done.timers)
        flow = Flow(self._plan, self._exchanges(), done, run)
        for node in self._plan.commits:
            if node.id in elsewhere:
                continue
            began = perf_counter_ns()
            self._commit_node(node, flow, txids, now, run, done)
            done.took_ns[node.id] = perf_counter_ns() - began
        return done

    def _commit_node(
        self, node: PersistNode | QueryNode | ExchangeNode, flow: Flow, txids: Mapping[str, Sequence[Txid]],
        now: Now | None, run: StepRun, done: Committed,
    ) -> None:  # fmt: skip
        tables, arrived = flow.take(node.id)
        partitions = 1 if isinstance(node, ExchangeNode) else len(self._states[node.state])
        if isinstance(node, (WindowNode, JoinWithinNode)):
            rows = self._over_time(node, tables, txids[node.state], now, run, done)
        elif isinstance(node, PersistNode):
            rows = self._persist(node, tables, arrived, txids[node.state], done)
        elif isinstance(node, QueryNode):
            with counting_keys() as keys:
                rows = flow.query(node, self._states[node.state], txids[node.state], tables, arrived)
            partitions = max(1, most_kept(self._plan.fragments[node.id].sinks))
            done.add_keys(node.state, keys.counts)
        else:
            flow.exchange(node, arrived)
            return
        flow.send_on(node.id, rows, partitions, arrived)

    def _persist(
        self,
        node: PersistNode,
        tables: list[pa.Table],
        arrived: Sequence[RowFrame],
        txids: Sequence[Txid],
        done: Committed,
    ) -> dict[int, pa.Table]:
        states, fragment = self._states[node.state], self._plan.fragments[node.id]
        in_place = node.aggregation is None and len(states) > 1  # the stream's partitions become the state's
        work = inputs_kept(node, arrived) if in_place else inputs_of(node, tables, len(states), self._columns[node.id])
        if not work:
            return {}
        wanted = bool(fragment.sinks or fragment.steps)  # does any step read the new values?
        if len(work) > 1 and in_place:
            values = self._update_together(node, txids, work, wanted, done)
        else:
            values = self._in_partitions(node, partial(self._update, node, txids, work, wanted), list(work), done)
        done.keys[node.state] = sum(map(len, work.values()))
        return values if wanted else {}

    def _update_together(
        self, node: PersistNode, txids: Sequence[Txid], work: Mapping[int, Entries], wanted: bool, done: Committed
    ) -> dict[int, pa.Table]:
        """Update partitions any of which may write any key: none of them commits before it is known that no two write one."""
        states = self._states[node.state]
        values = self._in_partitions(node, partial(self._begin, node, txids, work, wanted), list(work), done)
        with failing_at(node.id):
            check_one_writer(node.state, {at: marks_of(states[at]) for at in list(work)}, txids[0])
        self._in_partitions(node, partial(self._end, node, txids), list(work), done)
        return values

    def _over_time(
        self, node: WindowNode | JoinWithinNode, tables: list[pa.Table], txids: Sequence[Txid], now: Now | None,
        run: StepRun, done: Committed,
    ) -> dict[int, pa.Table]:  # fmt: skip
        """Update a window, also without tuples if the time may complete it, or a join over time."""
        count, moment = len(self._states[node.state]), moment_of(node, tables, now)
        shares = shares_of(node, tables, count)
        running = running_partitions(node, moment, shares, count)
        if not running:
            return {}
        values = self._in_partitions(node, partial(self._pass, node, txids, shares, moment, run), running, done)
        done.keys[node.state] = moment.given
        return values

    def _in_partitions(
        self, node: PersistNode, update: Callable[[int], Updated], partitions: Sequence[int], done: Committed
    ) -> dict[int, Any]:
        """Update partitions side by side; return what each gives, in their order."""
        # All partitions end before one may fail the batch, because the next attempt must not meet a running one.
        results = list(self._in_parallel(update, partitions))
        for one in results:
            if one.failure is not None:
                raise one.failure
            add_counts(done.metrics, one.counts)
            done.add_keys(node.state, one.keys)
        done.touched[node.state] = sorted(partitions)
        return {partition: one.values for partition, one in zip(partitions, results, strict=True)}

    def _update(
        self, node: PersistNode, txids: Sequence[Txid], work: Mapping[int, Entries], wanted: bool, partition: int
    ) -> Updated:
        state, txid = self._states[node.state][partition], txids[partition]
        return _updated(update_partition, node, state, txid, work[partition], wanted, self._reach, self._bounds)

    def _begin(
        self, node: PersistNode, txids: Sequence[Txid], work: Mapping[int, Entries], wanted: bool, partition: int
    ) -> Updated:
        state, txid = self._states[node.state][partition], txids[partition]
        return _updated(_begun, node, state, txid, work[partition], wanted, self._reach, self._bounds)

    def _end(self, node: PersistNode, txids: Sequence[Txid], partition: int) -> Updated:
        state, txid = self._states[node.state][partition], txids[partition]
        return _updated(_ended, node, state, txid, self._reach)

    def _pass(
        self, node: WindowNode | JoinWithinNode, txids: Sequence[Txid], shares: Shares, moment: Moment, run: StepRun,
        partition: int,
    ) -> Updated:  # fmt: skip
        state, place = self._states[node.state][partition], PartitionPlace(partition, len(self._states[node.state]))
        run = replace(run, on_error=TupleErrors(bounds=self._bounds))  # its tuples may be of earlier batches
        tables = shares.get(partition, ())
        return _updated(update_time_partition, node, state, place, txids[partition], tables, moment, run, self._reach)


def _attempt_of(txids: Mapping[str, Sequence[Txid]]) -> TransactionAttempt:
    for partitions in txids.values():
        for txid in partitions:
            return TransactionAttempt(int(txid), txid.attempt)
    return TransactionAttempt(0, 0)


Reach = Callable[[str, str], None]


def _updated(update: Callable[..., pa.Table | None], *args: Any) -> Updated:
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
    with failing_at(node.id):
        _begin_commit(node, state, txid, reach)
        values = _update(node, state, entries, wanted, bounds)
        _end_commit(node, state, txid, reach, end)
    return values


def _begun(
    node: PersistNode, state: Any, txid: Txid, entries: Entries, wanted: bool, reach: Reach, bounds: Bounds
) -> pa.Table | None:
    """Do the part of `update_partition` before the commit."""
    with failing_at(node.id):
        _begin_commit(node, state, txid, reach)
        return _update(node, state, entries, wanted, bounds)


def _ended(node: PersistNode, state: Any, txid: Txid, reach: Reach) -> None:
    """Do the part of `update_partition` from the commit on."""
    with failing_at(node.id):
        _end_commit(node, state, txid, reach)


@calls_user_code
def update_time_partition(
    node: WindowNode | JoinWithinNode,
    state: Any,
    place: PartitionPlace,
    txid: Txid,
    tables: Sequence[pa.Table],
    moment: Moment,
    run: StepRun,
    reach: Reach,
    end: Callable[[Txid], None] | None = None,
) -> pa.Table:
    """Do the same for a partition of a window, or of a join over time; return the rows that it gives.

    `place`: which partition `state` is, of how many.
    `tables`: the rows of this partition, of `shares_of`; there may be none.
    `moment`: what all partitions must know of the batch, of `moment_of` all of its rows.
    """
    with failing_at(node.id):
        _begin_commit(node, state, txid, reach)
        rows = update_over_time(node, state, place, tables, moment, run)
        _end_commit(node, state, txid, reach, end)
    return rows


def _begin_commit(node: PersistNode, state: Any, txid: Txid, reach: Reach) -> None:
    reach("begin_commit", node.state)
    state.begin_commit(txid)


def _end_commit(
    node: PersistNode, state: Any, txid: Txid, reach: Reach, end: Callable[[Txid], None] | None = None
) -> None:
    reach("put", node.state)
    (end or state.commit)(txid)
    reach("commit", node.state)


def _update(node: PersistNode, state: Any, entries: Entries, wanted: bool, bounds: Bounds) -> pa.Table | None:
    if isinstance(entries, EntriesAndRemovals):
        updates = entries.updates
        given = _update(node, state, updates, wanted, bounds) if len(updates) else _new_values(node, [], wanted)
        state.multi_remove(entries.removed)
        return given
    if isinstance(entries, ColumnEntries):
        values = entries.update(state)
        if values is not None:
            return entries.with_values(values) if wanted else None
        assert node.aggregation is not None, node
        entries = row_entries(entries.table, node.aggregation)
    if isinstance(entries, PiecedEntries):
        tables = [
            _new_values(node, _update_keys(node, state.multi_update_once, piece), wanted) for piece in entries.pieces()
        ]
        return pa.concat_tables(tables) if wanted else None
    return _new_values(node, _update_rows(node, state, entries, bounds), wanted)


def _new_values(node: PersistNode, rows: Sequence[Any], wanted: bool) -> pa.Table | None:
    return pa.table(columns_of(node.id, node.fields, rows), schema=schema_of(node.fields)) if wanted else None


@calls_user_code
def _update_rows(node: PersistNode, state: Any, entries: RowEntries, bounds: Bounds) -> Sequence[Any]:
    aggregation = node.aggregation
    if aggregation is None:
        out = Emitted(node.id, node.fields, TupleErrors(bounds=bounds), len(entries))
        node.updater.update_state(state.given, entries.keys, out)
        return out.rows
    if not aggregation.grouped:
        return _of_their_type(node, [(state.update(_updaters(aggregation, entries)[0]),)])
    return _update_keys(node, state.multi_update, entries)


@calls_user_code
def _update_keys(node: PersistNode, update: Callable[..., list[Any]], entries: RowEntries) -> Sequence[Any]:
    assert node.aggregation is not None, node
    values = update(entries.keys, _updaters(node.aggregation, entries))
    return _of_their_type(node, [(*key, value) for key, value in zip(entries.keys, values, strict=True)])


def _of_their_type(node: PersistNode, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return keys and their new values; raise `StepFailed` if user code made one that the declared type does not have."""
    aggregation = node.aggregation
    if rows and aggregation is not None and aggregation.output.types[0] and not is_native(aggregation.aggregator):
        values, width = [row[-1] for row in rows], len(aggregation.group)
        column_of(
            node.id,
            aggregation.output,
            values,
            lambda at: TridentTuple(aggregation.group, rows[at][:width]) if width else None,
        )
    return rows


def _updaters(aggregation: Aggregation, entries: RowEntries) -> Sequence[Any]:
    aggregator = aggregation.aggregator
    if aggregation.combines:
        combine_all, is_pure = combining(aggregator), is_native(aggregator)
        return CombinerUpdates(aggregator.combine, entries.given, combine_all, is_pure)
    return [ReducerValueUpdater(aggregator.init, aggregator.reduce, rows) for rows in entries.given]
