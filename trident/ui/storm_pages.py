"""`StormPages`: the pages of a running topology of spouts and bolts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from trident.ability import Ability
from trident.errors import TridentError, UnsupportedOperation, describe
from trident.redaction import shown_configuration
from trident.statistics.reported_errors import ReportedError
from trident.statistics.verdict import verdict
from trident.storm.statistics.topology_status import TopologyStatus
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology
from trident.ui.cluster_pages import Action, Page
from trident.ui.ending import end_later
from trident.ui.recent_rate import RecentRate
from trident.ui.storm_picture import storm_picture

__all__ = ["StormPages"]


class _Running(Protocol):
    """What runs on Spark, or in a `LocalCluster`."""

    @property
    def name(self) -> str: ...
    @property
    def conf(self) -> StormConfig: ...
    @property
    def status(self) -> TopologyStatus: ...
    def activate(self) -> None: ...
    def deactivate(self) -> None: ...
    def stop(self) -> None: ...
    def exception(self) -> BaseException | None: ...
    def await_termination(self, timeout: float | None = None, /) -> bool: ...


@runtime_checkable
class _Rebalancing(Ability, Protocol):
    """Can run with other numbers of workers and executors."""

    def rebalance(
        self, workers: int | None = None, executors: Mapping[str, int] | None = None, wait_s: float | None = None
    ) -> None:
        """Change them."""


@runtime_checkable
class _CountingDeaths(Ability, Protocol):
    """Knows how often its workers have died."""

    deaths: int


class StormPages:
    """`TopologyPages` of a `RunningStormTopology`, or of a `LocalTopology`.

    Parameters
    ----------
    running, topology
        What runs, and what was declared.
    topology_id
        Its id in pages; its name if it has none.
    """

    def __init__(self, running: _Running, topology: StormTopology, topology_id: str | None = None) -> None:
        self._running, self._topology = running, topology
        self._id = topology_id or running.name
        self._acked = RecentRate()

    def topology(self, window_s: int = 0) -> Page:
        """Return the whole; see docs/ui.md for what each value means."""
        status = self._running.status
        figures, counted = status.statistics.over().figures, status.as_mapping(window_s)
        page = {
            **counted,
            "id": self._id,
            "kind": "bolts",
            "status": self._status(counted["status"]),
            "rates": {"tuplesPerSecond": self._acked.of(figures.acked), "batchesPerSecond": None},
            "lags": [],
            "health": self._health(figures.failed),
            "errors": [_error(each) for each in status.errors],
            "workers": [{**each, "topologyId": self._id} for each in counted["workers"]],
            "configuration": shown_configuration(self._running.conf.as_mapping()),
            "actions": self._actions(),
        }
        return {**page, "verdict": verdict(page)}

    def component(self, component: str, window_s: int = 0) -> Page:
        """Return one spout or bolt."""
        status = self._running.status
        if component not in status.statistics.over().components:
            there = ", ".join(self._topology.components)
            raise KeyError(f"topology {self._id!r} has no component {component!r}; it has {there}")
        return {**status.component_as_mapping(component, window_s), "topologyId": self._id}

    def visualization(self, window_s: int = 0) -> Page:
        """Return spouts and bolts, and the streams that join them, with rates."""
        return storm_picture(self._topology, self._running.status.statistics.over(window_s))

    def batches(self) -> Sequence[Page]:
        """Return none."""
        return []

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        """Refuse: there are no states."""
        raise UnsupportedOperation(f"topology {self._id!r} is of spouts and bolts, which have no states")

    def act(self, action: Action, parameters: Mapping[str, Any]) -> Page:
        """Activate, deactivate, rebalance, or end the topology."""
        running = self._running
        if self._ended():
            raise TridentError(f"topology {self._id!r} has ended")
        if action == "activate":
            running.activate()
        elif action == "deactivate":
            running.deactivate()
        elif action == "kill":
            end_later(self._id, running.deactivate, parameters.get("wait_s", 0.0), running.stop)
        elif action == "rebalance" and isinstance(running, _Rebalancing):
            running.rebalance(parameters.get("workers"), parameters.get("executors"), parameters.get("wait_s"))
        else:
            raise TridentError(
                f"{action} is not possible for topology {self._id!r}; possible: {', '.join(self._actions())}"
            )
        return {"status": "success"}

    def _actions(self) -> list[str]:
        if self._ended():
            return []
        rebalance = ["rebalance"] if isinstance(self._running, _Rebalancing) else []
        return ["activate", "deactivate", *rebalance, "kill"]

    def _ended(self) -> bool:
        return self._running.exception() is not None or self._running.await_termination(0)

    def _status(self, told: str) -> str:
        if self._running.exception() is not None:
            return "FAILED"
        return "STOPPED" if self._ended() else told

    def _health(self, failed: int) -> Page:
        error = self._running.exception()
        return {
            "failures": failed,
            "workerDeaths": self._running.deaths if isinstance(self._running, _CountingDeaths) else None,
            "fenced": False,
            "error": None if error is None else describe(error),
        }


def _error(error: ReportedError) -> Page:
    return {
        "component": error.component,
        "error": error.text,
        "cause": error.text.rstrip().rpartition("\n")[2],
        "errorTask": error.task,
        "errorHost": error.host,
        "errorTime": int(error.time),
        "errorLapsedSecs": max(0, int(time.time() - error.time)),
    }
