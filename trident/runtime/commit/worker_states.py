"""The state partitions that a worker process holds open: opened when first needed, and reused by later batches.

Spark pins no partition to a process. So a process may hold a partition that another one has committed since; what a state
remembers across commits counts only if its own commit was the last one (`trident/state/wrappers/cached.py`).

For the same reason each process would hold each partition after a while, with a connection of its own in most stores. So
before each task those are closed that no task has used for a while, and of the others all but the latest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from trident.graph import StateNode
from trident.runtime.reading.open_partitions import open_state

MOST_KEPT = 32
"""How many partitions a process keeps open, writers and readers together."""

_IDLE_S = 60.0  # as long as Spark keeps an idle worker process

logger = logging.getLogger(__name__)

_Place = tuple[str, int, bool]  # the state, the partition, and whether it is only read


class WorkerStates:
    """Opens and closes state partitions.

    `states`: by name, what the topology declared.
    `settings`: the topology's settings.
    `idle_s`: after how many seconds without use a partition is closed.
    """

    def __init__(
        self, topology: str, states: Mapping[str, StateNode], settings: Mapping[str, Any], idle_s: float = _IDLE_S
    ) -> None:
        self._topology, self._states, self._settings, self._idle_s = topology, states, settings, idle_s
        self._open: dict[_Place, tuple[Any, float]] = {}  # with the time of the last use, the latest last

    def opened(self, name: str, partition: int, partitions: int, read_only: bool = False) -> Any:
        """Return the state that commits a partition, or one that only reads it."""
        place = name, partition, read_only
        state, _ = self._open.pop(place, (None, 0.0))
        if state is None:
            node = self._states[name]
            state = open_state(self._topology, node, self._settings, partition, partitions, read_only)
        self._open[place] = state, time.monotonic()
        return state

    def tidy(self) -> None:
        """Close the partitions that were not used for a while, and the oldest of too many; no task may be using any."""
        since = time.monotonic() - self._idle_s
        idle = [place for place, (_, used) in self._open.items() if used < since]
        for place in [*idle, *list(self._open)[len(idle) : max(0, len(self._open) - MOST_KEPT)]]:
            self._close(place)

    def close(self) -> None:
        """Close all of them, also if one raises."""
        for place in list(self._open):
            self._close(place)

    def _close(self, place: _Place) -> None:
        state, _ = self._open.pop(place)
        try:
            state.close()
        except Exception:
            logger.exception("closing partition %d of state %r failed", place[1], place[0])
