"""QueryRun: a topology that is open, and that the calls of a query lead; no thread of its own leads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trident.config import Config
from trident.coordination.memory_log import TransactionLog
from trident.graph import Graph, SpoutNode
from trident.notebook.running_glance import RunningGlance
from trident.observe.at_work import AtWork
from trident.observe.batch_committed import Placement
from trident.observe.events import TopologyListener, TopologyStarted, TopologyTerminated
from trident.observe.monitoring import Monitoring
from trident.planner import Plan, make_plan
from trident.runtime.clock import Clock
from trident.runtime.commit.dead_letters import waiting
from trident.runtime.engine.dataframe_runner import DataFrameRunner
from trident.runtime.figures.operation_totals import OperationTotals
from trident.runtime.loop.batch import LOOP, Observer
from trident.runtime.loop.execution import OneByOne
from trident.runtime.loop.loop import BatchLoop
from trident.runtime.loop.progress import Progress
from trident.runtime.loop.retrying import opened_when_back
from trident.runtime.query.handed_batches import HandedBatches, HandedSpout
from trident.runtime.replaying.rewinding import rewind
from trident.runtime.start.opened_topology import OpenedTopology, States
from trident.runtime.start.placements import DRIVER
from trident.runtime.topology_figures import TopologyFigures
from trident.spout.interfaces import Definition, OnNewLog
from trident.spout.query_batches import QueryBatches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plan_of_query(graph: Graph, handed: HandedBatches | None = None) -> Plan:
    """Return the plan of a graph as a query runs it: its batches are handed over, the driver commits its states."""
    nodes = [_handed(node, handed or HandedBatches()) if isinstance(node, SpoutNode) else node for node in graph.nodes]
    plan = make_plan(replace(graph, nodes=tuple(nodes)))
    return replace(plan, placements=dict.fromkeys(plan.partitions, DRIVER))


def _handed(node: SpoutNode, handed: HandedBatches) -> SpoutNode:
    assert isinstance(node.spout, QueryBatches), node
    return replace(node, spout=HandedSpout(node.spout, handed))


class QueryRun:
    """Opens everything when it is made, and leads one batch at a time.

    `open_log`: called with the states; what it raises is raised before anything is written.
    `begins`: where the batches begin when the log is new.
    `parallelism`: how many partitions an exchange has that declares none.
    `observer`: called at each point of a batch; see `Observer`.
    """

    def __init__(
        self,
        graph: Graph,
        config: Config,
        open_log: Callable[[States], TransactionLog],
        begins: OnNewLog,
        parallelism: int,
        listeners: Sequence[TopologyListener] = (),
        observer: Observer | None = None,
    ) -> None:
        self.graph, self._clock, self._error = graph, Clock(), None  # type: Graph, Clock, BaseException | None
        self._handed = HandedBatches(begins)
        plan = plan_of_query(graph, self._handed)
        self._monitoring = Monitoring(graph.name, listeners, config.metrics_port, config.metrics_host)
        try:
            self.opened = opened_when_back(
                graph.name,
                config,
                lambda: OpenedTopology(
                    graph,
                    plan,
                    config,
                    open_log,
                    rewind=rewind,
                    runner_of=lambda program, *_: DataFrameRunner(program, parallelism),
                ),
                self._clock,
            )
        except BaseException:
            self._monitoring.close()
            raise
        self._tell_started(plan, config, observer)

    def _tell_started(self, plan: Plan, config: Config, observer: Observer | None) -> None:
        run_id, clock = self._monitoring.run_id, self._clock
        placements: dict[str, Placement] = dict.fromkeys(plan.partitions, DRIVER)
        totals = OperationTotals(plan, [], clock.monotonic())
        publish = self._monitoring.publish
        self.progress = Progress(self.graph.name, config.progress_kept, run_id, placements, publish, totals)
        self.pages = TopologyFigures(self.graph, self.opened, totals, self.progress, clock, run_id, self._now)
        self._loop = BatchLoop(self.opened, OneByOne(LOOP), self.progress, clock, observer)
        self._monitoring.watch(self.pages.status)
        publish(TopologyStarted(self.graph.name, run_id, clock.wall_ms(), self.opened.log.state.txid, placements))

    @property
    def stream(self) -> str:
        """The name of the one stream."""
        return next(iter(self.opened.spouts))

    def lead(self, df: DataFrame, definition: Definition) -> None:
        """Lead a batch to its record, in this thread; raises what failed for good."""
        self._handed.hand_over(df, definition)
        try:
            self._loop.run_one()
        finally:
            self._handed.hand_over(None)

    def glance(self) -> RunningGlance:
        """Return what it does now, as notebooks show it."""
        _, told, _, _ = self._now()
        places = dict.fromkeys(self.opened.plan.partitions, DRIVER)
        return RunningGlance(self.graph.name, told, self.progress.last(), self.progress.seconds, places)

    def close(self, error: BaseException | None = None) -> None:
        """Close everything and tell the listeners; what ended it, if anything did."""
        self._error = error
        self.opened.close()
        self.pages.end()
        told = (None, None) if error is None else (str(error), type(error).__name__)
        txid = self.opened.log.state.txid
        self._monitoring.end(
            TopologyTerminated(self.graph.name, self._monitoring.run_id, self._clock.wall_ms(), txid, *told)
        )

    def _now(self) -> tuple[str, Mapping[str, Any], AtWork, BaseException | None]:
        sources, share = self.progress.sources()
        word, failure = "running" if self._error is None else "failed", self.progress.last_failure
        told = {
            "message": word,
            "txid": self.opened.log.state.txid,
            "batches": self.progress.batches,
            "tuples": self.progress.tuples,
            "share": share,
            "sources": sources,
            "replays": self.progress.replays,
            "failures": self.progress.failures,
            "lastFailure": None if failure is None else failure.cause,
            "deadLetters": waiting(self.opened.log.state),
            "leftOut": self.progress.left_out,
            "waiting": self._loop.waiting,
        }
        return word, told, AtWork(), self._error
