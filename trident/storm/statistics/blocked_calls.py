"""`BlockedCalls`: names calls of spouts and bolts that do not return."""

from __future__ import annotations

import logging

from trident.storm.execution.storm_worker import Worker
from trident.storm.execution.task_layout import ExecutorPlace

__all__ = ["BlockedCalls"]

logger = logging.getLogger("trident.storm")


class BlockedCalls:
    """Warns of a call of a spout or bolt that does not return, once for each.

    Parameters
    ----------
    after_s
        A call that takes longer than this is told of.
    """

    def __init__(self, topology: str, after_s: float) -> None:
        self._topology, self._after_s = topology, after_s
        self._told: set[ExecutorPlace] = set()

    def look(self, worker: Worker) -> None:
        """Look at all executors of a worker."""
        blocked = dict(worker.blocked(self._after_s))
        for place, seconds in blocked.items():
            if place not in self._told:
                logger.warning(
                    "topology %s: a call of component %s (tasks %s) has not returned for %.0f s; tuples, acks and timeouts of "
                    "these tasks wait for it. next_tuple must return without a tuple when there is none",
                    self._topology,
                    place.component,
                    ", ".join(map(str, place.tasks)),
                    seconds,
                )
        self._told = (self._told - {place for place in self._told if place.worker == worker.number}) | set(blocked)
