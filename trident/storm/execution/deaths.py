"""How often workers may die, and what was reported of their errors."""

from __future__ import annotations

import socket
import time
import traceback
from collections import deque
from dataclasses import dataclass
from typing import Self

from trident.storm.storm_config import StormConfig
from trident.storm.storm_errors import TopologyDiedError

__all__ = ["DeathWatch", "ReportedError"]


@dataclass(frozen=True)
class ReportedError:
    """An error of a component, as status and page show it.

    Attributes
    ----------
    time
        Seconds since 1970.
    text
        The exception with its traceback.
    """

    component: str
    task: int
    host: str
    time: float
    text: str

    @classmethod
    def of(cls, component: str, task: int, error: BaseException) -> Self:
        """Return an error of this process, now."""
        return cls(component, task, socket.gethostname(), time.time(), "".join(traceback.format_exception(error)))


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
