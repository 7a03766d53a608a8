"""What a driver and its cluster tell each other: its heartbeat, and the orders to be active, changed, ended or elsewhere."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from trident.cluster.driver.driven import TopologyHandle, log_before, proved, with_proof
from trident.cluster.machine.machine_folder import DriverOrder
from trident.cluster.state.cluster_records import DRIVER, ErrorInfo, StormBase, WorkerHeartbeat
from trident.cluster.state.storm_cluster_state import StormClusterState
from trident.cluster_errors import ClusterError
from trident.errors import TridentError

logger = logging.getLogger(__name__)

_READ_EVERY_S = _BEAT_EVERY_S = 1.0

Ending = Literal["killed", "moved", "ordered", "failed"]
"""Why a driver ends: its topology was killed; it belongs elsewhere, or has new code; its supervisor says so; it failed."""


class DriverBeats:
    """Tells how a driver does, in a thread of its own.

    `pages`: as of `WorkerHeartbeat`; set from any thread.
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

    def say(self, state: str) -> None:
        """Say at once that it is in another state."""
        self.state = state
        self._now.set()

    def stop(self, ended: bool) -> None:
        """Send no more; `ended`: remove the last one, because the topology has ended for good."""
        self._stopped.set()
        self._now.set()
        self._thread.join(_BEAT_EVERY_S * 5)
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
            self._now.wait(_BEAT_EVERY_S)
        with self._guard:
            self._unreported.extend(self._last_errors())
        try:
            self._report()
        except ClusterError as error:
            logger.warning("the last errors could not be reported: %s", error)

    def _send(self) -> None:
        order, now = self._order, time.time()
        driver = order.storm_id, self._host, os.getpid(), order.generation, order.start_time_secs
        beat = WorkerHeartbeat(now, now - self._began, *driver, self.state, self.pages, self._figures)
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
        while not self._stopped.wait(_BEAT_EVERY_S):
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


class Orders:
    """What the cluster asks of one driver."""

    def __init__(self, cluster: StormClusterState, order: DriverOrder) -> None:
        self._cluster, self._order = cluster, order
        self._changed = threading.Event()
        self._ordered = threading.Event()
        self._active: bool | None = None
        self._proved = True
        cluster.state.register(lambda _event: self._changed.set())

    def end(self) -> None:
        """Let `follow` return `ordered`; may be called by a signal handler."""
        self._ordered.set()
        self._changed.set()

    def base(self) -> StormBase | None:
        """Return the topology's record if it belongs to this driver, else None."""
        base = self._cluster.storm_base(self._order.storm_id, watch=True)
        assignment = self._cluster.assignment_info(self._order.storm_id, watch=True)
        mine = ((self._order.node, self._order.port), self._order.start_time_secs)
        is_mine = assignment is not None and (tuple(assignment.slot), assignment.start_time_secs) == mine
        return base if is_mine else None

    def note_proof(self, base: StormBase, log_dir: str | None) -> StormBase:
        """Note before the start of new code what its log says of it, see `upgrade_proof`; returns the record."""
        if not base.previous_code_hash:
            return base
        log = log_before(log_dir)
        self._update(lambda now: with_proof(now, log))
        return with_proof(base, log)

    def follow(self, driven: TopologyHandle, base: StormBase, beats: DriverBeats) -> tuple[Ending, StormBase]:
        """Do what is asked until the topology ends or has to; returns why, and the last record."""
        self._proved = not base.previous_code_hash
        try:
            return self._follow(driven, base, beats)
        finally:  # a batch that was committed just before the end stands
            self._record_proof(driven)

    def _follow(self, driven: TopologyHandle, base: StormBase, beats: DriverBeats) -> tuple[Ending, StormBase]:
        self._active = base.status.kind == "active"
        while driven.running.is_active:
            if self._ordered.is_set():
                return "ordered", base
            try:
                now = self._read(base)
            except ClusterError as error:
                logger.debug("the cluster's state does not answer: %s", error)
            else:
                if now is None:
                    return "moved", base
                base = now
                if base.status.kind == "killed":
                    return "killed", base
                self._obey(driven, base, beats)
            self._wait(driven)
        return ("ordered", base) if driven.running.exception() is None else ("failed", base)

    def _read(self, before: StormBase) -> StormBase | None:
        self._changed.clear()
        base = self.base()
        return None if base is None or base.generation != self._order.generation else base

    def _obey(self, driven: TopologyHandle, base: StormBase, beats: DriverBeats) -> None:
        active = base.status.kind == "active"
        try:
            if active != self._active:
                logger.info("topology %s: %s", self._order.storm_id, "activated" if active else "deactivated")
                driven.running.activate() if active else driven.running.deactivate()
                self._active = active
                beats.say("active" if active else "inactive")
            driven.adapt(base)
        except TridentError as error:
            logger.exception("topology %s could not do what it was asked", self._order.storm_id)
            self._report(error)
        self._record_proof(driven)

    def _record_proof(self, driven: TopologyHandle) -> None:
        """Note once that the new code runs: there is no way back to the old code."""
        if self._proved or not driven.has_proved:
            return
        try:
            self._update(proved)
            self._proved = True
        except ClusterError as error:
            logger.debug("could not record that the new code runs: %s", error)

    def _update(self, change: Callable[[StormBase], StormBase]) -> None:
        """Change the record, unless it is of another generation by now."""
        generation = self._order.generation
        self._cluster.update_storm(
            self._order.storm_id, lambda base: change(base) if base.generation == generation else base
        )

    def _report(self, error: Exception) -> None:
        info = ErrorInfo(time.time(), str(error), socket.gethostname(), self._order.port)
        self._cluster.report_error(self._order.storm_id, DRIVER, info)

    def _wait(self, driven: TopologyHandle) -> None:
        """Wait for a change, at most a second, and not longer than the topology runs."""
        ends = time.monotonic() + _READ_EVERY_S
        while time.monotonic() < ends and not self._changed.is_set():
            self._record_proof(driven)
            if driven.await_end(0.05):
                return
