"""Commits a processed batch to its states: queries, persists and the steps between them, in the plan's order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any

import pyarrow as pa

from trident.arrow import one_array, one_table, schema_of, strict_cast
from trident.channel import COLLECTOR_PAUSE, DaemonPool
from trident.counts import add_counts, add_keys, counting, counting_keys
from trident.engine.fragment_runs import TaskOutput, put_backs_of, send
from trident.engine.routing import RowFrame, apply_exchange
from trident.engine.worker import Order
from trident.graph import Aggregation, ExchangeNode, JoinWithinNode, PersistNode, QueryNode, StateNode, WindowNode
from trident.plan import Exchange, Plan
from trident.plan.plan import most_kept
from trident.read.views import StateView
from trident.run.entries import Entries, check_one_writer, inputs_kept, inputs_of, marks_of, merging_columns
from trident.state.kinds import LaterWrite
from trident.state.sentinel import check_partitions
from trident.state.txid import Snapshot, Txid
from trident.state.values import CombinerUpdates
from trident.steps.aggregates import Merging, check_totals, is_native, rows_of, updates_of
from trident.steps.applying import apply_query
from trident.steps.failures import (
    DEFAULT_BOUNDS,
    Bounds,
    FailingAt,
    StepFailed,
    TupleErrors,
    calls_user_code,
    failing_at,
)
from trident.steps.rows import Emitted, StepRun, columns_of, typed_columns
from trident.tuples import TridentTuple
from trident.windows.firing import update_over_time
from trident.windows.window_partitions import Share, moment_of, rows_by_partition, shares_of

Reach = Callable[[str, str], None]
"""Called with a point of a state's commit and its name: `"begin_commit"` before anything is written, `"put"` between the update
and the commit, `"commit"` when the state has committed; what it raises fails the batch there."""


@dataclass
class PartitionCommit:
    """The commit of one partition of a state: `begin`, then `end`; then what became of it."""

    node: PersistNode
    state: Any
    txid: Txid
    given: Entries | Share | None = None  # None: the batch has nothing, so that only the sentinel moves
    wanted: bool = False  # whether any step reads the new values
    bounds: Bounds = DEFAULT_BOUNDS
    reach: Reach = lambda point, state: None
    stages: bool = False  # the state stages, and the driver publishes, in place of the state's `commit`
    values: pa.Table | None = None  # new values, if they are wanted, or what a window or join gives
    staged: bytes = b""  # what the driver has yet to publish
    keys: counting_keys = field(default_factory=counting_keys)
    counts: Mapping[str, int] = field(default_factory=dict)  # of steps that were run `apart`
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
        self.reach("put", self.node.state)
        if self.stages:
            self.staged = self.state.facts.stage(self.txid)
        else:
            self.state.commit(self.txid)
        self.reach("commit", self.node.state)

    def run(self, steps: Steps = (begin, end)) -> None:
        with self.keys:
            for step in steps:
                step(self)

    def apart(self, steps: Steps) -> None:
        """Take steps in whichever thread this is; keep what they count, and their failure as data."""
        try:
            with failing_at(self.node.id), counting() as self.counts:
                self.run(steps)
        except StepFailed as error:
            self.failure = error

    def _update(self, given: Entries) -> pa.Table | None:
        table, values = given.table, None
        if table is None:
            values = self._new_values(self._rows(given.keys, given.given) if given.keys or not given.removed else [])
        elif (column := self._combine_columns(table, given.merging)) is None:
            assert self.node.aggregation is not None, self.node
            pieces = given.pieces()
            once = len(pieces) > 1
            tables = [self._new_values(self._rows(*rows_of(one, self.node.aggregation), once)) for one in pieces]
            values = pa.concat_tables(tables) if self.wanted else None
        elif self.wanted:
            name, type_ = table.schema.names[-1], table.schema.types[-1]
            typed = strict_cast(column if isinstance(column, pa.Array) else pa.array(column, type_), type_, name)
            values = pa.table([*table.columns[:-1], typed], schema=table.schema)
        if given.removed:
            self.state.multi_remove(given.removed)
        return values

    def _combine_columns(self, table: pa.Table, merging: Merging | None) -> Any | None:
        """Update the state by columns; return the column of new values, None (and nothing is written) if it takes rows only."""
        combine = self.state.facts.multi_combine
        if merging is None or combine is None:
            return None
        *parts, values = map(one_array, table.columns)
        if isinstance(merging, str):
            has_null = bool(values.null_count)
        else:  # but a mean may be null
            has_null = any(
                one.null_count for one, what in zip(values.flatten(), merging, strict=True) if what != "mean"
            )
        return None if has_null else combine(parts, values, merging)

    def _new_values(self, rows: Sequence[Any]) -> pa.Table | None:
        fields = self.node.fields
        return pa.table(columns_of(self.node.id, fields, rows), schema=schema_of(fields)) if self.wanted else None

    @calls_user_code
    def _rows(self, keys: Sequence[Any], given: Sequence[Any], once: bool = False) -> Sequence[Any]:
        """Update rows, as `Entries` has them; return them as they are then. `once`: no key comes again in the batch."""
        node, state, aggregation = self.node, self.state, self.node.aggregation
        if aggregation is None:
            out = Emitted(node.id, node.fields, TupleErrors(bounds=self.bounds), len(keys))
            node.updater.update_state(state.given, keys, out)
            return out.rows
        check = partial(_check_typed, node.id, aggregation, keys)
        if native := is_native(aggregation.aggregator):
            check = partial(check_totals, aggregation, check)
        updaters = updates_of(aggregation, given, native, check if native else None)
        if not aggregation.group.names:
            values = [state.update(updaters[0])]
            check(values)
            return [(values[0],)]
        update = (state.facts.multi_update_once if once else None) or state.multi_update
        values = update(keys, updaters)
        if not isinstance(updaters, CombinerUpdates) or updaters.checked is not values:
            check(values)
        return [(*key, value) for key, value in zip(keys, values, strict=True)]


def _check_typed(step: str, aggregation: Aggregation, keys: Sequence[Any], values: Sequence[Any]) -> None:
    """Refuse a value that the declared type does not have: user code made it, or a total has grown beyond it."""
    group = aggregation.group
    if aggregation.outputs.types[0]:
        of = (lambda at: TridentTuple(group, keys[at])) if group.names else (lambda at: None)
        typed_columns(step, aggregation.outputs, [values], of)


Steps = Sequence[Callable[[PartitionCommit], None]]


@dataclass
class Committed(TaskOutput):
    """What a batch changed: of its states all, of its steps what those gave that run behind what the driver commits."""

    took_ns: dict[str, int] = field(default_factory=dict)  # by node that the driver committed, with the steps behind it
    later: Sequence[LaterWrite] = ()  # what is left to the batch's record


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


def answers_of(
    node: QueryNode,
    asked: StateNode,
    states: Sequence[Any],
    txids: Sequence[Txid],
    tables: Mapping[int, Sequence[pa.Table]],
    on_error: TupleErrors,
) -> dict[int, pa.Table]:
    # As if this attempt had won, because another one may have failed; so it does in a replay.
    snapshot = Snapshot(txids[0] - 1, txids[0].winners)
    if node.sees_batch:
        snapshot = Snapshot(int(txids[0]), txids[0].winners.with_winner(int(txids[0]), txids[0].attempt))
    view = StateView.for_query(states, lambda: snapshot, asked)
    return {
        partition: apply_query(node.id, node, one_table(rows), view, on_error)
        for partition, rows in sorted(tables.items())
    }


class Committer:
    """Holds the writers of all state partitions of a topology."""

    def __init__(
        self,
        plan: Plan,
        states: Mapping[str, Sequence[Any]],
        static_state: Callable[[str], Any],
        pool: DaemonPool | None = None,  # updates many partitions side by side, for stores that answer over a network
        exchanges: Callable[[], Mapping[str, Exchange]] | None = None,  # their widths may come with the first batch
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self.reach: Reach = PartitionCommit.reach  # set by tests
        self.bounds = bounds
        self.plan, self.states, self.static_state = plan, states, static_state
        self._writers = {node.state: node for node in plan.commits if isinstance(node, PersistNode)}
        self.columns = {
            node.id: merging_columns(node.aggregation, states[name]) for name, node in self._writers.items()
        }
        self.later: list[LaterWrite] = []  # of states that leave their writes to the batch's record
        self._pool, self.exchanges = pool, exchanges or (lambda: plan.exchanges)
        self.in_parallel: Callable[..., Iterable[Any]] = map if pool is None else pool.map
        # All take columns only, so that no user code is called.
        self.is_quick = all(self.columns.get(node.id) is not None for node in plan.commits)

    def threads(self) -> list[int]:
        """Return the threads that a commit uses beside its own."""
        return [] if self._pool is None else self._pool.idents()

    def commit(self, order: Order, output: TaskOutput, elsewhere: Collection[str] = ()) -> Committed:
        """Apply a batch to all states, but not to the entries `elsewhere`, which executors have committed."""
        self.later.clear()
        with COLLECTOR_PAUSE, counting() as counts, FailingAt("commit") as here:
            for state, written in output.written.items():
                here.step = self._writers[state].id
                check_one_writer(state, written, order.txids[state][0])
            for state, staged in output.staged.items():
                here.step = self._writers[state].id
                for partition, data in sorted(staged.items()):
                    self.states[state][partition].facts.publish(order.txids[state][partition], data)
            batch = BatchCommit(self, order, output, counts, here)
            batch.done.took_ns = {node.id: batch.take(node) for node in self.plan.commits if node.id not in elsewhere}
        batch.done.later = tuple(self.later)
        return batch.done

    def fence(self, states: Iterable[str], txids: Mapping[str, Sequence[Txid]]) -> dict[str, Sequence[Txid]]:
        """Commit nothing in all partitions, so that no task of an earlier attempt writes there; return the txids as of now."""
        seen = dict(txids)
        for name in states:
            with failing_at(self._writers[name].id):
                for state, txid in zip(self.states[name], txids[name], strict=True):
                    PartitionCommit(self._writers[name], state, txid).run()
            seen[name] = [txid.for_partition(txid.sentinel) for txid in txids[name]]
        return seen


class BatchCommit:
    """One batch while it is committed: what waits for a node is the output of workers, then what nodes before it gave."""

    def __init__(
        self, committer: Committer, order: Order, output: TaskOutput, counts: dict[str, int], here: FailingAt
    ) -> None:
        self._committer, self._plan, self._order, self._here = committer, committer.plan, order, here
        self.done = done = Committed(
            {to: list(tables) for to, tables in output.sinks.items()},
            frames=output.frames,
            metrics=counts,
            touched=dict(output.touched),
            keys=dict(output.keys),
            key_counts=dict(output.key_counts),
            timers=list(output.timers),
        )
        self._on_error = TupleErrors(order.capture, done.captured, committer.bounds)
        self._run = StepRun(order.attempt, self._on_error, committer.static_state, done.timers)

    def take(self, node: PersistNode | QueryNode | ExchangeNode) -> int:
        """Commit a node, and run the steps behind it; return how many nanoseconds that took."""
        began, on_error, waiting = perf_counter_ns(), self._on_error, self.done
        self._here.step, on_error.entry, on_error.partition, on_error.partitions = node.id, node.id, 0, 1
        tables = waiting.sinks.pop(node.id, [])
        arrived: Sequence[RowFrame] = ()
        if waiting.frames:
            arrived = [frame for frame in waiting.frames if frame.target == node.id]
            waiting.frames = [frame for frame in waiting.frames if frame.target != node.id]
        if isinstance(node, ExchangeNode):
            self._exchange(node, arrived)
        elif isinstance(node, QueryNode):
            kept = max(1, most_kept(self._plan.fragments[node.id].sinks))
            self._send_on(node.id, self._answers(node, tables, arrived), kept, arrived)
        else:
            given = self._persist(node, tables, arrived)
            self._send_on(node.id, given, len(self._committer.states[node.state]), arrived)
        return perf_counter_ns() - began

    @calls_user_code
    def _exchange(self, node: ExchangeNode, arrived: Sequence[RowFrame]) -> None:
        """Run all partitions of an exchange behind a state. Its rows come from workers, states, or both."""
        exchanges, fragment, on_error = self._committer.exchanges(), self._plan.fragments[node.id], self._on_error
        on_error.partitions = exchanges[node.id].partitions or 1
        for partition in range(on_error.partitions):
            on_error.partition = partition
            frames = [frame for frame in arrived if frame.partition == partition]
            table = apply_exchange(exchanges[node.id], frames, self._run)
            send(fragment, [table], exchanges, self._run, partition, self.done, put_backs_of(frames))

    def _answers(self, node: QueryNode, tables: list[pa.Table], arrived: Sequence[RowFrame]) -> Mapping[int, pa.Table]:
        """Return the answers of a query; they stay in the partitions of what is looked up, if it came in several."""
        asked: dict[int, list[pa.Table]] = {0: tables} if tables else {}
        for frame in sorted(arrived, key=lambda frame: frame.order):
            if not frame.step:  # of a stream whose partitions are kept, or a dead letter of the query itself
                asked.setdefault(frame.partition, []).append(frame.data)
        if not asked:
            return {}
        states, txids = self._committer.states[node.state], self._order.txids[node.state]
        with counting_keys() as keys:
            answers = answers_of(node, self._plan.states[node.state], states, txids, asked, self._on_error)
            check_partitions(node.state, states, lambda: txids)
        add_keys(self.done.key_counts, node.state, keys.counts)
        return answers

    def _persist(
        self, node: PersistNode, tables: list[pa.Table], arrived: Sequence[RowFrame]
    ) -> Mapping[int, pa.Table]:
        """Commit a state, also without tuples if the time may complete a window; return what each partition gives."""
        shared, done, txids = self._committer, self.done, self._order.txids[node.state]
        states, fragment = shared.states[node.state], self._plan.fragments[node.id]
        in_place = node.updater is not None and len(states) > 1  # the stream's partitions become the state's
        given: Mapping[int, Entries | Share]
        if isinstance(node, (WindowNode, JoinWithinNode)):
            moment, rows = moment_of(node, tables, self._order.now), rows_by_partition(node, tables, len(states))
            given = shares_of(node, moment, rows, len(states), self._run)
        elif in_place:
            given = inputs_kept(node, arrived)
        else:
            given = inputs_of(node, tables, len(states), shared.columns[node.id])
        if not given:
            return {}
        keys = sum(map(len, given.values()))
        wanted = bool(fragment.sinks or fragment.steps)  # does any step read the new values?
        commits = {
            at: PartitionCommit(node, states[at], txids[at], part, wanted, shared.bounds, shared.reach)
            for at, part in given.items()
        }
        if in_place and len(commits) > 1:
            # Any of them may write any key: none commits before it is known that no two write one.
            self._take_steps(commits, (PartitionCommit.begin,))
            check_one_writer(node.state, {at: marks_of(states[at]) for at in commits}, txids[0])
            self._take_steps(commits, (PartitionCommit.end,))
        else:
            self._take_steps(commits, (PartitionCommit.begin, PartitionCommit.end))
        for one in commits.values():
            add_keys(done.key_counts, node.state, one.keys.counts)
        done.touched[node.state], done.keys[node.state] = sorted(commits), keys
        return {at: one.values for at, one in commits.items() if one.values is not None}

    def _take_steps(self, commits: Mapping[int, PartitionCommit], steps: Steps) -> None:
        if len(commits) == 1:
            next(iter(commits.values())).run(steps)
            return
        # All partitions end before one may fail the batch, because the next attempt must not meet a running one.
        list(self._committer.in_parallel(partial(PartitionCommit.apart, steps=steps), commits.values()))
        for one in commits.values():
            if one.failure is not None:
                raise one.failure
            add_counts(self.done.metrics, one.counts)

    def _send_on(self, node: str, rows: Mapping[int, pa.Table], partitions: int, arrived: Sequence[RowFrame]) -> None:
        """Run the steps behind a node over the rows that each partition gave, and the dead letters that arrived for them."""
        fragment = self._plan.fragments[node]
        if not (rows or arrived or fragment.blocking):
            return
        if partitions > 1 and not fragment.depends_on_partitions:
            rows, partitions = {0: one_table(rows.values())} if rows else {}, 1
        given = {at: [table] for at, table in rows.items() if table.num_rows}
        self._on_error.partitions = partitions
        for partition in range(partitions):
            self._on_error.partition = partition
            letters = put_backs_of([frame for frame in arrived if frame.partition % partitions == partition])
            if partition in given or fragment.blocking or letters:
                exchanges, tables = self._committer.exchanges(), given.get(partition, [])
                send(fragment, tables, exchanges, self._run, partition, self.done, letters)
