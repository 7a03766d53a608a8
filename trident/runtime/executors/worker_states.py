"""The state partitions that a worker process holds open: opened when first needed, kept for the batches to come.

Spark pins no partition to a process. So a process may hold a partition that another one has committed since; what a state
remembers across commits counts only if its own commit was the last one (`trident/state/wrappers/commit_memory.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from trident.graph import StateNode
from trident.runtime.reading.open_partitions import open_state
from trident.state.abilities import Closable

__all__ = ["WorkerStates"]

logger = logging.getLogger(__name__)


class WorkerStates:
    """Opens and closes state partitions.

    Parameters
    ----------
    states
        By name, what the topology declared.
    settings
        The topology's settings.
    """

    def __init__(self, topology: str, states: Mapping[str, StateNode], settings: Mapping[str, Any]) -> None:
        self._topology, self._states, self._settings = topology, states, settings
        self._open: dict[tuple[str, int, bool], Any] = {}

    def writer(self, name: str, partition: int, partitions: int) -> Any:
        """Return the state that commits a partition."""
        return self._opened(name, partition, partitions, read_only=False)

    def reader(self, name: str, partition: int, partitions: int) -> Any:
        """Return a state that only reads a partition."""
        return self._opened(name, partition, partitions, read_only=True)

    def _opened(self, name: str, partition: int, partitions: int, read_only: bool) -> Any:
        place = name, partition, read_only
        if place not in self._open:
            node = self._states[name]
            self._open[place] = open_state(self._topology, node, self._settings, partition, partitions, read_only)
        return self._open[place]

    def close(self) -> None:
        """Close all of them, also if one raises."""
        while self._open:
            (name, partition, _), state = self._open.popitem()
            try:
                if isinstance(state, Closable):
                    state.close()
            except Exception:
                logger.exception("closing partition %d of state %r failed", partition, name)
