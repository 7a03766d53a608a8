"""RunningTopology: a started topology, with the names of PySpark's `StreamingQuery`."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trident.config import Config
from trident.coordination.log import FileLog, MemoryLog, TransactionLog
from trident.coordination.records import LogState
from trident.errors import InexactPairingError, TridentError
from trident.graph import Graph, PersistNode, StateNode
from trident.planner import Plan, make_plan
from trident.planner.guarantees import EXACT, spout_type_of
from trident.planner.loads import StageLoad, commit_loads, stage_loads
from trident.planner.meaning import meaning_of
from trident.runtime.auto import AutoRunner, LateRunner, cores
from trident.runtime.bounds import Bounds
from trident.runtime.changes import check_meaning, record_meaning
from trident.runtime.committer import Committer, Reach, check_capabilities, committed_operations
from trident.runtime.dead_letters import DeadLetters
from trident.runtime.loop import BatchLoop, Clock, SpoutHandle
from trident.runtime.progress import Progress
from trident.runtime.recovery import reconcile
from trident.runtime.resources import memory_settings
from trident.runtime.runners import InProcessRunner, Runner, SparkRunner
from trident.runtime.spouts import as_trident_spout
from trident.runtime.views import StateView
from trident.runtime.worker import Program, WorkerProgram
from trident.spout.interfaces import TransactionAttempt
from trident.state.interfaces import StateConf, StateType

if TYPE_CHECKING:
    from trident.drpc.local import DRPCFunction, LocalDRPC
    from trident.stream import TridentState

__all__ = [
    "Observer",
    "Parts",
    "RunningTopology",
    "close_all",
    "dead_letter_dir_of",
    "log_dir_of",
    "new_memory_log",
    "open_parts",
    "open_state",
    "open_view",
    "start",
]

logger = logging.getLogger(__name__)

Observer = Callable[[str, TransactionAttempt], None]


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
        self._plan, self._config, self._log, self._parts = plan, config, log, parts
        self._progress = Progress(plan.topology, config.progress_kept)
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._drpc: LocalDRPC | None = None
        self._drpc_lock = threading.Lock()
        pending = config.max_spout_pending
        self._pool = ThreadPoolExecutor(pending * 2, thread_name_prefix=f"trident-{plan.topology}-process")
        self._commit_thread = ThreadPoolExecutor(1, thread_name_prefix=f"trident-{plan.topology}-commit")
        letters = DeadLetters(dead_letter_dir_of(config, plan.topology)) if config.on_poison == "dead_letter" else None
        self._loop = BatchLoop(
            plan, config, log, parts.runner, parts.committer, parts.spouts, self._pool, self._commit_thread,
            self._progress, Clock(), letters, observer, inline=pending == 1,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name=f"trident-{plan.topology}", daemon=True)
        self._thread.start()

    # ---- the names of StreamingQuery ----------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether batches are (or may be) running."""
        return not self._ended.is_set()

    def process_all_available(self) -> None:
        """Block until everything that the spouts had when this was called is committed.

        Raises what ended the topology, if it ends first. An endless spout (a cycling one) never lets it return.
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
        """End after the commit under way. What is being processed is dropped; a restart does it again."""
        self._loop.stop()
        self._ended.wait()

    def exception(self) -> BaseException | None:
        """Return what ended the topology, None if it runs or was stopped."""
        return self._error

    @property
    def status(self) -> dict[str, Any]:
        """What the topology does now: message, whether it is active, last committed txid, batches, failures, counters."""
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
    def partitions(self) -> Mapping[str, int]:
        """The number of partitions of each state that the topology updates."""
        return self._plan.partitions

    @property
    def seconds(self) -> float:
        """Seconds from the first define to the last commit of this run."""
        return self._progress.seconds

    def state(self, state: TridentState | str) -> StateView:
        """Return a state for reading, at the snapshot of the last committed batch."""
        name = state if isinstance(state, str) else state.state_name
        if name not in self._plan.states:
            raise TridentError(f"topology {self.name!r} has no state {name!r}; it has {list(self._plan.states)}")
        return self._parts.view(name, lambda: self._log.state.snapshot(name))

    def drpc(self, function: str) -> DRPCFunction:
        """Return a DRPC function of the topology: `running.drpc("words").execute("cat dog the man")`.

        It is answered in this process, at the last committed batch, for as long as the topology runs.
        """
        return self.local_drpc().function(function)

    def local_drpc(self) -> LocalDRPC:
        """Return what answers the DRPC functions in this process; it ends with the topology."""
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
            self._error = error
            logger.error("topology %s ended at batch %d: %s", self.name, self._log.state.txid, error)
        finally:
            self._close()
            with self._drpc_lock:
                self._ended.set()

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
        self.plan = self._plan = plan
        self.config = self._config = config
        self._reach, self._threads = reach, threads
        self.states: dict[str, list[Any]] = {}
        self._views: dict[str, StateView] = {}
        self.spouts: dict[str, SpoutHandle] = {}
        self.runner: Runner
        self.committer: Committer
        self._driver: WorkerProgram | None = None
        self._in_parallel: ThreadPoolExecutor | None = None

    def open_states(self) -> dict[str, list[Any]]:
        """Open the writers of all states that the topology updates."""
        for name, count in self._plan.partitions.items():
            self.states[name] = [self.make_state(name, partition, count) for partition in range(count)]
        return self.states

    def make_state(self, name: str, partition: int, partitions: int, read_only: bool = False) -> Any:
        """Open one partition of a state."""
        return make_state(self._plan, self._config, name, partition, partitions, read_only)

    def open_spouts(self) -> dict[str, Any]:
        """Open the spouts' coordinators; return their emitters."""
        settings = self._config.as_mapping()
        emitters = {}
        for node in self._plan.spouts:
            spout = as_trident_spout(node.spout)
            self.spouts[node.id] = SpoutHandle(node.id, spout.get_coordinator(settings), spout_type_of(spout))
            emitters[node.id] = spout.get_emitter(settings)
        return emitters

    def open_runner(self, emitters: dict[str, Any]) -> None:
        """Open the runner and the committer."""
        plan, config = self._plan, self._config
        commit_side = {node.id: plan.fragments[node.id] for node in plan.commits}
        fragments = {entry: fragment for entry, fragment in plan.fragments.items() if entry not in commit_side}
        static = {name: state for name, state in plan.states.items() if state.static}
        program = Program(plan.topology, fragments, emitters, static, config.as_mapping(), plan.exchanges, plan.levels)
        self.runner = _runner(program, config, stage_loads(plan))
        self._driver = WorkerProgram(
            Program(plan.topology, commit_side, {}, static, config.as_mapping(), plan.exchanges),
            committed_operations(plan),
            self.runner.operations,
        )
        widest = max(plan.partitions.values(), default=1)
        if widest > 1 and self._threads:
            self._in_parallel = ThreadPoolExecutor(min(widest, 16), thread_name_prefix=f"trident-{plan.topology}-state")
        in_parallel = map if self._in_parallel is None else self._in_parallel.map
        exchanges = self.runner.program.exchanges
        self.committer = Committer(
            plan, self.states, self._driver.state, in_parallel, exchanges, self._reach, Bounds.of(config.as_mapping())
        )

    def view(self, name: str, snapshot: Any) -> StateView:
        """Open a state for reading; closed with the topology."""
        if name not in self._views:
            count = self._plan.partitions.get(name, 1)
            instances = [self.make_state(name, partition, count, read_only=True) for partition in range(count)]
            self._views[name] = StateView(instances, snapshot, name)
        return self._views[name]

    def close(self) -> None:
        """Close all of it, spouts first; what one part raises does not keep the others open."""
        closers: list[Callable[[], Any]] = [spout.coordinator.close for spout in self.spouts.values()]
        if self._in_parallel is not None:
            closers.append(self._in_parallel.shutdown)
        if self._driver is not None:
            closers.append(self._driver.cleanup)
        closers += [view.close for view in self._views.values()]
        closers += [state.close for states in self.states.values() for state in states if hasattr(state, "close")]
        if hasattr(self, "runner"):
            closers.append(self.runner.close)
        close_all(self._plan.topology, closers)


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


