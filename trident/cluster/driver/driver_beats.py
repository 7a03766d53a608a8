"""Heartbeats of a driver: once a second, whatever its topology does, and while the cluster's state answers."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from trident.cluster.machine.machine_folder import DriverOrder
from trident.cluster.state.cluster_records import ErrorInfo, WorkerHeartbeat
from trident.cluster.state.storm_cluster_state import StormClusterState
from trident.cluster_errors import ClusterError

logger = logging.getLogger(__name__)

_EVERY_S = 1.0


class DriverBeats:
    """Tells how a driver does, in a thread of its own.

    `state`, `pages`: as of `WorkerHeartbeat`; set from any thread.
    `statistics`: returns what the heartbeat contains; set once the topology runs.
    `errors`: returns the errors of components that were not reported yet: component, seconds since 1970, text.
    """

    def __init__(self, cluster: StormClusterState, order: DriverOrder) -> None:
        self._cluster, self._order = cluster, order
        self._began, self._host = time.time(), socket.gethostname()
        self.state, self.pages = "starting", ""
        self.statistics: Callable[[], Mapping[str, Any]] = dict
        self.errors: Callable[[], list[tuple[str, float, str]]] = list
        self._unreported: list[tuple[str, float, str]] = []
        self._stopped, self._now = threading.Event(), threading.Event()
        self._guard = threading.Lock()
        self._figures: Mapping[str, Any] = {}
        self._thread = threading.Thread(target=self._run, name="trident-driver-beats", daemon=True)
        self._thread.start()
        # A thread of its own: while something holds up the statistics, the driver is alive all the same.
        threading.Thread(target=self._count, name="trident-driver-figures", daemon=True).start()

    def send_now(self) -> None:
        """Send a heartbeat at once."""
        self._now.set()

    def stop(self, ended: bool) -> None:
        """Send no more; `ended`: remove the last one, because the topology has ended for good."""
        self._stopped.set()
        self._now.set()
        self._thread.join(_EVERY_S * 5)
        if ended:
            order = self._order
            try:
                self._cluster.remove_worker_heartbeat(order.storm_id, order.node, order.port)
            except ClusterError as error:
                logger.warning("the last heartbeat could not be removed: %s", error)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._now.clear()
            try:
                self._send()
            except ClusterError as error:
                logger.debug("no heartbeat could be sent: %s", error)
            except Exception:  # a driver without heartbeats would be replaced
                logger.exception("a heartbeat failed")
            self._now.wait(_EVERY_S)
        with self._guard:
            self._unreported.extend(self._last_errors())
        try:
            self._report()
        except ClusterError as error:
            logger.warning("the last errors could not be reported: %s", error)

    def _send(self) -> None:
        order = self._order
        beat = WorkerHeartbeat(
            time.time(),
            time.time() - self._began,
            order.storm_id,
            self._host,
            os.getpid(),
            order.generation,
            order.start_time_secs,
            self.state,
            self.pages,
            self._figures,
        )
        if not self._stopped.is_set():
            self._cluster.worker_heartbeat(order.storm_id, order.node, order.port, beat)
        self._report()

    def _last_errors(self) -> list[tuple[str, float, str]]:
        try:
            return self.errors()
        except Exception:
            logger.exception("the last errors could not be read")
            return []

    def _count(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            try:
                self._figures = self.statistics()
                errors = self.errors()
            except Exception:  # one that cannot count is alive all the same
                logger.exception("the statistics of a heartbeat failed")
                continue
            with self._guard:
                self._unreported.extend(errors)

    def _report(self) -> None:
        while self._unreported:
            component, at, text = self._unreported[0]
            self._cluster.report_error(
                self._order.storm_id, component, ErrorInfo(at, text, self._host, self._order.port)
            )
            with self._guard:
                del self._unreported[0]
