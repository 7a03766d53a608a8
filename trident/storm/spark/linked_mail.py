"""`LinkedMail`: carries deliveries to executors of this process as they are, to other workers over ZeroMQ."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from time import monotonic

import zmq

from trident.spark.mailbox import Keys, new_context
from trident.storm.execution.messages import Body
from trident.storm.execution.storm_worker import inboxes_of
from trident.storm.spark.frames import Decoder, Encoder, encode_marks, marks_of
from trident.storm.storm_topology import StormTopology, TaskLayout

logger = logging.getLogger("trident.storm")

_IDLE_MS = 50
_FULL_MS = 2  # how often queues that were full are looked at
_REPEATED_S = 1.0
_WAIT_S = 0.001
_SHOWN_S = 10.0


class LinkedMail:
    """The mail of one worker; see `Mail`.

    `host`: the address of this machine that the other workers can reach, as of `own_address`.
    """

    def __init__(
        self, number: int, topology: StormTopology, layout: TaskLayout, keys: Keys, capacity: int, host: str
    ) -> None:
        self.inboxes = inboxes_of(layout.in_worker(number), capacity)
        self.ended = threading.Event()
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
        """Whether the queue in front of a task has room."""
        inbox = self.inboxes.get(task)
        return self._peer_of[task].takes(task) if inbox is None else inbox.is_open

    def wait_until_open(self, task: int) -> None:
        """Return when it has, or when the worker ends."""
        inbox = self.inboxes.get(task)
        if inbox is None:
            takes = self._peer_of[task].takes
            while not takes(task) and not self.ended.wait(_WAIT_S):
                pass
        else:
            while not inbox.wait_until_open(0.1) and not self.ended.is_set():
                pass

    @property
    def dropped(self) -> int:
        """How many deliveries were for workers that were away."""
        return sum(each.dropped for each in self._peers.values())

    def close(self) -> None:
        """Close all connections. No executor may send any more."""
        self.ended.set()
        self._receiver.join()
        self.set_peers({})
        self._doorkeeper.stop()
        self._context.term()

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        waits = socket.rcvtimeo = _IDLE_MS
        while not self.ended.is_set():
            try:
                frame = socket.recv()
            except zmq.Again:
                frame = None
            if frame is not None:
                self._take(frame)
            self._look_at_queues()
            wanted = _FULL_MS if self._full else _IDLE_MS
            if wanted != waits:
                waits = socket.rcvtimeo = wanted
        socket.close()

    def _take(self, frame: bytes) -> None:
        """Put what came into the inbox that it is for. The receiver never waits: its peers hear which queues are full."""
        try:
            if (marks := marks_of(frame)) is not None:
                self._take_marks(*marks)
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

    def _take_marks(self, full: bool, tasks: list[int]) -> None:
        for peer in self._peers.values():
            mine = [task for task in tasks if self._peer_of.get(task) is peer]
            if mine:
                peer.mark(full, mine)

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
        frame = encode_marks(full, tasks)
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


# One other worker: the connection to it, and which of its queues are full.

_QUEUED = 2000  # frames that wait in ZeroMQ for one worker
_OVERFLOW = 10_000  # frames that wait behind them; all that come after these are dropped
_MARK_S = 3.0  # marks are repeated every second


class Peer:
    """Sends to one worker. Its socket belongs to whichever thread holds the lock."""

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
            with self._lock:
                self._flush()
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

    def _flush(self) -> None:
        while self._overflow and self._socket is not None:
            try:
                self._socket.send(self._overflow[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._overflow.popleft()
