"""The progress of the batches so far: the numbers of `status`, `last_progress` and the command line's live line."""

from __future__ import annotations

import threading
from collections import deque
from datetime import UTC, datetime
from typing import Any

from trident.operations.metrics import add_counts
from trident.runtime.commit.committed import Committed
from trident.runtime.driver.batch import Batch
from trident.runtime.steps.failures import Failure
from trident.spout.interfaces import TransactionAttempt

__all__ = ["Progress"]


class Progress:
    """Collects what the driver loop reports; any thread may read it.

    `last_failure` is the cause of the last failed attempt, `last_attempt` that attempt.
    """

    def __init__(self, name: str, kept: int) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._recent: deque[dict[str, Any]] = deque(maxlen=kept)
        self.batches = 0
        self.tuples = 0
        self.failures = 0
        self._metrics: dict[str, int] = {}
        self.last_failure: Failure | None = None
        self.last_attempt: TransactionAttempt | None = None
        self._first: float | None = None
        self._last = 0.0

    def committed(self, batch: Batch, committed: Committed, at_ms: int, dead_letters: int) -> None:
        """A batch is committed; `dead_letters` of its tuples were left out."""
        attempt, times, tuples = batch.attempt, batch.times, batch.output.tuples
        metrics = dict(batch.output.metrics)
        add_counts(metrics, committed.metrics)
        entry = {
            "name": self._name,
            "batchId": attempt.txid,
            "attempt": attempt.attempt,
            "timestamp": at_ms,
            "numInputRows": tuples,
            "processedRowsPerSecond": tuples / max(times.recorded - times.defined, 1e-9),
            "durationMs": times.durations_ms(),
            "recordedAt": times.recorded,
            "stateKeysUpdated": dict(committed.keys),
            "numDeadLetters": dead_letters,
            "metrics": metrics,
        }
        with self._lock:
            self._recent.append(entry)
            self.batches += 1
            self.tuples += tuples
            add_counts(self._metrics, metrics)
            self._first = times.defined if self._first is None else self._first
            self._last = times.recorded

    def failed(self, attempt: TransactionAttempt, failure: Failure) -> None:
        """An attempt failed."""
        with self._lock:
            self.failures += 1
            self.last_failure, self.last_attempt = failure, attempt

    def recent(self) -> list[dict[str, Any]]:
        """Return the last batches, oldest first."""
        with self._lock:
            recent = list(self._recent)
        return [{**entry, "timestamp": _timestamp(entry["timestamp"])} for entry in recent]

    def metrics(self) -> dict[str, int]:
        """Return what operations counted in all batches of this run."""
        with self._lock:
            return dict(self._metrics)

    @property
    def seconds(self) -> float:
        """Return the seconds from the first definition to the last commit."""
        with self._lock:
            return 0.0 if self._first is None else self._last - self._first


def _timestamp(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
