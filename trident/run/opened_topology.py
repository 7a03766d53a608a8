"""OpenedTopology: everything that a topology opens to run. It is opened, checked and connected at once, and closed again."""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from trident.config import Config
from trident.engine.replay_check import ReplayCheck
from trident.errors import TridentError, UnsupportedOperation
from trident.extras import check_pyspark
from trident.graph import Graph
from trident.plan import Plan
from trident.read.open_partitions import check_stores, make_state, view_of, writers_as_left, writers_of
from trident.read.state_partitions import CommitGate
from trident.read.views import StateView
from trident.roles import close_on_error
from trident.run.batch_spouts import open_spouts
from trident.run.committing import open_committer, programs_of
from trident.run.dead_letters import dead_letters_of
from trident.run.engine_choice import RunnerOf, open_runner, with_workers
from trident.run.placements import (
    OpenLog,
    States,
    check_states,
    executors_of,
    lasting_states,
    placements_of,
    states_with_record,
    why_apart,
)
from trident.run.recovery import NewMeaning, compared_with_log, reconcile
from trident.state.interfaces import StateFacts

logger = logging.getLogger(__name__)

Close = Callable[[], Any]

# Threads before what they use. Spouts early, because a thread may wait for its feed. The log last, because its claim keeps
# other drivers away until everything else is closed.
_ORDER = ("processing", "drpc", "committing", "spouts", "operations", "views", "states", "runner", "log")


def refuse_to_rewind(*_: Any) -> None:
    raise UnsupportedOperation(
        'state_recovery="rewind" is for topologies that keep a history in a log (history=, log_dir=)'
    )


class OpenedTopology:
    """What a topology opened to run, and has to close: checked and connected once it is made; an error closes all again."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        config: Config,
        open_log: OpenLog,  # once the states have the needed abilities: a topology that cannot run takes no log
        in_threads: bool = True,
        runner_of: RunnerOf = open_runner,
        rewind: Callable[..., None] = refuse_to_rewind,
    ) -> None:
        self.plan, self.config, self.closers = plan, config, Closers(plan.topology)
        self.gate = CommitGate()  # held by readers that commits overtake
        self._views: dict[str, StateView] = {}
        with close_on_error(self.closers.close):
            self._open_stored(graph, open_log, rewind)
            self._open_engine(runner_of, in_threads)
            self.publish_recorded()

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
        for name, recorded in self.publishing:
            recorded(self.log.state.snapshot(name))

    def close(self) -> None:
        """Close everything, spouts first and the log last, also if something raises."""
        self.closers.close()

    def _open_stored(self, graph: Graph, open_log: OpenLog, rewind: Callable[..., None]) -> None:
        """Open and compare states and log; nothing is written before topology, log and stores are known to belong together."""
        plan, config, to_close = self.plan, self.config, partial(self.closers.add, "states")
        if config.engine != "in_process":  # an engine that may be Spark needs a PySpark that it runs on
            check_pyspark('engine="in_process"')
        self.states: States = writers_as_left(graph, plan, config, to_close)  # those that the topology updates
        check_states(plan, graph, self.states, config.allow_inexact)
        self.placements = placements_of(plan, config, self.states)
        self.executors = executors_of(self.placements)
        self.log = log = open_log(self.states)
        self.closers.add("log", log.close)
        graph, self.plan, compared = compared_with_log(graph, plan, log, config.allow_changed_topology)
        self.graph = graph  # as the log has left its states
        if self.plan is not plan:
            self.closers.close("states")
            self.states = writers_of(self.plan, config, to_close)
        check_stores(compared, self.states)
        self.lasting = lasting_states(self.plan, self.states)  # nothing takes back what a failed attempt wrote to them
        reconcile(
            self.plan, log, self.states, config.state_recovery, partial(make_state, self.plan, config),
            partial(rewind, graph, config, log, compared.recorded), self.executors, self.lasting,
        )  # fmt: skip
        self.meaning = NewMeaning.of(log, self.plan, compared, self.lasting)  # what the log does not say yet

    def _open_engine(self, runner_of: RunnerOf, in_threads: bool) -> None:
        plan, closers, executors = self.plan, self.closers, self.executors
        self.spouts, self.repeated, emitters = open_spouts(plan, self.config, partial(closers.add, "spouts"))
        self.config = config = with_workers(self.config, self.spouts)
        here, on_spark, behind = programs_of(plan, emitters, config.as_mapping(), executors)
        self.runner = runner_of(here, config, plan, on_spark, self.spouts)
        closers.add("runner", self.runner.close)
        to_close = partial(closers.add, "operations")
        self.committer = open_committer(plan, self.states, behind, self.runner, to_close, in_threads)
        self.committing = [name for name, spout in self.spouts.items() if spout.offers("commit")]
        self.apart = why_apart(plan, executors, config.log_dir or "", self.committing)
        self.carrier, with_record = states_with_record(plan, self.log, self.apart)
        for name in with_record:
            self.committer.states[name][0].facts.commit_with_record(self.committer.later.append)
        self.letters = dead_letters_of(config, plan.topology)
        publishing = ((name, one.facts.recorded) for name, each in self.states.items() for one in each)
        self.publishing = [
            (name, recorded) for name, recorded in publishing if recorded not in (None, StateFacts.recorded)
        ]
        self.replays: ReplayCheck | None = None
        if config.verify_replays:
            self.replays = ReplayCheck(here, config.verify_replays, self.runner.parallelism)
            to_close(self.replays.close)


class Closers:
    """Everything that was opened so far; it is closed by kind, in the order above."""

    def __init__(self, topology: str) -> None:
        self._topology = topology
        self._by_kind: dict[str, deque[Close]] = {kind: deque() for kind in _ORDER}

    def add(self, kind: str, *closers: Close) -> None:
        self._by_kind[kind].extend(closers)

    def close(self, *kinds: str) -> None:
        """Close all, or some kinds only. Each thing is closed once, by the first thread that asks; errors are logged."""
        for kind in kinds or _ORDER:
            with suppress(IndexError):
                while True:
                    close = self._by_kind[kind].popleft()  # atomic: two threads may close at once
                    try:
                        close()
                    except Exception:
                        logger.exception("topology %s: closing failed", self._topology)
