"""What a topology did over time, in memory of a fixed size: `Windows`, totals of ten minutes, hours and a day; `TimeSeries`.

A window has twenty buckets, as in Storm. Here the totals are noted at the beginning of each bucket, and a window is the
difference from the note at its beginning: it reaches back by its length and at most one bucket more. A series has four lines of
at most 120 spans: 5 seconds, 90 seconds, 12 minutes, and for all time 12 minutes, twice as long whenever that line is full.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

SPANS = 120  # how many spans a line has at most
_MS_PER_S = 1000.0
_LAG_S, _LAG_SHORTEST_S = 180.0, 15.0
_SHARE, _AMOUNT = 0.2, 100  # by which a lag must have changed, so that it is no accident

BUCKETS = 20
WINDOWS_S = (600, 10_800, 86_400)  # ten minutes, three hours, one day
ALL_TIME = 0  # the window that begins with the topology
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
    """Totals by key, with their windows."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._totals: dict[K, float] = {}
        self._notes: dict[int, deque[_Note[K]]] = {window: deque([_Note(0, {})], BUCKETS + 1) for window in WINDOWS_S}

    def add(self, amounts: Mapping[K, float], now: float) -> None:
        self._turn(now)
        for key, amount in amounts.items():
            self._totals[key] = self._totals.get(key, 0) + amount

    def over(self, window: int, now: float) -> Difference[K]:
        if window == ALL_TIME:
            return Difference(now - self._began, dict(self._totals))
        self._turn(now)
        first = max(self._bucket(window, now) - BUCKETS, 0)
        note = next(note for note in self._notes[window] if note.bucket >= first)
        added = {key: total - note.totals.get(key, 0) for key, total in self._totals.items()}
        return Difference(now - self._began - first * window / BUCKETS, added)

    def over_all(self, now: float) -> dict[int, Difference[K]]:
        return {window: self.over(window, now) for window in (*WINDOWS_S, ALL_TIME)}

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


@dataclass(slots=True)
class TimeSpan:
    """What happened in a part of the time, which has a number, counted from the begin of the topology."""

    number: int = 0
    tuples: float = 0.0  # of committed batches; of spouts and bolts, acknowledged messages
    timed: int = 0  # batches or messages, which together took
    took_s: float = 0.0
    longest_s: float = 0.0  # 0: not known
    failed: int = 0
    lags: dict[str, int] = field(default_factory=dict)  # by unit, the most that was not committed; or pending messages
    is_whole: bool = True  # all sources said their lag

    def take(self, other: TimeSpan) -> None:
        self.tuples += other.tuples
        self.timed += other.timed
        self.took_s += other.took_s
        self.longest_s = max(self.longest_s, other.longest_s)
        self.failed += other.failed
        self.lags |= {unit: max(lag, self.lags.get(unit, 0)) for unit, lag in other.lags.items()}
        self.is_whole &= other.is_whole


