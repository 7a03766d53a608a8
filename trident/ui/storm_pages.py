"""`StormPages`: the pages of a running topology of spouts and bolts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from trident.errors import UnsupportedOperation, describe
from trident.observe.recent_batches import RecentRate
from trident.observe.topology_status import TopologyStatus
from trident.storm.storm_config import StormConfig
from trident.ui.cluster_pages import Action, Page
from trident.ui.running_pages import AnyRunning, RunningPages

__all__ = ["StormPages"]


class _Running(AnyRunning, Protocol):
    """What runs on Spark, or in a `LocalCluster`."""

    @property
    def conf(self) -> StormConfig: ...
    @property
    def status(self) -> TopologyStatus: ...


@runtime_checkable
class _Rebalancing(Protocol):
    """Can run with other numbers of workers and executors."""

    def rebalance(
        self, workers: int | None = None, executors: Mapping[str, int] | None = None, wait_s: float | None = None
    ) -> None:
        """Change them."""


@runtime_checkable
class _CountingDeaths(Protocol):
    """Knows how often its workers have died."""

    deaths: int


class StormPages(RunningPages):
    """`TopologyPages` of a `RunningStormTopology`, or of a `LocalTopology`.

    Parameters
    ----------
    running
        What runs.
    topology_id
        Its id in pages; its name if it has none.
    """

    def __init__(self, running: _Running, topology_id: str | None = None) -> None:
        super().__init__(running, running.conf.as_mapping(), topology_id)
        self._topology = running
        self._rebalancing = running if isinstance(running, _Rebalancing) else None
        if self._rebalancing is not None:
            self.actions = ("activate", "deactivate", "rebalance", "kill")
        self._acked = RecentRate()

    def status(self) -> TopologyStatus:
        """Return the topology as it is now."""
        running, status = self._topology, self._topology.status
        figures, error = status.statistics.over().figures, running.exception()
        more = {
            "rates": {"tuplesPerSecond": self._acked.of(figures.acked), "batchesPerSecond": None},
            "lags": [],
            "health": {
                "failures": figures.failed,
                "workerDeaths": running.deaths if isinstance(running, _CountingDeaths) else None,
                "fenced": False,
                "error": None if error is None else describe(error),
            },
        }
        ended = "STOPPED" if error is None else "FAILED"
        return replace(status, state=ended if self._has_ended else status.state, more={**status.more, **more})

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        """Refuse: there are no states."""
        raise UnsupportedOperation(f"topology {self._id!r} is of spouts and bolts, which have no states")

    def _do(self, action: Action, parameters: Mapping[str, Any]) -> None:
        if action == "rebalance" and self._rebalancing is not None:
            self._rebalancing.rebalance(
                parameters.get("workers"), parameters.get("executors"), parameters.get("wait_s")
            )
        else:
            super()._do(action, parameters)
