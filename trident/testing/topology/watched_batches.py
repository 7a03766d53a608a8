"""What a `TopologyTestDriver` sees of a batch, its result and the tuples of every stream; at which points it lets it fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from trident.coordination.log_interface import TransactionLog
from trident.coordination.records import CommitRecord, Record
from trident.errors import TridentError
from trident.graph import Graph, Node, PeekNode
from trident.observe.events import TopologyEvent
from trident.observe.monitoring import Monitoring
from trident.runtime.engine.runners import Part, Runner
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.worker import Order
from trident.runtime.loop.batch import Clock
from trident.runtime.steps.failures import failure_of
from trident.spout.interfaces import TransactionAttempt
from trident.testing.backend.faulty_map import InjectedFault
from trident.tuples import TridentTuple

Row = tuple[Any, ...]


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
    """The result of one attempt at a batch.

    Attributes
    ----------
    txid, attempt
        The batch, and the number of the attempt; later attempts have greater numbers.
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


class _Collected:
    """The consumer behind one node."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def accept(self, tuple: TridentTuple) -> None:
        self.rows.append(tuple.values)


class Captures:
    """The tuples of the nodes of a topology: of running attempts, and of committed batches."""

    def __init__(self) -> None:
        self._collected: dict[str, _Collected] = {}
        self._live: dict[TransactionAttempt, dict[str, list[Row]]] = {}
        self.committed: dict[int, dict[str, list[Row]]] = {}

    def watching(self, graph: Graph) -> Graph:
        """Return the graph with a consumer behind each node whose tuples a user can see."""
        inner = (":part", ":exchange")  # pieces of a declared step: the first half of an aggregate, and its exchange
        seen = [node for node in graph.nodes if len(node.fields) and not node.id.endswith(inner)]
        return replace(graph, nodes=(*graph.nodes, *map(self._behind, seen)))

    def _behind(self, node: Node) -> PeekNode:
        consumer = self._collected[node.id] = _Collected()
        return PeekNode(f"{node.id}/captured", (node.id,), node.fields, node.fields, consumer)

    @contextmanager
    def of(self, attempt: TransactionAttempt) -> Iterator[None]:
        """Collect tuples for an attempt while the context is open."""
        self.begin()
        yield
        self.end(attempt)

    def begin(self) -> None:
        """Forget the tuples of an attempt that failed."""
        for collected in self._collected.values():
            collected.rows.clear()

    def end(self, attempt: TransactionAttempt) -> None:
        """Store the tuples since `begin` for the attempt."""
        live = self._live.setdefault(attempt, {})
        for node, collected in self._collected.items():
            live.setdefault(node, []).extend(collected.rows)
        self.begin()

    def commit(self, attempt: TransactionAttempt) -> None:
        """Keep the tuples of the attempt, because its batch is committed; drop the tuples of other attempts."""
        self.committed[attempt.txid] = self._live.pop(attempt)
        self._live = {live: rows for live, rows in self._live.items() if live.txid > attempt.txid}

    def knows(self, node: str) -> bool:
        """Whether a node's tuples are captured."""
        return node in self._collected

    def by_batch(self, node: str) -> dict[int, list[Row]]:
        return {txid: list(rows.get(node, ())) for txid, rows in self.committed.items()}


class FailurePoints:
    """The points that have to fail, and how often.

    `states`: the states that batches write, by name.
    """

    def __init__(self, topology: str, states: Iterable[str]) -> None:
        self._topology = topology
        self._known = ["define", "process", "record"]
        self._known += [f"{point}:{state}" for state in states for point in ("begin_commit", "put", "commit")]
        self._left: dict[str, int] = {}

    def fail_at(self, point: str, times: int) -> None:
        """Let the next `times` attempts that reach the point fail there; `TridentError` if there is no such point."""
        if point not in self._known:
            raise TridentError(
                f"topology {self._topology!r} has no point {point!r} to fail at; it has {', '.join(self._known)}"
            )
        if times < 1:
            raise ValueError(f"fail_at({point!r}, times={times}): give at least 1")
        self._left[point] = self._left.get(point, 0) + times

    def reach(self, point: str, state: str = "") -> None:
        """Raise `InjectedFault` if the point, maybe one of a state's commit, is to fail."""
        point = f"{point}:{state}" if state else point
        left = self._left.pop(point, 0)
        if left > 1:
            self._left[point] = left - 1
        if left:
            raise InjectedFault(f"failed at {point!r}, as the test asked")


class WatchedRunner(Runner):
    """Passes everything to a runner of this process; fails after a batch is processed, if a test asks for that.

    `seen`: gets what each attempt was processed from.
    """

    here = True

    def __init__(
        self,
        runner: Runner,
        points: FailurePoints,
        captures: Captures,
        seen: dict[TransactionAttempt, tuple[Sequence[Part], Order]],
    ) -> None:
        self._runner, self._points, self._captures = runner, points, captures
        self._seen = seen
        self.parallelism, self.program, self.operations = runner.parallelism, runner.program, runner.operations

    def process(self, parts: Sequence[Part], order: Order) -> TaskOutput:
        """Process a batch and keep the tuples of its streams."""
        self._seen[order.attempt] = parts, order
        with self._captures.of(order.attempt):
            output = self._runner.process(parts, order)
        try:
            self._points.reach("process")
        except InjectedFault as fault:
            return TaskOutput(failure=failure_of("process", fault))
        return output

    def close(self) -> None:
        self._runner.close()


class WatchedLog:
    """Passes everything to a log; before a commit record it calls `reach`, which may raise, as if the driver died there."""

    def __init__(self, log: TransactionLog, reach: Callable[[str], None]) -> None:
        self._log, self._reach = log, reach
        self.state, self.epoch = log.state, log.epoch

    def append(self, record: Record, durable: bool = True) -> None:
        if isinstance(record, CommitRecord):
            self._reach("record")
        self._log.append(record, durable)

    def check_owner(self) -> None:
        self._log.check_owner()

    def stop_waiting(self) -> None:
        self._log.stop_waiting()

    def close(self) -> None:
        self._log.close()
