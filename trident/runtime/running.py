"""RunningTopology: a started topology, with the names of PySpark's `StreamingQuery`."""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from trident.config import Config
from trident.coordination.log_state import LogState
from trident.coordination.memory_log import MemoryLog
from trident.errors import TridentError
from trident.graph import Graph
from trident.naming import amount
from trident.notebook.live_display import show
from trident.notebook.running_glance import RunningGlance
from trident.observe.at_work import AtWork
from trident.observe.batch_committed import Placement, summed
from trident.observe.component_statistics import TopologyStatistics
from trident.observe.events import TopologyListener, TopologyStarted, TopologyTerminated
from trident.observe.monitoring import Monitoring
from trident.observe.reported_errors import WHOLE_TOPOLOGY, ReportedError
from trident.planner import make_plan
from trident.runtime.clock import Clock
from trident.runtime.commit.dead_letters import waiting
from trident.runtime.figures.operation_totals import OperationTotals
from trident.runtime.loop.batch import Observer
from trident.runtime.loop.execution import execution_of
from trident.runtime.loop.loop import BatchLoop
from trident.runtime.loop.progress import Progress
from trident.runtime.loop.retrying import AWAITS_BATCH, opened_when_back
from trident.runtime.reading.commit_gate import CommitGate
from trident.runtime.reading.views import StateView
from trident.runtime.replaying.rewinding import rewind
from trident.runtime.start.engine_choice import log_idle_loads, open_runner
from trident.runtime.start.opened_topology import OpenedTopology, open_log
from trident.runtime.start.placements import PlacedState, executors_of
from trident.runtime.topology_figures import TopologyFigures
from trident.runtime.watch import Watch
from trident.spout.interfaces import Lag

if TYPE_CHECKING:
    from trident.drpc.local import DRPCFunction, LocalDRPC
    from trident.explain import Explanation
    from trident.stream import TridentState

__all__ = ["Observer", "RunningTopology", "new_memory_log", "start"]


class Page(Protocol):
    """The page of a topology: it has its port before anything else is opened."""

    @property
    def url(self) -> str:
        """Where it is served."""

    def show(self, running: RunningTopology) -> None:
        """Answer with this topology from now on."""

    def close(self) -> None:
        """Free the port; harmless if done before."""


