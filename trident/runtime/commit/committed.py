"""One batch while it is committed: its rows on their way from state to state, and what it has changed.

R16: no two partitions of a state write one key in one batch, as only a user's updater could.

The driver compares what the partitions write before any of them commits. Of an opaque state that tasks commit it compares
afterwards, before the batch is recorded: what an attempt wrote that is not recorded counts as never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from trident.arrow import concatenated
from trident.errors import KeyConflictError, StateError
from trident.graph import ExchangeNode, QueryNode
from trident.naming import shown
from trident.planner import Exchange, Fragment, Plan
from trident.planner.plan import most_kept
from trident.runtime.engine.fragment_runs import put_backs_of, send
from trident.runtime.engine.routing import RowFrame, apply_exchange
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.reading.views import StateView
from trident.runtime.steps.applying import apply_query
from trident.runtime.steps.failures import calls_user_code, failing_at
from trident.runtime.steps.rows import StepRun
from trident.runtime.windows.shares import Now
from trident.state.encoding.codec import decode, encode_tuples
from trident.state.encoding.equal_keys import canonical_keys
from trident.state.interfaces import State
from trident.state.kinds import LaterWrite
from trident.state.reader_check import check_partitions
from trident.state.txid import Snapshot, Txid


@dataclass
class Committed(TaskOutput):
    """What a batch changed: of its states all, of its steps what those gave that run behind what the driver commits.

    `touched`: the partitions of each state that had input, ascending.
    `took_ns`: by node that the driver committed, how long that and the steps behind it took.
    `later`: the writes that are left to the batch's record.
    """

    took_ns: dict[str, int] = field(default_factory=dict)
    later: Sequence[LaterWrite] = ()


class Flow:
    """The rows of a batch on their way from one state to the next.

    What waits for each node is first the output of the workers, then what nodes before it gave.

    `waiting`: the rows; it gets what the steps behind nodes count, too.
    `exchanges`: returns them by id, with their numbers of partitions.
    `run`: what the steps behind states need.
    `txids`, `now`: the batch as each partition of a state must see it, and its time.
    `tables`, `arrived`: the tables and frames that waited for the node that is committed.
    """

    def __init__(
        self,
        plan: Plan,
        exchanges: Callable[[], Mapping[str, Exchange]],
        waiting: TaskOutput,
        run: StepRun,
        txids: Mapping[str, Sequence[Txid]],
        now: Now | None,
    ) -> None:
        self._plan, self._exchanges, self.run, self.txids, self.now = plan, exchanges, run, txids, now
        self.tables: list[pa.Table] = []
        self.arrived: list[RowFrame] = []
        self._waiting = waiting

    def take(self, node: str) -> None:
        """Take the tables and frames that wait for a node; what happens next is its work."""
        on_error, waiting = self.run.on_error, self._waiting
        on_error.entry, on_error.partition, on_error.partitions = node, 0, 1
        self.tables, self.arrived = waiting.sinks.pop(node, []), []
        if waiting.frames:
            self.arrived = [frame for frame in waiting.frames if frame.target == node]
            waiting.frames = [frame for frame in waiting.frames if frame.target != node]

    def send_on(self, node: str, rows: Mapping[int, pa.Table], partitions: int) -> None:
        """Run the steps behind a node over the rows that each partition gave, and the dead letters that arrived for them."""
        fragment, arrived = self._plan.fragments[node], self.arrived
        if not (rows or arrived or fragment.blocking):
            return
        if partitions > 1 and not _depends_on_partitions(fragment):
            rows, partitions = {0: concatenated(rows.values())} if rows else {}, 1
        given = {at: [table] for at, table in rows.items() if table.num_rows}
        self.run.on_error.partitions = partitions
        for partition in range(partitions):
            self.run.on_error.partition = partition
            letters = put_backs_of([frame for frame in arrived if frame.partition % partitions == partition])
            tables = given.get(partition, [])
            if tables or fragment.blocking or letters:
                send(fragment, tables, self._exchanges(), self.run, partition, self._waiting, letters)

    def query(self, node: QueryNode, states: Sequence[Any]) -> dict[int, pa.Table]:
        """Return the answers of a query, which sees the state after the batch before, or after its own, in a replay as well.

        They stay in the partitions of what is looked up, if it came in several.
        """
        asked: dict[int, list[pa.Table]] = {0: self.tables} if self.tables else {}
        for frame in sorted(self.arrived, key=lambda frame: frame.order):
            if not frame.step:  # of a stream whose partitions are kept, or a dead letter of the query itself
                asked.setdefault(frame.partition, []).append(frame.data)
        if not asked:
            return {}
        txids = self.txids[node.state]
        snapshot = snapshot_of(txids[0], node.sees_batch)
        with failing_at(node.id):
            view = StateView.for_query(states, lambda: snapshot, self._plan.states[node.state])
        answers = {
            partition: apply_query(node.id, node, concatenated(rows), view, self.run.on_error)
            for partition, rows in sorted(asked.items())
        }
        with failing_at(node.id):
            check_partitions(node.state, states, lambda: txids)
        return answers

    @calls_user_code
    def exchange(self, node: ExchangeNode) -> None:
        """Run all partitions of an exchange behind a state. Its rows come from workers, states, or both."""
        exchanges, fragment, on_error = self._exchanges(), self._plan.fragments[node.id], self.run.on_error
        exchange = exchanges[node.id]
        on_error.partitions = exchange.partitions or 1
        for partition in range(on_error.partitions):
            on_error.partition = partition
            frames = [frame for frame in self.arrived if frame.partition == partition]
            with failing_at(node.id):
                table = apply_exchange(exchange, frames, self.run)
            send(fragment, [table], exchanges, self.run, partition, self._waiting, put_backs_of(frames))


def snapshot_of(txid: Txid, sees_batch: bool) -> Snapshot:
    """Return the state after the batch before, or after this one, as if this attempt had won: another one may have failed."""
    if sees_batch:
        return Snapshot(int(txid), txid.winners.with_winner(int(txid), txid.attempt))
    return Snapshot(txid - 1, txid.winners)


def _depends_on_partitions(fragment: Fragment) -> bool:
    """Whether a step behind a node gives another result for several partitions than for one."""
    return fragment.blocking or bool(most_kept(fragment.sinks))


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
