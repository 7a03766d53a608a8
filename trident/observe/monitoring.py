"""Monitoring: passes events on to the log, the metrics and the listeners. Opened before the topology, closed after it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from trident.observe.delivery import Delivery
from trident.observe.event_log import log_event
from trident.observe.events import TopologyEvent
from trident.observe.listener import TopologyListener
from trident.observe.metrics_server import MetricsServer
from trident.observe.open_metrics import Metrics
from trident.observe.topology_status import TopologyStatus

__all__ = ["Monitoring"]

_LISTENERS_END_S = 5.0


class Monitoring:
    """Passes each event on: at once to the log and the metrics, through queues to the listeners.

    Attributes
    ----------
    topology, run_id
        As of the events.

    Parameters
    ----------
    port, host
        Where metrics are served; port None: nowhere.
    """

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
        try:
            for listener in listeners:
                self.add(listener)
        except BaseException:
            self.close()
            raise

    @property
    def metrics_url(self) -> str | None:
        """Where metrics are served, None if they are not."""
        return None if self._server is None else self._server.url

    def watch(self, status: Callable[[], TopologyStatus]) -> None:
        """Serve what operations do, and what the topology works on, too."""
        if self._metrics is not None:
            self._metrics.status = status

    def publish(self, event: TopologyEvent) -> None:
        """Tell of an event."""
        if self._metrics is not None:
            self._metrics.take(event)
        for delivery in self._deliveries:
            delivery.put(event)
        log_event(event)

    def add(self, listener: TopologyListener) -> None:
        """Tell a listener of what happens from now on."""
        if not isinstance(listener, TopologyListener):
            raise TypeError(
                f"{listener!r} is no listener: subclass trident.observe.TopologyListener, and give an instance"
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
        """Return the figures of each listener."""
        return [delivery.told() for delivery in self._deliveries]

    @property
    def is_in_listener(self) -> bool:
        """Whether the calling thread is that of a listener."""
        return any(delivery.is_here for delivery in self._deliveries)

    def end(self, last: TopologyEvent) -> None:
        """Tell of the end, unless it has been told, and close."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.publish(last)
        self._close()

    def close(self) -> None:
        """Free the port and let the listeners' threads end; harmless if done before."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._close()

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        until = time.monotonic() + _LISTENERS_END_S
        for delivery in self._deliveries:
            delivery.close()
        for delivery in self._deliveries:
            delivery.join(until)
