"""`StormPages`: the pages of a running topology of spouts and bolts."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from trident.ability import Ability
from trident.errors import TridentError, UnsupportedOperation, describe
from trident.observe.reported_errors import ReportedError
from trident.observe.verdict import verdict
from trident.redaction import shown_configuration
from trident.storm.groupings import Grouping
from trident.storm.statistics.statistics_figures import WindowStatistics
from trident.storm.statistics.topology_status import TopologyStatus
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology
from trident.ui.cluster_pages import Action, Page
from trident.ui.ending import end_later

__all__ = ["RecentRate", "StormPages"]


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


# `RecentRate`: how fast a total grows, from what it was when it was last asked for.

_SPAN_S = 10.0
_APART_S = 1.0
_STALE_S = 60.0


class RecentRate:
    """The growth of a total by second, over about the last ten seconds. Any number of readers may ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._guard = clock, threading.Lock()
        self._notes: deque[tuple[float, float]] = deque()

    def of(self, total: float) -> float | None:
        """Return the rate; None if the total was not asked for within the last minute."""
        now = self._clock()
        with self._guard:
            notes = self._notes
            while notes and (now - notes[0][0] > _STALE_S or (len(notes) > 1 and now - notes[1][0] >= _SPAN_S)):
                notes.popleft()
            rate = None
            if notes and now > notes[0][0]:
                rate = max(0.0, total - notes[0][1]) / (now - notes[0][0])
            if not notes or now - notes[-1][0] >= _APART_S:
                notes.append((now, total))
            return rate


# `storm_picture`: spouts and bolts as nodes, the streams that bolts read as edges with their groupings and rates.

_SHORTEST_S = 1e-3


def storm_picture(topology: StormTopology, window: WindowStatistics) -> Page:
    """Return nodes and edges, with the rates of one window."""
    seconds = max(window.seconds, _SHORTEST_S)
    return {
        "stages": [],
        "nodes": [_node(topology, component, window, seconds) for component in topology.components],
        "edges": [
            _edge(topology, bolt.id, each.component, each.stream, each.grouping, window, seconds)
            for bolt in topology.bolts.values()
            for each in bolt.inputs
        ],
    }


def _node(topology: StormTopology, component: str, window: WindowStatistics, seconds: float) -> Page:
    found = window.components[component]
    declared: Any = topology.components[component]
    spout = component in topology.spouts
    made = declared.spout if spout else declared.bolt
    figures = found.figures
    return {
        "id": component,
        "label": component,
        "kind": "spout" if spout else "bolt",
        "detail": type(made).__name__,
        "stage": None,
        "executors": len(found.executors),
        "tasks": found.tasks,
        "capacity": figures.capacity,
        "latencyMs": figures.complete_latency_ms if spout else figures.process_latency_ms,
        "perSecond": (figures.emitted if spout else figures.executed) / seconds,
        "unit": "tuples",
    }


def _edge(
    topology: StormTopology,
    bolt: str,
    component: str,
    stream: str,
    grouping: Grouping,
    window: WindowStatistics,
    seconds: float,
) -> Page:
    inputs = window.components[bolt].inputs
    executed = sum(each.figures.executed for each in inputs if (each.component, each.stream) == (component, stream))
    return {
        "source": component,
        "target": bolt,
        "stream": stream,
        "grouping": _text(grouping),
        "kind": "tuples",
        "tuplesPerSecond": executed / seconds,
        "unit": "tuples",
    }


def _text(grouping: Grouping) -> str:
    kind = grouping.kind.replace("_", " ")
    return f"{kind} ({', '.join(grouping.fields)})" if grouping.fields else kind
