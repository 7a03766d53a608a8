"""What is known of the batches so far: the numbers behind `status`, `last_progress` and the command line's live line."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trident.operations.metrics import add_counts
from trident.runtime.steps.rows import Failure
from trident.spout.interfaces import TransactionAttempt

__all__ = ["BatchTimes", "Progress"]


@dataclass
class BatchTimes:
    """When a batch reached each point of its life, in seconds of a monotonic clock."""

    defined: float = 0.0
    processed: float = 0.0
    committing: float = 0.0
    recorded: float = 0.0

    def durations_ms(self) -> dict[str, float]:
        """Return milliseconds per phase; `wait` is the time between being processed and being one's turn to commit."""
        return {
            "process": (self.processed - self.defined) * 1000,
            "wait": (self.committing - self.processed) * 1000,
            "commit": (self.recorded - self.committing) * 1000,
            "total": (self.recorded - self.defined) * 1000,
        }


class Progress:
    """Collects what the driver loop tells; readable from any thread.

    `last_failure` is why the last attempt that failed did so, `last_attempt` which one it was.
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

    def committed(
        self,
        attempt: TransactionAttempt,
        times: BatchTimes,
        tuples: int,
        keys: Mapping[str, int],
        at_ms: int,
        metrics: Mapping[str, int],
        dead_letters: int = 0,
    ) -> None:
        """A batch is committed; `dead_letters` of its tuples were left out."""
        entry = {
            "name": self._name,
            "batchId": attempt.txid,
            "attempt": attempt.attempt,
            "timestamp": at_ms,
            "numInputRows": tuples,
            "processedRowsPerSecond": tuples / max(times.recorded - times.defined, 1e-9),
            "durationMs": times.durations_ms(),
            "recordedAt": times.recorded,
            "stateKeysUpdated": dict(keys),
            "numDeadLetters": dead_letters,
            "metrics": dict(metrics),
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
        """From the first define to the last commit."""
        with self._lock:
            return 0.0 if self._first is None else self._last - self._first


def _timestamp(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
