"""Commits a processed batch to its states: queries, persists and the steps between them, in the plan's order.

The same function, `update_partition`, updates a state partition wherever it runs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from trident.arrow import schema_of
from trident.graph import ExchangeNode, PersistNode, QueryNode, WindowNode
from trident.operations.metrics import add_counts, counting
from trident.planner import Exchange, Plan
from trident.runtime.commit.entries import ColumnEntries, Entries, RowEntries, inputs_of, takes_columns
from trident.runtime.engine.put_back import put_backs_of
from trident.runtime.engine.routing import Frame, apply_exchange
from trident.runtime.engine.worker import TaskOutput, send
from trident.runtime.reading.store_check import check_partitions
from trident.runtime.reading.views import StateView
from trident.runtime.steps.applying import apply_query
from trident.runtime.steps.bounds import DEFAULT_BOUNDS, Bounds
from trident.runtime.steps.rows import Emitted, Failure, Run, StepFailed, TupleErrors, columns_of, failing_at
from trident.runtime.windows.firing import update_window
from trident.spout.interfaces import TransactionAttempt
from trident.state.txid import Snapshot, Txid
from trident.state.values import CombinerUpdates, ReducerValueUpdater

__all__ = ["Committed", "Committer", "committed_operations", "update_partition"]


@dataclass
class Committed:
    """What a batch changed.

    Attributes
    ----------
    touched
        The partitions of each state that had input, ascending.
    keys
        How many keys (or rows of `partition_persist`) each state got.
    metrics
        What operations counted, as `operation/counter`.
    captured
        Tuples behind states that were left out as dead letters.
    """

    touched: dict[str, list[int]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)
    captured: list[Failure] = field(default_factory=list)


class Committer:
    """Holds the writers of all state partitions of a topology.

    Attributes
    ----------
    is_quick
        Whether all states take columns only, so that no code of the user's is called.

    Parameters
    ----------
    states
        By name, the `State` of each partition.
    in_parallel
        Applies a function to many partitions; `map`, or that of a thread pool for stores that answer over a network.
    exchanges
        By id, with their numbers of partitions.
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
        exchanges: Mapping[str, Exchange] | None = None,
        reach: Reach | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self._reach, self._bounds = reach or _pass_by, bounds
        self._plan, self._states, self._static_state = plan, states, static_state
        persists = (node for node in plan.commits if isinstance(node, PersistNode))
        self._columnar = {node.id for node in persists if takes_columns(node.aggregation, states[node.state])}
        self._in_parallel, self._exchanges = in_parallel, exchanges or plan.exchanges
        self.is_quick = all(node.id in self._columnar for node in plan.commits)

    def commit(
        self, txids: Mapping[str, Sequence[Txid]], output: TaskOutput, now_ms: int | None = None, capture: bool = False
    ) -> Committed:
        """Apply a batch to all states.

        Parameters
        ----------
        txids
            By state, this batch's txid as each partition must see it.
        output
            The output of the workers for the batch.
        now_ms
            The time of the batch, for windows that use it.
        capture
            Whether tuples that raise are left out.

        Raises
        ------
        StepFailed
            User code or a store raised; the batch has to be tried again with another attempt.
        """
        with _no_garbage_collection(), counting() as counts:
            done = self._commit(txids, output, now_ms, capture)
        add_counts(done.metrics, counts)
        return done

    def _commit(
        self, txids: Mapping[str, Sequence[Txid]], output: TaskOutput, now_ms: int | None, capture: bool
    ) -> Committed:
        done = Committed()
        given = TaskOutput({target: list(tables) for target, tables in output.sinks.items()}, frames=output.frames)
        run = Run(_attempt_of(txids), TupleErrors(capture, done.captured, self._bounds), self._static_state)
        for node in self._plan.commits:
            tables = given.sinks.pop(node.id, [])
            run.on_error.entry, run.on_error.partition, run.on_error.partitions = node.id, 0, 1
            arrived = _take_frames(given, node.id)
            if isinstance(node, WindowNode):
                answers = self._window(node, tables, txids[node.state][0], now_ms, run, done)
            elif isinstance(node, PersistNode):
                answers = self._persist(node, tables, txids[node.state], done)
            elif isinstance(node, QueryNode):
                tables += [frame.data for frame in arrived if not frame.step]  # dead letters of the query itself
                answers = self._query(node, tables, txids[node.state], run.on_error)
            else:
                self._exchange(node, arrived, given, run)
                continue
            fragment, letters = self._plan.fragments[node.id], put_backs_of(arrived)
            rows = [answers] if answers is not None and answers.num_rows else []
            if rows or fragment.blocking or letters:
                send(fragment, rows, self._exchanges, run, 0, given, letters)
        return done

    def _exchange(self, node: ExchangeNode, arrived: list[Frame], given: TaskOutput, run: Run) -> None:
        """Run all partitions of an exchange behind a state. Its rows come from workers, states, or both."""
        exchange, fragment = self._exchanges[node.id], self._plan.fragments[node.id]
        run.on_error.partitions = exchange.partitions or 1
        for partition in range(run.on_error.partitions):
            run.on_error.partition = partition
            frames = [frame for frame in arrived if frame.partition == partition]
            with failing_at(node.id):
                table = apply_exchange(exchange, frames, run)
            send(fragment, [table], self._exchanges, run, partition, given, put_backs_of(frames))

    def _query(
        self, node: QueryNode, tables: list[pa.Table], txids: Sequence[Txid], on_error: TupleErrors
    ) -> pa.Table | None:
        if not tables:
            return None
        states, txid = self._states[node.state], txids[0]
        before = Snapshot(txid - 1, txid.winners)  # a query sees the state after the batch before, in a replay as well
        view = StateView.for_query(states, lambda: before, node.state)
        answers = apply_query(node.id, node, pa.concat_tables(tables), view, on_error)
        with failing_at(node.id):
            check_partitions(node.state, states, lambda: txids)
        return answers

    def _persist(
        self, node: PersistNode, tables: list[pa.Table], txids: Sequence[Txid], done: Committed
    ) -> pa.Table | None:
        states, fragment = self._states[node.state], self._plan.fragments[node.id]
        work = inputs_of(node, tables, len(states), node.id in self._columnar)
        if not work:
            return None
        wanted = bool(fragment.sinks or fragment.steps)  # does any step read the new values?

        def update(partition: int) -> tuple[pa.Table | None, dict[str, int]] | StepFailed:
            try:
                with counting() as counts:  # whichever thread this is
                    values = update_partition(
                        node, states[partition], txids[partition], work[partition], wanted, self._reach, self._bounds
                    )
            except StepFailed as error:
                return error
            return values, counts

        # All partitions end before one may fail the batch, because the next attempt must not meet a running one.
        tables = []
        for result in list(self._in_parallel(update, work)):
            if isinstance(result, StepFailed):
                raise result
            tables.append(result[0])
            add_counts(done.metrics, result[1])
        done.touched[node.state] = sorted(work)
        done.keys[node.state] = sum(map(len, work.values()))
        return pa.concat_tables(tables) if wanted else None

    def _window(
        self, node: WindowNode, tables: list[pa.Table], txid: Txid, now_ms: int | None, run: Run, done: Committed
    ) -> pa.Table | None:
        """Update a window, also without tuples if the time may complete it."""
        given = sum(table.num_rows for table in tables)
        if not given and not node.config.by_batch_time:
            return None
        state = self._states[node.state][0]
        run = replace(
            run, on_error=TupleErrors(bounds=self._bounds)
        )  # because a window's tuples may come from earlier batches
        with _committing(node, state, txid, self._reach):
            fired = update_window(node, state, tables, now_ms, run)
        done.touched[node.state], done.keys[node.state] = [0], given
        return fired


