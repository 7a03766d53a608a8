"""What a driver and its cluster tell each other, and how a topology of either kind does what is asked."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from trident.cluster.machine_folder import DriverOrder
from trident.cluster_state.cluster_records import DRIVER, ErrorInfo, StormBase, WorkerHeartbeat
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.config import Config
from trident.errors import ClusterError, TridentError
from trident.log.log_address import open_reader
from trident.log.log_state import LogState
from trident.observe.events import ReportedError
from trident.observe.topology_status import heartbeat_of
from trident.plan import make_plan
from trident.run.placements import is_all_in_memory
from trident.run.running import RunningTopology
from trident.setting_types import nest_spark_conf
from trident.state.txid import RETRY_BITS
from trident.storm import StormConfig, StormTopology
from trident.storm.builder import start_on_spark
from trident.topology import TridentTopology
from trident.web.cluster_pages import TopologyPages
from trident.web.running_pages import pages_of

if TYPE_CHECKING:
    from trident.storm.spark.running_storm import RunningStormTopology

logger = logging.getLogger(__name__)

_READ_EVERY_S = _BEAT_EVERY_S = 1.0
_EPOCH = "epoch"

Ending = Literal["killed", "moved", "ordered", "failed"]
"""Why a driver ends: its topology was killed; it belongs elsewhere, or has new code; its supervisor says so; it failed."""


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
        # A record whose topology is assigned elsewhere belongs to another driver.
        base = self._cluster.storm_base(self._order.storm_id, watch=True)
        assignment = self._cluster.assignment_info(self._order.storm_id, watch=True)
        mine = ((self._order.node, self._order.port), self._order.start_time_secs)
        return base if assignment is not None and (tuple(assignment.slot), assignment.start_time_secs) == mine else None

    def note_proof(self, base: StormBase, log_dir: str | None) -> StormBase:
        """Note before the start of new code what its log says of it, see above; returns the record."""
        if not base.previous_code_hash:
            return base
        log = LogState("", "")  # for one in memory, whose batches do not outlive a driver
        if log_dir is not None:
            with closing(open_reader(log_dir)) as reader:
                log = reader.refresh() if reader.is_there() else log
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
                self._changed.clear()
                now = self.base()
            except ClusterError as error:
                # It goes on with what it was asked last: if it was moved meanwhile, the log refuses what it writes.
                logger.debug("the cluster's state does not answer: %s", error)
            else:
                if now is None or now.generation != self._order.generation:
                    return "moved", base
                base = now
                if base.status.kind == "killed":
                    return "killed", base
                self._obey(driven, base, beats)
            self._wait(driven)
        return ("ordered", base) if driven.running.exception() is None else ("failed", base)

    def _obey(self, driven: TopologyHandle, base: StormBase, beats: DriverBeats) -> None:
        active = base.status.kind == "active"
        try:
            if active != self._active:
                logger.info("topology %s: %s", self._order.storm_id, "activated" if active else "deactivated")
                driven.running.activate() if active else driven.running.deactivate()
                self._active = active
                beats.say("active" if active else "inactive")
            # Spouts and bolts take other numbers as they run; an order that cannot be carried out must not end what runs.
            driven.adapt(base)
        except TridentError as error:
            logger.exception("topology %s could not do what it was asked", self._order.storm_id)
            beats.report(error)
        self._record_proof(driven)

    def _record_proof(self, driven: TopologyHandle) -> None:
        """Note once that the new code runs: there is no way back to the old code."""
        if self._proved or not driven.has_proved:
            return
        try:
            self._update(as_proved)
            self._proved = True
        except ClusterError as error:
            logger.debug("could not record that the new code runs: %s", error)

    def _update(self, change: Callable[[StormBase], StormBase]) -> None:
        # Of another generation by now it is that of another driver.
        generation = self._order.generation
        self._cluster.update_storm(
            self._order.storm_id, lambda base: change(base) if base.generation == generation else base
        )

    def _wait(self, driven: TopologyHandle) -> None:
        ends = time.monotonic() + _READ_EVERY_S
        # Looked at often: until its first batch is noted, a death of this driver would bring back the former code.
        while time.monotonic() < ends and not self._changed.is_set():
            self._record_proof(driven)
            if driven.await_end(0.05):
                return


class DriverBeats:
    """Tells how a driver does, in a thread of its own; what it tells is set from any thread."""

    def __init__(self, cluster: StormClusterState, order: DriverOrder) -> None:
        self._cluster, self._order = cluster, order
        self._began, self._host = time.time(), socket.gethostname()
        self.state, self.pages = "starting", ""
        self.statistics: Callable[[], Mapping[str, Any]] = dict
        self.errors: Callable[[], list[ReportedError]] = list
        self._unreported: list[ReportedError] = []
        self._stopped, self._now = threading.Event(), threading.Event()
        self._guard = threading.Lock()
        self._figures: Mapping[str, Any] = {}
        self._thread = threading.Thread(target=self._run, name="trident-driver-beats", daemon=True)
        self._thread.start()
        # A thread of its own: while something holds up the statistics, the driver is alive all the same.
        threading.Thread(target=self._count, name="trident-driver-figures", daemon=True).start()

    def say(self, state: str) -> None:
        self.state = state
        self._now.set()

    def report(self, error: Exception) -> None:
        """Report an error of the driver, as soon as the cluster's state answers."""
        with self._guard:
            self._unreported.append(ReportedError(DRIVER, 0, self._host, time.time(), str(error)))
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
            # The last ones say why it ends.
            try:
                self._unreported.extend(self.errors())
            except Exception:
                logger.exception("the last errors could not be read")
        try:
            self._report()
        except ClusterError as error:
            logger.warning("the last errors could not be reported: %s", error)

    def _send(self) -> None:
        order, now = self._order, time.time()
        driver = order.storm_id, self._host, os.getpid(), order.generation, order.start_time_secs
        beat = WorkerHeartbeat(now, now - self._began, *driver, self.state, self.pages, self._figures)
        # Once `stop` was called, a heartbeat would bring back the one that is removed then.
        if not self._stopped.is_set():
            self._cluster.worker_heartbeat(order.storm_id, order.node, order.port, beat)
        self._report()

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
            error = self._unreported[0]
            info = ErrorInfo(error.time, error.text, self._host, self._order.port)
            self._cluster.report_error(self._order.storm_id, error.component, info)
            with self._guard:
                del self._unreported[0]


