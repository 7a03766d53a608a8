"""OpenedTopology: everything that a topology opens to run. It is opened, checked and connected at once, and closed again.

Which log a topology gets: one that outlasts it, or one in memory where all of its states are.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from trident.channel import DaemonPool
from trident.config import Config
from trident.coordination import log_address
from trident.coordination.memory_log import MemoryLog, TransactionLog
from trident.errors import ConfigError, StateError, TridentError, UnsupportedOperation
from trident.extras import check_pyspark
from trident.graph import Graph
from trident.planner import Plan
from trident.planner.meaning import Meaning, TopologyChanges, meaning_of
from trident.planner.placing import stage_memory
from trident.retention import Retention
from trident.runtime.commit.committer import Committer, Reach, operations_of_commits
from trident.runtime.commit.committing import committing_program
from trident.runtime.commit.dead_letters import dead_letters_of
from trident.runtime.engine.replay_check import ReplayCheck
from trident.runtime.engine.runners import Runner
from trident.runtime.engine.worker import Program, WorkerProgram
from trident.runtime.reading.open_partitions import graph_to_read, make_state, view_of, with_evolutions
from trident.runtime.reading.state_partitions import CommitGate
from trident.runtime.reading.views import StateView
from trident.runtime.spouts.batch_spouts import SpoutHandle, open_spouts
from trident.runtime.start.accidents import Found
from trident.runtime.start.capabilities import check_states, is_all_in_memory, lasting_states
from trident.runtime.start.changes import (
    NewMeaning,
    as_log_keeps,
    check_meaning,
    check_stores,
    function_types,
    with_feeds,
)
from trident.runtime.start.engine_choice import open_runner, with_workers
from trident.runtime.start.placements import executors_of, placements_of, states_with_record, why_apart
from trident.runtime.start.recovery import reconcile
from trident.runtime.steps.bounds import Bounds
from trident.state.interfaces import State

logger = logging.getLogger(__name__)

_MOST_THREADS = 16  # of one state's commit

States = Mapping[str, Sequence[Any]]
RunnerOf = Callable[[Program, Config, float, Program, Mapping[str, SpoutHandle]], Runner]
Rewinder = Callable[[Graph, Config, TransactionLog, Meaning, Sequence[Found], bool], None]
Close = Callable[[], Any]

# Threads before what they use. Spouts early, because a thread may wait for its feed. The log last, because its claim keeps
# other drivers away until everything else is closed.
_ORDER = ("processing", "drpc", "committing", "spouts", "partitions", "operations", "views", "states", "runner", "log")


def refuse_to_rewind(*_: Any) -> None:
    """Refuse `state_recovery="rewind"` where there is no history to replay."""
    raise UnsupportedOperation(
        'state_recovery="rewind" is for topologies that keep a history in a log (history=, log_dir=)'
    )


class OpenedTopology:
    """What a topology opened to run, and has to close: open, checked and connected once it is made; an error closes all again.

    `states`: by name, the writer of each partition of the states that the topology updates.
    `gate`: held by readers that commits overtake.
    `lasting`: the states from which nothing takes back what a failed attempt wrote; see `lasting_states`.
    `meaning`: what the log does not say yet of this topology.
    `commit_threads`: returns the threads that a commit uses beside its own.
    `placements`: by state, where batches that Spark processes are committed.
    `executors`: the states that executors commit.
    `apart`: why the states of a batch and its record are transactions of their own; see `why_apart`.
    `carrier`: the log, if it takes the writes of all states along.
    `publishing`: the states that publish their contents, by name.
    `replays`: processes some batches twice; None: none of them.

    Parameters
    ----------
    open_log
        Called once the states are known to have the needed abilities, so that a topology which cannot run takes no log.
    reach
        Called with the points of each state's commit, see `PartitionCommit`.
    in_threads
        Whether the partitions of a state may be updated in several threads.
    runner_of
        Opens what processes the batches.
    rewind
        Brings states forward that are behind the log, for `state_recovery="rewind"`.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        config: Config,
        open_log: Callable[[States], TransactionLog],
        reach: Reach | None = None,
        in_threads: bool = True,
        runner_of: RunnerOf = open_runner,
        rewind: Rewinder = refuse_to_rewind,
    ) -> None:
        self.plan, self.config, self.closers = plan, config, Closers(plan.topology)
        self.gate = CommitGate()
        self._views: dict[str, StateView] = {}
        try:
            self._open_stored(graph, open_log, rewind)
            self._open_engine(runner_of, reach, in_threads)
            self.publish_recorded()
        except BaseException:
            self.closers.close()
            raise

    def view(self, name: str) -> StateView:
        """Open a state for reading; closed with the topology. `TridentError` lists the states if none has this name."""
        plan = self.plan
        if name not in plan.states:
            raise TridentError(f"topology {plan.topology!r} has no state {name!r}; it has {list(plan.states)}")
        if name not in self._views:
            now, count = partial(getattr, self.log, "state"), plan.partitions.get(name, 1)
            self._views[name] = view_of(plan, self.config, name, None, count, now, self.gate)
            self.closers.add("views", self._views[name].close)
        return self._views[name]

    def publish_recorded(self) -> None:
        """Let states that publish their contents know which batch the log holds."""
        for name, state in self.publishing:
            state.recorded(self.log.state.snapshot(name))

    def close(self) -> None:
        """Close everything, spouts first and the log last, also if something raises."""
        self.closers.close()

    # ---- opening: states and log ------------------------------------------------------------------------------------

    def _open_stored(self, graph: Graph, open_log: Callable[[States], TransactionLog], rewind: Rewinder) -> None:
        """Open and compare states and log; nothing is written before topology, log and stores are known to belong together."""
        plan, config = self.plan, self.config
        if config.engine != "in_process":
            check_pyspark('engine="in_process"')
        self.states = self._open_as_left(graph)
        check_states(plan, graph, self.states, config.allow_inexact)
        self.placements = placements_of(plan, config, self.states)
        self.executors = executors_of(self.placements)
        self.log = log = open_log(self.states)
        self.closers.add("log", log.close)
        graph, as_kept = as_log_keeps(graph, plan, log.state)
        compared = check_meaning(graph.name, log, meaning_of(graph), config.allow_changed_topology)
        as_left = with_evolutions(as_kept, compared.evolutions)
        if as_left is not plan:
            self.closers.close("states")
            self.plan, self.states = as_left, self._open_states(as_left)
        self.lasting = lasting_states(as_left, self.states)
        self.meaning = self._bring_together(graph, compared, rewind)

    def _open_states(self, plan: Plan) -> States:
        """Open the writers of all states that the topology updates."""
        states: dict[str, list[State]] = {}
        for name, count in plan.partitions.items():
            states[name] = []
            for partition in range(count):
                state = make_state(plan, self.config, name, partition, count)
                states[name].append(state)
                self.closers.add("states", state.close)
        return states

    def _open_as_left(self, graph: Graph) -> States:
        """Open the writers; where a store refuses the declaration, as the log says that former ones have left it."""
        try:
            return self._open_states(self.plan)
        except StateError:
            with closing(log_address.open_reader(self.config.log_folder(graph.name))) as reader:
                evolved = graph_to_read(graph, reader.refresh().declared) if reader.is_there() else graph
            if evolved is graph:
                raise
            evolutions = {node.name: node.evolution for node in evolved.states if node.evolution is not None}
            return self._open_states(with_evolutions(self.plan, evolutions))

    def _bring_together(self, graph: Graph, compared: TopologyChanges, rewind: Rewinder) -> NewMeaning:
        """Compare topology, log and stores."""
        plan, config, log = self.plan, self.config, self.log
        check_stores(compared, self.states)
        meaning, migrating = compared.recorded, function_types(compared)
        reconcile(
            plan, log, self.states, config.state_recovery, lambda *which: make_state(plan, config, *which),
            partial(rewind, graph, config, log, meaning), self.executors,
        )  # fmt: skip
        recorded = NewMeaning(log, with_feeds(plan, log.state, meaning), {*self.lasting, *migrating})
        if migrating and recorded.lasts:
            recorded.record()  # readers and the first commit have to know which values are of the new types
        return recorded

    # ---- opening: what processes and commits ------------------------------------------------------------------------

    def _open_engine(self, runner_of: RunnerOf, reach: Reach | None, in_threads: bool) -> None:
        plan, closers, executors = self.plan, self.closers, self.executors
        self.spouts, emitters = open_spouts(plan, self.config, partial(closers.add, "spouts"))
        self.config = config = with_workers(self.config, self.spouts)
        static = {name: state for name, state in plan.states.items() if state.static}
        committed = {node.id: plan.fragments[node.id] for node in plan.commits}
        before = {entry: fragment for entry, fragment in plan.fragments.items() if entry not in committed}
        settings = config.as_mapping()
        program = Program(plan.topology, before, emitters, static, settings, plan.exchanges, plan.levels)
        on_spark = committing_program(program, plan, executors)
        self.runner = runner_of(program, config, max(stage_memory(plan, executors)), on_spark, self.spouts)
        closers.add("runner", self.runner.close)
        threads = self._open_threads() if in_threads else None
        self.commit_threads: Callable[[], Sequence[int]] = list if threads is None else threads.idents
        behind = Program(plan.topology, committed, {}, static, settings, plan.exchanges)
        self.committer = self._open_committer(behind, threads, reach)
        commits = [name for name, spout in self.spouts.items() if spout.coordinator.offers("commit")]
        self.apart = why_apart(plan, executors, config.log_dir or "", commits)
        self.carrier, with_record = states_with_record(plan, self.log, self.apart)
        self.committer.leave_to_record(with_record)
        self.letters = dead_letters_of(config, plan.topology)
        self.publishing = [(name, one) for name, each in self.states.items() for one in each if one.offers("recorded")]
        self.replays: ReplayCheck | None = None
        if config.verify_replays:
            self.replays = ReplayCheck(program, config.verify_replays, self.runner.parallelism)
            closers.add("operations", self.replays.close)

    def _open_threads(self) -> DaemonPool | None:
        """Open the threads in which the partitions of one state are updated; None if no state has several."""
        widest = max(self.plan.partitions.values(), default=1)
        if widest == 1:
            return None
        threads = DaemonPool(min(widest, _MOST_THREADS), f"trident-{self.plan.topology}-state")
        self.closers.add("partitions", threads.shutdown)
        return threads

    def _open_committer(self, behind: Program, threads: DaemonPool | None, reach: Reach | None) -> Committer:
        """Open the committer, which runs the fragments behind the states; operations that the runner prepared are shared."""
        plan, runner = self.plan, self.runner
        program = WorkerProgram(behind, operations_of_commits(plan.commits), runner.operations)
        self.closers.add("operations", program.cleanup)
        in_parallel = map if threads is None else threads.map
        exchanges = lambda: runner.program.exchanges  # noqa: E731  their widths may come with the first batch
        return Committer(plan, self.states, program.state, in_parallel, exchanges, reach, Bounds.of(behind.settings))


