"""Commits a processed batch to its states: queries, persists and the steps between them, in the plan's order.

The same functions, `update_partition` and `update_time_partition`, update a partition of a state wherever it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from trident.graph import JoinWithinNode, PersistNode, QueryNode, WindowNode
from trident.operations.metrics import add_counts, counting
from trident.planner import Exchange, Plan
from trident.runtime.commit.committed import Committed, Updated
from trident.runtime.commit.entries import Entries, inputs_of, takes_columns
from trident.runtime.commit.flow import Flow
from trident.runtime.commit.garbage import paused_garbage_collection
from trident.runtime.commit.updating import Reach, update_partition, update_time_partition, updated
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.steps.bounds import DEFAULT_BOUNDS, Bounds
from trident.runtime.steps.failures import TupleErrors, failing_at
from trident.runtime.steps.rows import Run
from trident.runtime.windows.shares import Moment, Place, Shares, moment_of, running_partitions, shares_of
from trident.spout.interfaces import TransactionAttempt
from trident.state.key_counts import counting_keys
from trident.state.txid import Txid

__all__ = ["Committer", "operations_of_commits"]


def operations_of_commits(commits: Iterable[Any]) -> list[Any]:
    """Return the user objects that persists and queries themselves call: updaters, query functions, aggregators."""
    operations = []
    for node in commits:
        if isinstance(node, QueryNode):
            operations.append(node.function)
        elif isinstance(node, JoinWithinNode):
            continue  # it calls no code of the user's
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
        self._reach, self._bounds = reach or (lambda point, state: None), bounds
        self._plan, self._states, self._static_state = plan, states, static_state
        persists = (node for node in plan.commits if isinstance(node, PersistNode))
        self._columnar = {node.id for node in persists if takes_columns(node.aggregation, states[node.state])}
        self._in_parallel, self._exchanges = in_parallel, exchanges or plan.exchanges
        self.is_quick = all(node.id in self._columnar for node in plan.commits)

    def commit(
        self,
        txids: Mapping[str, Sequence[Txid]],
        output: TaskOutput,
        now_ms: int | None = None,
        capture: bool = False,
        elsewhere: Collection[str] = (),
    ) -> Committed:
        """Apply a batch to all states, but for those of the entries `elsewhere`, which executors have committed.

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
        with paused_garbage_collection(), counting() as counts:
            for state, staged in output.staged.items():
                self._publish(state, txids[state], staged)
            done = self._commit(txids, output, now_ms, capture, elsewhere)
        add_counts(done.metrics, counts)
        return done

    def _publish(self, name: str, txids: Sequence[Txid], staged: Mapping[int, bytes]) -> None:
        """Commit what tasks staged for the partitions of a state."""
        (step,) = (node.id for node in self._plan.commits if isinstance(node, PersistNode) and node.state == name)
        for partition, data in sorted(staged.items()):
            with failing_at(step):
                self._states[name][partition].publish(txids[partition], data)

    def _commit(
        self,
        txids: Mapping[str, Sequence[Txid]],
        output: TaskOutput,
        now_ms: int | None,
        capture: bool,
        elsewhere: Collection[str],
    ) -> Committed:
        done = Committed(dict(output.touched), dict(output.keys), key_counts=dict(output.key_counts))
        run = Run(_attempt_of(txids), TupleErrors(capture, done.captured, self._bounds), self._static_state)
        flow = Flow(self._plan, self._exchanges, output, run)
        for node in self._plan.commits:
            if node.id in elsewhere:
                continue
            tables, arrived = flow.take(node.id)
            if isinstance(node, (WindowNode, JoinWithinNode)):
                rows = self._over_time(node, tables, txids[node.state], now_ms, run, done)
            elif isinstance(node, PersistNode):
                rows = self._persist(node, tables, txids[node.state], done)
            elif isinstance(node, QueryNode):
                with counting_keys() as keys:
                    rows = flow.query(node, self._states[node.state], txids[node.state], tables, arrived)
                done.add_keys(node.state, keys.counts)
            else:
                flow.exchange(node, arrived)
                continue
            flow.send_on(node.id, rows, arrived)
        return done

    def _persist(
        self, node: PersistNode, tables: list[pa.Table], txids: Sequence[Txid], done: Committed
    ) -> pa.Table | None:
        states, fragment = self._states[node.state], self._plan.fragments[node.id]
        work = inputs_of(node, tables, len(states), node.id in self._columnar)
        if not work:
            return None
        wanted = bool(fragment.sinks or fragment.steps)  # does any step read the new values?
        values = self._in_partitions(node, partial(self._update, node, txids, work, wanted), list(work), done)
        done.keys[node.state] = sum(map(len, work.values()))
        return pa.concat_tables(values) if wanted else None

    def _over_time(
        self, node: WindowNode | JoinWithinNode, tables: list[pa.Table], txids: Sequence[Txid], now_ms: int | None,
        run: Run, done: Committed,
    ) -> pa.Table | None:  # fmt: skip
        """Update a window, also without tuples if the time may complete it, or a join over time."""
        count, moment = len(self._states[node.state]), moment_of(node, tables, now_ms)
        shares = shares_of(node, tables, count)
        running = running_partitions(node, moment, shares, count)
        if not running:
            return None
        values = self._in_partitions(node, partial(self._pass, node, txids, shares, moment, run), running, done)
        done.keys[node.state] = moment.given
        return values[0] if len(values) == 1 else pa.concat_tables(values)

    def _in_partitions(
        self, node: PersistNode, update: Callable[[int], Updated], partitions: Sequence[int], done: Committed
    ) -> list[Any]:
        """Update partitions side by side; return what each gives, in their order."""
        # All partitions end before one may fail the batch, because the next attempt must not meet a running one.
        results = list(self._in_parallel(update, partitions))
        for one in results:
            if one.failure is not None:
                raise one.failure
            add_counts(done.metrics, one.counts)
            done.add_keys(node.state, one.keys)
        done.touched[node.state] = sorted(partitions)
        return [one.values for one in results]

    def _update(
        self, node: PersistNode, txids: Sequence[Txid], work: Mapping[int, Entries], wanted: bool, partition: int
    ) -> Updated:
        state, txid = self._states[node.state][partition], txids[partition]
        return updated(update_partition, node, state, txid, work[partition], wanted, self._reach, self._bounds)

    def _pass(
        self, node: WindowNode | JoinWithinNode, txids: Sequence[Txid], shares: Shares, moment: Moment, run: Run,
        partition: int,
    ) -> Updated:  # fmt: skip
        state, place = self._states[node.state][partition], Place(partition, len(self._states[node.state]))
        run = replace(run, on_error=TupleErrors(bounds=self._bounds))  # its tuples may be of earlier batches
        tables = shares.get(partition, ())
        return updated(update_time_partition, node, state, place, txids[partition], tables, moment, run, self._reach)


def _attempt_of(txids: Mapping[str, Sequence[Txid]]) -> TransactionAttempt:
    txid = next((txid for partitions in txids.values() for txid in partitions), Txid(0))
    return TransactionAttempt(int(txid), txid.attempt)
