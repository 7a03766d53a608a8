"""StartGate: whether the next batch may begin, how long to wait for that, and who is told when all is committed."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trident.coordination.coordinator import MasterBatchCoordinator
from trident.coordination.records import LETTERS, TIME
from trident.errors import BatchFailedError
from trident.runtime.loop.batch import Batch
from trident.spout.interfaces import BatchCoordinator

logger = logging.getLogger(__name__)

_LONGEST_S = 1.0
"""The loop looks this often at the least, so that overdue attempts and a successor are noticed."""

_IDLE_LOAD = 0.1
"""This share of a core may go into asking spouts that have nothing: looking at 20,000 files takes most of a second."""

_EMPTY_IS_ALL = 10
"""After this many empty batches in a row the spouts are treated as exhausted, because they cannot say so themselves."""


class _Order(NamedTuple):
    """Whether batches are to be begun; and what is set once none is in flight since, if they are not."""

    active: bool
    rested: threading.Event


class StartGate:
    """Brings together all that the start of a batch depends on: orders, failures, batches in flight, what spouts had last.

    `spouts`: those that want to know whether they are asked.
    `batches`: those in flight, by txid; the loop changes them.
    `interval_s`: how long to wait after the spouts had nothing.
    `active`: what is ordered at first.
    `ordered`: the last order; for any thread.
    `awaited`: by a thread that waits for what the spouts had, the batch whose record sets its event; None: not known yet.
    `fatal`: the error of the batch that is not tried again; None while there is none.
    `at`: when to ask the spouts again.
    `is_idle`: whether the spouts had nothing when they were last asked.
    """

    def __init__(
        self,
        topology: str,
        coordinator: MasterBatchCoordinator,
        batches: Mapping[int, Batch],
        spouts: Sequence[BatchCoordinator] = (),
        interval_s: float = 0.0,
        active: bool = True,
    ) -> None:
        self._topology, self._coordinator, self._batches, self._spouts = topology, coordinator, batches, spouts
        self.ordered, self._ordering = _Order(active, threading.Event()), threading.Lock()
        self._obeyed = self.ordered if active else None  # what there is nothing to do for
        self._last: int | None = None  # while inactive, the last batch of which attempts may begin
        self.fatal: BatchFailedError | None = None
        self.at, self.is_idle = float("-inf"), False
        self._interval_s = interval_s
        self._counted_from = coordinator.last_txid  # the batch after which empty ones are counted, while a thread waits
        self._come: deque[threading.Event] = deque()
        # Until the batch is known, the spouts are asked without a pause.
        self.awaited: dict[threading.Event, int | None] = {}

    # ---- for any thread ---------------------------------------------------------------------------------------------

    def order(self, active: bool) -> None:
        """Let batches be begun, or no more."""
        with self._ordering:
            if active is not self.ordered.active:
                self.ordered = _Order(active, threading.Event())

    def add(self) -> threading.Event:
        """Return an event that is set once everything that the spouts have now is committed."""
        done = threading.Event()
        self._come.append(done)
        return done

    # ---- may the next batch start? ----------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Do what was ordered, and ask the spouts at once if a thread waits for what they have."""
        if self.ordered is not self._obeyed:
            self._obey()
        # Who comes while a batch is being read waits for the next question, not for what this one had.
        while self._come and not any(batch.undecided for batch in self._batches.values()):
            self.awaited[self._come.popleft()] = None
        if self.awaited and None in self.awaited.values():
            self.at = now

    def wait_s(self, now: float) -> float:
        """Return how long nothing can be started, unless a message comes; 0.0: the spouts may be asked for the next batch."""
        if self._is_held():
            return _LONGEST_S
        return min(_LONGEST_S, max(self.at - now, self._coordinator.wait_s(now)))

    def _is_held(self) -> bool:
        """Whether the next batch waits: for good, until it is known where it begins, or as all will end soon."""
        # Asked several times for each batch, so there is no call that is not needed.
        if self.fatal is not None and self._coordinator.next_txid >= self.fatal.txid:
            return True
        if self._last is not None and self._coordinator.next_txid > self._last:
            return True
        brief = bool(self._batches)
        for batch in self._batches.values():
            if batch.undecided is not None or batch.is_guess:
                return True
            brief = brief and batch.lane.brief
        return brief

    # ---- what became of a batch -------------------------------------------------------------------------------------

    def started(self, batch: Batch, is_empty: bool, asked: bool, now: float) -> None:
        """Check whether a batch shows that the spouts have no more, once it is known what it has.

        `is_empty`: whether it has no parts, or nothing was read.
        `asked`: whether the spouts were asked: the log may say "nothing" for a spout that has more by now.
        """
        self.is_idle, txid = False, batch.attempt.txid
        if not is_empty:
            self._counted_from = txid
        elif asked and batch.definitions.keys() <= {TIME, LETTERS}:  # only a window was due
            self._promise(txid)
        elif asked:
            self._pause(now)  # a spout with empty batches always has one more
            is_end = txid - self._counted_from >= _EMPTY_IS_ALL
            if is_end:
                self._promise(txid)
            if is_end or not self.awaited:
                self._counted_from = txid

    def had_nothing(self, txid: int, now: float, cost_s: float = 0.0) -> None:
        """Note that the spouts had nothing for batch `txid`; `cost_s`: how long that took on a core."""
        self._pause(now, cost_s)
        if self._last is not None:  # it had begun before, and failed
            self._last = min(self._last, txid - 1)
            self._obey()

    def _pause(self, now: float, cost_s: float = 0.0) -> None:
        self.at, self.is_idle = now + max(self._interval_s, cost_s / _IDLE_LOAD), True

    def gave_all(self) -> None:
        """Note that the spouts have no more: what they had is in flight, or committed."""
        self._promise(self._coordinator.next_txid - 1)
        self.recorded(self._coordinator.last_txid)

    def _promise(self, txid: int) -> None:
        """Have the record of a batch set the events that are waited for."""
        self.awaited = {event: txid if last is None else last for event, last in self.awaited.items()}

    def recorded(self, txid: int) -> None:
        """Set the events of threads that wait for this batch and no later one."""
        if not self.awaited:
            return
        for event, last in list(self.awaited.items()):
            if last is not None and last <= txid:
                event.set()
                del self.awaited[event]

    def failed(self, txid: int) -> None:
        """Ask the spouts at once, because this batch failed and all from it on will be defined again."""
        self.at = float("-inf")
        self.awaited = {
            event: last if last is not None and last < txid else None for event, last in self.awaited.items()
        }

    def raise_fatal(self) -> None:
        """Raise what ends the topology, once all batches before the one that failed are committed."""
        if self.fatal is not None and self._coordinator.last_txid + 1 == self.fatal.txid:
            raise self.fatal

    # ---- active or not ----------------------------------------------------------------------------------------------

    def _obey(self) -> None:
        order = self.ordered
        if order.active:
            self._obeyed = order
            if self._last is not None:
                self._last, self.at = None, float("-inf")
                self._notify(True)
                after = self._coordinator.last_txid
                logger.info("topology %s: activated; it goes on after batch %d", self._topology, after)
            return
        if self._last is None:
            self._last = self._coordinator.newest
            logger.info("topology %s: deactivated; batches up to %d are finished", self._topology, self._last)
        if self._coordinator.last_txid >= self._last and not order.rested.is_set():
            self._notify(False)  # not before: another attempt at a batch may ask a spout
            order.rested.set()

    def _notify(self, active: bool) -> None:
        for spout in self._spouts:
            try:
                if active:
                    spout.activate()
                else:
                    spout.deactivate()
            except Exception:  # it is still asked, or not; what is wrong with it shows when it is asked
                logger.exception(
                    "topology %s: a spout raised when notified that it is active: %s", self._topology, active
                )
