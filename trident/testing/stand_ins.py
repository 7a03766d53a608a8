"""What stands in for parts of a topology under test: a clock by hand, watched runner and log, given rows, states in memory."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from trident.arrow import UNFIT, Misfit, TableEmitter, TablePart, table_of
from trident.channel import Clock
from trident.engine.fragment_runs import TaskOutput
from trident.engine.runners import InProcessRunner
from trident.engine.worker import Order, Part, Program
from trident.errors import ConfigError, ReplayMismatchError, TridentError
from trident.fields import Fields
from trident.graph import Graph, Node, PeekNode, SpoutNode
from trident.log.log_interface import TransactionLog
from trident.log.records import CommitRecord, Record
from trident.observe.events import TopologyEvent
from trident.observe.monitoring import Monitoring
from trident.operations.adapters import PlainConsumer
from trident.plan.plan import spout_type_of
from trident.spout.interfaces import BatchCoordinator, Definition, SpoutType, TransactionAttempt
from trident.state.forwarding import SerializedMap
from trident.state.interfaces import IBackingMap, StateConf, StateSpec, StoreFacts
from trident.state.map_state import BackingMapFactory, MapStateFactory
from trident.steps.failures import failure_of
from trident.testing.backend.faulty_map import InjectedFault

if TYPE_CHECKING:
    from states.memory.state import MemoryData

Row = tuple[Any, ...]
Seen = dict[TransactionAttempt, tuple[Sequence[Part], Order]]
"""What each attempt was processed from."""


class HandClock(Clock):
    """A clock that stands still until it is advanced."""

    def __init__(self) -> None:
        self._now = 0.0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"advance({seconds}): time does not go back")
        self._now += seconds

    def monotonic(self) -> float:
        """Return the seconds set by hand, not those of the machine."""
        return self._now

    def wall_ms(self) -> int:
        return int(self._now * 1000)

    def cpu(self) -> float:
        """No time: what a step costs on this machine changes nothing."""
        return 0.0


class Unheard(Monitoring):
    """Tells and logs nothing of what happens: the test sees it."""

    def publish(self, event: TopologyEvent) -> None: ...


@dataclass(frozen=True)
class BatchResult:
    """The result of one attempt at a batch; later attempts have greater numbers.

    Attributes
    ----------
    committed
        Whether it is committed. If not, the next step tries again.
    failed_at, failure
        The step that failed, or the point given to `fail_at`, and the cause; None if nothing failed.
    tuples
        How many tuples the spouts emitted (0 of a failed attempt).
    keys
        By state, how many keys it was given.
    new_values
        By state, the rows of its stream of new values: key and value.
    """

    txid: int
    attempt: int
    committed: bool
    failed_at: str | None = None
    failure: str | None = None
    tuples: int = 0
    keys: Mapping[str, int] = field(default_factory=dict)
    new_values: Mapping[str, list[Row]] = field(default_factory=dict)


class Captures:
    """The tuples of the nodes of a topology: `collected` since `begin`, of running attempts, and of `committed` batches."""

    def __init__(self) -> None:
        self.collected: dict[str, list[Row]] = {}
        self._live: dict[TransactionAttempt, dict[str, list[Row]]] = {}
        self.committed: dict[int, dict[str, list[Row]]] = {}

    def watching(self, graph: Graph) -> Graph:
        """Return the graph with a consumer behind each node whose tuples a user can see."""
        inner = (":part", ":exchange")  # pieces of a declared step: the first half of an aggregate, and its exchange
        seen = [node for node in graph.nodes if len(node.fields) and not node.id.endswith(inner)]
        return replace(graph, nodes=(*graph.nodes, *map(self._behind, seen)))

    def _behind(self, node: Node) -> PeekNode:
        rows = self.collected[node.id] = []
        consumer = PlainConsumer(lambda row: rows.append(row.values), spread=False)
        return PeekNode(f"{node.id}/captured", (node.id,), node.fields, node.fields, consumer)

    def begin(self) -> None:
        for rows in self.collected.values():
            rows.clear()

    def end(self, attempt: TransactionAttempt) -> None:
        live = self._live.setdefault(attempt, {})
        for node, rows in self.collected.items():
            live.setdefault(node, []).extend(rows)
        self.begin()

    def commit(self, attempt: TransactionAttempt) -> None:
        self.committed[attempt.txid] = self._live.pop(attempt)
        self._live = {live: rows for live, rows in self._live.items() if live.txid > attempt.txid}

    def by_batch(self, node: str) -> dict[int, list[Row]]:
        return {txid: list(rows.get(node, ())) for txid, rows in self.committed.items()}


class FailurePoints:
    """The points that have to fail, and how often."""

    def __init__(self, topology: str, states: Iterable[str]) -> None:
        self._topology = topology
        self._known = ["define", "process", "record"]
        self._known += [f"{point}:{state}" for state in states for point in ("begin_commit", "put", "commit")]
        self._left = Counter[str]()

    def fail_at(self, point: str, times: int) -> None:
        if point not in self._known:
            raise TridentError(
                f"topology {self._topology!r} has no point {point!r} to fail at; it has {', '.join(self._known)}"
            )
        if times < 1:
            raise ValueError(f"fail_at({point!r}, times={times}): give at least 1")
        self._left[point] += times

    def reach(self, point: str, state: str = "") -> None:
        point = f"{point}:{state}" if state else point
        if self._left[point]:
            self._left[point] -= 1
            raise InjectedFault(f"failed at {point!r}, as the test asked")


class WatchedRunner(InProcessRunner):
    """Runs batches in this process, notes in `seen` what each was made from, and fails after one if a test asks for that."""

    def __init__(self, program: Program, points: FailurePoints, captures: Captures, seen: Seen) -> None:
        super().__init__(program)
        self._points, self._captures, self._seen = points, captures, seen

    def process(self, parts: Sequence[Part], order: Order) -> TaskOutput:
        self._seen[order.attempt] = parts, order
        self._captures.begin()
        output = super().process(parts, order)
        self._captures.end(order.attempt)
        try:
            self._points.reach("process")
        except InjectedFault as fault:
            return TaskOutput(failure=failure_of("process", fault))
        return output


def watch_records(log: TransactionLog, reach: Callable[[str], None]) -> None:
    """Have a log call `reach` before a commit record, which may raise, as if the driver died there."""
    append = log.append

    def reached(record: Record, durable: bool = True) -> None:
        if isinstance(record, CommitRecord):
            reach("record")
        append(record, durable)

    log.append = reached  # type: ignore[method-assign]


class GivenSpout(BatchCoordinator):
    """What spouts over given rows share, each its own coordinator: the fields and the promise of a declared spout."""

    def __init__(self, node: SpoutNode) -> None:
        self.stream, self.fields, self.spout_type = node.id, node.fields, spout_type_of(node.spout)

    def get_output_fields(self) -> Fields:
        return self.fields

    def get_coordinator(self, conf: Mapping[str, Any]) -> Self:
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> Any:
        return TableEmitter()


class FedSpout(GivenSpout):
    """Emits what it is fed. Definitions are `{"fed": id of the spout, "feed": n}`, n from 0 on."""

    def __init__(self, node: SpoutNode, points: FailurePoints) -> None:
        super().__init__(node)
        self._points = points
        self._id = uuid.uuid4().hex
        self._feeds: list[pa.Table] = []
        self._committed = 0

    def feed(self, rows: Sequence[Any]) -> None:
        self._feeds.append(typed_rows(f"feed({self.stream!r})", self.fields, rows))

    def replace(self, rows: Sequence[Any]) -> None:
        if self.spout_type is SpoutType.TRANSACTIONAL:
            raise TridentError(
                f"replay({self.stream!r}): its spout is transactional, it promises that a replay holds the same rows. "
                "Call step() for that; only a spout of another type may emit other rows"
            )
        if self._committed == len(self._feeds):
            raise TridentError(f"replay({self.stream!r}): no rows that this stream was fed wait for a replay")
        self._feeds[self._committed] = typed_rows(f"replay({self.stream!r})", self.fields, rows)

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Return the feed after that of the batch before, or of a log that something else wrote; None if it is not fed yet."""
        number = int(previous["feed"]) + 1 if self._is_own(previous) and previous is not None else self._committed
        if number >= len(self._feeds):
            return None
        self._points.reach("define")
        return {"fed": self._id, "feed": number}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[TablePart]:
        if not self._is_own(definition):
            raise ReplayMismatchError(
                f"batch {attempt.txid} was defined as {definition!r} before this driver was made, and what it held is not "
                "known here; finish it where it began, or give a new log_dir"
            )
        return [TablePart(self._feeds[int(definition["feed"])])]

    def success(self, txid: int, definition: Definition) -> None:
        self._committed = int(definition["feed"]) + 1

    def _is_own(self, definition: Definition | None) -> bool:
        return isinstance(definition, dict) and definition.get("fed") == self._id


