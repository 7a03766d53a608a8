"""Says when spouts are asked for the next batch, and wakes the threads that wait until the spouts have no more."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from trident.runtime.loop.batch import Batch, of_spouts

Waiting = list[threading.Event]

_IDLE_LOAD = 0.1
"""This share of a core may go into asking spouts that have nothing: looking at 20,000 files takes most of a second."""

_EMPTY_IS_ALL = 10
"""After this many empty batches in a row the spouts are treated as exhausted, because they cannot say so themselves."""


class SpoutPoller:
    """When to ask the spouts again, and the events that are set once all that they had is committed.

    `interval_s`: how long to wait after the spouts had nothing.
    `txid`: the last committed batch.
    `at`: when to ask the spouts again.
    `is_idle`: whether the spouts had nothing when they were last asked.
    """

    def __init__(self, interval_s: float, txid: int) -> None:
        self.at, self.is_idle = float("-inf"), False
        self._interval_s = interval_s
        self._counted_from = txid  # the batch after which empty ones are counted, while a thread waits
        self._events: Waiting = []
        # Set when a batch in flight is committed; asking would be of no use to them.
        self._promised: set[threading.Event] = set()
        self._lock = threading.Lock()

    def add(self) -> threading.Event:
        """Return an event that is set once everything that the spouts have now is committed. For any thread."""
        done = threading.Event()
        with self._lock:
            self._events.append(done)
        return done

    def begin(self, now: float) -> Waiting:
        """Return the events that are waited for; if there are any, the spouts are asked at once."""
        with self._lock:
            waiting = list(self._events)
        if not self._promised.issuperset(waiting):
            self.at = now
        return waiting

    def ask_at_once(self) -> None:
        """Ask the spouts at once, because a batch failed and will be defined again."""
        self.at = float("-inf")
        self._promised.clear()

    def had_nothing(self, now: float, cost_s: float = 0.0) -> None:
        """Note that the spouts were asked and had nothing; `cost_s`: how long that took on a core."""
        self.at, self.is_idle = now + max(self._interval_s, cost_s / _IDLE_LOAD), True

    def started(self, batch: Batch, asked: bool, waiting: Waiting, now: float) -> None:
        """Check whether a batch that was just started shows that the spouts have no more.

        `asked`: whether the spouts were asked: the log may say "nothing" for a spout that has more by now.
        """
        self.is_idle = False
        if batch.undecided:  # reading shows it
            batch.asked_for = waiting
        elif not batch.empty:
            self._counted_from = batch.attempt.txid
        elif asked and not of_spouts(batch.definitions):  # only a window was due
            batch.waiting = waiting
        elif asked:
            self.had_nothing(now)  # a spout with empty batches always has one more
            is_end = batch.attempt.txid - self._counted_from >= _EMPTY_IS_ALL
            if is_end:
                batch.waiting = waiting
            if is_end or not waiting:
                self._counted_from = batch.attempt.txid

    def completed(self, batch: Batch, now: float) -> None:
        """As `started`, for a batch that had to be read to see what it has."""
        self.started(batch, True, batch.asked_for, now)

    def dropped(self, batch: Batch, in_flight: Mapping[int, Batch], now: float, is_end: bool) -> None:
        """Note that the spouts had nothing, as reading has shown; what they had before is in flight, or committed.

        `is_end`: whether no spout may have something soon.
        """
        self.had_nothing(now, batch.cost_s)
        waiting = batch.asked_for if is_end else []
        if in_flight:
            newest = in_flight[max(in_flight)]
            newest.waiting = [*newest.waiting, *waiting]
            self._promised.update(waiting)
        else:
            self.done(waiting)

    def done(self, waiting: Waiting) -> None:
        """Set these events, because everything that they wait for is committed."""
        if not waiting:
            return
        with self._lock:
            for event in waiting:
                event.set()
            self._events = [event for event in self._events if not event.is_set()]
        self._promised.difference_update(waiting)
