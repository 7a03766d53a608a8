"""RunningTopology: a started topology, with the names of PySpark's `StreamingQuery`."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from trident.channel import waitable
from trident.config import Config
from trident.errors import TridentError
from trident.graph import Graph
from trident.log.log_interface import MemoryLog
from trident.notebook import show
from trident.observe.events import TopologyListener
from trident.observe.health import StallLog
from trident.observe.monitoring import Monitoring
from trident.plan import make_plan
from trident.run.batch import Observer
from trident.run.drive import Drive, opened_to_last
from trident.run.engine_choice import log_idle_loads
from trident.run.execution import lanes_of
from trident.run.opened_topology import OpenedTopology
from trident.run.placements import open_log
from trident.spout.query_batches import QueryBatches

if TYPE_CHECKING:
    from trident.drpc.local import DRPCFunction, LocalDRPC
    from trident.explain import Explanation

logger = logging.getLogger(__name__)

_STOP_S = 10.0  # a stop waits at least this long; a running commit may take `message_timeout_s`


class Page(Protocol):
    """The page of a topology: it has its port before anything else is opened."""

    @property
    def url(self) -> str:
        """Where it is served."""

    def show(self, running: RunningTopology) -> None:
        """Answer with this topology from now on."""

    def close(self) -> None:
        """Free the port; harmless if done before."""


class RunningTopology(Drive):
    """A topology that runs in a thread of this process. A context manager: leaving it stops the topology.

    Made by `TridentTopology.start`.
    """

    def __init__(
        self,
        graph: Graph,
        opened: OpenedTopology,
        monitoring: Monitoring,
        observer: Observer | None = None,
        active: bool = True,
        page: Page | None = None,
    ) -> None:
        super().__init__(graph, opened, monitoring, lanes_of(opened), observer, active)
        self._page = page
        self._drpc: LocalDRPC | None = None
        self._drpc_lock = threading.Lock()
        self._stalls, self._stop_by = StallLog(self.name, logger), math.inf
        if page is not None:
            page.show(self)
        threading.Thread(target=self._watch, name=f"trident-{self.name}-watch", daemon=True).start()
        _running.add(self)
        threading.Thread(target=self._run, name=f"trident-{self.name}", daemon=True).start()

    def process_all_available(self) -> None:
        """Block until everything that the spouts had when this was called is committed.

        Ten empty batches in a row are taken as the end of what the spouts have. With an endless spout (a cycling one) it
        never returns. Raises what ended the topology, if it ends first; `TridentError` while it is deactivated.
        """
        done = self.loop.drain()
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
        ended = self._ended.wait(waitable(timeout))
        if ended:
            self._raise_error()
        return ended

    def stop(self) -> None:
        """End after the running commit. Batches that are being processed are dropped; a restart processes them again.

        A commit that takes longer than `message_timeout_s`, and 10 seconds, is no longer waited for; `exception` says so. A
        listener may call this; there it does not wait, because the topology waits for its listeners.
        """
        if self.is_active:
            self._ask_to_end()
        if not self._monitoring.is_in_listener:
            self._ended.wait()

    def deactivate(self) -> None:
        """Begin no more batches; those that have begun are finished and committed, `drain` waits for them.

        States can be read and requests are answered meanwhile. Windows that are due by time wait for `activate`.
        """
        self.loop.set_active(False)

    def activate(self) -> None:
        """Begin batches again, after the last committed one."""
        self.loop.set_active(True)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until every batch that had begun is committed; whether that was so in time. Deactivate first.

        A batch that fails is tried again as always, and its spouts are asked again if they do not repeat batches. False also
        if another thread calls `activate` meanwhile. Raises what ended the topology, if it ends first.
        """
        rested, until = self.loop.start_gate.ordered.rested, math.inf if timeout_s is None else monotonic() + timeout_s
        while not rested.wait(max(0.0, min(0.05, until - monotonic()))):
            if self._ended.is_set() or not self.is_deactivated or monotonic() >= until:
                break
        self._raise_error()
        return rested.is_set()

    def explain(self) -> Explanation:
        """Return what runs where, as `TridentTopology.explain`, with where states and record are committed, and why there."""
        from trident.explain import Explanation, explain

        placed = self.opened.placements
        why = [f"  {name}: {where}, {reason}" for name, (where, reason) in placed.items()]
        apart = self.opened.apart
        if apart is not None:
            alone = f"a transaction of its own, because {apart}" if apart else "in one transaction with the states"
            why.append(f"  the record of a batch: {alone}")
        config, more = self.opened.config, ["commits", *why] if why else []
        text = explain(self.graph, {name: each.where for name, each in placed.items()}, config)
        if config.workers != "jobs":
            which = "batches" if config.engine == "spark" else "large batches"
            more += ["workers", f"  {which} are messages to tasks of Spark that stay, not jobs"]
        return Explanation("\n".join([text, *more, ""])) if more else text

    def show_progress(
        self, timeout: float | None = None, *, until_caught_up: bool = False, every_s: float = 0.5
    ) -> None:
        """Show what the topology does until it ends, `timeout` seconds at most: in one place in a notebook, as lines elsewhere.

        With `until_caught_up` it stops when all that the spouts had at this call is committed; see `process_all_available`.
        Ctrl-C (in a notebook: interrupt the kernel) ends the showing, and not the topology. Raises what ended the topology.
        """
        done = self.loop.drain() if until_caught_up else self._ended
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

    @property
    def metrics_url(self) -> str | None:
        """Where metrics are served, None without `metrics_port`."""
        return self._monitoring.metrics_url

    @property
    def ui_url(self) -> str | None:
        """Where the page is served, None without `ui_port`."""
        return None if self._page is None else self._page.url

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
                self.opened.closers.add("drpc", self._drpc.close)
            return self._drpc

    def __enter__(self) -> RunningTopology:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()
        if error is None:
            self._raise_error()

    def __repr__(self) -> str:
        return f"RunningTopology({self.name!r}, {self.status['message']}, txid {self.txid})"

    def _run(self) -> None:
        try:
            self.loop.run()
        except BaseException as error:  # noqa: BLE001  for exception(); raised where someone waits
            if not self._ended.is_set():
                self._note(error)
        finally:
            self._hurry()
            self.end()

    def _ask_to_end(self) -> None:
        self.loop.stop()
        self._hurry()

    def _hurry(self) -> None:
        self._stop_by = min(self._stop_by, monotonic() + max(self.config.message_timeout_s, _STOP_S))

    def _watch(self) -> None:
        """End the topology where its own thread cannot, because user code or a store does not return."""
        while not self._ended.wait(min(1.0, self.config.message_timeout_s / 4)):
            try:
                self._stalls.look(self.at_work)
            except Exception:
                logger.exception("topology %s: cannot find out what it works on; looking again", self.name)
            error: TridentError | None = None
            try:
                error = self.loop.hanging()
            except Exception:
                logger.exception("topology %s: cannot find out whether it hangs; looking again", self.name)
                continue
            if error is None and monotonic() > self._stop_by:
                limit = max(self.config.message_timeout_s, _STOP_S)
                error = TridentError(
                    f"topology {self.name!r} did not end within {limit:g} seconds after it was told to stop; what it "
                    "waits for is abandoned, and a restart goes on after the last recorded batch"
                )
            if error is not None:
                self.loop.stop()  # if the thread comes back it must not begin a commit
                self._note(error)
                self._tell_ended()
                self._ended.set()
                # Not the log: the thread may come back, and no other driver may write meanwhile.
                self.opened.closers.close("spouts")  # threads that wait for them have waited long enough

    def _tell_ended(self) -> None:
        if self._page is not None:
            self._page.close()
        super()._tell_ended()

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
    """Check, recover and run; see `TridentTopology.start`."""
    plan = make_plan(graph)
    for node in plan.spouts:
        if isinstance(node.spout, QueryBatches):  # refused before a log is begun, or a store emptied, for nothing
            node.spout.get_coordinator({"stream": node.id})
    with ExitStack() as undo:
        # Ports first, because one that is taken is to be known before Spark starts and stores are opened.
        monitoring = Monitoring(graph.name, listeners, config.metrics_port, config.metrics_host)
        undo.callback(monitoring.close)
        page = None
        if open_page is not None and config.ui_port is not None:
            page = open_page(config.ui_host, config.ui_port)
            undo.callback(page.close)
        opened = opened_to_last(graph, plan, config, lambda states: open_log(plan, config, memory_log))
        undo.callback(opened.close)
        log_idle_loads(plan, config, opened.executors)
        running = RunningTopology(graph, opened, monitoring, observer, active, page)
        undo.pop_all()
    return running


def new_memory_log(topology: str) -> MemoryLog:
    """Return an empty log in memory; `start` continues it each time, so the states in memory keep their log."""
    return MemoryLog(topology, epoch=0)


_running: weakref.WeakSet[RunningTopology] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Stop the topologies that the program did not stop, because a thread inside a C library crashes an ending interpreter."""
    until = monotonic() + _STOP_S
    topologies = [each for each in _running if each.is_active]
    for each in topologies:
        each._ask_to_end()  # noqa: SLF001  of this module
    for each in topologies:
        each._ended.wait(max(0.0, until - monotonic()))  # noqa: SLF001


def _leave_to_parent() -> None:
    """Let the topologies be over in a forked process: the threads that run them, and would end them, are its parent's."""
    for each in [one for one in _running if one.is_active]:
        text = f"topology {each.name!r} runs in the process that was forked, and goes on there; it cannot be used here"
        each._error, each._ended = TridentError(text), threading.Event()  # noqa: SLF001  a thread may have held the lock
        each._ended.set()  # noqa: SLF001


os.register_at_fork(after_in_child=_leave_to_parent)
