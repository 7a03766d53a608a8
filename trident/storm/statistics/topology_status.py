"""`TopologyStatus`: what a running topology of spouts and bolts says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trident.observe.at_work import AtWork
from trident.observe.reported_errors import ReportedError
from trident.storm.statistics.statistics_figures import TopologyStatistics, WorkerStatus
from trident.storm.statistics.storm_ui import component_page, topology_page

__all__ = ["TopologyStatus"]


@dataclass(frozen=True)
class TopologyStatus:
    """A topology at one moment.

    Attributes
    ----------
    active
        Whether the spouts are asked for tuples.
    executors, tasks
        How many there are, those of ackers included.
    pending
        Tracked messages of all spouts that are not answered.
    at_work
        Which calls run now, and since when nothing was acknowledged.
    errors
        What spouts and bolts raised or reported last, oldest first, each with component, task, host, time and text.
    """

    name: str
    active: bool
    uptime_s: float
    message_timeout_s: float
    workers: tuple[WorkerStatus, ...]
    executors: int
    tasks: int
    pending: int
    at_work: AtWork
    errors: Sequence[ReportedError]
    statistics: TopologyStatistics

    def as_mapping(self, window_s: int = 0) -> dict[str, Any]:
        """Return it in the shape of Storm UI's `/api/v1/topology/<id>`, with the components' figures over one window."""
        return topology_page(self, window_s)

    def component_as_mapping(self, component: str, window_s: int = 0) -> dict[str, Any]:
        """Return one component in the shape of Storm UI's `/api/v1/topology/<id>/component/<component>`.

        Raises
        ------
        KeyError
            There is no such component.
        """
        return component_page(self, component, window_s)
