"""The progress of the batches so far: the numbers of `status`, `last_progress` and the command line's live line.

Each thing that happens becomes one event here; `Monitoring` passes it on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trident.monitoring.batch_committed import BatchCommitted, Placement, Read
from trident.monitoring.events import AttemptFailed, TopologyEvent
from trident.operations.metrics import add_counts
from trident.runtime.commit.committed import Committed
from trident.runtime.driver.batch import Batch
from trident.runtime.steps.failures import Failure
from trident.spout.interfaces import Lag, TransactionAttempt

__all__ = ["Outcome", "Progress"]


class Outcome(NamedTuple):
    """How a batch was committed.

    Attributes
    ----------
    committed
        What it changed.
    at_ms
        When it was recorded, since 1970.
    tries
        How many attempts it took.
    dead_letters
        How many of its tuples were left out.
    lags
        What the spouts say of their lag now.
    share
        How much of their limits later batches get.
    """

    committed: Committed
    at_ms: int
    tries: int
    dead_letters: int
    lags: Mapping[str, Lag | None]
    share: float


class Progress:
    """Collects what the driver loop reports; any thread may read it.

    `last_failure` is the cause of the last failed attempt, `last_attempt` that attempt.

    Parameters
    ----------
    kept
        How many batches are kept.
    run_id
        The name of this run.
    placements
        Where each state commits.
    publish
        Called with each event, in the thread that reports it.
    """

    def __init__(
        self,
        name: str,
        kept: int,
        run_id: str = "",
        placements: Mapping[str, Placement] | None = None,
        publish: Callable[[TopologyEvent], None] | None = None,
    ) -> None:
        self._name, self._run_id, self._placements = name, run_id, placements or {}
        self._publish = publish or (lambda event: None)
        self._lock = threading.Lock()
        self._recent: deque[BatchCommitted] = deque(maxlen=kept)
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

    def committed(self, batch: Batch, outcome: Outcome) -> None:
        """A batch is committed."""
        times, event = batch.times, self._event(batch, outcome)
        with self._lock:
            self._recent.append(event)
            self.batches += 1
            add_counts(self._rows, event.read.rows)
            self._lags, self._share, self._defined = event.read.lags, outcome.share, times.defined
            add_counts(self._metrics, event.counters)
            self._first = times.defined if self._first is None else self._first
            self._last = times.recorded
        self._publish(event)

    def _event(self, batch: Batch, outcome: Outcome) -> BatchCommitted:
        output, committed, times = batch.output, outcome.committed, batch.times
        came_in_s = None if self._first is None else times.defined - self._defined
        counters = dict(output.metrics)
        add_counts(counters, committed.metrics)
        return BatchCommitted(
            self._name,
            self._run_id,
            outcome.at_ms,
            *batch.attempt,
            outcome.tries,
            "in_process" if batch.runner.here else "spark",
            Read(output.rows, dict(outcome.lags), came_in_s, batch.size, batch.tasks),
            times.phases(),
            times.recorded,
            outcome.share if batch.share is None else batch.share,
            self._placements,
            committed.keys,
            committed.key_counts,
            output.bytes_shuffled,
            output.bytes_collected,
            outcome.dead_letters,
            counters,
            output.shared,
            output.bytes_spilled,
        )

    def failed(
        self, attempt: TransactionAttempt, failure: Failure, at_ms: int, tries: int, retry_in_s: float | None
    ) -> None:
        """An attempt failed, its batch for the `tries`-th time; it is tried again after some seconds, or not (None)."""
        with self._lock:
            self.failures += 1
            self.last_failure, self.last_attempt = failure, attempt
        head = (self._name, self._run_id, at_ms, *attempt, tries)
        self._publish(AttemptFailed(*head, failure.step, failure.row, failure.cause, retry_in_s, failure.details))

    def recent(self) -> list[dict[str, Any]]:
        """Return the last batches, oldest first."""
        with self._lock:
            recent = list(self._recent)
        return [event.as_dict() for event in recent]

    def last(self) -> dict[str, Any] | None:
        """Return the last batch, None before the first."""
        with self._lock:
            last = self._recent[-1] if self._recent else None
        return None if last is None else last.as_dict()

    @property
    def tuples(self) -> int:
        """How many tuples all sources gave in this run."""
        with self._lock:
            return sum(self._rows.values())

    def sources(self) -> tuple[list[dict[str, Any]], float]:
        """Return the rows of each source in this run with its lag, and which share of their limits they may use now."""
        with self._lock:
            told = [
                {
                    "description": name,
                    "numInputRows": self._rows.get(name, 0),
                    "lag": None if lag is None else lag._asdict(),
                }
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
