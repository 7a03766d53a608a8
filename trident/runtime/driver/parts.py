"""What a topology opens to run and has to close: states, spouts, runner, committer; checked and brought together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from trident.config import Config
from trident.coordination.log_state import LogState
from trident.coordination.memory_log import TransactionLog
from trident.errors import TridentError
from trident.graph import Graph
from trident.planner import Plan
from trident.planner.guarantees import spout_type_of
from trident.planner.loads import stage_loads
from trident.planner.meaning import meaning_of
from trident.runtime.commit.committer import Committer, Reach, committed_operations
from trident.runtime.driver.batch_spouts import as_trident_spout
from trident.runtime.driver.capabilities import check_capabilities, check_pairings, check_reads
from trident.runtime.driver.changes import check_meaning, record_meaning
from trident.runtime.driver.daemon_pool import DaemonPool
from trident.runtime.driver.engine_choice import open_runner
from trident.runtime.driver.loop import SpoutHandle
from trident.runtime.driver.recovery import reconcile
from trident.runtime.engine.runners import Runner
from trident.runtime.engine.worker import Program, WorkerProgram
from trident.runtime.reading.commit_gate import CommitGate
from trident.runtime.reading.open_partitions import make_state
from trident.runtime.reading.store_check import StoreCheck
from trident.runtime.reading.views import StateView
from trident.runtime.steps.bounds import Bounds

__all__ = ["Parts", "close_all", "open_parts"]

logger = logging.getLogger(__name__)


class Parts:
    """What a running topology opened and has to close.

    Parameters
    ----------
    reach
        Called with the points of each state's commit, see `update_partition`.
    threads
        Whether the partitions of a state may be updated in several threads.
    """

    def __init__(self, plan: Plan, config: Config, reach: Reach | None = None, threads: bool = True) -> None:
        self.plan, self.config = plan, config
        self._reach, self._threads = reach, threads
        self.states: dict[str, list[Any]] = {}
        self._views: dict[str, StateView] = {}
        self.gate = CommitGate()
        self.spouts: dict[str, SpoutHandle] = {}
        self._open_spouts: list[Callable[[], Any]] = []
        self.runner: Runner
        self.committer: Committer
        self._driver: WorkerProgram | None = None
        self._in_parallel: DaemonPool | None = None

    def open_states(self) -> dict[str, list[Any]]:
        """Open the writers of all states that the topology updates."""
        for name, count in self.plan.partitions.items():
            self.states[name] = [self.make_state(name, partition, count) for partition in range(count)]
        return self.states

    def make_state(self, name: str, partition: int, partitions: int, read_only: bool = False) -> Any:
        """Open one partition of a state."""
        return make_state(self.plan, self.config, name, partition, partitions, read_only)

    def open_spouts(self) -> dict[str, Any]:
        """Open the spouts' coordinators; return their emitters."""
        settings = self.config.as_mapping()
        emitters = {}
        for node in self.plan.spouts:
            spout = as_trident_spout(node.spout)
            self.spouts[node.id] = SpoutHandle(node.id, spout.get_coordinator(settings), spout_type_of(spout))
            self._open_spouts.append(self.spouts[node.id].coordinator.close)
            emitters[node.id] = spout.get_emitter(settings)
        return emitters

    def open_runner(self, emitters: dict[str, Any]) -> None:
        """Open the runner and the committer."""
        plan, config = self.plan, self.config
        commit_side = {node.id: plan.fragments[node.id] for node in plan.commits}
        fragments = {entry: fragment for entry, fragment in plan.fragments.items() if entry not in commit_side}
        static = {name: state for name, state in plan.states.items() if state.static}
        program = Program(plan.topology, fragments, emitters, static, config.as_mapping(), plan.exchanges, plan.levels)
        self.runner = open_runner(program, config, stage_loads(plan))
        self._driver = WorkerProgram(
            Program(plan.topology, commit_side, {}, static, config.as_mapping(), plan.exchanges),
            committed_operations(plan),
            self.runner.operations,
        )
        widest = max(plan.partitions.values(), default=1)
        if widest > 1 and self._threads:
            self._in_parallel = DaemonPool(min(widest, 16), f"trident-{plan.topology}-state")
        in_parallel = map if self._in_parallel is None else self._in_parallel.map
        exchanges = self.runner.program.exchanges
        bounds = Bounds.of(config.as_mapping())
        self.committer = Committer(plan, self.states, self._driver.state, in_parallel, exchanges, self._reach, bounds)

    def view(self, name: str, log: Callable[[], LogState]) -> StateView:
        """Open a state for reading; closed with the topology. `TridentError` naming the states if there is no such one."""
        if name not in self.plan.states:
            raise TridentError(
                f"topology {self.plan.topology!r} has no state {name!r}; it has {list(self.plan.states)}"
            )
        if name not in self._views:
            count = self.plan.partitions.get(name, 1)
            instances = [self.make_state(name, partition, count, read_only=True) for partition in range(count)]
            check = StoreCheck(name, instances, log)
            self._views[name] = StateView(instances, lambda: log().snapshot(name), name, gate=self.gate, check=check)
        return self._views[name]

    def commit_threads(self) -> list[int]:
        """Return the threads beside its own that a commit is done in."""
        return [] if self._in_parallel is None else self._in_parallel.idents()

    def close_spouts(self) -> None:
        """Close the spouts, each once, whoever asks first."""
        while self._open_spouts:
            close_all(self.plan.topology, [self._open_spouts.pop(0)])

    def close(self) -> None:
        """Close all of it, spouts first; what one part raises does not keep the others open."""
        closers: list[Callable[[], Any]] = [self.close_spouts]
        if self._in_parallel is not None:
            closers.append(self._in_parallel.shutdown)
        if self._driver is not None:
            closers.append(self._driver.cleanup)
        closers += [view.close for view in self._views.values()]
        closers += [state.close for states in self.states.values() for state in states if hasattr(state, "close")]
        if hasattr(self, "runner"):
            closers.append(self.runner.close)
        close_all(self.plan.topology, closers)


def open_parts(parts: Parts, graph: Graph, open_log: Callable[[], TransactionLog]) -> TransactionLog:
    """Open states, log, spouts and runner, checked and brought together; returns the log. On an error all is closed."""
    log: TransactionLog | None = None
    try:
        states = parts.open_states()
        check_capabilities(parts.plan, states)
        if not parts.config.allow_inexact:
            check_pairings(parts.plan, graph, states)
            check_reads(parts.plan, graph, states)
        log = open_log()
        meaning = meaning_of(graph)
        check_meaning(graph.name, log, meaning, parts.config.allow_changed_topology)
        reconcile(parts.plan, log, states, parts.config.state_recovery, parts.make_state)
        record_meaning(log, meaning)
        parts.open_runner(parts.open_spouts())
    except BaseException:
        parts.close()
        if log is not None:
            log.close()
        raise
    return log


def close_all(topology: str, closers: Sequence[Callable[[], Any]]) -> None:
    """Call every one of `closers`; what one of them raises is logged and does not keep the others open."""
    for close in closers:
        try:
            close()
        except Exception:
            logger.exception("topology %s: closing failed", topology)
