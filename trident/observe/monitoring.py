"""Monitoring: passes events on to the log, the metrics and the listeners. Opened before the topology, closed after it."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from trident.observe.batch_committed import BatchCommitted
from trident.observe.events import (
    AttemptFailed,
    ReplayDiffered,
    TopologyEvent,
    TopologyListener,
    TopologyStarted,
    TopologyTerminated,
    event_logger,
)
from trident.observe.open_metrics import Metrics, MetricsServer
from trident.observe.topology_status import TopologyStatus
from trident.roles import close_on_error

logger = logging.getLogger(__name__)

_LISTENERS_END_S = 5.0


class Monitoring:
    """Passes each event on: at once to the log and the metrics (served if there is a port), through queues to the listeners."""

    def __init__(
        self,
        topology: str,
        listeners: Sequence[TopologyListener] = (),
        port: int | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.topology, self.run_id = topology, uuid.uuid4().hex
        self._lock = threading.Lock()
        self._deliveries: tuple[Delivery, ...] = ()  # replaced, never changed: the topology's thread reads it
        self._metrics: Metrics | None = None
        self._server: MetricsServer | None = None
        self._closed = False
        if port is not None:
            self._metrics = Metrics(topology, self.listeners)
            self._server = MetricsServer(topology, self._metrics, host, port)
        with close_on_error(self.close):
            for listener in listeners:
                self.add(listener)

    @property
    def metrics_url(self) -> str | None:
        return None if self._server is None else self._server.url

    def watch(self, status: Callable[[], TopologyStatus]) -> None:
        if self._metrics is not None:
            self._metrics.status = status

    def publish(self, event: TopologyEvent) -> None:
        if self._metrics is not None:
            self._metrics.take(event)
        for delivery in self._deliveries:
            delivery.put(event)
        level = _level_of(event)
        if event_logger.isEnabledFor(level):
            event_logger.log(level, event)

    def add(self, listener: TopologyListener) -> None:
        if not isinstance(listener, TopologyListener):
            raise TypeError(
                f"{listener!r} is not a listener: subclass trident.observe.TopologyListener, and give an instance"
            )
        with self._lock:
            if not self._closed:
                self._deliveries = (*self._deliveries, Delivery(self.topology, listener))

    def remove(self, listener: TopologyListener) -> None:
        """Remove a listener; events that are queued for it are still delivered."""
        with self._lock:
            leaving = [each for each in self._deliveries if each.listener is listener]
            self._deliveries = tuple(each for each in self._deliveries if each.listener is not listener)
        for delivery in leaving:
            delivery.close()

    def listeners(self) -> list[dict[str, Any]]:
        return [delivery.as_dict() for delivery in self._deliveries]

    @property
    def is_in_listener(self) -> bool:
        return any(delivery.is_here for delivery in self._deliveries)

    def close(self, last: TopologyEvent | None = None) -> None:
        """Deliver the last event, free the port, and let the listeners' threads end; nothing of it if done before."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if last is not None:
            self.publish(last)
        if self._server is not None:
            self._server.close()
        until = time.monotonic() + _LISTENERS_END_S
        for delivery in self._deliveries:
            delivery.close()
        for delivery in self._deliveries:
            delivery.join(until)


def _level_of(event: TopologyEvent) -> int:
    is_failure = isinstance(event, AttemptFailed) and not event.leaves_out
    if is_failure or isinstance(event, ReplayDiffered) or (isinstance(event, BatchCommitted) and event.dead_letters):
        return logging.WARNING
    return logging.ERROR if isinstance(event, TopologyTerminated) and event.error_class is not None else logging.INFO


MOST_WAITING = 1000  # how many events may wait for a listener; then the oldest is dropped


class Delivery:
    """The events that wait for a listener, and the thread that passes them on: it can neither stop nor delay a topology."""

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
        return threading.current_thread() is self._thread

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "delivered": self.delivered, "dropped": self.dropped, "errors": self.errors}

    def _run(self) -> None:
        while (event := self._next()) is not None:
            try:
                _notify(self.listener, event)
            except BaseException:  # SystemExit and its like end neither the topology nor this thread
                self.errors += 1
                if self.errors == 1:
                    logger.exception(
                        "topology %s: the listener %s raised; its later errors are only counted",
                        self._topology, self.name,
                    )  # fmt: skip
            else:
                self.delivered += 1

    def _next(self) -> TopologyEvent | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None


def _notify(listener: TopologyListener, event: TopologyEvent) -> None:
    match event:
        case BatchCommitted():
            listener.on_batch_committed(event)
        case AttemptFailed():
            listener.on_attempt_failed(event)
        case ReplayDiffered():
            listener.on_replay_differed(event)
        case TopologyStarted():
            listener.on_topology_started(event)
        case TopologyTerminated():
            listener.on_topology_terminated(event)
