"""Errors of topologies of spouts and bolts, and how often workers may die before one is raised."""

from __future__ import annotations

import time
from collections import deque

from trident.errors import TridentError
from trident.storm.storm_config import StormConfig


class WorkerLostError(TridentError):
    """A worker's process ended, or was not heard from for too long. Its executors start again elsewhere."""


class TopologyDiedError(TridentError):
    """The workers of a topology died too often; the cause is what the last one died of."""

    def __init__(self, topology: str, deaths: int, window_s: float, worker: int, cause: str) -> None:
        super().__init__(topology, deaths, window_s, worker, cause)

    def __str__(self) -> str:
        topology, deaths, window_s, worker, cause = self.args
        return (
            f"topology {topology!r} ended: its workers died {deaths} times within {window_s:g} s, worker {worker} last, of: "
            f"{cause}. Unanswered messages are still with their queues. Fix the cause and start it again; "
            "max_worker_deaths allows more"
        )


class DeathWatch:
    """Counts the deaths of workers."""

    def __init__(self, conf: StormConfig) -> None:
        self._conf = conf
        self._deaths: deque[float] = deque()
        self.total = 0

    def too_many(self, worker: int, error: BaseException) -> TopologyDiedError | None:
        """Count a death; return what the topology ends with if that was one too many."""
        now = time.monotonic()
        self.total += 1
        self._deaths.append(now)
        while self._deaths[0] < now - self._conf.worker_deaths_window_s:
            self._deaths.popleft()
        if len(self._deaths) <= self._conf.max_worker_deaths:
            return None
        ended = TopologyDiedError(
            self._conf.name, len(self._deaths), self._conf.worker_deaths_window_s, worker, str(error)
        )
        ended.__cause__ = error
        return ended
