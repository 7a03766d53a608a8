"""RunningTopology: a started topology, with the names of PySpark's `StreamingQuery`."""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from trident.config import Config
from trident.coordination.log_state import LogState
from trident.coordination.memory_log import MemoryLog, TransactionLog
from trident.coordination.transaction_log import FileLog
from trident.errors import TridentError
from trident.graph import Graph, PersistNode
from trident.planner import Plan, make_plan
from trident.planner.loads import commit_loads
from trident.runtime.driver.daemon_pool import DaemonPool
from trident.runtime.driver.loop import BatchLoop, Clock
from trident.runtime.driver.parts import Parts, close_all, open_parts
from trident.runtime.driver.progress import Progress
from trident.runtime.letters.dead_letters import dead_letters_of, waiting
from trident.runtime.reading.commit_gate import CommitGate
from trident.runtime.reading.views import StateView
from trident.runtime.steps.kernels import only_kernels
from trident.spout.interfaces import TransactionAttempt

if TYPE_CHECKING:
    from trident.drpc.local import DRPCFunction, LocalDRPC

__all__ = ["Observer", "RunningTopology", "new_memory_log", "start"]

logger = logging.getLogger(__name__)

Observer = Callable[[str, TransactionAttempt], None]

_STOP_S = 10.0
_QUICK_BYTES = 32 << 10
"""Up to this size a batch that meets kernels and memory only is done sooner than it is handed to other threads."""


class Named(Protocol):
    """A handle to a state by its name; `TridentState` is one."""

    @property
    def state_name(self) -> str:
        """The state's name in the topology."""


class RunningTopology:
    """A topology that runs in a thread of this process.

    Use it as a context manager: leaving it stops the topology after the commit under way. Made by
    `TridentTopology.start`.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        config: Config,
        log: TransactionLog,
        parts: Parts,
        observer: Observer | None,
    ) -> None:
        self.name, self.graph, self.config = plan.topology, graph, config
        self.run_id = uuid.uuid4().hex
        self._plan, self._log, self._parts = plan, log, parts
        self._progress = Progress(plan.topology, config.progress_kept)
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._stop_by = math.inf  # once it is to end
        self._drpc: LocalDRPC | None = None
        self._drpc_lock = threading.Lock()
        pending = config.max_spout_pending
        most = pending * (config.max_batch_attempts + 1)  # each attempt may hang, and the next one needs a thread
        self._pool = DaemonPool(most, f"trident-{plan.topology}-process")
        self._commit_thread = DaemonPool(1, f"trident-{plan.topology}-commit")
        self._loop = BatchLoop(
            plan, config, log, parts.runner, parts.committer, parts.spouts, self._pool, self._commit_thread,
            self._progress, Clock(), dead_letters_of(config, plan.topology), observer,
            _inline_bytes(plan, config, parts), parts.gate, parts.commit_threads,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name=f"trident-{plan.topology}", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name=f"trident-{plan.topology}-watch", daemon=True).start()
        _running.add(self)

    # ---- the names of StreamingQuery ----------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether batches are (or may be) running."""
        return not self._ended.is_set()

    def process_all_available(self) -> None:
        """Block until everything that the spouts had when this was called is committed.

        Ten empty batches in a row, of spouts that have such, count as the end of what they have. An endless spout (a
        cycling one) never lets it return. Raises what ended the topology, if it ends first.
        """
        done = self._loop.drain()
        while not done.wait(0.05):
            if self._ended.is_set():
                break
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
        """End after the commit under way. What is being processed is dropped; a restart does it again.

        A commit that takes longer than `message_timeout_s`, and 10 seconds, is left behind: `exception` says so.
        """
        self._loop.stop()
        self._limit_stop()
        self._ended.wait()

    def exception(self) -> BaseException | None:
        """Return what ended the topology, None if it runs or was stopped."""
        return self._error

    @property
    def status(self) -> dict[str, Any]:
        """What the topology does now: message, whether it is active, last committed txid, batches, failures, counters.

        `deadLetters` are those of all runs that wait to be put back.
        """
        log = self._log.state
        message = "running" if self.is_active else ("stopped" if self._error is None else f"failed: {self._error}")
        return {
            "message": message,
            "isActive": self.is_active,
            "txid": log.txid,
            "batches": self._progress.batches,
            "tuples": self._progress.tuples,
            "failures": self._progress.failures,
            "lastFailure": None if self._progress.last_failure is None else self._progress.last_failure.cause,
            "deadLetters": waiting(log),
            "metrics": self._progress.metrics(),
        }

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The last committed batch; None before the first."""
        recent = self._progress.recent()
        return recent[-1] if recent else None

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The last `progress_kept` committed batches, oldest first."""
        return self._progress.recent()

    # ---- ours -------------------------------------------------------------------------------------------------------

    @property
    def txid(self) -> int:
        """The last committed txid, 0 if there is none."""
        return self._log.state.txid

    @property
    def log_state(self) -> LogState:
        """What the log says now: an object that changes as batches are committed."""
        return self._log.state

    @property
    def gate(self) -> CommitGate:
        """For readers that commits overtake."""
        return self._parts.gate

    @property
    def partitions(self) -> Mapping[str, int]:
        """The number of partitions of each state that the topology updates."""
        return self._plan.partitions

    @property
    def seconds(self) -> float:
        """Seconds from the first define to the last commit of this run."""
        return self._progress.seconds

    def state(self, state: Named | str) -> StateView:
        """Return a state for reading, at the snapshot of the last committed batch."""
        name = state if isinstance(state, str) else state.state_name
        return self._parts.view(name, lambda: self._log.state)

    def drpc(self, function: str) -> DRPCFunction:
        """Return a DRPC function of the topology: `running.drpc("words").execute("cat dog the man")`.

        It is answered in this process, at the last committed batch, for as long as the topology runs.
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

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # noqa: BLE001  kept for exception(), raised to whoever waits
            if not self._ended.is_set():
                self._error = error
                logger.error("topology %s ended at batch %d: %s", self.name, self._log.state.txid, error)
        finally:
            self._limit_stop()
            self._close()
            with self._drpc_lock:
                self._ended.set()

    def _limit_stop(self) -> None:
        self._stop_by = min(self._stop_by, time.monotonic() + max(self.config.message_timeout_s, _STOP_S))

    def _watch(self) -> None:
        """End the topology where code of the user's hangs in the loop's own thread, or in a commit.

        Only the spouts are closed then, the log least of all: the thread may come back, and must find that nobody else
        writes.
        """
        while not self._ended.wait(min(1.0, self.config.message_timeout_s / 4)):
            error = self._hanging()
            if error is not None:
                self._loop.stop()  # if the thread comes back it begins no commit
                self._error = self._error or error
                logger.error("topology %s ended at batch %d: %s", self.name, self._log.state.txid, error)
                self._ended.set()
                self._parts.close_spouts()  # whoever waits for them has waited enough

    def _hanging(self) -> TridentError | None:
        try:
            error = self._loop.hanging()
        except Exception:
            logger.exception("topology %s: not found out whether it hangs; looking again", self.name)
            return None
        if error is None and time.monotonic() > self._stop_by:
            limit = max(self.config.message_timeout_s, _STOP_S)
            return TridentError(
                f"topology {self.name!r} did not end within {limit:g} seconds after it was to stop; what it waits for is "
                "left behind, and a restart goes on after the last recorded batch"
            )
        return error

    def _close(self) -> None:
        """Release everything; what one part raises does not keep the others open."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._drpc_lock:
            if self._drpc is not None:
                self._drpc.close()
        self._commit_thread.shutdown(wait=True)
        close_all(self.name, [self._parts.close, self._log.close])

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


