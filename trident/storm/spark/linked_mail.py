"""`LinkedMail`: carries deliveries to executors of this process as they are, to other workers as bytes, over ZeroMQ.

A frame is its kind, the task that it is for, and a body. Numbers of trees travel as arrays of 64-bit integers. Tuples travel
in sections, one for each task and stream that they come from; all values of all sections are packed in one call, by the
types of the codec (`trident/state/encoding/extensions.py`). Nothing is unpickled.
"""

import logging
import struct
import sys
import threading
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from itertools import chain, islice, repeat, starmap
from time import monotonic
from typing import Any, NoReturn

import zmq

from trident.errors import CorruptValueError, TopologyError
from trident.spark.mailbox import Keys, new_context
from trident.state.encoding.codec import encode
from trident.state.encoding.extensions import new_packer, unpack
from trident.storm.execution.messages import Body, Delivery, LocalMail, Outcomes, Tracking
from trident.storm.execution.storm_worker import inboxes_of
from trident.storm.storm_topology import StormTopology, TaskLayout
from trident.storm.storm_tuples import Origin, SentTuple, ids_of, sent_tuple

logger = logging.getLogger("trident.storm")

_IDLE_MS = 50
_FULL_MS = 2  # how often queues that were full are looked at
_REPEATED_S = 1.0
_WAIT_S = 0.001
_SHOWN_S = 10.0


class LinkedMail(LocalMail):
    """The mail of one worker; `host` is the address of this machine that the other workers can reach."""

    def __init__(
        self, number: int, topology: StormTopology, layout: TaskLayout, keys: Keys, capacity: int, host: str
    ) -> None:
        super().__init__(inboxes_of(layout.in_worker(number), capacity))
        self.corrupt = 0
        self.unknown = 0
        self._number = number
        self._context, self._doorkeeper = new_context(keys)
        self._peers = {worker: Peer(self._context, keys) for worker in range(layout.workers) if worker != number}
        self._peer_of = {task: self._peers[at] for task, at in layout.worker_of.items() if at != number}
        self._encoder, self._decoder = Encoder(topology), Decoder(topology, layout)
        self._full: set[int] = set()
        self._next_marks = self._next_shown = 0.0
        socket = self._context.socket(zmq.PULL)
        self.address = f"{host}:{keys.listen(socket, host)}"
        self._receiver = threading.Thread(target=self._receive, args=(socket,), name="links", daemon=True)
        self._receiver.start()

    def set_peers(self, places: Mapping[int, tuple[str, str]]) -> None:
        """Connect to the other workers at their addresses, as what runs there; those that are not named are away."""
        for worker, peer in self._peers.items():
            peer.move(places.get(worker))

    def send(self, task: int, body: Body) -> None:
        inbox = self.inboxes.get(task)
        if inbox is not None:
            inbox.put((task, body))
        else:
            self._peer_of[task].send(self._encoder.encode(task, body))

    def is_open(self, task: int) -> bool:
        inbox = self.inboxes.get(task)
        return self._peer_of[task].takes(task) if inbox is None else inbox.is_open

    def wait_until_open(self, task: int) -> None:
        if task in self.inboxes:
            super().wait_until_open(task)
            return
        takes = self._peer_of[task].takes
        while not takes(task) and not self.ended.wait(_WAIT_S):
            pass

    @property
    def dropped(self) -> int:
        return sum(each.dropped for each in self._peers.values())

    def close(self) -> None:
        self.ended.set()
        self._receiver.join()
        self.set_peers({})
        self._doorkeeper.stop()
        self._context.term()

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        waits = socket.rcvtimeo = _IDLE_MS
        nothing_came = suppress(zmq.Again)
        while not self.ended.is_set():
            with nothing_came:
                self._take(socket.recv())
            self._look_at_queues()
            wanted = _FULL_MS if self._full else _IDLE_MS
            if wanted != waits:
                waits = socket.rcvtimeo = wanted
        socket.close()

    def _take(self, frame: bytes) -> None:
        """Put what came into the inbox that it is for. The receiver never waits: its peers hear which queues are full."""
        try:
            kind, _ = _HEAD.unpack_from(frame)
            if kind in (_FULL, _FREE):
                tasks = _numbers(frame[_HEAD.size :])
                for peer in self._peers.values():
                    if mine := [task for task in tasks if self._peer_of.get(task) is peer]:
                        peer.mark(kind == _FULL, mine)
                return
            task, body = self._decoder.decode(frame)
        except Exception as error:  # noqa: BLE001  damaged bytes may raise anything
            self.corrupt += 1
            self._show(f"a frame of {len(frame)} bytes is damaged ({type(error).__name__}: {error})")
            return
        inbox = self.inboxes.get(task)
        if inbox is None:
            self.unknown += 1
            self._show(f"a delivery is for task {task}, which is not here")
            return
        inbox.put((task, body))
        if not inbox.is_open and task not in self._full:
            self._full |= {each for each, queue in self.inboxes.items() if queue is inbox}
            self._next_marks = 0.0

    def _look_at_queues(self) -> None:
        """Tell all peers which queues are full, every second, and which have room again, at once."""
        for peer in self._peers.values():
            peer.flush()
        if not self._full:
            return
        free = [task for task in self._full if self.inboxes[task].is_open]
        if free:
            self._full.difference_update(free)
            self._send_marks(False, free)
        now = monotonic()
        if self._full and now >= self._next_marks:
            self._next_marks = now + _REPEATED_S
            self._send_marks(True, sorted(self._full))

    def _send_marks(self, full: bool, tasks: list[int]) -> None:
        frame = _HEAD.pack(_FULL if full else _FREE, 0) + _words(tasks)
        for peer in self._peers.values():
            peer.send(frame)

    def _show(self, what: str) -> None:
        now = monotonic()
        if now >= self._next_shown:
            self._next_shown = now + _SHOWN_S
            logger.warning(
                "worker %d: %s and is dropped; its messages time out and are failed. So far %d were damaged, %d astray",
                self._number, what, self.corrupt, self.unknown,
            )  # fmt: skip


