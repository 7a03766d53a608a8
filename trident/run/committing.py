"""What commits: `open_committer` in the driver, `CommittingProgram` in tasks; `WorkerStates`: what a worker keeps open.

- E1  Of the runs of a task only one commits: user code may give other rows when Spark runs a task again, and Spark does not say
  so of a stage that is repeated as a whole. Each run has an id, which is in the sentinel that it lays, also without rows: who
  finds, or meets, that of another run refuses before it writes anything (`trident/state/sentinel.py`).
- E2  All tasks commit rows of the same runs of the tasks before them; see `trident/engine/tasks.py`.
- E7  What goes wrong comes back as data; a store that refuses this driver's writers is distinguished from all other failures.
"""

import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

import pyarrow as pa

from trident.channel import COLLECTOR_PAUSE, DaemonPool
from trident.counts import counting_keys
from trident.engine.fragment_runs import TaskOutput
from trident.engine.routing import RowFrame
from trident.engine.runners import Runner
from trident.engine.worker import Order, Program, WorkerProgram
from trident.errors import FencedError
from trident.graph import JoinWithinNode, PersistNode, QueryNode, StateNode, WindowNode
from trident.plan import Plan
from trident.plan.plan import place
from trident.read.open_partitions import open_state
from trident.run.committer import Committer, PartitionCommit, answers_of, operations_of_commits
from trident.run.entries import Entries, inputs_of, marks_of, merging_columns
from trident.state.backing_map import leave_warnings
from trident.state.sentinel import check_partitions
from trident.state.txid import Txid
from trident.steps.failures import Bounds, Failure, StepFailed
from trident.steps.key_columns import partition_of_total
from trident.steps.rows import StepRun
from trident.windows.window_partitions import MOMENT, Share, read_moment, shares_of

logger = logging.getLogger(__name__)

MOST_KEPT = 32  # how many partitions a process keeps open, writers and readers together
_IDLE_S = 60.0  # as long as Spark keeps an idle worker process
_FIRST_PAUSE_S = 1.0
_MOST_THREADS = 16  # of one state's commit

_Place = tuple[str, int, bool]  # the state, the partition, and whether it is only read


def programs_of(
    plan: Plan, emitters: Mapping[str, Any], settings: Mapping[str, Any], executors: Collection[str]
) -> tuple[Program, Program, Program]:
    """Return what runs before the driver's commits, here and on Spark, where tasks commit `executors`; and what runs behind."""
    static = {name: state for name, state in plan.states.items() if state.static}
    committed = {node.id: plan.fragments[node.id] for node in plan.commits}
    before = {entry: fragment for entry, fragment in plan.fragments.items() if entry not in committed}
    here = Program(plan.topology, before, emitters, static, settings, plan.exchanges, plan.levels)
    behind = Program(plan.topology, committed, {}, static, settings, plan.exchanges)
    return here, committing_program(here, plan, executors), behind


def committing_program(program: Program, plan: Plan, states: Collection[str]) -> Program:
    """Return the program whose tasks also commit these states, if there are any."""
    if not states:
        return program
    placed = place(plan, states)
    committed = {name: plan.states[name] for name in states}
    return replace(
        program, fragments=placed.fragments, exchanges=placed.exchanges, levels=placed.levels,
        processing=placed.processing, committed=committed, commits=placed.commits, opens=CommittingProgram,
    )  # fmt: skip


def open_committer(
    plan: Plan,
    states: Mapping[str, Sequence[Any]],
    behind: Program,
    runner: Runner,
    opened: Callable[[Callable[[], None]], None],
    in_threads: bool,
) -> Committer:
    """Open what commits here, and runs the program behind the states; operations that the runner prepared are shared."""
    widest, threads = max(plan.partitions.values(), default=1), None
    if in_threads and widest > 1:
        threads = DaemonPool(min(widest, _MOST_THREADS), f"trident-{plan.topology}-state")
        opened(threads.shutdown)
    program = WorkerProgram(behind, operations_of_commits(plan.commits), runner.operations)
    opened(program.cleanup)
    exchanges = lambda: runner.program.exchanges  # noqa: E731  their widths may come with the first batch
    return Committer(plan, states, program.state, threads, exchanges, Bounds.of(behind.settings))


