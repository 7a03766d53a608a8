"""What the tests of running topologies share: states that can be looked into, gates that user code waits at, and starts."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.harness.crashing_stores import DictMap
from trident import Config, Fields, Stream, TridentCollector, TridentTopology, TridentTuple
from trident.graph import Graph
from trident.operations import BaseStateUpdater, Count, Function, ReducerAggregator
from trident.plan import make_plan
from trident.read.open_partitions import view_of
from trident.read.views import StateView
from trident.run import running
from trident.run.running import RunningTopology
from trident.spout.interfaces import SpoutType, TransactionAttempt
from trident.state import Snapshot, StateSpec, map_state

WAIT_S = 30.0
QUICK: dict[str, Any] = {"poll_interval_ms": 1, "retry_backoff_ms": 1}


def start(
    topology: TridentTopology, engine: str, observer: Callable[[str, TransactionAttempt], None] | None = None,
    **conf: Any,
) -> RunningTopology:  # fmt: skip
    """Start with short waits, and with an observer if there is one."""
    config = Config.of({**QUICK, "engine": engine, **conf})
    return topology.start(config) if observer is None else running.start(topology.graph(), config, None, observer)


def open_view(
    graph: Graph, config: Config, name: str, snapshot: Callable[[], Snapshot], partitions: int | None = None
) -> StateView:
    """Open a state for reading, as another process than the one that runs the topology does."""
    plan = make_plan(graph)
    return view_of(plan, config, name, snapshot, partitions or plan.partitions.get(name, 1))


def stream_of(spout: Any) -> tuple[TridentTopology, Stream]:
    """Declare a topology `t` with a stream `s`."""
    topology = TridentTopology("t")
    return topology, topology.new_stream("s", spout)


def topology_of(stream: Any) -> TridentTopology:
    """Return the topology that a stream is declared in, for a case that is given the stream alone."""
    topology = stream._topology
    assert isinstance(topology, TridentTopology)
    return topology


def run_all(topology: TridentTopology, engine: str, **conf: Any) -> RunningTopology:
    """Run until the spouts are exhausted, stop, and return the topology for reading."""
    with start(topology, engine, **conf) as running_topology:
        running_topology.process_all_available()
    return running_topology


def dict_state(entries: dict[Any, Any], kind: str = "opaque", partitions: int | None = None) -> StateSpec:
    """Return a state over one dict that outlives the topology, for all partitions alike."""
    return map_state(lambda conf, partition, count: DictMap(entries), kind, num_partitions=partitions)


class RowsState:
    """A user's own state: the rows of each batch; what a failed attempt left is replaced by the next one."""

    in_memory = True

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        self.pending: list[tuple[Any, ...]] = []
        self.calls: list[str] = []

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Self:
        return self

    def begin_commit(self, txid: int) -> None:
        self.calls.append(f"begin {int(txid)}")
        self.pending = []

    def commit(self, txid: int) -> None:
        self.calls.append(f"commit {int(txid)}")
        self.batches[int(txid)] = self.pending

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return [row for txid in sorted(self.batches) for row in self.batches[txid]]


