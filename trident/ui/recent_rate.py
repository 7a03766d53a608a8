"""`RecentRate`: how fast a total grows, from what it was when it was last asked for."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["RecentRate"]

_SPAN_S = 10.0
_APART_S = 1.0
_STALE_S = 60.0


class RecentRate:
    """The growth of a total by second, over about the last ten seconds. Any number of readers may ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._guard = clock, threading.Lock()
        self._notes: deque[tuple[float, float]] = deque()

    def of(self, total: float) -> float | None:
        """Return the rate; None if the total was not asked for within the last minute."""
        now = self._clock()
        with self._guard:
            notes = self._notes
            while notes and (now - notes[0][0] > _STALE_S or (len(notes) > 1 and now - notes[1][0] >= _SPAN_S)):
                notes.popleft()
            rate = None
            if notes and now > notes[0][0]:
                rate = max(0.0, total - notes[0][1]) / (now - notes[0][0])
            if not notes or now - notes[-1][0] >= _APART_S:
                notes.append((now, total))
            return rate
