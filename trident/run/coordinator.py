"""Which batch may start, which may commit, what is tried again.

`MasterBatchCoordinator` is a state machine without a clock, a thread or I/O of its own: it keeps R1 to R3 of `loop.py`, which
feeds it and asks it.

::

    start(t) ──► PROCESSING ──processed──► PROCESSED ──commit_next──► COMMITTING ──committed──► gone
                     │ └─dropped──► gone, if t had nothing and is the newest
                     └──────────────── failed: t and all later ones go, to be started again ───────────┘
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from trident.errors import BatchFailedError, CommitOrderError
from trident.log.records import LETTERS, TIME
from trident.run.batch import Batch
from trident.spout.interfaces import BatchCoordinator, TransactionAttempt
from trident.state.txid import RETRY_BITS

logger = logging.getLogger(__name__)

_MOST_RETRIES = (1 << RETRY_BITS) - 1

_LONGEST_S = 1.0  # the loop looks this often at the least, so that overdue attempts and a successor are noticed
_IDLE_LOAD = 0.1  # of a core, for asking spouts that have nothing: looking at 20,000 files takes most of a second
_EMPTY_IS_ALL = 10  # empty batches in a row: then the spouts are treated as exhausted, as they cannot say so themselves


class AttemptStatus(Enum):
    """Where an attempt is on its way."""

    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"


class MasterBatchCoordinator:
    """Orders the batches of one topology.

    Attempt ids are `epoch << 20 | retry`; retry rises with every failure, for all batches alike, so ids never fall along
    the history of a log and equal ids mean that nothing failed in between.
    """

    def __init__(self, last_txid: int, epoch: int, max_pending: int = 1, emit_interval_s: float = 0.0) -> None:
        self.last_txid = last_txid
        self._epoch, self._retry = epoch, 0
        self._max_pending, self._interval = max_pending, emit_interval_s  # retries do not wait for the latter
        self._active: dict[TransactionAttempt, AttemptStatus] = {}  # of all batches behind the last one, in order
        self._failures: dict[int, int] = {}
        self._newest = last_txid  # of those ever started
        self._last_start = float("-inf")
        self._not_before = float("-inf")

    @property
    def next_txid(self) -> int:
        return self.last_txid + len(self._active) + 1

    @property
    def newest(self) -> int:
        """The last batch that was ever started, whatever became of it; `last_txid` if there is none after it."""
        return max(self._newest, self.last_txid)

    def wait_s(self, now: float) -> float:
        """Return for how long `start` may not be called; infinite until a batch ends, or after a failure that left no retry."""
        if len(self._active) >= self._max_pending or self._retry > _MOST_RETRIES:
            return math.inf
        start_at = self._not_before
        if self._interval and self.next_txid > self._newest:
            start_at = max(start_at, self._last_start + self._interval)
        return max(0.0, start_at - now)

    def start(self, now: float) -> TransactionAttempt:
        if self.wait_s(now):
            raise CommitOrderError(f"batch {self.next_txid} must not be started now")
        attempt = TransactionAttempt(self.next_txid, self._epoch << RETRY_BITS | self._retry)
        self._newest = max(self._newest, attempt.txid)
        self._active[attempt] = AttemptStatus.PROCESSING
        self._last_start = now
        return attempt

    def failures(self, txid: int) -> int:
        """How often batch `txid` itself has failed in this driver, without attempts that an earlier batch's failure ended."""
        return self._failures.get(txid, 0)

    def is_live(self, attempt: TransactionAttempt) -> bool:
        return attempt in self._active

    def mark_processed(self, attempt: TransactionAttempt) -> bool:
        """All tuples are processed; False, and nothing is done, for a dead attempt or one that has come further."""
        if self._active.get(attempt) is not AttemptStatus.PROCESSING:
            return False
        self._active[attempt] = AttemptStatus.PROCESSED
        return True

    def drop(self, attempt: TransactionAttempt) -> None:
        """The newest attempt turned out to have nothing, before it was processed: it is as if it had not been started."""
        if self._active.get(attempt) is not AttemptStatus.PROCESSING or attempt.txid != self.next_txid - 1:
            raise CommitOrderError(f"batch {attempt} cannot be dropped: it has come further, or another one follows it")
        del self._active[attempt]
        self._newest = attempt.txid - 1

    def commit_next(self) -> TransactionAttempt | None:
        """Return the attempt that is to be committed now, None if there is none (or one is being committed)."""
        attempt = next(iter(self._active), None)
        if attempt is None or self._active[attempt] is not AttemptStatus.PROCESSED:
            return None
        self._active[attempt] = AttemptStatus.COMMITTING
        return attempt

    def mark_committed(self, attempt: TransactionAttempt) -> None:
        """The record of the attempt is durable."""
        if self._active.get(attempt) is not AttemptStatus.COMMITTING:
            raise CommitOrderError(f"batch {attempt} was not being committed")
        del self._active[attempt]
        self._failures.pop(attempt.txid, None)
        self.last_txid = attempt.txid

    def fail(self, attempt: TransactionAttempt, now: float, backoff_s: float = 0.0) -> list[TransactionAttempt]:
        """End an attempt and all later ones, to be started again after a pause; return them, none if it was dead (R3)."""
        if not self.is_live(attempt):
            return []
        dead = [one for one in self._active if one.txid >= attempt.txid]
        for one in dead:
            del self._active[one]
        self._failures[attempt.txid] = self.failures(attempt.txid) + 1
        self._retry += 1
        self._not_before = now + backoff_s
        return dead

    @property
    def retries_left(self) -> int:
        """How many more failures an attempt can follow. After the last the topology ends, and a restart begins an epoch."""
        return _MOST_RETRIES - self._retry

    def active(self) -> dict[TransactionAttempt, AttemptStatus]:
        return dict(self._active)


