"""The collectors of spouts and bolts: they draw the edges of the tuple trees.

An edge is a random 64-bit number. A tuple with several anchors gets an edge for each of them, under every root of that
anchor. One edge for all would be wrong: two anchors of one root would cancel it. `Pending` has the tracked tuples of one spout
task that are not answered yet, `Counts` what a task has done: only its own thread writes, others may read at any time.
"""

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Generic, NoReturn, TypeVar

from trident.errors import TopologyError
from trident.storm.execution.launch import Setting
from trident.storm.execution.messages import BATCH, Outbox
from trident.storm.execution.out_streams import OutStream
from trident.storm.interfaces import IRichSpout
from trident.storm.storm_topology import ExecutorPlace
from trident.storm.storm_tuples import DEFAULT_STREAM, Origin, Tuple, ids_of, sent_tuple

logger = logging.getLogger("trident.storm")


@dataclass(slots=True, eq=False)
class Counts:
    """Totals of what one bolt task got from one origin, or of the messages that one spout task emitted to one stream.

    `collector`: that of the bolt's task that must answer; None in `ANSWERED`. `failed`: of a spout with those that timed out.
    `process_s`: seconds from the start of `execute` to the ack, of some tuples; `complete_s`: from the emit to the
    acknowledgement, of all tracked messages; `…_samples`: of how many.
    """

    collector: object = None
    executed: int = 0
    acked: int = 0
    failed: int = 0
    execute_s: float = 0.0
    process_s: float = 0.0
    process_samples: int = 0
    complete_s: float = 0.0
    complete_samples: int = 0

    def totals(self) -> dict[str, float]:
        return {name: value for name, value in zip(_MEASURES, _measures_of(self), strict=True) if value}


_MEASURES = tuple(Counts.__slots__[1:])
_measures_of = attrgetter(*_MEASURES)
ANSWERED = Counts()
"""The holder of every tuple that was acked or failed."""

K = TypeVar("K", bound=Hashable)


class TaskCounts(dict[K, Counts], Generic[K]):
    """Totals of one task: of a bolt by the origin of tuples, of a spout by stream, of an acker by ""."""

    def __init__(self, collector: object = None) -> None:
        super().__init__()
        self._collector = collector
        self.busy_s = 0.0

    def __missing__(self, source: K) -> Counts:
        counts = self[source] = Counts(self._collector)
        return counts


PendingMessage = tuple[Any, str, float]
"""A spout's message while its tree is processed: its id, its stream and when it was emitted."""


class Pending:
    """Messages by the root of their tree, in two generations: one times out after one to two timeouts, as in Storm."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._young: dict[int, PendingMessage] = {}
        self._older: dict[int, PendingMessage] = {}
        self.count = 0  # asked for before each call of `next_tuple`, so it is kept
        self.answered_at_once: deque[tuple[Any, str]] = deque()
        """Messages that nothing is tracked of: acknowledged within the emit without ackers, else (they go to no bolt) after
        the spout's call."""

    def put(self, root: int, message_id: Any, stream: str) -> None:
        self._young[root] = message_id, stream, self._clock()
        self.count += 1

    def take(self, root: int) -> PendingMessage | None:
        """Return a message that is answered now; None if it timed out before, or another worker emitted it."""
        message = self._young.pop(root, None) or self._older.pop(root, None)
        self.count -= message is not None
        return message

    def extend(self, root: int) -> None:
        message = self.take(root)
        if message is not None:
            self._young[root] = message
            self.count += 1

    def rotate(self) -> list[PendingMessage]:
        timed_out, self._older, self._young = self._older, self._young, {}
        self.count -= len(timed_out)
        return list(timed_out.values())


class _Collector:
    def __init__(self, setting: Setting, place: ExecutorPlace, task: int, outbox: Outbox) -> None:
        random, self.context = setting.random(), setting.context(place, task)
        self.component, self.task, self._where = place.component, task, f"component {place.component!r} (task {task})"
        self.clock, self.outbox = setting.clock, outbox
        self.streams = setting.streams(self.context, random)
        self.report_error = partial(setting.report, self.component, task)
        self._open = True
        # What an emit needs: without streams it takes the slow way, which refuses it or writes it to the log.
        self._fast_streams = {} if setting.conf_of(self.component)["debug"] else dict(self.streams)
        self._edge = random.getrandbits

    def close(self) -> None:
        self._open = False
        self._fast_streams = {}

    def _stream(self, stream_id: str) -> OutStream:
        if not self._open:
            raise TopologyError(f"{self._where} emits after cleanup; its tuples would go nowhere")
        stream = self.streams.get(stream_id)
        if stream is None:
            raise TopologyError(
                f"{self._where} emits to stream {stream_id!r}, which it does not declare; "
                f"it declares {sorted(self.streams) or 'none'}"
            )
        logger.info("component %s, task %d: emit to %s", self.component, self.task, stream_id)
        return stream