class CommittingProgram(WorkerProgram):
    """A program that commits, prepared once in this process."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, operations_of_commits(one.node for one in program.exchanges.values()))
        from pyspark import TaskContext

        if TaskContext.get() is not None:
            leave_warnings()
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
        if isinstance(node, QueryNode):
            with counting_keys() as keys:
                answers = list(self._answers(node, [frame.data for frame in arrived], order.txids[node.state], run))
            output.key_counts[node.state] = keys.counts
            yield from answers
            return
        if not self.program.resident:
            _refuse_second_run(entry, self.program.speculates)
        try:
            with COLLECTOR_PAUSE:
                values = self._commit_partition(node, partition, arrived, run, order, output)
        except FencedError as error:
            output.fenced = error.args
            raise
        if values is not None:
            yield values

    def _commit_partition(
        self,
        node: PersistNode,
        partition: int,
        arrived: Sequence[RowFrame],
        run: StepRun,
        order: Order,
        output: TaskOutput,
    ) -> pa.Table | None:
        """Commit one partition; return the new values if a step reads them, or what a window or a join over time gives."""
        name, aggregation, partitions = node.state, node.aggregation, self.program.exchanges[node.id].partitions or 1
        if aggregation is not None and not aggregation.group.names and partition != partition_of_total(partitions):
            return None  # the one value is elsewhere
        state = self._open.partition_state(name, partition, partitions)
        given = _gather_updates(node, state, (partition, partitions), arrived, run, order)
        stages = state.facts.stage is not None
        if given is None and stages:
            return None  # what a task has staged counts only once the driver knows of it
        fragment, txid = self.program.fragments[node.id], order.txids[name][partition].of_run(secrets.token_hex(8))
        wanted = bool(fragment.sinks or fragment.steps)
        commit = PartitionCommit(node, state, txid, given, wanted, self.bounds, stages=stages)
        output.touched[name] = [partition]
        if given is None:
            # Another run of the task may have had rows (E1): what it has committed, or still commits, must not stand.
            commit.run()
            return None
        if node.updater is None or partitions == 1:
            commit.run()
        else:  # any partition may write any key
            commit.run((PartitionCommit.begin,))
            output.written.setdefault(name, {})[partition] = marks_of(state)
            commit.run((PartitionCommit.end,))
        if stages:
            output.staged.setdefault(name, {})[partition] = commit.staged
        output.keys[name], output.key_counts[name] = len(given), commit.keys.counts
        return commit.values

    def _answers(
        self, node: QueryNode, tables: list[pa.Table], txids: Sequence[Txid], run: StepRun
    ) -> Iterator[pa.Table]:
        if not tables:
            return
        readers: Any = _Readers(self._open, node.state, len(txids))
        asked = self.program.committed[node.state]
        yield from answers_of(node, asked, readers, txids, {0: tables}, run.on_error).values()
        for partition, reader in readers.opened.items():
            txid = txids[partition]
            check_partitions(node.state, [reader], lambda at=txid: [at], first=partition)  # type: ignore[misc]

    def cleanup(self) -> None:
        super().cleanup()
        self._open.close()


def _gather_updates(
    node: PersistNode, state: Any, at: tuple[int, int], arrived: Sequence[RowFrame], run: StepRun, order: Order
) -> Entries | Share | None:
    """Return what arrived for a partition, `at` its number of how many; None: nothing that it has to update."""
    if isinstance(node, (WindowNode, JoinWithinNode)):
        moment = read_moment((frame.data for frame in arrived if frame.port == MOMENT), order.now)
        tables = [frame.data for frame in arrived if frame.port != MOMENT]
        return shares_of(node, moment, {at[0]: tables} if tables else {}, at[1], run).get(at[0])
    return inputs_of(node, [frame.data for frame in arrived], 1, merging_columns(node.aggregation, [state])).get(0)


class WorkerStates:
    """The state partitions that a worker process holds open: opened when first needed, and reused by later batches.

    Spark pins no partition to a process, so another may have committed since: what a state remembers counts only if its own
    commit was the last one (`trident/state/cached.py`). And each process would hold each partition after a while, with a
    connection of its own: so before each task the idle ones are closed, and of the others all but the latest.
    """

    def __init__(self, topology: str, states: Mapping[str, StateNode], settings: Mapping[str, Any]) -> None:
        self._topology, self._states, self._settings = topology, states, settings
        self._open: dict[_Place, tuple[Any, float]] = {}  # with the time of the last use, the latest last

    def partition_state(self, name: str, partition: int, partitions: int, read_only: bool = False) -> Any:
        place = name, partition, read_only
        state, _ = self._open.pop(place, (None, 0.0))
        if state is None:
            state = open_state(self._topology, self._states[name], self._settings, partition, partitions, read_only)
        self._open[place] = state, monotonic()
        return state

    def tidy(self) -> None:
        """Close the partitions that were not used for a while, and the oldest of too many; no task may be using any."""
        since = monotonic() - _IDLE_S
        idle = [place for place, (_, used) in self._open.items() if used < since]
        for each in [*idle, *list(self._open)[len(idle) : max(0, len(self._open) - MOST_KEPT)]]:
            self._close(each)

    def close(self) -> None:
        for each in list(self._open):
            self._close(each)

    def _close(self, place: _Place) -> None:
        state, _ = self._open.pop(place)
        try:
            state.close()
        except Exception:
            logger.exception("closing partition %d of state %r failed", place[1], place[0])


class _Readers:
    """The partitions of a state as a sequence, each opened when it is read."""

    def __init__(self, states: WorkerStates, name: str, partitions: int) -> None:
        self._states, self._name, self._partitions = states, name, partitions
        self.opened: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._partitions

    def __getitem__(self, at: int) -> Any:
        if at >= self._partitions:
            raise IndexError(at)
        if at not in self.opened:
            self.opened[at] = self._states.partition_state(self._name, at, self._partitions, read_only=True)
        return self.opened[at]


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
