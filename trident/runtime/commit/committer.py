"""Commits a processed batch to its states: queries, persists and the steps between them, in the plan's order.

A partition of a state is one `PartitionCommit`, wherever it is committed: here, or in a task (`committing.py`).

The garbage collector stands still during a commit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any

import pyarrow as pa

from trident.arrow import schema_of
from trident.graph import Aggregation, ExchangeNode, JoinWithinNode, PersistNode, QueryNode, WindowNode
from trident.operations.metrics import add_counts, counting
from trident.planner import Exchange, Plan
from trident.planner.plan import most_kept
from trident.runtime.commit.committed import Committed, Flow, check_one_writer, marks_of
from trident.runtime.commit.entries import Entries, inputs_kept, inputs_of, merging_columns
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.steps.aggregates import combining, is_native
from trident.runtime.steps.bounds import DEFAULT_BOUNDS, Bounds
from trident.runtime.steps.failures import StepFailed, TupleErrors, calls_user_code, failing_at
from trident.runtime.steps.rows import Emitted, StepRun, column_of, columns_of
from trident.runtime.windows.firing import update_over_time
from trident.runtime.windows.shares import Now, Share, moment_of, rows_by_partition, shares_of
from trident.spout.interfaces import TransactionAttempt
from trident.state.key_counts import NO_KEYS, KeyCounts, counting_keys
from trident.state.kinds import LaterWrite
from trident.state.txid import Txid
from trident.state.values import CombinerUpdates, ReducerValueUpdater
from trident.tuples import TridentTuple

Reach = Callable[[str, str], None]


def _unobserved(point: str, state: str) -> None:
    """Do nothing at a point of a commit."""


@dataclass
class PartitionCommit:
    """The commit of one partition of a state: `begin`, then `end`.

    `given`: what the batch has for the partition; None: nothing, so that only the sentinel moves.
    `wanted`: whether any step reads the new values.
    `bounds`: how many rows a step may give.
    `reach`: called with a point and the state's name: `"begin_commit"` before anything is written, `"put"` between the update
    and the commit, `"commit"` when the state has committed; what it raises fails the batch there.
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
    reach: Reach = _unobserved
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
        column = None if given.table is None else given.combine(self.state)
        if column is not None:
            values = given.with_values(column) if self.wanted else None
        elif given.table is not None:
            assert self.node.aggregation is not None, self.node
            pieces = given.pieces(self.node.aggregation)
            tables = [self._new_values(self._rows(piece, once)) for piece, once in pieces]
            values = pa.concat_tables(tables) if self.wanted else None
        else:
            values = self._new_values(self._rows(given) if given.keys or not given.removed else [])
        if given.removed:
            self.state.multi_remove(given.removed)
        return values

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
        updaters = _updaters(aggregation, given)
        if aggregation.grouped:
            values = (state.multi_update_once if once else state.multi_update)(given.keys, updaters)
            rows = [(*key, value) for key, value in zip(given.keys, values, strict=True)]
        else:
            rows = [(state.update(updaters[0]),)]
        if rows and aggregation.output.types[0] and not is_native(aggregation.aggregator):
            self._check_types(aggregation, rows)
        return rows

    def _check_types(self, aggregation: Aggregation, rows: list[tuple[Any, ...]]) -> None:
        """Raise `StepFailed` if user code made a value that the declared type does not have."""
        group, width = aggregation.group, len(aggregation.group)
        column_of(
            self.node.id,
            aggregation.output,
            [row[-1] for row in rows],
            lambda at: TridentTuple(group, rows[at][:width]) if width else None,
        )


def _updaters(aggregation: Aggregation, entries: Entries) -> Sequence[Any]:
    aggregator = aggregation.aggregator
    if aggregation.combines:
        combine_all, is_pure = combining(aggregator), is_native(aggregator)
        return CombinerUpdates(aggregator.combine, entries.given, combine_all, is_pure)
    return [ReducerValueUpdater(aggregator.init, aggregator.reduce, rows) for rows in entries.given]


Steps = Sequence[Callable[[PartitionCommit], None]]