def _take_frames(given: TaskOutput, target: str) -> list[Frame]:
    if not given.frames:
        return []
    taken = [frame for frame in given.frames if frame.target == target]
    given.frames = [frame for frame in given.frames if frame.target != target]
    return taken


def _attempt_of(txids: Mapping[str, Sequence[Txid]]) -> TransactionAttempt:
    txid = next((txid for partitions in txids.values() for txid in partitions), Txid(0))
    return TransactionAttempt(int(txid), txid.attempt)


Reach = Callable[[str, str], None]


def _pass_by(point: str, state: str) -> None:
    """Do nothing."""


def update_partition(
    node: PersistNode,
    state: Any,
    txid: Txid,
    entries: Entries,
    wanted: bool,
    reach: Reach = _pass_by,
    bounds: Bounds = DEFAULT_BOUNDS,
) -> pa.Table | None:
    """Apply one partition's input between `begin_commit` and `commit`; return the table of new values if `wanted`.

    `reach` is called with `"begin_commit"` before anything is written, `"put"` between the update and the commit, `"commit"`
    when the state has committed; what it raises fails the batch there.
    """
    with _committing(node, state, txid, reach):
        return _update(node, state, entries, wanted, bounds)


class _committing(failing_at):  # noqa: N801 - used as a function
    """Turn an error in the update of a state partition into a failure of the batch, which is tried again."""

    __slots__ = ("_name", "_reach", "_state", "_txid")

    def __init__(self, node: PersistNode, state: Any, txid: Txid, reach: Reach) -> None:
        super().__init__(node.id)
        self._name, self._state, self._txid, self._reach = node.state, state, txid, reach

    def __enter__(self) -> None:
        with failing_at(self._step):
            self._reach("begin_commit", self._name)
            self._state.begin_commit(self._txid)

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if raised[1] is None:
            with failing_at(self._step):
                self._reach("put", self._name)
                self._state.commit(self._txid)
                self._reach("commit", self._name)


