"""TopologyFigures: what a running topology says of itself to a page, a REST interface, a heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from trident.graph import Graph
from trident.observe.operation_pages import OperationStatus, component_page, picture, topology_page
from trident.observe.operation_statistics import Edge, Operation, OperationsStatistics
from trident.runtime.driver.clock import Clock
from trident.runtime.driver.opened_topology import OpenedTopology
from trident.runtime.driver.operation_reading import read_statistics
from trident.runtime.driver.operation_totals import OperationTotals
from trident.runtime.driver.placements import executors_of
from trident.runtime.driver.progress import Progress

__all__ = ["TopologyFigures"]

_MS_PER_S = 1000


class TopologyFigures:
    """The statistics of a running topology, and its pages. Any thread may ask.

    Parameters
    ----------
    word
        Returns `running`, `inactive`, `stopped` or `failed`.
    """

    def __init__(
        self,
        graph: Graph,
        opened: OpenedTopology,
        totals: OperationTotals,
        progress: Progress,
        clock: Clock,
        word: Callable[[], str],
    ) -> None:
        self._graph, self._opened, self._totals, self._progress = graph, opened, totals, progress
        self._clock, self._word = clock, word
        self._began = clock.monotonic()
        self._ended_at: float | None = None

    def end(self) -> None:
        """Let windows end now: what has ended is not idle."""
        self._ended_at = self._clock.monotonic()

    @property
    def _now(self) -> float:
        return self._clock.monotonic() if self._ended_at is None else self._ended_at

    # ---- what does not change ---------------------------------------------------------------------------------------

    @cached_property
    def _operations(self) -> dict[str, Operation]:
        from trident.explain.operation_list import operations_of_plan

        opened = self._opened
        return operations_of_plan(
            self._graph, opened.plan, executors_of(opened.placements), max(1, opened.runner.parallelism)
        )

    @cached_property
    def _edges(self) -> list[Edge]:
        from trident.explain.operation_list import edges_of_plan

        return edges_of_plan(self._opened.plan)

    @cached_property
    def _described(self) -> list[dict[str, Any]]:
        from trident.explain.descriptions import describe

        return describe(self._graph)

    # ---- statistics and pages ---------------------------------------------------------------------------------------

    @property
    def statistics(self) -> OperationsStatistics:
        """What the operations did in the batches that were committed."""
        return read_statistics(self._totals, self._operations, self._edges, self._now)

    def topology(self, window_s: int = 0) -> dict[str, Any]:
        """Return the whole, in the shape of Storm UI's `/api/v1/topology/<id>`."""
        return topology_page(self._status(), window_s)

    def component(self, component: str, window_s: int = 0) -> dict[str, Any]:
        """Return one operation, in the shape of Storm UI's `/api/v1/topology/<id>/component/<component>`."""
        return component_page(self._status(), component, window_s)

    def visualization(self, window_s: int = 0) -> dict[str, Any]:
        """Return the picture: nodes, and edges with rates."""
        return picture(self._status(), window_s)

    def batches(self) -> list[dict[str, Any]]:
        """Return the last batches, oldest first."""
        return self._progress.recent()

    def _status(self) -> OperationStatus:
        opened = self._opened
        sources, share = self._progress.sources()
        return OperationStatus(
            self._graph.name,
            self._word(),
            self._now - self._began,
            opened.config.message_timeout_s,
            opened.config.engine,
            opened.log.state.txid,
            share,
            sources,
            [self._state(described) for described in self._described],
            self._progress.errors.all(),
            self.statistics,
        )

    def _state(self, described: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is known of a state now."""
        name = described["state"]
        placed = self._opened.placements.get(name)
        last = [sentinel.txid for sentinel in list(self._opened.log.state.touched.get(name, {}).values())]
        streams = described["streams"].values()
        worst = min(streams, key=lambda each: {False: 0, None: 1, True: 2}[each["exact"]], default=None)
        return {
            **{key: described[key] for key in ("state", "kind", "store", "partitions", "static", "key", "value")},
            "placement": None if placed is None else placed.where,
            "placementWhy": "" if placed is None else placed.why,
            "exact": None if worst is None else worst["exact"],
            "guarantee": "" if worst is None else f"{worst['guarantee']} {worst['cell']}; {worst['why']}",
            "lastTxid": max(last, default=None),
            "lastCommitTime": self._progress.last_commit_ms(name),
            **self._progress.recent_keys(name),
        }
