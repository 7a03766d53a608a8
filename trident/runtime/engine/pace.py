"""Pace: how many attempts a job takes and how many batches are wanted, judging by what the last ones took."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

ALONE = 3
"""How many batches in flight keep Spark busy if each of them has a job of its own."""


MOST_PENDING = 16
"""How many batches may be in flight at most if they share jobs and the user does not say."""


class SharingLimits(NamedTuple):
    """When attempts share a job.

    `most`: how many attempts a job takes at most.
    `at_once`: so many jobs of several attempts run at once. Attempts that come meanwhile wait, and share the next job.
    `work_s`, `work_bytes`: a job takes as many attempts as keep the cores busy for so long and bring so many bytes to the
    driver, judging by the attempts before. An attempt that takes more than half of it shares with none: a job's fixed cost is
    little beside it.
    `patience_s`, `patience`: a job of several attempts is given up if it takes longer, and so many times longer than the one
    before: an attempt that hangs must not keep the others waiting.
    `linger_s`: after a job of several attempts, the next one waits until so long after the last attempt came, because they come
    one right after the other. An attempt that comes alone never waits.
    """

    most: int = 16
    at_once: int = 1
    work_s: float = 0.2
    work_bytes: int = 64 << 20
    patience_s: float = 3.0
    patience: float = 10.0
    linger_s: float = 0.002


class Pace:
    """Learns from the attempts and jobs that ended.

    `room`: how many attempts the next job may take.
    """

    def __init__(self, limits: SharingLimits) -> None:
        self._limits = limits
        self._costs: deque[float] = deque(maxlen=3)  # each as a share of the work that a job may have
        self._took_s, self._was_shared, self._filling = 0.0, False, True
        self.room = 1

    def learn(self, seconds: float, size: int) -> None:
        """Learn that an attempt kept the cores busy for some seconds, and brought some bytes to the driver."""
        limits = self._limits
        self._costs.append(max(seconds / limits.work_s, size / limits.work_bytes))
        # The lowest of them: the first attempts start the workers, and one that was held up says little of the next.
        self.room = max(1, min(limits.most, int(1 / max(min(self._costs), 1 / limits.most))))

    def ended(self, attempts: int, took_s: float) -> None:
        """Learn how long a job took."""
        self._was_shared, self._took_s = attempts > 1, took_s

    def failed(self) -> None:
        """Learn that a job of several attempts failed."""
        self._was_shared, self.room = False, 1

    def may_start(self, running: int) -> bool:
        """Whether another job may start beside those that are running."""
        return running < self._limits.at_once or (self.room == 1 and bool(self._costs))

    def lingers_s(self, waiting: int, since_s: float) -> float:
        """Return how long a job still waits for more attempts; `since_s`: how long ago the last one came."""
        return self._limits.linger_s - since_s if self._was_shared and waiting < self.room else 0.0

    @property
    def patience_s(self) -> float:
        """After so many seconds a job of several attempts is given up."""
        return max(self._limits.patience_s, self._limits.patience * self._took_s)

    def wants(self, in_flight: int, most: int) -> bool:
        """Whether another batch is of use, with so many in flight of at most `most`; for one thread.

        Small batches come in bursts, so that they share jobs: as many as may be in flight, then none until half of those are
        committed.
        """
        if self.room == 1:
            return in_flight < min(most, ALONE)
        most = min(most, max(ALONE, 2 * self.room))
        self._filling = in_flight < most if self._filling else in_flight <= most // 2
        return self._filling