class SpoutCollector(_Collector):
    """The `SpoutOutputCollector` of one spout task, with its `messages`; `ack_untracked` is set by the executor."""

    ack_untracked: Callable[[], None]

    def __init__(self, spout: IRichSpout, max_pending: int | None, *args: Any) -> None:
        super().__init__(*args)
        self.spout, self.max_pending = spout, max_pending
        self.messages, self.counts = Pending(self.clock), TaskCounts[str]()
        self.emits = 0
        self._acks_untracked = False

    @property
    def pending(self) -> int:
        return self.messages.count

    def emit(self, values: Sequence[Any], message_id: Any = None, stream_id: str = DEFAULT_STREAM) -> Sequence[int]:
        stream = self._fast_streams.get(stream_id) or self._stream(stream_id)
        values = stream.accept(values)
        tasks = stream.tasks(values)
        self._emit(stream, tasks, values, message_id)
        return tasks

    def emit_direct(
        self, task: int, values: Sequence[Any], message_id: Any = None, stream_id: str = DEFAULT_STREAM
    ) -> None:
        stream = self._fast_streams.get(stream_id) or self._stream(stream_id)
        values = stream.accept(values)
        self._emit(stream, stream.direct_task(task), values, message_id)

    def _emit(self, stream: OutStream, tasks: Sequence[int], values: tuple[Any, ...], message_id: Any) -> None:
        outbox, origin, draw = self.outbox, stream.origin, self._edge
        self.emits += 1
        if message_id is None or not outbox.tracks or not tasks:
            for task in tasks:
                outbox.put(task, (values, origin, None, 0))
            if message_id is not None:
                self.messages.answered_at_once.append((message_id, origin.stream))
                if not outbox.tracks:
                    self.ack_untracked()
            return
        root, edges = draw(64), 0
        for task in tasks:
            edge = draw(64)
            edges ^= edge
            outbox.put(task, (values, origin, root, edge))
        self.messages.put(root, message_id, origin.stream)
        outbox.begin(root, edges, self.task)

    def take_ack(self, message: PendingMessage, now: float) -> None:
        message_id, stream, emitted_at = message
        counts = self.counts[stream]
        counts.acked += 1
        counts.complete_s += now - emitted_at
        counts.complete_samples += 1
        self.spout.ack(message_id)

    def take_fail(self, message: PendingMessage) -> None:
        message_id, stream, _ = message
        self.counts[stream].failed += 1
        self.spout.fail(message_id)

    def ack_at_once(self) -> None:
        """Acknowledge what is not tracked, or went to no bolt; what an ack emits is acknowledged after it returned."""
        if self._acks_untracked:
            return
        self._acks_untracked = True
        try:
            while self.messages.answered_at_once:
                message_id, stream = self.messages.answered_at_once.popleft()
                self.counts[stream].acked += 1
                self.spout.ack(message_id)
        finally:
            self._acks_untracked = False