class Keep(BaseStateUpdater[RowsState]):
    """Keeps the tuples, and emits them."""

    def update_state(self, state: RowsState, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        state.pending.extend(row.values for row in tuples)
        for row in tuples:
            collector.emit(row.values)


def keep(stream: Stream, name: str = "kept") -> RowsState:
    """Declare that the rows of a stream are kept; return where."""
    rows = RowsState()
    stream.partition_persist(rows, Keep(), stream.fields, state_name=name)
    return rows


class RowsSpout:
    """An `IBatchSpout` over a dict txid -> rows, or txid -> function; remembers what it was told."""

    def __init__(
        self, fields: str, batches: Mapping[int, Any], spout_type: SpoutType = SpoutType.TRANSACTIONAL
    ) -> None:
        self.fields, self.batches, self.spout_type = Fields(fields), batches, spout_type
        self.calls: list[str] = []

    def open(self, conf: Mapping[str, Any]) -> None:
        self.calls.append("open")

    def emit_batch(self, batch_id: int, collector: TridentCollector) -> bool | None:
        rows = self.batches.get(batch_id, [])
        for row in rows() if callable(rows) else rows:
            collector.emit(row)
        return None

    def ack(self, batch_id: int) -> None:
        self.calls.append(f"ack {batch_id}")

    def close(self) -> None:
        self.calls.append("close")

    def get_output_fields(self) -> Fields:
        return self.fields

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("this spout stays in the driver")


class OneSpout:
    """A transactional spout of one batch that is its own coordinator and emitter; who derives from it says what is read."""

    fields = Fields("x: string")
    spout_type = SpoutType.TRANSACTIONAL

    def get_output_fields(self) -> Fields:
        return self.fields

    def get_coordinator(self, conf: Mapping[str, Any]) -> Any:
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> Any:
        return self

    def initialize_transaction(self, txid: int, previous: Any) -> Any:
        return {} if previous is None else None

    def parts(self, attempt: TransactionAttempt, definition: Any, parallelism: int) -> Sequence[Any]:
        return [definition]

    def emit(self, part: Any) -> Iterable[Any]:
        raise NotImplementedError

    def success(self, txid: int, definition: Any) -> None: ...
    def close(self) -> None: ...


def touch(folder: Path | str) -> int:
    """Count a call, across processes; returns how many there were before."""
    number = 0
    while True:
        try:
            os.close(os.open(Path(folder, str(number)), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            number += 1
        else:
            return number


class FailTimes(Function):
    """Raises `error` in the first `times` calls with value `poison`, wherever they run; else passes the value on."""

    output_types = ("string",)

    def __init__(self, folder: Path, poison: str, times: int, error: Exception) -> None:
        self.folder, self.poison, self.times, self.error = str(folder), poison, times, error

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        if tuple[0] == self.poison and touch(self.folder) < self.times:
            raise self.error
        collector.emit([tuple[0]])


class Gates:
    """Named events of this process: objects that are pickled can wait at them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[str, threading.Event] = {}

    def __getitem__(self, name: str) -> threading.Event:
        with self._lock:
            return self._events.setdefault(name, threading.Event())

    def clear(self) -> None:
        with self._lock:
            self._events.clear()

    def pass_through(self, name: str) -> None:
        """Tell that somebody is here, and wait to be let on."""
        self[f"{name} reached"].set()
        assert self[f"{name} open"].wait(WAIT_S), f"nobody opened {name}"

    def await_reached(self, name: str) -> None:
        assert self[f"{name} reached"].wait(WAIT_S), f"nobody reached {name}"

    def open(self, name: str) -> None:
        self[f"{name} open"].set()


GATES = Gates()


class GatedState(RowsState):
    """Waits at a gate in the commit of one batch, the first time."""

    def __init__(self, gate: str, txid: int) -> None:
        super().__init__()
        self.gate, self.txid = gate, txid

    def commit(self, txid: int) -> None:
        if txid == self.txid:
            self.txid = 0
            GATES.pass_through(self.gate)
        super().commit(txid)


class Points:
    """An observer: the points in the order in which they were reached, and events to wait for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.reached: list[tuple[str, TransactionAttempt]] = []

    def __call__(self, point: str, attempt: TransactionAttempt) -> None:
        with self._changed:
            self.reached.append((point, attempt))
            self._changed.notify_all()

    def of(self, txid: int) -> list[str]:
        return [point for point, attempt in self.reached if attempt.txid == txid]

    def attempts(self, point: str) -> list[TransactionAttempt]:
        return [attempt for one, attempt in self.reached if one == point]

    def await_point(self, point: str, txid: int, times: int = 1) -> None:
        def seen() -> bool:
            return sum(one == point and attempt.txid == txid for one, attempt in self.reached) >= times

        with self._changed:
            assert self._changed.wait_for(seen, WAIT_S), f"batch {txid} was not {point}: {self.reached}"


def counted(rows: Iterable[Any]) -> dict[Any, int]:
    counts: dict[Any, int] = {}
    for row in rows:
        counts[row] = counts.get(row, 0) + 1
    return counts


class CountAll(Count):
    """`Count`, row by row: a subclass has no kernel."""


def operation(name: str, base: type[Any], output: str | None = "bigint", **methods: Callable[..., Any]) -> Any:
    """Make a class of operations whose methods are functions, which do not get the operation itself."""

    def method(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *given: function(*given)

    made = {each: method(function) for each, function in methods.items()}
    return type(name, (base,), {**made, "output_types": None if output is None else (output,)})


class Fold(ReducerAggregator[int]):
    """`Count`, as a reducer."""

    output_types = ("bigint",)

    def init(self) -> int:
        return 0

    def reduce(self, curr: int, tuple: TridentTuple) -> int:
        return curr + 1
