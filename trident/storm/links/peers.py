"""One other worker: the connection to it, and which of its queues are full."""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic

import zmq

from trident.storm.links.link_keys import Keys

__all__ = ["Peer"]

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
        self.place: tuple[str, int] | None = None
        """Its address and its incarnation; None while it is away."""
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

    def move(self, place: tuple[str, int] | None) -> None:
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
