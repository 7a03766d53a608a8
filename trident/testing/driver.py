"""TopologyTestDriver: runs a topology for a test, without Spark and without threads, batch by batch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from trident.config import Config
from trident.drpc.batching import Answer, OwnLog, RequestExecutor, unknown_function
from trident.engine.replay_check import ReplayCheck
from trident.errors import ConfigError, ReplayDiffersError, TridentError
from trident.graph import Graph, PersistNode, SpoutNode, name_of_state
from trident.log.log_address import open_log
from trident.log.log_interface import TransactionLog
from trident.log.log_state import LogState
from trident.plan import make_plan, make_request_plan
from trident.read.open_partitions import open_state
from trident.read.views import StateView
from trident.retention import Retention
from trident.roles import Closes
from trident.run.dead_letters import DeadLetter
from trident.run.drive import Drive
from trident.run.engine_choice import RunnerOf
from trident.run.opened_topology import OpenedTopology
from trident.run.progress import Progress
from trident.run.running import new_memory_log
from trident.spout.interfaces import TransactionAttempt
from trident.stream import Stream, TridentState
from trident.testing.backend.faulty_map import InjectedFault
from trident.testing.stand_ins import (
    BatchResult,
    Captures,
    FailurePoints,
    FedSpout,
    HandClock,
    Row,
    Seen,
    Unheard,
    WatchedRunner,
    watch_records,
    with_states_in_memory,
)
from trident.topology import TridentTopology

_DEFAULTS: dict[str, Any] = {
    "engine": "in_process", "max_spout_pending": 1, "poll_interval_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 1,
}  # fmt: skip

_OF_TOPOLOGY = (
    "allow_inexact", "max_batch_attempts", "max_bytes_per_partition", "max_rows_per_step", "max_rows_per_tuple", "on_poison",
)  # fmt: skip
"""The settings of a topology that say what becomes of its tuples, and not where it runs and what it writes."""

_BEFORE_ALL = 0  # a txid that every reader takes for committed


class TopologyTestDriver(Closes):
    """Runs a topology step by step: the fed rows are a batch, and a step is one attempt at it.

    Coordinator, plan, steps, commits and value rules are the same as in a running topology. The spouts are replaced by fed ones
    that make the same promise. States in memory begin empty; other stores must be given empty, unless `in_memory` is set. The
    log is in memory unless `log_dir` is given.

    Parameters
    ----------
    in_memory
        Run each state in memory, whatever store it is declared with, and connect to nothing; `ConfigError` if one is not
        known as a map of a kind.
    settings
        Settings of `Config`. Backoff does not wait: the step after a failed one comes at once. Of those that the topology is
        declared with, `on_poison`, `allow_inexact`, `max_batch_attempts` and the limits hold here; `trident.toml` and the
        environment do not.

    Examples
    --------
    >>> from spouts import FixedBatchSpout
    >>> from states.memory import MemoryMapState
    >>> from trident import TridentTopology
    >>> from trident.operations import Count
    >>> topology = TridentTopology("words")
    >>> words = topology.new_stream("words", FixedBatchSpout("word", 9, ["whatever"]))
    >>> counts = words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    >>> with TopologyTestDriver(topology) as driver:
    ...     driver.feed("words", "the", "cow", "the")
    ...     driver.step().committed
    ...     driver.state(counts).multi_get(["the", "cow"])
    True
    [2, 1]
    """

    def __init__(self, topology: TridentTopology, *, in_memory: bool = False, **settings: Any) -> None:
        if settings.get("engine", "in_process") != "in_process":
            raise ConfigError(f"engine={settings['engine']!r}: a TopologyTestDriver runs in this process; leave it out")
        if in_memory and settings.get("log_dir") is not None:
            raise ConfigError(
                f"in_memory=True with log_dir={settings['log_dir']!r}: states in memory end with the driver, and its log "
                "must end with them; leave log_dir out"
            )
        declared_with = {name: value for name, value in topology.config.given.items() if name in _OF_TOPOLOGY}
        self._config = Config.of({**_DEFAULTS, **declared_with, **settings})
        declared = with_states_in_memory(topology.graph()) if in_memory else topology.graph()
        self._in_memory = in_memory
        self._folder: TemporaryDirectory[str] | None = None
        if self._config.on_poison == "dead_letter" and self._config.log_dir is self._config.dead_letter_dir is None:
            self._folder = TemporaryDirectory(prefix="trident-dead-letters-", ignore_cleanup_errors=True)
            self._config = replace(self._config, dead_letter_dir=self._folder.name)
        self._name, self._declared = declared.name, declared
        self._persists = {node.state: node.id for node in declared.nodes if isinstance(node, PersistNode)}
        self._points = FailurePoints(declared.name, self._persists)
        self._captures = Captures()
        self._fed: dict[str, FedSpout] = {}
        self._graph = self._captures.watching(self._with_fed_spouts(declared))
        self._plan = make_plan(self._graph)
        self._memory_log = new_memory_log(declared.name)
        self.clock = HandClock()
        self._progress = Progress(self._plan, 1, self.clock)
        self._seen: Seen = {}
        self._last: TransactionAttempt | None = None
        self._late = self._closed = False
        self._open(first=True)

    def feed(self, stream: str | Stream, *rows: Any) -> None:
        """Give the rows of a stream's next batch: tuples, or bare values where the stream has one field."""
        self._spout_of(stream).feed(rows)

    def replay(self, stream: str | Stream, *rows: Any) -> None:
        """After a failed step: give the replay these rows instead, if the spout is not transactional."""
        self._spout_of(stream).replace(rows)

    def fill(self, state: TridentState | str, rows: Mapping[Any, Any]) -> None:
        """Give a static state that runs in memory its values: by key (a tuple, or its only field), these and no others."""
        self._check_open()
        name = name_of_state(state)
        node = self._declared.state(name)
        if not (node.static and self._in_memory):
            why = "the driver does not have in_memory=True" if node.static else "streams write it; feed them instead"
            raise TridentError(f"fill({name!r}): {why}. Only a static state that runs in memory is filled")
        writer = open_state(self._name, node, self._config.as_mapping(), 0, 1)
        writer.reset()
        writer.begin_commit(_BEFORE_ALL)
        writer.multi_put([key if isinstance(key, tuple) else (key,) for key in rows], list(rows.values()))
        writer.commit(_BEFORE_ALL)

    def fail_at(self, point: str, times: int = 1) -> None:
        """Let the next `times` attempts that reach a point fail there.

        `"define"` (before the batch is defined), `"process"` (after its steps), `"begin_commit:<state>"` (before
        anything is written), `"put:<state>"` (updated, not yet committed: an opaque map has put the new values),
        `"commit:<state>"` (the state has committed), `"record"` (all states have committed, and the driver dies: a new
        one takes over).
        """
        self._points.fail_at(point, times)

    def step(self) -> BatchResult | None:
        """Define, process and commit one batch, or fail to; None if there is nothing to do at this time.

        `BatchFailedError` if it has failed for good: `max_batch_attempts` times, or in a way that another try cannot fix.
        """
        self._check_open()
        if self._late:
            self.clock.advance(self._config.retry_backoff_max_ms / 1000)
        self._late = False
        done, failed = self._progress.batches, self._progress.failures
        handled = True
        while handled:
            try:
                handled = self._drive.loop.turn()
            except InjectedFault as fault:
                return self._taken_over(fault)
            if self._progress.batches > done:
                self._late = self._progress.failures > failed  # a later batch, which is in flight too, may have failed
                return self._committed_result()
            if self._progress.failures > failed:
                return self._failed_result()
        return None

    def run(self) -> list[BatchResult]:
        """Step until there is nothing left to do; return the result of each attempt."""
        results = []
        while (result := self.step()) is not None:
            results.append(result)
        return results

    def check_replays(self) -> int:
        """Process the batches of all steps so far again, and compare what reaches the states; return how many were compared.

        They are processed twice as they were, and once with the tuples in another order and in other tables. What a step gives
        must depend on its tuples alone: otherwise a replay of the batch gives other totals. `ReplayDiffersError` names the
        first step that gave other results, and its tuple. What raises is not compared.
        """
        self._check_open()
        check, compared = ReplayCheck(self._drive.opened.runner.program), 0
        try:
            for attempt, seen in self._seen.items():
                checked = check.check(*seen)
                compared += checked.done
                if (found := checked.difference) is not None:
                    raise ReplayDiffersError(self._name, attempt.txid, found.step, found.row, str(found))
        finally:
            check.close()
        return compared

    @property
    def txid(self) -> int:
        """The last committed txid, 0 if there is none."""
        return self.log_state.txid

    @property
    def log_state(self) -> LogState:
        """What the log says: committed batches, winners, dead letters."""
        return self._drive.log_state

    def state(self, state: TridentState | str) -> StateView:
        """Return a state for reading, at the snapshot of the last committed batch."""
        self._check_open()
        return self._drive.state(state)

    def drpc(self, function: str, args: str) -> Answer:
        """Return the answer of a DRPC function of the topology, as after the last committed batch.

        `DRPCExecutionException` if there is no such function, the arguments are not one text, or a step failed.
        """
        self._check_open()
        if function not in self._executors:
            known = [node.function for node in self._declared.functions()]
            if function not in known:
                raise unknown_function(function, self._name, known)
            plan = make_request_plan(self._declared, function)
            executor = self._executors[function] = RequestExecutor(plan, self._drive.config, OwnLog(self._drive))
            self._drive.opened.closers.add("drpc", executor.close)
        return self._executors[function].answer(args)

    def captured(self, stream: str | Stream) -> dict[int, list[Row]]:
        """Return the tuples that a stream gave in each committed batch, by txid."""
        node = stream if isinstance(stream, str) else stream.node_id
        if node not in self._captures.collected:
            known = [node.id for node in self._declared.nodes if node.id in self._captures.collected]
            raise TridentError(
                f"topology {self._name!r} had no stream {node!r} when the driver was made; it had {known}"
            )
        return self._captures.by_batch(node)

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """The tuples that committed batches left out (`on_poison="dead_letter"`): `txid`, `failure.step`, `failure.cause`.

        `left_out.values` has the fields that the step was given.
        """
        return list(self._drive.opened.letters.all(self.log_state))

    def new_values(self, state: TridentState | str) -> dict[int, list[Row]]:
        """Return the new values that a state gave in each committed batch, by txid: rows of key and value."""
        name = name_of_state(state)
        if name not in self._persists:
            raise TridentError(
                f"topology {self._name!r} writes no state {name!r}; it writes {', '.join(self._persists) or 'none'}"
            )
        return self._captures.by_batch(self._persists[name])

    def close(self) -> None:
        """Close spouts, states and log; harmless when done already."""
        if not self._closed:
            self._closed = True
            self._drive.end()
            if self._folder is not None:
                self._folder.cleanup()

    def __repr__(self) -> str:
        return f"TopologyTestDriver({self._name!r}, txid {self.txid}, streams {list(self._fed)})"

    def _open(self, first: bool) -> None:
        """Open everything as a start of the topology does, over the same log and states."""
        open_log = partial(self._open_log, first)
        runner_of: RunnerOf = lambda program, *_: WatchedRunner(program, self._points, self._captures, self._seen)  # noqa: E731
        opened = OpenedTopology(self._declared, self._plan, self._config, open_log, False, runner_of)
        opened.committer.reach = self._points.reach
        watch_records(opened.log, self._points.reach)
        self._executors: dict[str, RequestExecutor] = {}
        self._drive = Drive(
            self._declared, opened, Unheard(self._name), None, self._observe, clock=self.clock, progress=self._progress
        )

    def _open_log(self, first: bool, states: Mapping[str, Sequence[Any]]) -> TransactionLog:
        if first:  # an earlier driver of this process may have filled the states in memory
            in_memory = (name for name in states if self._plan.states[name].spec.facts.in_memory)
            for partition in (one for name in in_memory for one in states[name] if one.offers("reset")):
                partition.reset()
        if self._config.log_dir is None:
            return self._memory_log.reopen(takeover=True)
        return open_log(self._config.log_dir, self._name, self._config.takeover, Retention.of(self._config.history))

    def _observe(self, point: str, attempt: TransactionAttempt) -> None:
        if point == "defined":
            self._last = attempt
        elif point == "committing":
            self._last = attempt
            self._captures.begin()
        elif point == "committed":
            self._captures.end(attempt)
        elif point == "recorded":
            self._captures.commit(attempt)

    def _committed_result(self) -> BatchResult:
        entry = self._progress.events()[-1].as_dict()
        txid = int(entry["batchId"])
        given = self._captures.committed[txid]
        values = {state: list(given[node]) for state, node in self._persists.items() if node in given}
        tuples, keys = entry["numInputRows"], entry["stateKeysUpdated"]
        return BatchResult(txid, entry["attempt"], True, None, None, tuples, keys, values)

    def _failed_result(self) -> BatchResult:
        self._late = True
        failure, attempt = self._progress.last_failure, self._progress.last_attempt
        assert failure is not None
        assert attempt is not None
        self._drive.loop.start_gate.raise_fatal()
        return BatchResult(*attempt, False, failure.step, failure.cause)

    def _taken_over(self, fault: InjectedFault) -> BatchResult:
        """The driver died before the record of a batch was durable; another one continues from its log."""
        attempt = self._last
        assert attempt is not None
        self._drive.end()
        self._open(first=False)
        return BatchResult(*attempt, False, "record", str(fault))

    def _with_fed_spouts(self, graph: Graph) -> Graph:
        nodes = list(graph.nodes)
        for at, node in enumerate(nodes):
            if isinstance(node, SpoutNode):
                fed = self._fed[node.id] = FedSpout(node, self._points)
                nodes[at] = replace(node, spout=fed)
        return replace(graph, nodes=tuple(nodes))

    def _spout_of(self, stream: str | Stream) -> FedSpout:
        self._check_open()
        name = stream if isinstance(stream, str) else stream.node_id
        if name not in self._fed:
            raise TridentError(f"topology {self._name!r} has no spout {name!r} to feed; it has {', '.join(self._fed)}")
        return self._fed[name]

    def _check_open(self) -> None:
        if self._closed:
            raise TridentError(f"the TopologyTestDriver of {self._name!r} is closed")