def _update(node: PersistNode, state: Any, entries: Entries, wanted: bool, bounds: Bounds) -> pa.Table | None:
    if isinstance(entries, ColumnEntries):
        values = entries.update(state)
        if values is not None:
            return entries.with_values(values) if wanted else None
        entries = entries.rows()
    rows = _update_rows(node, state, entries, bounds)
    return pa.table(columns_of(node.id, node.fields, rows), schema=schema_of(node.fields)) if wanted else None


def _update_rows(node: PersistNode, state: Any, entries: RowEntries, bounds: Bounds) -> Sequence[Any]:
    aggregation = node.aggregation
    if aggregation is None:
        out = Emitted(node.id, node.fields, bounds, len(entries))
        node.updater.update_state(state, entries.keys, out)
        return out.rows
    aggregator = aggregation.aggregator
    updaters: Sequence[Any]
    if aggregation.combines:
        updaters = CombinerUpdates(aggregator.combine, entries.given)
    else:
        updaters = [ReducerValueUpdater(aggregator.init, aggregator.reduce, rows) for rows in entries.given]
    if not aggregation.grouped:
        return [(state.update(updaters[0]),)]
    values = state.multi_update(entries.keys, updaters)
    return [(*key, value) for key, value in zip(entries.keys, values, strict=True)]


class _no_garbage_collection:  # noqa: N801 - used as a function
    """Pause the garbage collector: a commit makes many small objects and no cycles, and the search took a third of its time."""

    __slots__ = ("_enabled",)

    def __enter__(self) -> None:
        self._enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *raised: object) -> None:
        if self._enabled:
            gc.enable()


def committed_operations(plan: Plan) -> list[Any]:
    """Return the user objects that persists and queries themselves call: updaters, query functions, aggregators."""
    operations = []
    for node in plan.commits:
        if isinstance(node, QueryNode):
            operations.append(node.function)
        elif isinstance(node, WindowNode):
            operations.append(node.member.aggregator)
        elif isinstance(node, PersistNode):
            operations.append(node.updater if node.aggregation is None else node.aggregation.aggregator)
    return operations