class _Order(NamedTuple):
    """Whether batches are to be begun; and what is set once none is in flight since, if they are not."""

    active: bool
    rested: threading.Event


class StartGate:
    """Brings together all that the start of a batch depends on: orders, failures, batches in flight, what spouts had last."""

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
        self.fatal: BatchFailedError | None = None  # of the batch that is not tried again
        self.at, self.is_idle = float("-inf"), False  # when to ask the spouts again; whether they had nothing
        self._interval_s = interval_s
        self._counted_from = coordinator.last_txid  # the batch after which empty ones are counted, while a thread waits
        self._come: deque[threading.Event] = deque()
        # Until the batch is known, the spouts are asked without a pause.
        self.awaited: dict[threading.Event, int | None] = {}

    def order(self, active: bool) -> None:
        with self._ordering:
            if active is not self.ordered.active:
                self.ordered = _Order(active, threading.Event())

    def add(self) -> threading.Event:
        """Return an event that is set once everything that the spouts have now is committed."""
        done = threading.Event()
        self._come.append(done)
        return done

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
        return _LONGEST_S if self._is_held() else min(_LONGEST_S, max(self.at - now, self._coordinator.wait_s(now)))

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

    def note_started(self, batch: Batch, is_empty: bool, asked: bool, now: float) -> None:
        """Check whether a batch shows that the spouts have no more; not `asked`: the log said what they had."""
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
        self.release_waiting(self._coordinator.last_txid)

    def _promise(self, txid: int) -> None:
        """Have the record of a batch set the events that are waited for."""
        self.awaited = {event: txid if last is None else last for event, last in self.awaited.items()}

    def release_waiting(self, txid: int) -> None:
        """Set the events of threads that wait for this batch and no later one."""
        for event, last in list(self.awaited.items()):
            if last is not None and last <= txid:
                event.set()
                del self.awaited[event]

    def note_failed(self, txid: int) -> None:
        """Ask the spouts at once, because this batch failed and all from it on will be defined again."""
        self.at = float("-inf")
        self.awaited = {
            event: last if last is not None and last < txid else None for event, last in self.awaited.items()
        }

    def raise_fatal(self) -> None:
        """Raise what ends the topology, once all batches before the one that failed are committed."""
        if self.fatal is not None and self._coordinator.last_txid + 1 == self.fatal.txid:
            raise self.fatal

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
                (spout.activate if active else spout.deactivate)()
            except Exception:  # it is still asked, or not; what is wrong with it shows when it is asked
                logger.exception(
                    "topology %s: a spout raised when notified that it is active: %s", self._topology, active
                )
