"""`Windows`: totals, and what was added to them in the last ten minutes, three hours and day, in bounded memory.

A window has twenty buckets, as in Storm. Here they are not summed up: at the beginning of each bucket the totals are noted,
and a window is the difference from the note at its beginning. So it reaches back by its length and at most one bucket more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

BUCKETS = 20
WINDOWS_S = (600, 10_800, 86_400)
"""Ten minutes, three hours, one day."""
ALL_TIME = 0
"""The window that begins with the topology."""

K = TypeVar("K", bound=Hashable)


class Difference(NamedTuple, Generic[K]):
    """What was added within a window, and how many seconds that really covers."""

    seconds: float
    added: Mapping[K, float]


class _Note(NamedTuple, Generic[K]):
    """The totals as they were at the beginning of a bucket. Buckets in which nothing was added have no note."""

    bucket: int
    totals: Mapping[K, float]


class Windows(Generic[K]):
    """Totals by key, with their windows.

    `now`: when counting began, on the clock that all calls use.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._totals: dict[K, float] = {}
        self._notes: dict[int, deque[_Note[K]]] = {
            window: deque([_Note(0, MappingProxyType({}))], BUCKETS + 1) for window in WINDOWS_S
        }

    @property
    def notes(self) -> int:
        """How many notes are kept."""
        return sum(map(len, self._notes.values()))

    def add(self, amounts: Mapping[K, float], now: float) -> None:
        """Add to the totals."""
        self._turn(now)
        for key, amount in amounts.items():
            self._totals[key] = self._totals.get(key, 0) + amount

    def over(self, window: int, now: float) -> Difference[K]:
        """Return what was added in one of `WINDOWS_S`, or in `ALL_TIME`."""
        if window == ALL_TIME:
            return Difference(now - self._began, dict(self._totals))
        self._turn(now)
        first = max(self._bucket(window, now) - BUCKETS, 0)
        note = next(note for note in self._notes[window] if note.bucket >= first)
        added = {key: total - note.totals.get(key, 0) for key, total in self._totals.items()}
        return Difference(now - self._began - first * window / BUCKETS, added)

    def _turn(self, now: float) -> None:
        """Note the totals if a bucket has begun since the last note."""
        totals: Mapping[K, float] | None = None
        for window, notes in self._notes.items():
            bucket = self._bucket(window, now)
            if bucket > notes[-1].bucket:
                totals = dict(self._totals) if totals is None else totals  # one copy for all windows
                notes.append(_Note(bucket, totals))

    def _bucket(self, window: int, now: float) -> int:
        return int((now - self._began) * BUCKETS // window)