def typed_rows(call: str, fields: Fields, given: Sequence[Any]) -> pa.Table:
    """Return the table of rows (tuples, dicts by field, or bare values of one field); `call` begins the error's text."""
    rows = [_row(call, fields, number, row) for number, row in enumerate(given)]
    try:
        return table_of(fields, rows)
    except Misfit as misfit:
        said = f"is not of type {misfit.declared}, that of field {misfit.field!r} ({misfit.reason})"
        raise TridentError(f"{call}: row {misfit.at}: {misfit.shown} {said}") from misfit
    except UNFIT as error:
        raise TridentError(f"{call}: the rows do not fit the fields ({fields}): {error}") from error


def _row(call: str, fields: Fields, number: int, row: Any) -> Sequence[Any]:
    if isinstance(row, Mapping) and set(row) == set(fields.names):
        values: Sequence[Any] = [row[name] for name in fields.names]
    elif isinstance(row, (list, tuple)):
        values = row
    elif len(fields) == 1:
        values = (row,)
    else:
        raise TridentError(f"{call}: row {number} is {row!r}; give a tuple of {len(fields)} values ({fields})")
    if len(values) != len(fields):
        raise TridentError(
            f"{call}: row {number} has {len(values)} values {row!r}, the stream has {len(fields)} ({fields})"
        )
    return values