def open_log(plan: Plan, config: Config, memory_log: MemoryLog | None) -> TransactionLog:
    """Take the log, which no other driver may write from now on; `memory_log` is continued if it is the one."""
    history = Retention.of(config.history)
    if config.log_dir is None and is_all_in_memory(plan):
        if history is not None and not history.keeps_nothing:
            where = f"the log of topology {plan.topology!r} is in memory, as its states are"
            raise ConfigError(f"history={config.history!r}: {where}. Give log_dir, or leave it out")
        return MemoryLog(plan.topology) if memory_log is None else memory_log.reopened(config.takeover)
    return log_address.open_log(config.log_folder(plan.topology), plan.topology, config.takeover, history)


class Closers:
    """Everything that was opened so far; it is closed by kind, in the order above."""

    def __init__(self, topology: str) -> None:
        self._topology = topology
        self._by_kind: dict[str, deque[Close]] = {kind: deque() for kind in _ORDER}

    def add(self, kind: str, *closers: Close) -> None:
        """Note how something that was just opened is closed."""
        self._by_kind[kind].extend(closers)

    def close(self, *kinds: str) -> None:
        """Close all, or some kinds only. Each thing is closed once, by the first thread that asks; errors are logged."""
        for kind in kinds or _ORDER:
            while (close := self._next(kind)) is not None:
                try:
                    close()
                except Exception:
                    logger.exception("topology %s: closing failed", self._topology)

    def _next(self, kind: str) -> Close | None:
        try:
            return self._by_kind[kind].popleft()  # atomic: two threads may close at once
        except IndexError:
            return None