_running: weakref.WeakSet[RunningTopology] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Stop what the program did not: a thread that is in a library of C while the interpreter goes crashes the process.

    What hangs is left behind.
    """
    until = time.monotonic() + _STOP_S
    topologies = list(_running)
    for running in topologies:
        running._loop.stop()  # noqa: SLF001  as a method would
    for running in topologies:
        running._ended.wait(max(0.0, until - time.monotonic()))  # noqa: SLF001  as above


def start(
    graph: Graph, config: Config, memory_log: MemoryLog | None = None, observer: Observer | None = None
) -> RunningTopology:
    """Check, recover and run; see `TridentTopology.start`. `memory_log` carries on with a log of this process."""
    plan = make_plan(graph)
    _tell_loads(plan, config)
    parts = Parts(plan, config)
    log = open_parts(parts, graph, lambda: _open_log(plan, config, memory_log))
    try:
        return RunningTopology(graph, plan, config, log, parts, observer)
    except BaseException:
        close_all(plan.topology, [parts.close, log.close])
        raise


def new_memory_log(topology: str) -> MemoryLog:
    """Return an empty log in memory; `start` goes on with it each time, so the states in memory keep their log."""
    return MemoryLog(topology)


def lives_in_memory(plan: Plan) -> bool:
    """Whether every state of a plan lives in this process's memory."""
    return all(
        getattr(plan.states[node.state].spec.factory, "in_memory", False)
        for node in plan.commits
        if isinstance(node, PersistNode)
    )


def _open_log(plan: Plan, config: Config, memory_log: MemoryLog | None) -> TransactionLog:
    if config.log_dir is None and lives_in_memory(plan):
        return MemoryLog(plan.topology) if memory_log is None else memory_log.reopened(config.takeover)
    return FileLog.open(config.log_folder(plan.topology), plan.topology, takeover=config.takeover)


def _inline_bytes(plan: Plan, config: Config, parts: Parts) -> float:
    """Up to which size the loop's own thread does a batch; beyond, processing one overlaps committing another."""
    if config.max_spout_pending == 1:
        return math.inf
    emitters = parts.runner.program.emitters.values()
    at_hand = all(getattr(emitter, "is_quick", False) for emitter in emitters)  # a user's own may wait for its source
    quick = at_hand and lives_in_memory(plan) and parts.committer.is_quick and only_kernels(plan)
    return _QUICK_BYTES if quick else 0


def _tell_loads(plan: Plan, config: Config) -> None:
    unplaced = commit_loads(plan) if config.engine != "in_process" else list(plan.resources)
    if unplaced:
        logger.info(
            "topology %s: cpu and memory loads of %s are recorded only: they run in the process of the driver",
            plan.topology, ", ".join(unplaced),
        )  # fmt: skip
