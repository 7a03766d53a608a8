"""The progress of the batches so far: the numbers of `status`, `last_progress` and the command line's live line."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from trident.operations.metrics import add_counts
from trident.runtime.commit.committed import Committed
from trident.runtime.driver.batch import Batch
from trident.runtime.driver.lags import Lags
from trident.runtime.steps.failures import Failure
from trident.spout.interfaces import Lag, TransactionAttempt

__all__ = ["Progress"]

_SHORTEST_S = 1e-9


class _Read(NamedTuple):
    """What a batch read: the rows and the lag of each spout, and over how many seconds its rows came and were processed."""

    rows: Mapping[str, int]
    lags: Mapping[str, Lag | None]
    came_in_s: float | None  # None: it is the first batch
    took_s: float

    def told(self) -> list[dict[str, Any]]:
        """Return the figures of each source, with the names of PySpark's `SourceProgress`."""
        return [
            {
                "description": name,
                "numInputRows": self.rows.get(name, 0),
                **self.rates(self.rows.get(name, 0)),
                "lag": _told(lag),
            }
            for name, lag in self.lags.items()
        ]

    def rates(self, rows: int) -> dict[str, float]:
        came = 0.0 if self.came_in_s is None else rows / max(self.came_in_s, _SHORTEST_S)
        return {"inputRowsPerSecond": came, "processedRowsPerSecond": rows / max(self.took_s, _SHORTEST_S)}


class Progress:
    """Collects what the driver loop reports; any thread may read it.

    `last_failure` is the cause of the last failed attempt, `last_attempt` that attempt.
    """

    def __init__(self, name: str, kept: int) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._recent: deque[dict[str, Any]] = deque(maxlen=kept)
        self.batches = 0
        self.failures = 0
        self._rows: dict[str, int] = {}
        self._lags: Mapping[str, Lag | None] = {}
        self._share = 1.0
        self._metrics: dict[str, int] = {}
        self.last_failure: Failure | None = None
        self.last_attempt: TransactionAttempt | None = None
        self._first: float | None = None
        self._last = self._defined = 0.0

    def committed(
        self, batch: Batch, committed: Committed, at_ms: int, dead_letters: int, lags: Lags, share: float
    ) -> None:
        """A batch is committed; `dead_letters` of its tuples were left out, and later batches get `share` of the limits."""
        attempt, times, rows = batch.attempt, batch.times, batch.output.rows
        came_in_s = None if self._first is None else times.defined - self._defined
        read = _Read(rows, dict(lags.known), came_in_s, times.recorded - times.defined)
        metrics = dict(batch.output.metrics)
        add_counts(metrics, committed.metrics)
        entry = {
            "name": self._name,
            "batchId": attempt.txid,
            "attempt": attempt.attempt,
            "timestamp": at_ms,
            "numInputRows": batch.output.tuples,
            "sources": read,
            "share": share if batch.share is None else batch.share,
            "durationMs": times.durations_ms(),
            "recordedAt": times.recorded,
            "stateKeysUpdated": dict(committed.keys),
            "numDeadLetters": dead_letters,
            "metrics": metrics,
        }
        with self._lock:
            self._recent.append(entry)
            self.batches += 1
            add_counts(self._rows, rows)
            self._lags, self._share, self._defined = read.lags, share, times.defined
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
        return [_entry_told(entry) for entry in recent]

    def last(self) -> dict[str, Any] | None:
        """Return the last batch, None before the first."""
        with self._lock:
            last = self._recent[-1] if self._recent else None
        return None if last is None else _entry_told(last)

    @property
    def tuples(self) -> int:
        """How many tuples all sources gave in this run."""
        with self._lock:
            return sum(self._rows.values())

    def sources(self) -> tuple[list[dict[str, Any]], float]:
        """Return the rows of each source in this run with its lag, and which share of their limits they may use now."""
        with self._lock:
            told = [
                {"description": name, "numInputRows": self._rows.get(name, 0), "lag": _told(lag)}
                for name, lag in self._lags.items()
            ]
            return told, self._share

    def metrics(self) -> dict[str, int]:
        """Return what operations counted in all batches of this run."""
        with self._lock:
            return dict(self._metrics)

    @property
    def seconds(self) -> float:
        """Return the seconds from the first definition to the last commit."""
        with self._lock:
            return 0.0 if self._first is None else self._last - self._first


def _entry_told(entry: dict[str, Any]) -> dict[str, Any]:
    read: _Read = entry["sources"]
    figures = {"sources": read.told(), **read.rates(entry["numInputRows"]), "timestamp": _timestamp(entry["timestamp"])}
    return {**entry, **figures}


def _told(lag: Lag | None) -> dict[str, Any] | None:
    return None if lag is None else lag._asdict()


def _timestamp(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
