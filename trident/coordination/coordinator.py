"""MasterBatchCoordinator: which batch may start, which may commit, what is tried again.

A state machine without a clock, a thread or I/O of its own: the driver loop (and a simulator) feeds it and asks it.

::

    start(t) ──► PROCESSING ──processed──► PROCESSED ──commit_next──► COMMITTING ──committed──► gone
                     │ └─dropped──► gone, if t had nothing and is the newest
                     └──────────────── failed: t and all later ones go, to be started again ───────────┘

- R1  txids are +1 steps; t+1 is never started before t.
- R2  commit(t+1) is offered only after `committed(t)`, which the driver calls once the record of t is durable.
- R3  a failure of t ends the attempts of t and of all later ones; messages about an ended attempt are ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from trident.errors import CommitOrderError
from trident.spout.interfaces import TransactionAttempt
from trident.state.txid import RETRY_BITS

_MOST_RETRIES = (1 << RETRY_BITS) - 1


class AttemptStatus(Enum):
    """Where an attempt is on its way."""

    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"


@dataclass
class _Active:
    attempt: TransactionAttempt
    status: AttemptStatus


class MasterBatchCoordinator:
    """Orders the batches of one topology.

    Attempt ids are `epoch << 20 | retry`; retry rises with every failure, for all batches alike, so ids never fall along
    the history of a log and equal ids mean that nothing failed in between.

    Parameters
    ----------
    last_txid
        The last committed txid of the log; 0 for a new one.
    epoch
        The driver's epoch in the log, at least 1.
    max_pending
        How many batches may be active at once.
    emit_interval_s
        At most one start per interval (0: no limit). Retries do not wait for it.
    """

    def __init__(self, last_txid: int, epoch: int, max_pending: int = 1, emit_interval_s: float = 0.0) -> None:
        self.last_txid = last_txid
        self._epoch, self._retry = epoch, 0
        self._max_pending, self._interval = max_pending, emit_interval_s
        self._active: dict[int, _Active] = {}
        self._failures: dict[int, int] = {}
        self._newest = last_txid  # of those ever started
        self._last_start = float("-inf")
        self._not_before = float("-inf")

    # ---- starting ---------------------------------------------------------------------------------------------------

    @property
    def next_txid(self) -> int:
        """The txid that the next batch to be started has."""
        return self.last_txid + len(self._active) + 1

    @property
    def newest(self) -> int:
        """The last batch that was ever started, whatever became of it; `last_txid` if there is none after it."""
        return max(self._newest, self.last_txid)

    def wait_s(self, now: float) -> float:
        """Return for how long `start` may not be called (throttle, backoff): infinite until a batch ends; 0.0: it may be now.

        It may never be again after a failure that left no retry.
        """
        if len(self._active) >= self._max_pending or self._retry > _MOST_RETRIES:
            return math.inf
        start_at = self._not_before
        if self._interval and self.next_txid > self._newest:
            start_at = max(start_at, self._last_start + self._interval)
        return max(0.0, start_at - now)

    def start(self, now: float) -> TransactionAttempt:
        """Start the next batch; its processing begins."""
        if self.wait_s(now):
            raise CommitOrderError(f"batch {self.next_txid} must not be started now")
        attempt = TransactionAttempt(self.next_txid, self._epoch << RETRY_BITS | self._retry)
        self._newest = max(self._newest, attempt.txid)
        self._active[attempt.txid] = _Active(attempt, AttemptStatus.PROCESSING)
        self._last_start = now
        return attempt

    def failures(self, txid: int) -> int:
        """How often batch `txid` itself has failed in this driver, without attempts that an earlier batch's failure ended."""
        return self._failures.get(txid, 0)

    # ---- progress ---------------------------------------------------------------------------------------------------

    def is_live(self, attempt: TransactionAttempt) -> bool:
        """Whether the attempt is the current one of its batch."""
        active = self._active.get(attempt.txid)
        return active is not None and active.attempt == attempt

    def processed(self, attempt: TransactionAttempt) -> bool:
        """All tuples of the attempt are processed; returns False (and does nothing) for a dead attempt.

        Nor does it do anything for an attempt that has come further: said twice, it must not be committed twice.
        """
        if not self.is_live(attempt) or self._active[attempt.txid].status is not AttemptStatus.PROCESSING:
            return False
        self._active[attempt.txid].status = AttemptStatus.PROCESSED
        return True

    def dropped(self, attempt: TransactionAttempt) -> None:
        """The newest attempt turned out to have nothing, before it was processed: it is as if it had not been started."""
        active = self._active.get(attempt.txid)
        is_newest = attempt.txid == self.next_txid - 1
        if (
            active is None
            or active.attempt != attempt
            or active.status is not AttemptStatus.PROCESSING
            or not is_newest
        ):
            raise CommitOrderError(f"batch {attempt} cannot be dropped: it has come further, or another one follows it")
        del self._active[attempt.txid]
        self._newest = attempt.txid - 1

    def commit_next(self) -> TransactionAttempt | None:
        """Return the attempt that is to be committed now, None if there is none (or one is being committed)."""
        active = self._active.get(self.last_txid + 1)
        if active is None or active.status is not AttemptStatus.PROCESSED:
            return None
        active.status = AttemptStatus.COMMITTING
        return active.attempt

    def committed(self, attempt: TransactionAttempt) -> None:
        """The record of the attempt is durable."""
        active = self._active.get(attempt.txid)
        if active is None or active.attempt != attempt or active.status is not AttemptStatus.COMMITTING:
            raise CommitOrderError(f"batch {attempt} was not being committed")
        del self._active[attempt.txid]
        self._failures.pop(attempt.txid, None)
        self.last_txid = attempt.txid

    # ---- failure ----------------------------------------------------------------------------------------------------

    def failed(self, attempt: TransactionAttempt, now: float, backoff_s: float = 0.0) -> list[TransactionAttempt]:
        """The attempt failed: it and all later ones are dead and will be started again after `backoff_s` seconds.

        Returns the attempts that died with it (itself first); empty for an attempt that was dead already (R3).
        """
        if not self.is_live(attempt):
            return []
        dead = [self._active.pop(txid).attempt for txid in sorted(self._active) if txid >= attempt.txid]
        self._failures[attempt.txid] = self.failures(attempt.txid) + 1
        self._retry += 1
        self._not_before = now + backoff_s
        return dead

    @property
    def retries_left(self) -> int:
        """How many more failures an attempt can follow. After the last the topology ends, and a restart begins an epoch."""
        return _MOST_RETRIES - self._retry

    def active(self) -> dict[TransactionAttempt, AttemptStatus]:
        """Return the live attempts and where they are, in txid order."""
        return {self._active[txid].attempt: self._active[txid].status for txid in sorted(self._active)}
