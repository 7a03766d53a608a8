"""`LagTrend`: whether sources get further ahead, from what their lag was in the last minutes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

__all__ = ["LagTrend", "Trend"]

Trend = Literal["grows", "shrinks", "steady"]

_SPAN_S = 180.0
_APART_S = 2.0
_FEWEST = 10
_SHARE, _AMOUNT = 0.2, 100  # by which it must have changed, so that it is no accident


class LagTrend:
    """Notes the lag whenever it is asked for, at most every two seconds. Any number of readers may ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._guard = clock, threading.Lock()
        self._notes: deque[tuple[float, int]] = deque()

    def of(self, sources: Sequence[Mapping[str, Any]]) -> Trend | None:
        """Return how the lag of all sources has changed; None where one does not say its lag, or for too short a time.

        Parameters
        ----------
        sources
            As of `RunningTopology.status`.
        """
        now, amounts = self._clock(), [each["lag"]["amount"] if each["lag"] else None for each in sources]
        with self._guard:
            if not amounts or None in amounts:  # what is not known is not 0
                self._notes.clear()
                return None
            self._note(now, sum(filter(None, amounts)))
            if len(self._notes) < _FEWEST:
                return None
            first, last = self._notes[0][1], self._notes[-1][1]
        if last > first * (1 + _SHARE) + _AMOUNT:
            return "grows"
        return "shrinks" if last < first * (1 - _SHARE) - _AMOUNT else "steady"

    def _note(self, now: float, amount: int) -> None:
        notes = self._notes
        while notes and now - notes[0][0] > _SPAN_S:
            notes.popleft()
        if not notes or now - notes[-1][0] >= _APART_S:
            notes.append((now, amount))
