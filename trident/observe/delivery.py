"""Delivery: passes events to one listener, in a thread of its own, so that a listener can neither stop nor delay a topology."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any

from trident.observe.batch_committed import BatchCommitted
from trident.observe.events import AttemptFailed, TopologyEvent, TopologyStarted, TopologyTerminated
from trident.observe.listener import TopologyListener

__all__ = ["MOST_WAITING", "Delivery"]

logger = logging.getLogger(__name__)

MOST_WAITING = 1000
"""How many events may wait for a listener; then the oldest is dropped."""


class Delivery:
    """The events that wait for a listener, and the thread that passes them on.

    Attributes
    ----------
    name
        The listener's class.
    delivered, dropped, errors
        Events that the listener has handled, events that it was not told, and exceptions that it raised.
    """

    def __init__(self, topology: str, listener: TopologyListener) -> None:
        self.listener, self.name = listener, type(listener).__name__
        self.delivered = self.dropped = self.errors = 0
        self._topology = topology
        self._waiting: deque[TopologyEvent] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"trident-{topology}-listener", daemon=True)
        self._thread.start()

    def put(self, event: TopologyEvent) -> None:
        """Add an event; never waits for the listener."""
        with self._changed:
            if self._closing:
                return
            is_full = len(self._waiting) == MOST_WAITING
            if is_full:
                self._waiting.popleft()
                self.dropped += 1
            is_first = is_full and self.dropped == 1
            self._waiting.append(event)
            self._changed.notify()
        if is_first:
            logger.warning(
                "topology %s: the listener %s is %d events behind; the oldest are dropped, see status['listeners']",
                self._topology, self.name, MOST_WAITING,
            )  # fmt: skip

    def close(self) -> None:
        """Take no more events; the thread ends after those that wait."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def join(self, until: float) -> None:
        """Wait for the end of the thread, until a time of the monotonic clock; what waits after that is dropped."""
        if self.is_here:
            return
        self._thread.join(max(0.0, until - time.monotonic()))
        if not self._thread.is_alive():
            return
        with self._changed:
            left = len(self._waiting)
            self._waiting.clear()
            self.dropped += left
        logger.warning(
            "topology %s: the listener %s did not return in time; it is left behind, and %d events are dropped",
            self._topology, self.name, left,
        )  # fmt: skip

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is the listener's."""
        return threading.current_thread() is self._thread

    def told(self) -> dict[str, Any]:
        """Return the figures of `status`."""
        return {"name": self.name, "delivered": self.delivered, "dropped": self.dropped, "errors": self.errors}

    def _run(self) -> None:
        while (event := self._next()) is not None:
            try:
                _tell(self.listener, event)
            except BaseException:  # SystemExit and its like end neither the topology nor this thread
                self.errors += 1
                if self.errors == 1:
                    logger.exception(
                        "topology %s: the listener %s raised; later errors of it are counted only",
                        self._topology, self.name,
                    )  # fmt: skip
            else:
                self.delivered += 1

    def _next(self) -> TopologyEvent | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None


def _tell(listener: TopologyListener, event: TopologyEvent) -> None:
    match event:
        case BatchCommitted():
            listener.on_batch_committed(event)
        case AttemptFailed():
            listener.on_attempt_failed(event)
        case TopologyStarted():
            listener.on_topology_started(event)
        case TopologyTerminated():
            listener.on_topology_terminated(event)
