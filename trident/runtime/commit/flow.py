"""Flow: the rows of a batch that is being committed, on their way from one state to the next.

The garbage collector stands still during a commit.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from trident.arrow import concatenated
from trident.graph import ExchangeNode, QueryNode
from trident.planner import Exchange, Fragment, Plan
from trident.planner.plan import most_kept
from trident.runtime.engine.fragment_runs import put_backs_of
from trident.runtime.engine.routing import RowFrame, apply_exchange
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.worker import send
from trident.runtime.reading.state_frames import columns_of
from trident.runtime.reading.store_check import check_partitions
from trident.runtime.reading.views import StateView
from trident.runtime.steps.applying import apply_query
from trident.runtime.steps.failures import calls_user_code, failing_at
from trident.runtime.steps.rows import StepRun
from trident.state.txid import Snapshot, Txid


class Flow:
    """What waits for each node that is committed: first the output of the workers, then what nodes before it gave.

    `waiting`: the rows; it gets what the steps behind nodes count, too.
    `exchanges`: by id, with their numbers of partitions.
    `run`: what the steps behind states need.
    """

    def __init__(self, plan: Plan, exchanges: Mapping[str, Exchange], waiting: TaskOutput, run: StepRun) -> None:
        self._fragments, self._exchanges, self._run = plan.fragments, exchanges, run
        self._states, self._waiting = plan.states, waiting

    def take(self, node: str) -> tuple[list[pa.Table], list[RowFrame]]:
        """Return the tables and frames that wait for a node; what happens next is its work."""
        on_error, waiting = self._run.on_error, self._waiting
        on_error.entry, on_error.partition, on_error.partitions = node, 0, 1
        frames: list[RowFrame] = []
        if waiting.frames:
            frames = [frame for frame in waiting.frames if frame.target == node]
            waiting.frames = [frame for frame in waiting.frames if frame.target != node]
        return waiting.sinks.pop(node, []), frames

    def send_on(self, node: str, rows: Mapping[int, pa.Table], partitions: int, arrived: list[RowFrame]) -> None:
        """Run the steps behind a node over the rows that each partition gave, and the dead letters that arrived for them."""
        fragment = self._fragments[node]
        if not (rows or arrived or fragment.blocking):
            return
        if partitions > 1 and not _depends_on_partitions(fragment):
            rows, partitions = {0: concatenated(rows.values())} if rows else {}, 1
        given = {at: [table] for at, table in rows.items() if table.num_rows}
        self._run.on_error.partitions = partitions
        for partition in range(partitions):
            self._run.on_error.partition = partition
            letters = put_backs_of([frame for frame in arrived if frame.partition % partitions == partition])
            tables = given.get(partition, [])
            if tables or fragment.blocking or letters:
                send(fragment, tables, self._exchanges, self._run, partition, self._waiting, letters)

    def query(
        self,
        node: QueryNode,
        states: Sequence[Any],
        txids: Sequence[Txid],
        tables: Sequence[pa.Table],
        arrived: list[RowFrame],
    ) -> dict[int, pa.Table]:
        """Return the answers of a query, which sees the state after the batch before, or after its own, in a replay as well.

        They stay in the partitions of what is looked up, if it came in several.
        """
        asked: dict[int, list[pa.Table]] = {0: list(tables)} if tables else {}
        for frame in sorted(arrived, key=lambda frame: frame.order):
            if not frame.step:  # of a stream whose partitions are kept, or a dead letter of the query itself
                asked.setdefault(frame.partition, []).append(frame.data)
        if not asked:
            return {}
        snapshot, state = snapshot_of(txids[0], node.sees_batch), self._states[node.state]
        with failing_at(node.id):
            view = StateView.for_query(
                states, lambda: snapshot, node.state, free_keys=state.free_keys, columns=columns_of(state)
            )
        answers = {
            partition: apply_query(node.id, node, concatenated(rows), view, self._run.on_error)
            for partition, rows in sorted(asked.items())
        }
        with failing_at(node.id):
            check_partitions(node.state, states, lambda: txids)
        return answers

    @calls_user_code
    def exchange(self, node: ExchangeNode, arrived: list[RowFrame]) -> None:
        """Run all partitions of an exchange behind a state. Its rows come from workers, states, or both."""
        exchange, fragment, on_error = self._exchanges[node.id], self._fragments[node.id], self._run.on_error
        on_error.partitions = exchange.partitions or 1
        for partition in range(on_error.partitions):
            on_error.partition = partition
            frames = [frame for frame in arrived if frame.partition == partition]
            with failing_at(node.id):
                table = apply_exchange(exchange, frames, self._run)
            send(fragment, [table], self._exchanges, self._run, partition, self._waiting, put_backs_of(frames))


def snapshot_of(txid: Txid, sees_batch: bool) -> Snapshot:
    """Return the state after the batch before, or after this one, as if this attempt had won: another one may have failed."""
    if sees_batch:
        return Snapshot(int(txid), txid.winners.with_winner(int(txid), txid.attempt))
    return Snapshot(txid - 1, txid.winners)


class paused_garbage_collection:  # noqa: N801 - used as a function
    """Pause the garbage collector: a commit makes many small objects and no cycles, and the search took a third of its time."""

    __slots__ = ("_enabled",)

    def __enter__(self) -> None:
        self._enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *raised: object) -> None:
        if self._enabled:
            gc.enable()


def _depends_on_partitions(fragment: Fragment) -> bool:
    """Whether a step behind a node gives another result for several partitions than for one."""
    return fragment.blocking or bool(most_kept(fragment.sinks))