WHOLE: Steps = (PartitionCommit.begin, PartitionCommit.end)


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
        Called at each point of a state's commit with the state's name, see `PartitionCommit`; may raise.
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
        self._reach, self._bounds = reach or _unobserved, bounds
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
                with failing_at(self._writer_of(state).id):
                    check_one_writer(state, written, txids[state][0])
            for state, staged in output.staged.items():
                for partition, data in sorted(staged.items()):
                    with failing_at(self._writer_of(state).id):
                        self._states[state][partition].publish(txids[state][partition], data)
            done = Committed(
                {to: list(tables) for to, tables in output.sinks.items()},
                frames=output.frames,
                metrics=counts,
                touched=dict(output.touched),
                keys=dict(output.keys),
                key_counts=dict(output.key_counts),
                timers=list(output.timers),
            )
            on_error = TupleErrors(capture, done.captured, self._bounds)
            run = StepRun(_attempt_of(txids), on_error, self._static_state, done.timers)
            flow = Flow(self._plan, self._exchanges, done, run, txids, now)
            done.took_ns = {
                node.id: self._commit_node(node, flow, done) for node in self._plan.commits if node.id not in elsewhere
            }
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
            for state, txid in zip(self._states[name], txids[name], strict=True):
                PartitionCommit(self._writer_of(name), state, txid).run()
            seen[name] = [txid.for_partition(txid.sentinel) for txid in txids[name]]
        return seen

    def _writer_of(self, name: str) -> PersistNode:
        """Return the step that writes a state."""
        (step,) = (node for node in self._plan.commits if isinstance(node, PersistNode) and node.state == name)
        return step

    def _commit_node(self, node: PersistNode | QueryNode | ExchangeNode, flow: Flow, done: Committed) -> int:
        """Commit a node, and run the steps behind it; return how many nanoseconds that took."""
        began = perf_counter_ns()
        flow.take(node.id)
        if isinstance(node, ExchangeNode):
            flow.exchange(node)
        elif isinstance(node, QueryNode):
            with counting_keys() as keys:
                rows = flow.query(node, self._states[node.state])
            done.add_keys(node.state, keys.counts)
            flow.send_on(node.id, rows, max(1, most_kept(self._plan.fragments[node.id].sinks)))
        else:
            flow.send_on(node.id, self._persist(node, flow, done), len(self._states[node.state]))
        return perf_counter_ns() - began

    def _persist(self, node: PersistNode, flow: Flow, done: Committed) -> dict[int, pa.Table]:
        """Commit a state, also without tuples if the time may complete a window; return what each partition gives."""
        states, txids, fragment = self._states[node.state], flow.txids[node.state], self._plan.fragments[node.id]
        in_place = node.updater is not None and len(states) > 1  # the stream's partitions become the state's
        given: Mapping[int, Entries | Share]
        if isinstance(node, (WindowNode, JoinWithinNode)):
            moment, rows = moment_of(node, flow.tables, flow.now), rows_by_partition(node, flow.tables, len(states))
            given = shares_of(node, moment, rows, len(states), flow.run)
        elif in_place:
            given = inputs_kept(node, flow.arrived)
        else:
            given = inputs_of(node, flow.tables, len(states), self._columns[node.id])
        if not given:
            return {}
        keys = sum(map(len, given.values()))
        wanted = bool(fragment.sinks or fragment.steps)  # does any step read the new values?
        commits = {
            at: PartitionCommit(node, states[at], txids[at], part, wanted, self._bounds, self._reach)
            for at, part in given.items()
        }
        if in_place and len(commits) > 1:
            # Any of them may write any key: none commits before it is known that no two write one.
            self._run_apart(commits, done, (PartitionCommit.begin,))
            with failing_at(node.id):
                check_one_writer(node.state, {at: marks_of(states[at]) for at in commits}, txids[0])
            self._run_apart(commits, done, (PartitionCommit.end,))
        else:
            self._run_apart(commits, done)
        done.touched[node.state], done.keys[node.state] = sorted(commits), keys
        return {at: one.values for at, one in commits.items() if one.values is not None}

    def _run_apart(self, commits: Mapping[int, PartitionCommit], done: Committed, steps: Steps = WHOLE) -> None:
        """Take steps of partitions side by side."""
        # All partitions end before one may fail the batch, because the next attempt must not meet a running one.
        list(self._in_parallel(partial(PartitionCommit.apart, steps=steps), commits.values()))
        for one in commits.values():
            if one.failure is not None:
                raise one.failure
            add_counts(done.metrics, one.counts)
            done.add_keys(one.node.state, one.keys)


def _attempt_of(txids: Mapping[str, Sequence[Txid]]) -> TransactionAttempt:
    for partitions in txids.values():
        for txid in partitions:
            return TransactionAttempt(int(txid), txid.attempt)
    return TransactionAttempt(0, 0)


class paused_garbage_collection:  # noqa: N801 - used as a function
    """Pause the garbage collector: a commit makes many small objects and no cycles, and the search took a third of its time."""

    __slots__ = ("_enabled",)

    def __enter__(self) -> None:
        self._enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *raised: object) -> None:
        if self._enabled:
            gc.enable()
