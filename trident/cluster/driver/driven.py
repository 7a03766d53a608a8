"""A running topology as its driver process sees it: the same few calls for Trident topologies and for spouts and bolts.

Whether the code of an upgrade has committed a batch: from then on there is no way back to the code before it.

The record of the topology notes the last epoch of the log before the first driver of the new code. A batch of a later epoch
is of the new code, also if its driver died before it could report that.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trident.cluster.state.cluster_records import StormBase
from trident.config import Config
from trident.coordination.log_address import open_reader
from trident.coordination.log_state import LogState
from trident.observe.events import ErrorFeed
from trident.observe.topology_status import heartbeat_of
from trident.planner import make_plan
from trident.runtime.running import RunningTopology
from trident.runtime.start.placements import is_all_in_memory
from trident.setting_types import gathered
from trident.state.txid import RETRY_BITS
from trident.storm import StormConfig, StormTopology
from trident.storm.builder import start_on_spark
from trident.topology import TridentTopology
from trident.ui.cluster_pages import TopologyPages
from trident.ui.running_pages import pages_of

if TYPE_CHECKING:
    from trident.storm.spark.running_storm import RunningStormTopology


class TopologyHandle:
    """A topology that runs in this process, with the settings of its record.

    `running`: the running topology, Trident's or Storm's; their calls have the same names.
    `pages`: what is served of it.
    `executors`: how many each component of spouts and bolts declares.
    `config`: as `config_of` gives it.
    """

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
        self._errors = ErrorFeed(lambda: self.running.errors)
        self.pages: TopologyPages = pages_of(self.running, storm_id)
        self._numbers: tuple[int, Mapping[str, int]] = base.num_workers, dict(executors)
        self._epoch_before = epoch_before(base)

    @property
    def has_proved(self) -> bool:
        """Whether its code has shown that it can run: it has committed a batch, or all workers are up."""
        running = self.running
        return not isinstance(running, RunningTopology) or has_committed_since(running.log_state, self._epoch_before)

    def await_end(self, timeout: float) -> bool:
        """Wait until it has ended; whether it has."""
        try:
            return self.running.await_termination(timeout)
        except Exception:  # noqa: BLE001  exception() has it
            return True

    def adapt(self, base: StormBase) -> None:
        """Run with the numbers of workers and executors that the record asks for.

        Of Trident's topologies another number of workers is another generation, which starts again.
        """
        _, executors = self._numbers
        numbers = (base.num_workers, {**executors, **base.component_executors})
        if not isinstance(self.running, RunningTopology) and numbers != self._numbers:
            self._numbers = numbers  # also if it cannot be done: then its error is reported once
            self.running.rebalance(*numbers, base.status.wait_secs or None)

    def stop(self, wait_secs: float) -> None:
        """End it; what has begun has this many seconds."""
        if self.running.is_active:
            self.running.deactivate()
            self.running.drain(wait_secs)
        self.running.stop()

    def statistics(self) -> dict[str, Any]:
        return heartbeat_of(self.pages.topology(0))

    def errors(self) -> list[tuple[str, float, str]]:
        """Return the errors that were not returned before: component, seconds since 1970, text."""
        return [(each.component, each.time, each.text) for each in self._errors.new()]


def config_of(topology: TridentTopology | StormTopology, base: StormBase, log_address: str) -> Config | StormConfig:
    """Return the settings of a topology: those of its record over its own, and what a driver of a cluster needs.

    `log_address`: the transaction log that a topology of Trident gets if its settings name none.
    """
    given = gathered(base.conf)
    if isinstance(topology, StormTopology):
        return StormConfig.of({**given, "name": base.storm_name, "workers": base.num_workers})
    config, needed = topology.settings(given, origin="submission"), dict[str, Any](takeover=True)
    in_memory = is_all_in_memory(make_plan(topology.graph()))
    if config.log_dir is None and not in_memory:  # a log that outlives states in memory would fit them no more
        needed["log_dir"] = log_address
    if config.master is None and base.num_workers > 1:
        needed["master"] = f"local[{base.num_workers}]"
    return topology.settings(config, origin="cluster", **needed)


_EPOCH = "epoch"


def has_committed_since(log: LogState, epoch: int) -> bool:
    """Whether the last committed batch is of a later epoch."""
    winner = log.winners.winner(log.txid) if log.txid else None
    return winner is not None and winner >> RETRY_BITS > epoch


def proved(base: StormBase) -> StormBase:
    """Return the record of a topology whose new code runs."""
    return replace(base, previous_code_hash="", previous={})


def with_proof(base: StormBase, log: LogState) -> StormBase:
    """Return the record as the log says before a driver starts: proved, or with the epoch after which a batch is a proof."""
    if not base.previous_code_hash:
        return base
    if _EPOCH not in base.previous:
        return replace(base, previous={**base.previous, _EPOCH: log.epoch})
    return proved(base) if has_committed_since(log, base.previous[_EPOCH]) else base


def epoch_before(base: StormBase) -> int:
    """Return the last epoch of the log before the code of this record."""
    return int(base.previous.get(_EPOCH, 0))


def log_before(log_dir: str | None) -> LogState:
    """Return what a log says before a driver starts; None for a log in memory, whose batches do not outlive a driver."""
    if log_dir is not None:
        with closing(open_reader(log_dir)) as reader:
            if reader.is_there():
                return reader.refresh()
    return LogState("", "")