def open_parts(parts: Parts, graph: Graph, open_log: Callable[[], TransactionLog]) -> TransactionLog:
    """Open states, log, spouts and runner, checked and brought together; returns the log. On an error all is closed."""
    log: TransactionLog | None = None
    try:
        states = parts.open_states()
        check_capabilities(parts.plan, states)
        if not parts.config.allow_inexact:
            _check_pairings(parts.plan, graph, states)
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


def log_dir_of(config: Config, topology: str) -> str:
    """Return the folder of a topology's log."""
    return config.log_dir or str(Path("trident-log") / topology)


def dead_letter_dir_of(config: Config, topology: str) -> str:
    """Return the folder of a topology's dead letters."""
    return config.dead_letter_dir or str(Path(log_dir_of(config, topology)) / "dead_letters")


def _open_log(plan: Plan, config: Config, memory_log: MemoryLog | None) -> TransactionLog:
    if config.log_dir is None and lives_in_memory(plan):
        return MemoryLog(plan.topology) if memory_log is None else memory_log.reopened(config.takeover)
    return FileLog.open(log_dir_of(config, plan.topology), plan.topology, takeover=config.takeover)


def _check_pairings(plan: Plan, graph: Graph, states: dict[str, list[Any]]) -> None:
    for node in plan.commits:
        if not isinstance(node, PersistNode):
            continue
        kind = getattr(states[node.state][0], "kind", None)
        if not isinstance(kind, StateType):
            continue  # a user's own state: what it does with a replay is its own affair
        for spout in graph.sources_of(node.id):
            promise = spout_type_of(spout.spout)
            if (promise, kind) not in EXACT:
                raise InexactPairingError(spout.id, promise.value, node.state, kind.value)


