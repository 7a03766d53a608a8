"""A cluster's state with a record of what it told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from trident.cluster.state.cluster_records import Assignment
from trident.cluster.state.cluster_state import ClusterState
from trident.cluster.state.storm_cluster_state import StormClusterState
from trident.servers.nodes import NodeEvent

_LIMIT_S = 60.0


class Opened:
    """A session, and the events that it told."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.events: list[NodeEvent] = []
        self._more = threading.Condition()
        state.register(self._tell)

    def told(self, *events: tuple[str, str], limit_s: float = _LIMIT_S) -> None:
        """Wait until these were told, and nothing else; then forget them."""
        self.until(lambda told: len(told) >= len(events), limit_s)
        assert sorted(self.take()) == sorted(events)

    def settled(self, path: str = "/settled") -> list[NodeEvent]:
        """Return all that was told of what has been done before, whoever did it; forget it."""
        mark = ("changed", f"{path}-{time.monotonic_ns()}")
        self.state.get_data(mark[1], watch=True)
        self.state.set_data(mark[1], b"")
        self.until(lambda told: mark in told)
        taken = self.take()
        assert taken[-1] == mark
        return taken[:-1]

    def until(self, holds: Callable[[list[NodeEvent]], bool], limit_s: float = _LIMIT_S) -> None:
        with self._more:
            assert self._more.wait_for(lambda: holds(self.events), limit_s), f"told in {limit_s} s: {self.events}"

    def take(self) -> list[NodeEvent]:
        """Return what was told, and forget it."""
        with self._more:
            taken, self.events = self.events, []
            return taken

    def _tell(self, event: NodeEvent) -> None:
        with self._more:
            self.events.append(event)
            self._more.notify_all()


class Opening(Protocol):
    """Opens one more session of the same cluster."""

    def __call__(self, session_timeout_s: float = ...) -> Opened:
        """Open it."""


def set_assignment(cluster: StormClusterState, storm_id: str, info: Assignment) -> None:
    """Say where a topology runs from now on."""
    while not cluster.replace_assignment(storm_id, cluster.assignment_info(storm_id), info):
        pass
