"""How often workers may die."""

from __future__ import annotations

import time
from collections import deque

from trident.storm.storm_config import StormConfig
from trident.storm.storm_errors import TopologyDiedError

__all__ = ["DeathWatch"]


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