_QUEUED = 2000  # frames that wait in ZeroMQ for one worker
_OVERFLOW = 10_000  # frames that wait behind them; all that come after these are dropped
_MARK_S = 3.0  # marks are repeated every second


class Peer:
    """Sends to one other worker, and knows which of its queues are full. Its socket belongs to whoever holds the lock."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> None:
        self._context, self._keys = context, keys
        self._lock = threading.Lock()
        self._socket: zmq.Socket[bytes] | None = None
        self._overflow: deque[bytes] = deque()
        self._full: dict[int, float] = {}
        self.place: tuple[str, str] | None = None
        """Its address and its run; None while it is away."""
        self.dropped = 0

    def takes(self, task: int) -> bool:
        """Whether more may be sent to a task: the worker is there, and neither its queue nor the connection is full."""
        return self._socket is not None and not self._overflow and task not in self._full

    def send(self, frame: bytes) -> None:
        """Send; never waits. What is for a worker that is away is dropped, and times out."""
        with self._lock:
            socket = self._socket
            if socket is None or len(self._overflow) >= _OVERFLOW:
                self.dropped += 1
            elif self._overflow:
                self._overflow.append(frame)
            else:
                try:
                    socket.send(frame, zmq.NOBLOCK)
                except zmq.Again:
                    self._overflow.append(frame)

    def flush(self) -> None:
        """Send what had no room, and forget marks that were not repeated."""
        if self._overflow:
            with self._lock, suppress(zmq.Again):
                while self._overflow and self._socket is not None:
                    self._socket.send(self._overflow[0], zmq.NOBLOCK)
                    self._overflow.popleft()
        if self._full:
            now = monotonic()
            self._full = {task: ends for task, ends in self._full.items() if ends > now}

    def mark(self, full: bool, tasks: list[int]) -> None:
        """Take in that queues are full, or have room; one thread calls this and `flush`."""
        if full:
            self._full = {**self._full, **dict.fromkeys(tasks, monotonic() + _MARK_S)}
        else:
            self._full = {task: ends for task, ends in self._full.items() if task not in tasks}

    def move(self, place: tuple[str, str] | None) -> None:
        """Connect to where the worker is now. What was on its way to where it was is dropped."""
        with self._lock:
            if place == self.place:
                return
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            self.dropped += len(self._overflow)
            self._overflow.clear()
            self._full = {}
            self.place = place
            if place is not None:
                socket = self._context.socket(zmq.PUSH)
                socket.sndhwm = _QUEUED
                self._keys.connect(socket, place[0])
                self._socket = socket


_HEAD = struct.Struct("<BI")
_FOUR, _THREE = struct.Struct("<4I"), struct.Struct("<3I")
_TUPLES, _TRACKING, _OUTCOMES, _FULL, _FREE = range(5)
_SWAPPED = sys.byteorder == "big"


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.packer = new_packer()


class Encoder:
    """Encodes deliveries; any thread may."""

    def __init__(self, topology: StormTopology) -> None:
        self._streams = {name: list(spec.streams) for name, spec in topology.components.items()}
        self._of_thread = _OfThread()

    def encode(self, task: int, body: Body) -> bytes:
        """Return the frame of a delivery; `TopologyError` that names component, stream and field if a value cannot be sent."""
        match body:
            case Tracking():
                parts = (body.begun, body.acked, body.failed, body.extended)
                return _HEAD.pack(_TRACKING, task) + _FOUR.pack(*map(len, parts)) + _words(chain(*parts))
            case Outcomes():
                roots = (body.acked, body.failed, body.extended)
                return _HEAD.pack(_OUTCOMES, task) + _THREE.pack(*map(len, roots)) + _words(chain(*roots))
            case _:
                return _HEAD.pack(_TUPLES, task) + self._pack(body)

    def _pack(self, tuples: list[SentTuple]) -> bytes:
        origins = {origin for _, origin, _, _ in tuples}
        if len(origins) == 1:
            sections = [self._section(origins.pop(), tuples)]
        else:
            sections = [self._section(one, [each for each in tuples if each[1] is one]) for one in origins]
        try:
            packed: bytes = self._of_thread.packer.pack(sections)
        except (CorruptValueError, UnicodeEncodeError, ValueError, OverflowError, RecursionError) as error:
            _refuse(tuples, error)
        return packed

    def _section(self, origin: Origin, tuples: list[SentTuple]) -> list[Any]:
        rows, _, roots, edges = zip(*tuples, strict=True)
        values = list(chain.from_iterable(rows))
        stream = self._streams[origin.component].index(origin.stream)
        if set(map(type, roots)) == {int}:
            return [origin.task, stream, len(tuples), values, None, _words(roots), _words(edges)]
        ids = list(map(ids_of, roots, edges))
        numbers = _words(chain.from_iterable(ids)), _words(chain.from_iterable([each.values() for each in ids]))
        return [origin.task, stream, len(tuples), values, _words(map(len, ids)), *numbers]


class Decoder:
    """Decodes the frames of deliveries. What it returns for damaged bytes is an error, of any kind."""

    def __init__(self, topology: StormTopology, layout: TaskLayout) -> None:
        self._topology, self._component_of = topology, layout.component_of
        self._origin = cache(self._new_origin)  # the same object for all tuples of one task and stream

    def decode(self, frame: bytes) -> Delivery:
        kind, task = _HEAD.unpack_from(frame)
        if kind == _TUPLES:
            sections = unpack(memoryview(frame)[_HEAD.size :])
            return task, list(chain.from_iterable(starmap(self._tuples, sections)))
        if kind == _TRACKING:
            return task, Tracking(*_parts(frame, _FOUR))
        if kind == _OUTCOMES:
            return task, Outcomes(*_parts(frame, _THREE))
        raise ValueError(f"frames of kind {kind} are unknown")

    def _tuples(
        self, task: int, stream: int, count: int, values: list[Any], counts: bytes | None, roots: bytes, edges: bytes
    ) -> Iterable[SentTuple]:
        origin = self._origin(task, stream)
        width = len(origin.fields)
        if len(values) != count * width:
            raise ValueError(f"{count} tuples of {width} fields have {len(values)} values")
        rows = zip(*[iter(values)] * width, strict=True) if width else repeat((), count)
        of_roots, of_edges = _numbers(roots), _numbers(edges)
        if len(of_roots) != len(of_edges):
            raise ValueError(f"{len(of_roots)} roots have {len(of_edges)} edges")
        if counts is None:
            if len(of_roots) != count:
                raise ValueError(f"{count} tuples have {len(of_roots)} roots")
            return zip(rows, repeat(origin), of_roots, of_edges)
        sizes, pairs = _numbers(counts), zip(of_roots, of_edges, strict=True)
        if len(sizes) != count or sum(sizes) != len(of_roots):
            raise ValueError(f"{count} tuples have {len(sizes)} numbers of trees, for {len(of_roots)} roots")
        return [sent_tuple(row, origin, dict(islice(pairs, size))) for row, size in zip(rows, sizes, strict=True)]

    def _new_origin(self, task: int, stream: int) -> Origin:
        component = self._component_of[task]
        name, spec = list(self._topology.components[component].streams.items())[stream]
        return Origin(component, task, name, spec.fields)


def _words(numbers: Iterable[int]) -> bytes:
    words = array("Q", numbers)
    if _SWAPPED:
        words.byteswap()
    return words.tobytes()


def _numbers(data: bytes) -> list[int]:
    words = array("Q", data)
    if _SWAPPED:
        words.byteswap()
    return words.tolist()


def _parts(frame: bytes, lengths: struct.Struct) -> Iterable[list[int]]:
    sizes = lengths.unpack_from(frame, _HEAD.size)
    numbers = _numbers(frame[_HEAD.size + lengths.size :])
    if sum(sizes) != len(numbers):
        raise ValueError(f"{sum(sizes)} numbers were announced, {len(numbers)} came")
    at = 0
    for size in sizes:
        yield numbers[at : at + size]
        at += size


def _refuse(tuples: list[SentTuple], error: Exception) -> NoReturn:
    for values, origin, _, _ in tuples:
        for name, value in zip(origin.fields.names, values, strict=True):
            try:
                encode(value)
            except CorruptValueError as cause:
                raise TopologyError(
                    f"component {origin.component!r} (task {origin.task}) emits to stream "
                    f"{origin.stream!r}, in field {name!r}, what cannot be sent to another worker: {cause}"
                ) from error
    raise error
