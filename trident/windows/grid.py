"""Which window a time belongs to: arithmetic over ordinates, which are positions or times in the unit of their type.

Windows end at every multiple of `slide` and hold the `length` ordinates before their end. The width of a *pane* is the
greatest common divisor of both, so a window consists of whole panes and no end of a window cuts a pane.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import NamedTuple

import numpy as np

from trident.operations.windows import WindowConfig
from trident.steps.key_columns import Ints
from trident.steps.local_times import LocalClock


@dataclass(frozen=True)
class Grid:
    """The windows of one configuration."""

    length: int
    slide: int
    lateness: int = 0  # how long a window is kept after its end
    clock: LocalClock | None = None  # if ordinates are what clocks show, and not moments

    @staticmethod
    def of(config: WindowConfig) -> Grid:
        unit, lateness_ms = config.per_ms, config.event_time.lateness_ms if config.event_time else 0
        clock = None if config.zone is None else LocalClock.of(config.zone, 1000 * unit, config.slide * unit)
        return Grid(config.length * unit, config.slide * unit, lateness_ms * unit, clock)

    @cached_property
    def width(self) -> int:
        return gcd(self.length, self.slide)

    def places(self, moments: Ints) -> Ints:
        return moments if self.clock is None else self.clock.local(moments)

    def pane_of(self, moments: Ints) -> Ints:
        return np.asarray(self.places(moments) // self.width, np.int64)

    def complete_up_to(self, moment: int) -> int:
        """Return the ordinate up to which windows are complete at a moment."""
        return moment if self.clock is None else self.clock.earliest_from(moment)

    def ends_of(self, pane: int) -> range:
        """Return the ends of the windows that hold a pane, ascending; there is at least one."""
        first, last = (pane + 1) * self.width, pane * self.width + self.length
        return range(-(-first // self.slide) * self.slide, last + 1, self.slide)

    def is_over(self, pane: int, frontier: int) -> bool:
        """Whether no window that holds the pane can fire any more, at a moment."""
        return self.ends_of(pane)[-1] <= self.complete_up_to(frontier - self.lateness)

    def ends(self, panes: Iterable[int], after: int | None, until: int) -> list[int]:
        """Return the ends e, `after < e <= until`, of the windows that hold one of the panes (ascending); no end twice.

        The time grows with the number of these windows, not with the distance of the panes.
        """
        found: list[int] = []
        for pane in panes:
            if found and found[-1] + self.slide > until:
                break
            ends = self.ends_of(pane)
            first = ends[0] if after is None else max(ends[0], (after // self.slide + 1) * self.slide)
            if found:
                first = max(first, found[-1] + self.slide)
            found.extend(range(first, min(ends[-1], until) + 1, self.slide))
        return found

    def next_end(self, panes: Iterable[int], frontier: int) -> int | None:
        """Return the moment at which the first window behind a moment ends that holds one of the panes; None: none does."""
        if (first := min(panes, default=None)) is None:
            return None
        end = max(self.ends_of(first)[0], (self.complete_up_to(frontier) // self.slide + 1) * self.slide)
        return end if self.clock is None else int(self.clock.is_over(np.array([end]))[0])

    def holds(self, ends: Sequence[int], pane: int) -> bool:
        """Whether one of the windows with these ends, ascending, holds a pane."""
        own = self.ends_of(pane)
        at = bisect_left(ends, own[0])
        return at < len(ends) and ends[at] <= own[-1]

    def panes_of(self, end: int) -> tuple[int, int]:
        return (end - self.length) // self.width, end // self.width


class Spans(NamedTuple):
    """Rows, or sessions: the number of each one's key, its first and its last time (int64, one each)."""

    keys: Ints
    starts: Ints
    lasts: Ints


def sessions_of(rows: Spans, gap: int) -> tuple[Ints, Spans]:
    """Return the number of the session of each row (int64, one per row), and the sessions: by key, and of a key by time."""
    order = np.lexsort((rows.starts, rows.keys))
    keys, starts, lasts = (column[order] for column in rows)
    # A row may end before the one in front of it, so it is the latest end so far that counts. Times become their ranks, so that
    # key and time fit into one number, and no key goes on with the latest end of another.
    times, ranks = np.unique(lasts, return_inverse=True)
    latest = times[np.maximum.accumulate(keys * len(times) + ranks) % len(times)]
    begins = np.ones(len(keys), bool)
    begins[1:] = (keys[1:] != keys[:-1]) | (starts[1:] - latest[:-1] > gap)
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = np.cumsum(begins) - 1
    return numbers, Spans(keys[begins], starts[begins], latest[np.append(begins, True)[1:]])