class TopologyHandle:
    """A topology that runs in this process, with the settings of its record."""

    def __init__(
        self,
        topology: TridentTopology | StormTopology,
        storm_id: str,
        base: StormBase,
        executors: Mapping[str, int],
        config: Config | StormConfig,
    ) -> None:
        active = base.status.kind == "active"
        self.running: RunningTopology | RunningStormTopology
        if isinstance(topology, StormTopology):
            assert isinstance(config, StormConfig), "settings are of the kind of their topology"
            self.running = start_on_spark(topology, config, active=active)
        else:
            assert isinstance(config, Config), "settings are of the kind of their topology"
            self.running = topology.start(config, active=active)
        self.pages: TopologyPages = pages_of(self.running, storm_id)
        self._numbers: tuple[int, Mapping[str, int]] = base.num_workers, dict(executors)
        self._epoch_before = epoch_before(base)

    @property
    def has_proved(self) -> bool:
        """Whether its code has shown that it can run: it has committed a batch, or all workers are up."""
        running = self.running
        return not isinstance(running, RunningTopology) or has_committed_since(running.log_state, self._epoch_before)

    def await_end(self, timeout: float) -> bool:
        try:
            return self.running.await_termination(timeout)
        except Exception:  # noqa: BLE001  exception() has it
            return True

    def adapt(self, base: StormBase) -> None:
        """Run with the numbers of workers and executors that the record asks for."""
        # Of Trident's topologies another number of workers is another generation, which starts again.
        _, executors = self._numbers
        numbers = (base.num_workers, {**executors, **base.component_executors})
        if not isinstance(self.running, RunningTopology) and numbers != self._numbers:
            self._numbers = numbers  # also if it cannot be done: then its error is reported once
            self.running.rebalance(*numbers, base.status.wait_secs or None)

    def stop(self, wait_secs: float) -> None:
        if self.running.is_active:
            # Else more would begin while what has begun is awaited.
            self.running.deactivate()
            self.running.drain(wait_secs)
        self.running.stop()

    def statistics(self) -> dict[str, Any]:
        return heartbeat_of(self.pages.topology(0))


def config_of(topology: TridentTopology | StormTopology, base: StormBase, log_address: str) -> Config | StormConfig:
    """Return the settings of a topology: those of its record over its own, and what a driver of a cluster needs."""
    given = nest_spark_conf(base.conf)
    if isinstance(topology, StormTopology):
        return StormConfig.of({**given, "name": base.storm_name, "workers": base.num_workers})
    # The driver before may still run, on a machine that is out of reach; the log ends it.
    config, needed = topology.settings(given, origin="submission"), dict[str, Any](takeover=True)
    in_memory = is_all_in_memory(make_plan(topology.graph()))
    if config.log_dir is None and not in_memory:  # a log that outlives states in memory would fit them no more
        needed["log_dir"] = log_address
    if config.master is None and base.num_workers > 1:
        needed["master"] = f"local[{base.num_workers}]"
    return topology.settings(config, origin="cluster", **needed)


def with_proof(base: StormBase, log: LogState) -> StormBase:
    """Return the record as the log says before a driver starts: proved, or with the epoch after which a batch is a proof."""
    # Such a batch is of the new code, also if its driver died before it could report that.
    if not base.previous_code_hash:
        return base
    if _EPOCH not in base.previous:
        return replace(base, previous={**base.previous, _EPOCH: log.epoch})
    return as_proved(base) if has_committed_since(log, base.previous[_EPOCH]) else base


def as_proved(base: StormBase) -> StormBase:
    return replace(base, previous_code_hash="", previous={})


def epoch_before(base: StormBase) -> int:
    return int(base.previous.get(_EPOCH, 0))


def has_committed_since(log: LogState, epoch: int) -> bool:
    winner = log.winners.winner(log.txid) if log.txid else None
    return winner is not None and winner >> RETRY_BITS > epoch