class RunningTopology:
    """A topology that runs in a thread of this process.

    Use it as a context manager: leaving it stops the topology after the running commit. Made by
    `TridentTopology.start`.
    """

    def __init__(
        self,
        graph: Graph,
        opened: OpenedTopology,
        observer: Observer | None,
        monitoring: Monitoring | None = None,
        active: bool = True,
        page: Page | None = None,
    ) -> None:
        self.name, self.graph, self.config = graph.name, graph, opened.config
        self._opened, self._clock = opened, Clock()
        self._began = self._clock.monotonic()
        self._monitoring = monitoring = monitoring or Monitoring(graph.name)
        self._page = page
        placements: dict[str, Placement] = {name: placed.where for name, placed in opened.placements.items()}
        self._totals = OperationTotals(opened.plan, executors_of(opened.placements), self._clock.monotonic())
        size = self.config.progress_kept
        self._progress = Progress(self.name, size, self.run_id, placements, monitoring.publish, self._totals)
        self.pages = TopologyFigures(graph, opened, self._totals, self._progress, self._clock, self.run_id, self._now)
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._drpc: LocalDRPC | None = None
        self._drpc_lock = threading.Lock()
        self._loop = BatchLoop(opened, execution_of(opened), self._progress, self._clock, observer, active)
        self._watch = Watch(
            self.name, self.config.message_timeout_s, self._loop, self._ended, self._give_up, lambda: self.at_work
        )
        monitoring.watch(self.pages.status)
        at_ms = self._clock.wall_ms()
        monitoring.publish(TopologyStarted(self.name, self.run_id, at_ms, self.txid, placements))
        if page is not None:
            page.show(self)
        threading.Thread(target=self._run, name=f"trident-{self.name}", daemon=True).start()

    # ---- the names of StreamingQuery ----------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether batches are (or may be) running."""
        return not self._ended.is_set()

    def process_all_available(self) -> None:
        """Block until everything that the spouts had when this was called is committed.

        Ten empty batches in a row are taken as the end of what the spouts have. With an endless spout (a cycling one) it
        never returns. Raises what ended the topology, if it ends first; `TridentError` while it is deactivated.
        """
        done = self._loop.drain()
        while not done.wait(0.05) and not self._ended.is_set():
            if self.is_deactivated:
                raise TridentError(
                    f"topology {self.name!r} is deactivated: its spouts are not asked for what they have; call activate()"
                )
        self._raise_error()
        if not done.is_set():
            raise TridentError(f"topology {self.name!r} was stopped before all available data was processed")

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the topology ends, at most `timeout` seconds; returns whether it ended, raises what ended it."""
        ended = self._ended.wait(timeout)
        if ended:
            self._raise_error()
        return ended

    def stop(self) -> None:
        """End after the running commit. Batches that are being processed are dropped; a restart processes them again.

        A commit that takes longer than `message_timeout_s`, and 10 seconds, is no longer waited for; `exception` says so. A
        listener may call this; there it does not wait, because the topology waits for its listeners.
        """
        self._watch.stop()
        if not self._monitoring.is_in_listener:
            self._ended.wait()

    def deactivate(self) -> None:
        """Begin no more batches; those that have begun are finished and committed, `drain` waits for them.

        States can be read and requests are answered meanwhile. Windows that are due by time wait for `activate`.
        """
        self._loop.set_active(False)

    def activate(self) -> None:
        """Begin batches again, after the last committed one."""
        self._loop.set_active(True)

    @property
    def is_deactivated(self) -> bool:
        """Whether it was asked to begin no more batches, and has not ended."""
        return not self._loop.activity.is_ordered and self.is_active

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until every batch that had begun is committed; whether that was so in time. Deactivate first.

        A batch that fails is tried again as always, and its spouts are asked again if they do not repeat batches. False also
        if another thread calls `activate` meanwhile. Raises what ended the topology, if it ends first.
        """
        rested, until = self._loop.activity.rested, math.inf if timeout_s is None else monotonic() + timeout_s
        while not rested.wait(max(0.0, min(0.05, until - monotonic()))):
            if self._ended.is_set() or not self.is_deactivated or monotonic() >= until:
                break
        self._raise_error()
        return rested.is_set()

    def exception(self) -> BaseException | None:
        """Return what ended the topology, None if it runs or was stopped."""
        return self._error

    @property
    def placements(self) -> Mapping[str, PlacedState]:
        """By state, where it is committed (`"driver"` or `"executors"`), and why there."""
        return self._opened.placements

    def explain(self) -> Explanation:
        """Return what runs where, as `TridentTopology.explain`, with where states and record are committed, and why there."""
        from trident.explain import Explanation, explain

        placed = self._opened.placements
        why = [f"  {name}: {where}, {reason}" for name, (where, reason) in placed.items()]
        apart = self._opened.apart
        if apart is not None:
            alone = f"a transaction of its own, because {apart}" if apart else "in one transaction with the states"
            why.append(f"  the record of a batch: {alone}")
        config, more = self._opened.config, ["commits", *why] if why else []
        text = explain(self.graph, {name: each.where for name, each in placed.items()}, config)
        if config.workers != "jobs":
            which = "batches" if config.engine == "spark" else "large batches"
            more += ["workers", f"  {which} are messages to tasks of Spark that stay, not jobs"]
        return Explanation("\n".join([text, *more, ""])) if more else text

    @property
    def status(self) -> dict[str, Any]:
        """What the topology does now: message, whether it is active, last committed txid, batches, failures, counters.

        `waiting` says which store or source does not answer, and since when; it is empty if all do.
        `deadLetters` counts those, of all runs, that wait to be put back, `leftOut` the tuples that this run has left out.
        `replays` counts the batches that were processed twice (`verify_replays`), could not be, and differed.
        `sources` has the rows of each source in this run, and its lag: an amount and a unit, None if it is not known. `share`
        is how much of their limits the sources may read. `listeners` has how many events each received and missed, and how
        many errors it raised.
        """
        log, (sources, share) = self.log_state, self._progress.sources()
        return {
            "message": self._message(),
            "waiting": self._loop.waiting if self.is_active else "",
            "isActive": self.is_active,
            "txid": log.txid,
            "batches": self._progress.batches,
            "tuples": self._progress.tuples,
            "sources": sources,
            "share": share,
            "failures": self._progress.failures,
            "lastFailure": None if self._progress.last_failure is None else self._progress.last_failure.cause,
            "deadLetters": waiting(log),
            "leftOut": self._progress.left_out,
            "replays": self._progress.replays,
            "metrics": self._progress.metrics(),
            "listeners": self._monitoring.listeners(),
        }

    @property
    def at_work(self) -> AtWork:
        """Which batch runs, for how long and where it is; since when none was committed, and what is left to do."""
        if not self.is_active:
            return AtWork()
        moved, usual_s = max(self._progress.last_recorded, self._began), self._progress.usual_s
        batch = self._loop.at_work(moved)
        sources, _ = self._progress.sources()
        lags = summed(Lag(**each["lag"]) for each in sources if each["lag"])
        left = " and ".join(amount(*each) for each in lags if each.amount)
        return AtWork(
            self._clock.monotonic() - moved,
            "committed",
            f"{left} to be read" if left and not self.is_deactivated else "",
            max(usual_s, self.config.batch_emit_interval_ms / 1000),
            self.config.message_timeout_s,
            None if batch is None else replace(batch, usual_s=usual_s),
        )

    @property
    def statistics(self) -> TopologyStatistics:
        """What each operation did in the committed batches of ten minutes, three hours, a day, and this run."""
        return self.pages.statistics

    @property
    def errors(self) -> list[ReportedError]:
        """The last ten errors of each operation, oldest first: failed attempts, tuples that were left out, what ended it."""
        return self._progress.errors.all()

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The last committed batch; None before the first."""
        return self._progress.last()

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The last `progress_kept` committed batches, oldest first."""
        return [event.as_dict() for event in self._progress.events()]

    def show_progress(
        self, timeout: float | None = None, *, until_caught_up: bool = False, every_s: float = 0.5
    ) -> None:
        """Show what the topology does until it ends: in one place in a notebook, as lines elsewhere.

        Ctrl-C (in a notebook: interrupt the kernel) ends the showing, and not the topology. Raises what ended the topology.

        Parameters
        ----------
        timeout
            Show it so many seconds at most.
        until_caught_up
            Stop showing when everything that the spouts had at this call is committed; see `process_all_available`.
        every_s
            Seconds from one look to the next.
        """
        done = self._loop.drain() if until_caught_up else self._ended
        until = math.inf if timeout is None else monotonic() + timeout

        def is_over() -> bool:
            done.wait(max(0.0, min(every_s, until - monotonic())))
            return done.is_set() or self._ended.is_set() or monotonic() >= until

        show(self._glance, is_over)
        self._raise_error()

    def add_listener(self, listener: TopologyListener) -> None:
        """Tell a listener of what happens from now on; see `TopologyListener`."""
        self._monitoring.add(listener)

    def remove_listener(self, listener: TopologyListener) -> None:
        """Remove a listener; events that are queued for it are still delivered."""
        self._monitoring.remove(listener)

    # ---- ours -------------------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The name of this run, in every event; another start has another one."""
        return self._monitoring.run_id

    @property
    def metrics_url(self) -> str | None:
        """Where metrics are served, None without `metrics_port`."""
        return self._monitoring.metrics_url

    @property
    def ui_url(self) -> str | None:
        """Where the page is served, None without `ui_port`."""
        return None if self._page is None else self._page.url

    @property
    def txid(self) -> int:
        """The last committed txid, 0 if there is none."""
        return self.log_state.txid

    @property
    def log_state(self) -> LogState:
        """What the log says now: an object that changes as batches are committed."""
        return self._opened.log.state

    @property
    def gate(self) -> CommitGate:
        """For readers that commits overtake."""
        return self._opened.gate

    @property
    def partitions(self) -> Mapping[str, int]:
        """The number of partitions of each state that the topology updates."""
        return self._opened.plan.partitions

    @property
    def seconds(self) -> float:
        """Seconds from the first define to the last commit of this run."""
        return self._progress.seconds

    def state(self, state: TridentState | str) -> StateView:
        """Return a state for reading, at the snapshot of the last committed batch."""
        name = state if isinstance(state, str) else state.state_name
        return self._opened.view(name)

    def drpc(self, function: str) -> DRPCFunction:
        """Return a DRPC function of the topology: `running.drpc("words").execute("cat dog the man")`.

        It is answered in this process, at the last committed batch, while the topology runs.
        """
        return self.local_drpc().function(function)

    def local_drpc(self) -> LocalDRPC:
        """Return what answers the DRPC functions in this process; it ends with the topology."""
        # Here, because most topologies have no function and need nothing of that package.
        from trident.drpc.local import LocalDRPC

        with self._drpc_lock:
            if self._drpc is None:
                if self._ended.is_set():
                    raise TridentError(f"topology {self.name!r} has ended, and its DRPC functions with it")
                self._drpc = LocalDRPC(self)
                self._opened.closers.add("drpc", self._drpc.close)
            return self._drpc

    def __enter__(self) -> RunningTopology:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self._raise_error()

    def __repr__(self) -> str:
        return f"RunningTopology({self.name!r}, {self.status['message']}, txid {self.txid})"

    def _repr_html_(self) -> str:
        return self._glance()._repr_html_()

    def _glance(self) -> RunningGlance:
        places = {name: placed.where for name, placed in self.placements.items()}
        return RunningGlance(self.name, self.status, self.last_progress, self.seconds, places)

    def _state(self) -> str:
        if self.is_active:
            return "inactive" if self.is_deactivated else "running"
        return "stopped" if self._error is None else "failed"

    def _now(self) -> tuple[str, Mapping[str, Any], AtWork, BaseException | None]:
        return self._state(), self.status, self.at_work, self._error

    def _message(self) -> str:
        if self._error is not None and not self.is_active:
            return f"failed: {self._error}"
        return (self._loop.waiting if self.is_active else "") or self._state()

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # noqa: BLE001  for exception(); raised where someone waits
            if not self._ended.is_set():
                self._note(error)
        finally:
            self._watch.stopping()
            self._opened.close()
            self._end_monitoring()
            with self._drpc_lock:
                self._ended.set()

    def _give_up(self, error: TridentError) -> None:
        """End the topology although its thread, or a commit, does not come back.

        Only the spouts are closed then. The log stays open, because the thread may come back and no other driver may write
        meanwhile.
        """
        self._loop.stop()  # if the thread comes back it must not begin a commit
        self._note(error)
        self._end_monitoring()
        self._ended.set()
        self._opened.closers.close("spouts")  # threads that wait for them have waited long enough

    def _note(self, error: BaseException) -> None:
        if self._error is None:
            text = "".join(traceback.format_exception(error))
            self._progress.errors.add(WHOLE_TOPOLOGY, text, self._clock.wall_ms() / 1000)
        self._error = self._error or error

    def _end_monitoring(self) -> None:
        error, at_ms = self._error, self._clock.wall_ms()
        cause = (None, None) if error is None else (str(error), type(error).__name__)
        self.pages.end()
        if self._page is not None:
            self._page.close()
        self._monitoring.end(TopologyTerminated(self.name, self.run_id, at_ms, self.txid, *cause))

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def start(
    graph: Graph,
    config: Config,
    memory_log: MemoryLog | None = None,
    observer: Observer | None = None,
    listeners: Sequence[TopologyListener] = (),
    active: bool = True,
    open_page: Callable[[str, int], Page] | None = None,
) -> RunningTopology:
    """Check, recover and run; see `TridentTopology.start`.

    Parameters
    ----------
    memory_log
        Continues a log of this process.
    open_page
        Opens the page at a host and a port, if `ui_port` asks for one.
    """
    plan = make_plan(graph)
    with ExitStack() as undo:
        # Ports first, because one that is taken is to be known before Spark starts and stores are opened.
        monitoring = Monitoring(graph.name, listeners, config.metrics_port, config.metrics_host)
        undo.callback(monitoring.close)
        page = None
        if open_page is not None and config.ui_port is not None:
            page = open_page(config.ui_host, config.ui_port)
            undo.callback(page.close)
        log_of = lambda states: open_log(plan, config, memory_log)  # noqa: E731
        runner_of = partial(open_runner, awaits_batch=AWAITS_BATCH.get())
        opened = opened_when_back(
            graph.name,
            config,
            lambda: OpenedTopology(graph, plan, config, log_of, runner_of=runner_of, rewind=rewind),
            Clock(),
        )
        undo.callback(opened.close)
        log_idle_loads(plan, config, executors_of(opened.placements))
        running = RunningTopology(graph, opened, observer, monitoring, active, page)
        undo.pop_all()
    return running


def new_memory_log(topology: str) -> MemoryLog:
    """Return an empty log in memory; `start` continues it each time, so the states in memory keep their log."""
    return MemoryLog(topology, epoch=0)