class _Line:
    """The last spans of one length, those in which nothing happened left out; or all of them, longer and longer."""

    def __init__(self, width_s: float, of_all_time: bool = False) -> None:
        self.width_s, self._of_all_time = width_s, of_all_time
        self.spans: deque[TimeSpan] = deque(maxlen=SPANS)

    def add(self, happened: TimeSpan, age_s: float) -> None:
        self.widen(age_s)
        number = int(age_s // self.width_s)
        if not self.spans or self.spans[-1].number < number:
            self.spans.append(TimeSpan(number))
        self.spans[-1].take(happened)

    def widen(self, age_s: float) -> None:
        """Make two spans one as long as there would be too many."""
        while self._of_all_time and age_s >= SPANS * self.width_s:
            before, self.width_s = list(self.spans), self.width_s * 2
            self.spans.clear()
            for each in before:
                if not self.spans or self.spans[-1].number < each.number // 2:
                    self.spans.append(TimeSpan(each.number // 2))
                self.spans[-1].take(each)

    def between(self, begin_s: float, age_s: float) -> list[TimeSpan]:
        """Return the spans from one age to another, also those in which nothing happened."""
        self.widen(age_s)
        known, last = {each.number: each for each in self.spans}, int(age_s // self.width_s)
        first = max(0, last - SPANS + 1, int(begin_s // self.width_s))
        return [known.get(number, TimeSpan(number)) for number in range(first, last + 1)]


class TimeSeries:
    """What a topology did over time. Any thread may add and ask."""

    def __init__(self, now: float) -> None:
        self._began, self._guard = now, threading.Lock()
        self._lines = [_Line(window / SPANS) for window in WINDOWS_S]
        self._lines.append(_Line(WINDOWS_S[-1] / SPANS, of_all_time=True))

    def add(self, happened: TimeSpan, now: float) -> None:
        with self._guard:
            for line in self._lines:
                line.add(happened, now - self._began)

    def page(self, window_s: int, now: float, wall_s: float) -> dict[str, Any]:
        """Return what happened within a window as columns, one entry for each span; what is not known is None.

        While the topology is younger than the window, spans are as short as its age allows. `wall_s`: `now` since 1970.
        """
        width_s, spans = self._over(window_s, now)
        age_s = now - self._began
        if len(spans) > 1 and age_s - spans[-1].number * width_s < width_s / 2:
            spans = spans[:-1]  # it has only begun
        lengths = [min(width_s, max(age_s - each.number * width_s, 1.0)) for each in spans]
        return {
            "spanSeconds": width_s,
            "at": [int((wall_s - age_s + each.number * width_s) * _MS_PER_S) for each in spans],
            "tuplesPerSecond": [each.tuples / length for each, length in zip(spans, lengths, strict=True)],
            "latencyMs": [each.took_s / each.timed * _MS_PER_S if each.timed else None for each in spans],
            "longestMs": [each.longest_s * _MS_PER_S if each.longest_s else None for each in spans],
            "lags": _by_unit(spans),
            "failed": [each.failed for each in spans],
        }

    def per_second(self, now: float) -> float:
        with self._guard:
            line, age_s = self._lines[0], now - self._began
            spans = line.between(age_s - 10.0, age_s)
        return sum(each.tuples for each in spans) / max(age_s - spans[0].number * line.width_s, 1.0)

    def failures(self, window_s: int, now: float) -> Literal["rising", "falling", "steady"] | None:
        """Return whether failures become more within a window, by more than chance; None if it had none, or is too short."""
        _, spans = self._over(window_s, now)
        half = len(spans) // 2
        before, after = _failures(spans[:half]), _failures(spans[len(spans) - half :])
        if len(spans) < 4 or not _failures(spans):  # fewer have no trend
            return None
        by_chance = 2.0 * math.sqrt(before + after)  # standard deviations: what differs less may be chance
        return "rising" if after - before > by_chance else "falling" if before - after > by_chance else "steady"

    def lag(self, now: float) -> Literal["grows", "shrinks", "steady"] | None:
        """Return how the lag has changed in three minutes; None where it is not known, or for too short a time."""
        with self._guard:
            line, age_s = self._lines[0], now - self._began
            spans = [each for each in line.between(age_s - _LAG_S, age_s) if each.timed]
        if not spans or not all(each.lags and each.is_whole for each in spans):  # what is not known is not 0
            return None
        if (spans[-1].number - spans[0].number) * line.width_s < _LAG_SHORTEST_S:
            return None
        changes = [(spans[0].lags.get(unit, 0), last) for unit, last in spans[-1].lags.items()]
        if any(last > first * (1 + _SHARE) + _AMOUNT for first, last in changes):
            return "grows"
        return "shrinks" if any(last < first * (1 - _SHARE) - _AMOUNT for first, last in changes) else "steady"

    def _over(self, window_s: int, now: float) -> tuple[float, Sequence[TimeSpan]]:
        """Return the shortest spans that reach over a window, or over the age of the topology if that is less."""
        age_s = now - self._began
        reach_s = age_s if window_s == ALL_TIME else min(window_s, age_s)
        with self._guard:
            line = next((each for each in self._lines if each.width_s * SPANS >= reach_s), self._lines[-1])
            return line.width_s, line.between(age_s - reach_s, age_s)


def _by_unit(spans: Sequence[TimeSpan]) -> dict[str, list[int | None]]:
    units = sorted({unit for each in spans for unit in each.lags})
    return {unit: [each.lags.get(unit) for each in spans] for unit in units}


def _failures(spans: Sequence[TimeSpan]) -> int:
    return sum(each.failed for each in spans)
