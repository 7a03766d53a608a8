"""Gathering: which waiting attempts go into which job, and what each of them gets from it. Knows no Spark.

The thread of each attempt waits here. That of the oldest one leads the next job, for its own attempt and those behind it;
the others wait until the job is done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from trident.runtime.engine.pace import Pace, SharingLimits
from trident.runtime.engine.worker import Part
from trident.runtime.steps.failures import failure_of
from trident.spout.interfaces import TransactionAttempt

R = TypeVar("R")

logger = logging.getLogger(__name__)


class SharedResult(NamedTuple, Generic[R]):
    """What an attempt got from its job, and how many attempts shared it."""

    given: R
    shared: int


@dataclass(eq=False)
class WaitingAttempt(Generic[R]):
    """An attempt whose thread waits; `alone`: it shares no job any more."""

    attempt: TransactionAttempt
    parts: Sequence[Part]
    alone: bool = False
    cancelled: bool = False
    result: SharedResult[R] | None = None


@dataclass(eq=False)
class GatheredJob(Generic[R]):
    """A job that runs."""

    name: str
    attempts: Sequence[WaitingAttempt[R]]
    since: float
    given_up: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether it has several attempts."""
        return len(self.attempts) > 1

    @property
    def can_be_overdue(self) -> bool:
        """Whether attempts wait for it that could run alone."""
        return self.is_shared and not self.given_up


class Gathering(Generic[R]):
    """Gathers attempts into jobs. Thread-safe.

    If a job of several attempts fails, each of them runs once more, alone, and only if that fails does the attempt. What
    the first run gave is dropped whole, and processing has no side effects, so nothing of it remains.

    `run`: runs a job in the calling thread; returns what each attempt gets.
    `stop`: makes a running job fail soon.
    `came`: when the last attempt came.
    """

    def __init__(
        self,
        run: Callable[[GatheredJob[R]], Sequence[R]],
        stop: Callable[[GatheredJob[R]], None],
        limits: SharingLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._stop, self._clock = run, stop, clock
        self._changed = threading.Condition()
        self._pace = Pace(limits)
        self._waiting: list[WaitingAttempt[R]] = []
        self._running: list[GatheredJob[R]] = []
        self._jobs, self.came = 0, 0.0

    def result_of(self, attempt: TransactionAttempt, parts: Sequence[Part]) -> SharedResult[R] | None:
        """Wait until a job has processed an attempt; None if it was cancelled. Raises what ended a job of its own."""
        mine: WaitingAttempt[R] = WaitingAttempt(attempt, parts)
        with self._changed:
            self._waiting.append(mine)
            self.came = self._clock()
            self._changed.notify_all()
        while (job := self._to_lead(mine)) is not None:
            self._lead(job)
        return mine.result

    def learn(self, seconds: float, size: int) -> None:
        """Learn from an attempt that it kept the cores busy for some seconds, and brought some bytes to the driver."""
        with self._changed:
            self._pace.learn(seconds, size)

    def wants(self, in_flight: int, most: int) -> bool:
        """Whether another batch is of use, with so many in flight of at most `most`; for one thread."""
        return self._pace.wants(in_flight, most)

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Drop an attempt. A job is stopped once none of its attempts is wanted."""
        with self._changed:
            for one in [*self._waiting, *(one for job in self._running for one in job.attempts)]:
                one.cancelled = one.cancelled or one.attempt == attempt
            self._waiting = [one for one in self._waiting if not one.cancelled]
            unwanted = [job for job in self._running if all(one.cancelled for one in job.attempts)]
            self._changed.notify_all()
        for job in unwanted:
            self._stop(job)

    # ---- the threads ------------------------------------------------------------------------------------------------

    def _to_lead(self, mine: WaitingAttempt[R]) -> GatheredJob[R] | None:
        """Wait until this thread has to lead a job; None once its own attempt needs no more."""
        while True:
            with self._changed:
                overdue = self._overdue()
                if not overdue:
                    if self._is_done(mine):
                        return None
                    wait_s = self._to_wait_s(mine)
                    if wait_s is not None and wait_s <= 0:
                        return self._next_job()
                    self._changed.wait(wait_s)
            for job in overdue:
                self._stop(job)

    def _is_done(self, mine: WaitingAttempt[R]) -> bool:
        return mine.result is not None or (mine.cancelled and not any(mine in job.attempts for job in self._running))

    def _to_wait_s(self, mine: WaitingAttempt[R]) -> float | None:
        """Return how long a thread waits if nothing happens (None: for ever); 0 if it has to lead a job now."""
        now = self._clock()
        if self._waiting and self._waiting[0] is mine:
            if mine.alone:
                return 0.0
            if self._pace.may_start(len(self._running)):
                return max(0.0, self._pace.lingers_s(len(self._waiting), now - self.came))
        since = [job.since for job in self._running if job.can_be_overdue]
        # Never 0: then it would lead.
        return max(0.001, min(since) + self._pace.patience_s - now) if since else None

    def _next_job(self) -> GatheredJob[R]:
        taken = self._waiting[:1]
        if not taken[0].alone:
            taken += [one for one in self._waiting[1 : self._pace.room] if not one.alone]
        self._waiting = [one for one in self._waiting if one not in taken]
        self._jobs += 1
        self._running.append(GatheredJob(str(self._jobs), taken, self._clock()))
        self._changed.notify_all()  # the next one may lead a job of its own
        return self._running[-1]

    def _overdue(self) -> list[GatheredJob[R]]:
        limit = self._clock() - self._pace.patience_s
        found = [job for job in self._running if job.can_be_overdue and job.since <= limit]
        for job in found:
            job.given_up = True
        return found

    def _lead(self, job: GatheredJob[R]) -> None:
        outputs: Sequence[R] = ()
        try:
            outputs = self._run(job)
        except Exception as error:
            if not job.is_shared:
                raise
            if any(not one.cancelled for one in job.attempts):
                why = "it took too long" if job.given_up else failure_of("spark", error).cause
                txids = ", ".join(str(one.attempt.txid) for one in job.attempts)
                logger.warning("batches %s shared a Spark job; each of them runs alone now: %s", txids, why)
        finally:
            self._ended(job, outputs)

    def _ended(self, job: GatheredJob[R], outputs: Sequence[R]) -> None:
        with self._changed:
            self._running.remove(job)
            if outputs:
                self._pace.ended(len(job.attempts), self._clock() - job.since)
                for one, given in zip(job.attempts, outputs, strict=True):
                    one.result = SharedResult(given, len(job.attempts))
            elif job.is_shared:
                self._pace.failed()
                again = [one for one in job.attempts if not one.cancelled]
                for one in again:
                    one.alone = True
                self._waiting = sorted([*again, *self._waiting], key=lambda one: one.attempt)
            self._changed.notify_all()