class BoltCollector(_Collector):
    """The `OutputCollector` of one bolt task. It holds no tuple: an unanswered one is in the bolt's own hands."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.counts = TaskCounts[Origin](self)
        self._outgoing = self.outbox.tuples

    def emit(
        self, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = (), stream_id: str = DEFAULT_STREAM
    ) -> Sequence[int]:
        # What `emit_direct` does in calls is written out here for what is by far the most frequent: one anchor, in one tree.
        stream = self._fast_streams.get(stream_id) or self._stream(stream_id)
        if type(values) is not tuple or len(values) != 1 or type(values[0]) not in stream.one_value:
            values = stream.accept(values)
        if type(anchors) is not Tuple or type(anchors.root) is dict:
            checked = self._check_anchors(anchors)
            tasks = stream.tasks(values)
            self._emit(stream, tasks, values, checked)
            return tasks
        if anchors.holder.collector is not self:
            self._refuse("anchor to", anchors)
        only = stream.only
        if only:
            tasks = only(values)
            stream.emitted += 1
            if len(tasks) != 1:
                stream.further += len(tasks) - 1
        else:
            tasks = stream.tasks(values)
        root, edge = anchors.root, 0
        for task in tasks:
            if root is not None:
                edge = self._edge(64)
                anchors.edge ^= edge
            batch = self._outgoing[task]
            batch.append((values, stream.origin, root, edge))
            if len(batch) >= BATCH:
                self.outbox.send_full(task)
        return tasks

    def emit_direct(
        self, task: int, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = (), stream_id: str = DEFAULT_STREAM
    ) -> None:
        stream = self._fast_streams.get(stream_id) or self._stream(stream_id)
        values = stream.accept(values)
        anchors = self._check_anchors(anchors)
        self._emit(stream, stream.direct_task(task), values, anchors)

    def ack(self, tuple: Tuple) -> None:
        """Take the tuple out of its trees, and put in what is anchored to it: in one number for each root."""
        if type(tuple) is not Tuple or (counts := tuple.holder).collector is not self:
            self._refuse("ack", tuple)
        tuple.holder = ANSWERED
        counts.acked += 1
        if tuple.started:
            counts.process_s += self.clock() - tuple.started
            counts.process_samples += 1
        acks, root = self.outbox.acks, tuple.root
        if type(root) is int:
            acks[root] = acks.get(root, 0) ^ tuple.edge
        elif root is not None:
            for each, edge in ids_of(root, 0).items():
                acks[each] = acks.get(each, 0) ^ edge ^ tuple.edge

    def fail(self, tuple: Tuple) -> None:
        self._check_held("fail", tuple)
        tuple.holder.failed += 1
        tuple.holder = ANSWERED
        self.outbox.fail(tuple.roots)

    def reset_timeout(self, tuple: Tuple) -> None:
        self._check_held("reset_timeout", tuple)
        self.outbox.extend(tuple.roots)

    def _emit(self, stream: OutStream, tasks: Sequence[int], values: tuple[Any, ...], anchors: Sequence[Tuple]) -> None:
        put, origin = self.outbox.put, stream.origin
        for task in tasks:
            put(task, sent_tuple(values, origin, self._join(anchors)))

    def _check_anchors(self, anchors: Tuple | Iterable[Tuple]) -> Sequence[Tuple]:
        if isinstance(anchors, Tuple):
            anchors = (anchors,)
        if not anchors:
            return ()
        if not isinstance(anchors, Iterable):
            self._refuse("anchor to", anchors)
        checked = tuple(anchors)
        for each in checked:
            self._check_held("anchor to", each)
        return checked

    def _check_held(self, what: str, tuple: object) -> None:
        if type(tuple) is not Tuple or tuple.holder.collector is not self:
            self._refuse(what, tuple)

    def _join(self, anchors: Sequence[Tuple]) -> dict[int, int]:
        """Draw the edges to one copy of a new tuple; return its id under each root."""
        ids: dict[int, int] = {}
        for anchor in anchors:
            if anchor.root is not None:
                edge = self._edge(64)
                anchor.edge ^= edge
                for root in ids_of(anchor.root, 0):
                    ids[root] = ids.get(root, 0) ^ edge
        return ids

    def _refuse(self, what: str, tuple: object) -> NoReturn:
        if not isinstance(tuple, Tuple):
            why = f"a {type(tuple).__name__}; it takes the Tuple that execute() got. The order is emit(values, anchors)"
        elif tuple.holder is ANSWERED:
            why = "which was acked or failed before; answer each tuple once, last"
        else:
            why = "which another task was given; answer only what execute() got"
        raise TopologyError(f"{self._where}: {what} {tuple!r}, {why}")


class BasicCollector:
    """The `BasicOutputCollector` of one bolt task: anchors everything to the tuple that is executed."""

    def __init__(self, collector: BoltCollector) -> None:
        self._collector = collector
        self.anchor: Tuple | Sequence[Tuple] = ()
        self.report_error = collector.report_error
        self.reset_timeout = collector.reset_timeout

    def emit(self, values: Sequence[Any], stream_id: str = DEFAULT_STREAM) -> Sequence[int]:
        return self._collector.emit(values, self.anchor, stream_id)

    def emit_direct(self, task: int, values: Sequence[Any], stream_id: str = DEFAULT_STREAM) -> None:
        self._collector.emit_direct(task, values, self.anchor, stream_id)