def _tell_loads(plan: Plan, config: Config) -> None:
    unplaced = commit_loads(plan) if config.engine != "in_process" else list(plan.resources)
    if unplaced:
        logger.info(
            "topology %s: cpu and memory loads of %s are recorded only: they run in the process of the driver",
            plan.topology, ", ".join(unplaced),
        )  # fmt: skip


def _runner(program: Program, config: Config, loads: Sequence[StageLoad]) -> Runner:
    if config.engine == "spark":
        return _spark_runner(program, config, loads)
    if config.engine == "in_process":
        return InProcessRunner(program)
    return _auto_runner(program, config, loads)


def _auto_runner(program: Program, config: Config, loads: Sequence[StageLoad]) -> AutoRunner:
    """Both runners. Spark that runs already is taken at once, and says how many cores there are."""
    from pyspark import SparkContext

    large: Runner
    if SparkContext._active_spark_context is not None:  # noqa: SLF001  PySpark has no public question
        large = _spark_runner(program, config, loads)
    else:
        parallelism = config.parallelism or cores()
        large = LateRunner(
            program, parallelism, lambda: _spark_runner(program, replace(config, parallelism=parallelism), loads)
        )
    return AutoRunner(InProcessRunner(program, large.parallelism), large, config.auto_bytes)


def _spark_runner(program: Program, config: Config, loads: Sequence[StageLoad]) -> SparkRunner:
    from pyspark import SparkContext

    from trident.runtime.session import spark_session

    # Not "no active session": that is a matter of the calling thread, and Spark of another thread is not ours to stop.
    owned = SparkContext._active_spark_context is None  # noqa: SLF001  PySpark has no public question
    name, memory = f"trident-{program.topology}", memory_settings(loads, config.spark_conf)
    spark = spark_session(name, config.master, dict(config.spark_conf), memory)
    return SparkRunner(spark, program, config.parallelism, owned, loads)


def make_state(plan: Plan, config: Config, name: str, partition: int, partitions: int, read_only: bool = False) -> Any:
    """Open one partition of a state of a plan."""
    return open_state(plan.topology, plan.states[name], config, partition, partitions, read_only)


def open_state(
    topology: str, node: StateNode, config: Config, partition: int, partitions: int, read_only: bool = False
) -> Any:
    """Open one partition of a declared state."""
    keys = tuple((field, node.key_fields.type_of(field) or "") for field in node.key_fields.names)
    value = node.value.types[0] if len(node.value) else None
    conf = StateConf(topology, node.name, keys, value, config.as_mapping(), read_only)
    return node.spec.factory.make_state(conf, partition, partitions)


def open_view(graph: Graph, config: Config, name: str, snapshot: Any, partitions: int | None = None) -> StateView:
    """Open a state for reading from another process than the one that runs the topology."""
    plan = make_plan(graph)
    graph.state(name)
    count = partitions or plan.partitions.get(name, 1)
    instances: Sequence[Any] = [make_state(plan, config, name, p, count, read_only=True) for p in range(count)]
    return StateView(instances, snapshot, name)
