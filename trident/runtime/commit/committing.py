"""CommittingProgram: a program whose last levels commit; what a task does to the state partition that is its own.

- E1  Of the runs of a task only one commits. User code may give other rows when Spark runs a task again, and both would write
  as the same attempt. Each run has an id, which is in the sentinel that it lays, also if it has no rows: who finds, or meets,
  that of another run refuses before it writes anything (`trident/state/sentinel.py`). A task that Spark says is not the first
  of its kind refuses without asking the store; of a stage that is repeated as a whole, Spark does not say so. Where Spark
  speculates, such a task may be a copy beside the first run: it raises, after a pause, because its answer would end the first
  run.
- E2  All tasks commit rows of the same runs of the tasks before them; see `trident/runtime/engine/hops.py`.
- E7  What goes wrong comes back as data; a store that refuses this driver's writers is distinguished from all other failures.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from time import sleep
from typing import Any, NamedTuple, overload

import pyarrow as pa

from trident.arrow import concatenated
from trident.errors import FencedError
from trident.graph import JoinWithinNode, PersistNode, QueryNode, WindowNode
from trident.planner import Plan
from trident.planner.placing import place
from trident.runtime.commit.committed import marks_of
from trident.runtime.commit.committer import operations_of_commits, update_partition, update_time_partition
from trident.runtime.commit.entries import inputs_of, merging_columns
from trident.runtime.commit.flow import paused_garbage_collection, snapshot_of
from trident.runtime.commit.worker_states import WorkerStates
from trident.runtime.engine.routing import RowFrame
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.worker import Order, Program, WorkerProgram
from trident.runtime.reading.state_frames import columns_of
from trident.runtime.reading.store_check import check_partition
from trident.runtime.reading.views import StateView
from trident.runtime.steps.applying import apply_query
from trident.runtime.steps.failures import Failure, StepFailed, TupleErrors, failing_at
from trident.runtime.steps.key_columns import partition_of_total
from trident.runtime.steps.rows import StepRun
from trident.runtime.windows.shares import MOMENT, Now, PartitionPlace, read_moment, running_partitions
from trident.state.key_counts import counting_keys
from trident.state.loss_warnings import suppress_warnings
from trident.state.txid import Txid

_FIRST_PAUSE_S = 1.0


class Committing(NamedTuple):
    """A program for Spark, and the entries that its tasks commit."""

    program: Program
    commits: Collection[str]


def committing_program(program: Program, plan: Plan, states: Collection[str]) -> Committing | None:
    """Return the program whose tasks also commit these states; None if there are none."""
    if not states:
        return None
    placed = place(plan, states)
    committed = {name: plan.states[name] for name in states}
    mine = replace(
        program, fragments=placed.fragments, exchanges=placed.exchanges, levels=placed.levels,
        processing=placed.processing, committed=committed, opens=CommittingProgram,
    )  # fmt: skip
    return Committing(mine, placed.commits)


class CommittingProgram(WorkerProgram):
    """A program that commits, prepared once in this process."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, operations_of_commits(one.node for one in program.exchanges.values()))
        from pyspark import TaskContext

        if TaskContext.get() is not None:
            suppress_warnings()
        self._open = WorkerStates(program.topology, program.committed, program.settings)

    def gather(
        self, entry: str, partition: int, frames: Sequence[RowFrame], run: StepRun, order: Order, output: TaskOutput
    ) -> Iterator[pa.Table]:
        """Give the rows of one partition of an exchange, the answers of a query, or the new values of a state."""
        node = self.program.exchanges[entry].node
        if not isinstance(node, (PersistNode, QueryNode)):
            yield from super().gather(entry, partition, frames, run, order, output)
            return
        self._open.tidy()  # between two tasks, because a query may need more partitions at once than may stay open
        arrived = sorted((frame for frame in frames if not frame.step), key=lambda frame: (frame.port, frame.order))
        tables = [frame.data for frame in arrived]
        if isinstance(node, QueryNode):
            with counting_keys() as keys:
                answers = list(self._answers(node, tables, order.txids[node.state], run))
            output.key_counts[node.state] = keys.counts
            yield from answers
            return
        if not self.program.resident:
            _refuse_second_run(entry, self.program.speculates)
        txid = order.txids[node.state][partition].of_run(secrets.token_hex(8))
        try:
            with paused_garbage_collection():
                if isinstance(node, (WindowNode, JoinWithinNode)):
                    values = self._fired(node, partition, arrived, txid, run, order.now, output)
                else:
                    values = self._updated(node, partition, tables, txid, output)
        except StepFailed as error:
            if isinstance(error.__cause__, FencedError):
                output.fenced = error.__cause__.args
            raise
        if values is not None:
            yield values

    def _updated(
        self, node: PersistNode, partition: int, tables: list[pa.Table], txid: Txid, output: TaskOutput
    ) -> pa.Table | None:
        """Commit one partition; return the new values if a step reads them."""
        partitions = self.program.exchanges[node.id].partitions or 1
        if (
            node.aggregation is not None
            and not node.aggregation.grouped
            and partition != partition_of_total(partitions)
        ):
            return None  # the one value is elsewhere
        fragment = self.program.fragments[node.id]
        with failing_at(node.id):
            state = self._open.writer(node.state, partition, partitions)
        entries = inputs_of(node, tables, 1, merging_columns(node.aggregation, [state])).get(0)
        if entries is None:
            self._without_rows(node, partition, state, txid, output)
            return None
        wanted = bool(fragment.sinks or fragment.steps)
        with counting_keys() as keys:
            end = _staging(state, output.staged, node.state, partition)
            written = output.written.setdefault(node.state, {}) if node.aggregation is None and partitions > 1 else None
            reach = _unobserved if written is None else _noting(state, written, partition)
            values = update_partition(node, state, txid, entries, wanted, reach, self.bounds, end)
        output.touched[node.state], output.keys[node.state] = [partition], len(entries)
        output.key_counts[node.state] = keys.counts
        return values

    def _fired(
        self,
        node: WindowNode | JoinWithinNode,
        partition: int,
        arrived: Sequence[RowFrame],
        txid: Txid,
        run: StepRun,
        now: Now | None,
        output: TaskOutput,
    ) -> pa.Table | None:
        """Commit one partition of a window, or of a join over time; return the rows that it gives."""
        partitions = self.program.exchanges[node.id].partitions or 1
        moment = read_moment((frame.data for frame in arrived if frame.port == MOMENT), now)
        tables = [frame.data for frame in arrived if frame.port != MOMENT]
        with failing_at(node.id):
            state = self._open.writer(node.state, partition, partitions)
        if partition not in running_partitions(node, moment, {partition: tables} if tables else {}, partitions):
            self._without_rows(node, partition, state, txid, output)
            return None
        # Its tuples may be of earlier batches.
        run = replace(run, on_error=TupleErrors(bounds=self.bounds), timers=output.timers)
        place = PartitionPlace(partition, partitions)
        with counting_keys() as keys:
            end = _staging(state, output.staged, node.state, partition)
            rows = update_time_partition(node, state, place, txid, tables, moment, run, _unobserved, end)
        output.touched[node.state] = [partition]
        output.keys[node.state] = sum(table.num_rows for table in tables)
        output.key_counts[node.state] = keys.counts
        return rows

    def _without_rows(self, node: PersistNode, partition: int, state: Any, txid: Txid, output: TaskOutput) -> None:
        """Commit a partition that this run has no rows for: another run of the task may have had some (E1).

        Without it, what that run has committed, or still commits, would stand, and the batch would be recorded without it.
        What a task has staged counts only once the driver knows of it, so there a run without rows has nothing to do.
        """
        if state.offers("stage"):
            return
        with failing_at(node.id):
            state.begin_commit(txid)
            state.commit(txid)
        output.touched[node.state] = [partition]

    def _answers(
        self, node: QueryNode, tables: list[pa.Table], txids: Sequence[Txid], run: StepRun
    ) -> Iterator[pa.Table]:
        """Look rows up, as after the batch before or after this one; see `Flow.query`."""
        if not tables:
            return
        readers = _Readers(self._open, node.state, len(txids))
        snapshot = snapshot_of(txids[0], node.sees_batch)
        with failing_at(node.id):
            asked = self.program.committed[node.state]
            view = StateView.for_query(
                readers, lambda: snapshot, node.state, free_keys=asked.free_keys, columns=columns_of(asked)
            )
        yield apply_query(node.id, node, concatenated(tables), view, run.on_error)
        with failing_at(node.id):
            for partition, reader in readers.opened.items():
                txid = txids[partition]
                check_partition(node.state, partition, reader, txid, lambda at=txid: at)  # type: ignore[misc]

    def cleanup(self) -> None:
        super().cleanup()
        self._open.close()


