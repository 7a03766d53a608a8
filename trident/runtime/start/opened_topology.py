"""OpenedTopology: everything that a topology opens to run. It is opened, checked and connected at once, and closed again.

Which log a topology gets: one that outlasts it, or one in memory where all of its states are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trident.config import Config
from trident.coordination import log_address
from trident.coordination.memory_log import MemoryLog, TransactionLog
from trident.coordination.records import CommitRecord
from trident.coordination.stored_log import StoredLog
from trident.errors import ConfigError, StateError, TridentError, UnsupportedOperation
from trident.extras import check_pyspark
from trident.graph import Graph
from trident.planner import Plan
from trident.planner.loads import stage_memory
from trident.planner.meaning import Meaning, TopologyChanges, meaning_of
from trident.retention import Retention
from trident.runtime.closing import Closers
from trident.runtime.commit.committer import Committer, Reach, operations_of_commits
from trident.runtime.commit.committing import Committing, committing_program
from trident.runtime.commit.dead_letters import DeadLetters, dead_letters_of
from trident.runtime.daemon_pool import DaemonPool
from trident.runtime.engine.replay_check import ReplayCheck
from trident.runtime.engine.runners import Runner
from trident.runtime.engine.worker import Program, WorkerProgram
from trident.runtime.reading.commit_gate import CommitGate
from trident.runtime.reading.open_partitions import (
    graph_to_read,
    make_state,
    readers_of,
    view_of,
    with_evolutions,
)
from trident.runtime.reading.views import StateView
from trident.runtime.spouts.batch_spouts import SpoutHandle, open_spouts
from trident.runtime.start.accidents import Found
from trident.runtime.start.capabilities import check_states, is_all_in_memory, lasting_states
from trident.runtime.start.changes import NewMeaning, check_meaning, check_stores, function_types
from trident.runtime.start.engine_choice import open_runner, with_workers
from trident.runtime.start.feeds import as_log_keeps, with_feeds
from trident.runtime.start.one_transaction import states_with_record, why_apart
from trident.runtime.start.placements import PlacedState, executors_of, placements_of
from trident.runtime.start.recovery import reconcile
from trident.runtime.steps.bounds import Bounds
from trident.state.interfaces import State
from trident.state.kinds import LaterWrite

_MOST_THREADS = 16  # of one state's commit

States = Mapping[str, Sequence[Any]]
RunnerOf = Callable[[Program, Config, float, Committing | None, Mapping[str, SpoutHandle]], Runner]
Rewinder = Callable[[Graph, Config, TransactionLog, Meaning, Sequence[Found], bool], None]


def refuse_to_rewind(*_: Any) -> None:
    """Refuse `state_recovery="rewind"` where there is no history to replay."""
    raise UnsupportedOperation(
        'state_recovery="rewind" is for topologies that keep a history in a log (history=, log_dir=)'
    )


@dataclass(frozen=True)
class OpenedTopology:
    """What a running topology opened and has to close.

    `states`: by name, the writer of each partition of the states that the topology updates.
    `gate`: held by readers that commits overtake.
    `lasting`: the states from which nothing takes back what a failed attempt wrote; see `lasting_states`.
    `meaning`: what the log does not say yet of this topology.
    `commit_threads`: returns the threads that a commit uses beside its own.
    `placements`: by state, where batches that Spark processes are committed.
    `publishing`: by name, the writers that want to know what is recorded.
    `apart`: why the states of a batch and its record are transactions of their own; see `why_apart`.
    `carrier`: the log, if it takes the writes of all states along.
    `replays`: processes some batches twice; None: none of them.
    """

    plan: Plan
    config: Config
    log: TransactionLog
    states: States
    spouts: Mapping[str, SpoutHandle]
    runner: Runner
    committer: Committer
    closers: Closers
    lasting: Collection[str]
    meaning: NewMeaning
    letters: DeadLetters
    commit_threads: Callable[[], Sequence[int]]
    placements: Mapping[str, PlacedState]
    publishing: Sequence[tuple[str, State]] = ()
    apart: str | None = None
    carrier: StoredLog | None = None
    replays: ReplayCheck | None = None
    gate: CommitGate = field(default_factory=CommitGate)
    _views: dict[str, StateView] = field(default_factory=dict)

    def view(self, name: str) -> StateView:
        """Open a state for reading; closed with the topology. `TridentError` lists the states if none has this name."""
        plan = self.plan
        if name not in plan.states:
            raise TridentError(f"topology {plan.topology!r} has no state {name!r}; it has {list(plan.states)}")
        if name not in self._views:
            log, count = self.log, plan.partitions.get(name, 1)
            snapshot = lambda: log.state.snapshot(name)  # noqa: E731
            readers = readers_of(plan, self.config, name, count)
            self._views[name] = view_of(plan, name, readers, snapshot, lambda: log.state, self.gate)
            self.closers.add("views", self._views[name].close)
        return self._views[name]

    def record(self, record: CommitRecord, later: Sequence[LaterWrite]) -> None:
        """Append the record of a batch, with the writes that are left to it.

        Raises `NotWrittenError`: a state refuses its write. Nothing was written.
        """
        if self.carrier is not None:
            self.carrier.append(record, beside=later)
        else:
            self.log.append(record)

    def publish_recorded(self) -> None:
        """Let states that publish their contents know which batch the log holds."""
        for name, state in self.publishing:
            state.recorded(self.log.state.snapshot(name))

    def close(self) -> None:
        """Close everything, spouts first and the log last, also if something raises."""
        self.closers.close()


def open_topology(
    graph: Graph,
    plan: Plan,
    config: Config,
    open_log: Callable[[States], TransactionLog],
    reach: Reach | None = None,
    in_threads: bool = True,
    runner_of: RunnerOf = open_runner,
    rewind: Rewinder = refuse_to_rewind,
) -> OpenedTopology:
    """Open, check and connect states, log, spouts and runner. On an error everything is closed again.

    `open_log`: called once the states are known to have the needed abilities, so that a topology which cannot run takes no log.
    `reach`: called with the points of each state's commit, see `update_partition`.
    `in_threads`: whether the partitions of a state may be updated in several threads.
    `runner_of`: opens what processes the batches.
    `rewind`: brings states forward that are behind the log, for `state_recovery="rewind"`.
    """
    closers = Closers(plan.topology)
    try:
        _check_engine(config)
        states = _open_as_left(graph, plan, config, closers)
        check_states(plan, graph, states, config.allow_inexact)
        placements = placements_of(plan, config, states)
        log = open_log(states)
        closers.add("log", log.close)
        graph, as_kept = as_log_keeps(graph, plan, log.state)
        compared = check_meaning(graph.name, log, meaning_of(graph), config.allow_changed_topology)
        as_left = with_evolutions(as_kept, compared.evolutions)
        if as_left is not plan:
            closers.close("states")
            plan, states = as_left, _open_states(as_left, config, closers)
        lasting = lasting_states(plan, states)
        meaning = _bring_together(graph, plan, config, log, states, compared, executors_of(placements), lasting, rewind)
        spouts, emitters = open_spouts(plan, config, closers)
        config = with_workers(config, spouts)
        program = program_of(plan, config, emitters)
        runner = _open_runner(program, plan, config, placements, closers, runner_of, spouts)
        threads = _open_threads(plan, closers) if in_threads else None
        committer = _open_committer(plan, config, states, runner, threads, reach, closers)
        commits = [name for name, spout in spouts.items() if spout.coordinator.offers("commit")]
        apart = why_apart(plan, executors_of(placements), config.log_dir or "", commits)
        carrier, with_record = states_with_record(plan, log, apart)
        committer.leave_to_record(with_record)
        letters = dead_letters_of(config, plan.topology)
        idents = list if threads is None else threads.idents
        publishing = [(name, one) for name, each in states.items() for one in each if one.offers("recorded")]
        opened = OpenedTopology(
            plan, config, log, states, spouts, runner, committer, closers, lasting, meaning, letters, idents, placements,
            publishing, apart, carrier, _open_check(program, config, runner, closers),
        )  # fmt: skip
        opened.publish_recorded()
        return opened
    except BaseException:
        closers.close()
        raise


def _check_engine(config: Config) -> None:
    if config.engine != "in_process":
        check_pyspark('engine="in_process"')


def _open_states(plan: Plan, config: Config, closers: Closers) -> States:
    """Open the writers of all states that the topology updates."""
    states: dict[str, list[State]] = {}
    for name, count in plan.partitions.items():
        states[name] = []
        for partition in range(count):
            state = make_state(plan, config, name, partition, count)
            states[name].append(state)
            closers.add("states", state.close)
    return states


def _open_as_left(graph: Graph, plan: Plan, config: Config, closers: Closers) -> States:
    """Open the writers of all states; where a store refuses the declaration, as the log says that former ones have left it."""
    try:
        return _open_states(plan, config, closers)
    except StateError:
        with closing(log_address.open_reader(config.log_folder(plan.topology))) as reader:
            evolved = graph_to_read(graph, reader.refresh().declared) if reader.is_there() else graph
        if evolved is graph:
            raise
        evolutions = {node.name: node.evolution for node in evolved.states if node.evolution is not None}
        return _open_states(with_evolutions(plan, evolutions), config, closers)


def _bring_together(
    graph: Graph,
    plan: Plan,
    config: Config,
    log: TransactionLog,
    states: States,
    compared: TopologyChanges,
    executors: Sequence[str],
    lasting: Collection[str],
    rewind: Rewinder,
) -> NewMeaning:
    """Compare topology, log and stores; nothing is written before all three are known to belong together."""
    check_stores(compared, states)
    meaning, migrating = compared.recorded, function_types(compared)
    reconcile(
        plan, log, states, config.state_recovery, lambda *which: make_state(plan, config, *which),
        partial(rewind, graph, config, log, meaning), executors,
    )  # fmt: skip
    meaning = with_feeds(plan, log.state, meaning)
    recorded = NewMeaning(log, meaning, {*lasting, *migrating})
    if migrating:
        recorded.before_writing()  # readers and the first commit have to know which values are of the new types
    return recorded


def program_of(plan: Plan, config: Config, emitters: Mapping[str, Any]) -> Program:
    """Return the program of the fragments before the states."""
    committed = {node.id for node in plan.commits}
    fragments = {entry: fragment for entry, fragment in plan.fragments.items() if entry not in committed}
    return Program(plan.topology, fragments, emitters, _static(plan), config.as_mapping(), plan.exchanges, plan.levels)


def _open_check(program: Program, config: Config, runner: Runner, closers: Closers) -> ReplayCheck | None:
    if not config.verify_replays:
        return None
    check = ReplayCheck(program, config.verify_replays, runner.parallelism)
    closers.add("operations", check.close)
    return check


def _open_runner(
    program: Program,
    plan: Plan,
    config: Config,
    placements: Mapping[str, PlacedState],
    closers: Closers,
    runner_of: RunnerOf,
    spouts: Mapping[str, SpoutHandle],
) -> Runner:
    """Open the runner of the fragments before the states, and of the states that executors commit."""
    states = executors_of(placements)
    in_executors = committing_program(program, plan, states)
    runner = runner_of(program, config, max(stage_memory(plan, states)), in_executors, spouts)
    closers.add("runner", runner.close)
    return runner


def _open_threads(plan: Plan, closers: Closers) -> DaemonPool | None:
    """Open the threads in which the partitions of one state are updated; None if no state has several."""
    widest = max(plan.partitions.values(), default=1)
    if widest == 1:
        return None
    threads = DaemonPool(min(widest, _MOST_THREADS), f"trident-{plan.topology}-state")
    closers.add("partitions", threads.shutdown)
    return threads


def _open_committer(
    plan: Plan,
    config: Config,
    states: States,
    runner: Runner,
    threads: DaemonPool | None,
    reach: Reach | None,
    closers: Closers,
) -> Committer:
    """Open the committer, which runs the fragments behind the states; operations that the runner prepared here are shared."""
    behind = {node.id: plan.fragments[node.id] for node in plan.commits}
    settings = config.as_mapping()
    program = WorkerProgram(
        Program(plan.topology, behind, {}, _static(plan), settings, plan.exchanges),
        operations_of_commits(plan.commits),
        runner.operations,
    )
    closers.add("operations", program.cleanup)
    in_parallel = map if threads is None else threads.map
    exchanges = lambda: runner.program.exchanges  # noqa: E731  their widths may come with the first batch
    return Committer(plan, states, program.state, in_parallel, exchanges, reach, Bounds.of(settings))


def _static(plan: Plan) -> dict[str, Any]:
    return {name: state for name, state in plan.states.items() if state.static}


def open_log(plan: Plan, config: Config, memory_log: MemoryLog | None) -> TransactionLog:
    """Take the log, which no other driver may write from now on; `memory_log` is continued if it is the one."""
    history = Retention.of(config.history)
    if config.log_dir is None and is_all_in_memory(plan):
        if history is not None and not history.keeps_nothing:
            where = f"the log of topology {plan.topology!r} is in memory, as its states are"
            raise ConfigError(f"history={config.history!r}: {where}. Give log_dir, or leave it out")
        return MemoryLog(plan.topology) if memory_log is None else memory_log.reopened(config.takeover)
    return log_address.open_log(config.log_folder(plan.topology), plan.topology, config.takeover, history)