def with_states_in_memory(graph: Graph) -> Graph:
    """Return the graph with each state in memory: the same kind, key, value, serializer and number of partitions.

    Raises `ConfigError`: a state does not say that it is a map of a kind.
    """
    specs = [(node, node.spec, node.spec.facts) for node in graph.states]
    refused = [node for node, spec, facts in specs if not (facts.in_memory or (facts.is_map and spec.kind is not None))]
    if refused:
        names = [f"{node.name!r} ({node.spec.store or type(node.spec.factory).__name__})" for node in refused]
        subject = f"state {names[0]} is" if len(names) == 1 else f"states {', '.join(names)} are"
        raise ConfigError(
            f"topology {graph.name!r} cannot run with in_memory=True: {subject} not known as a map of a kind, so no "
            "map in memory can do the same. Declare the topology in a function that takes the state, and give it another one "
            "in the test; or let the factory say what it makes: facts = StoreFacts(in_memory=True) if it needs no server, "
            'kind = "opaque" (or another) and facts = StoreFacts(is_map=True) if its states are plain maps'
        )
    in_memory = (
        node if facts.in_memory else replace(node, spec=over_maps(spec, MapsInMemory(facts)))
        for node, spec, facts in specs
    )
    return replace(graph, states=tuple(in_memory))


def over_maps(spec: StateSpec, maps: BackingMapFactory) -> StateSpec:
    """Return the spec of a state of a kind over other maps, with its cache and the key of its single value."""
    assert spec.kind is not None
    if isinstance(spec.factory, MapStateFactory):
        return replace(spec, factory=replace(spec.factory, backing_map_factory=maps))
    return replace(spec, factory=MapStateFactory(maps, spec.kind))


class MapsInMemory:
    """Opens the partitions of one state, which share keys. What the store's serializer cannot write fails in a test too."""

    def __init__(self, of_store: StoreFacts) -> None:
        self.facts = StoreFacts(in_memory=True, keeps_attempts=of_store.keeps_attempts)
        self._serializer = of_store.serializer
        self._data: dict[int, MemoryData] = {}

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> IBackingMap[Any]:
        from states.memory.state import MemoryBackingMap, MemoryData

        if partition_index not in self._data:
            self._data[partition_index] = MemoryData(beside=next(iter(self._data.values()), None))
        backing = MemoryBackingMap[Any](self._data[partition_index])
        backing.facts = replace(backing.facts, shares_keys=True)
        return backing if self._serializer is None else SerializedMap(backing, self._serializer)