@dataclass
class _Readers(Sequence[Any]):
    """The partitions of a state, each opened when it is read."""

    states: WorkerStates
    name: str
    partitions: int

    def __post_init__(self) -> None:
        self.opened: dict[int, Any] = {}

    def __len__(self) -> int:
        return self.partitions

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(self.partitions))]
        if not 0 <= at < self.partitions:
            raise IndexError(at)
        if at not in self.opened:
            self.opened[at] = self.states.reader(self.name, at, self.partitions)
        return self.opened[at]


def _staging(
    state: Any, staged: dict[str, dict[int, bytes]], name: str, partition: int
) -> Callable[[Txid], None] | None:
    """Return what ends the commit of a state whose driver publishes what tasks stage; None: the state itself ends it."""
    if not state.offers("stage"):
        return None

    def end(txid: Txid) -> None:
        staged.setdefault(name, {})[partition] = state.stage(txid)

    return end


def _noting(state: Any, written: dict[int, list[bytes]], partition: int) -> Callable[[str, str], None]:
    """Return what notes the keys that a partition writes before it commits."""

    def reach(point: str, name: str) -> None:
        if point == "put":
            written[partition] = marks_of(state)

    return reach


def _unobserved(point: str, state: str) -> None:
    """Do nothing at a point of a commit."""


class CopyOfTask(BaseException):
    """Spark's copy of a task that commits ends: not as an outcome of the batch, which `Exception`s are, but for Spark."""


def _refuse_second_run(entry: str, speculates: bool) -> None:
    from pyspark import TaskContext

    context = TaskContext.get()
    run = 0 if context is None else context.attemptNumber()
    if run == 0:
        return
    if speculates:
        # An answer would end the first run, which may only be slow. Spark counts exceptions, and gives the batch up after a
        # few: the first run has as long as these pauses. A copy ends with them too when the first run is done.
        sleep(_FIRST_PAUSE_S * 4.0 ** (run - 1))
        raise CopyOfTask(f"run {run + 1} of a task that commits: the first run may still be at it")
    cause = (
        "Spark ran a task that commits again (its executor was lost); the first run may have written, so the batch is tried "
        "again as a whole"
    )
    raise StepFailed(Failure(entry, None, cause))
