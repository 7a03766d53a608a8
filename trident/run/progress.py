"""The progress of the batches so far: the numbers of `status`, `last_progress` and the command line's live line.

Each thing that happens becomes one event here; `Monitoring` passes it on.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import sub
from typing import Any

from trident.counts import add_counts, take_remarks
from trident.engine.replay_check import Checked
from trident.observe.batch_committed import BatchCommitted, Phases, Placement, Read
from trident.observe.events import AttemptFailed, LastErrors, ReplayDiffered, TopologyEvent
from trident.run.batch import Batch
from trident.run.committer import Committed
from trident.run.operation_totals import OperationTotals
from trident.spout.interfaces import Lag, TransactionAttempt
from trident.steps.failures import Failure

logger = logging.getLogger(__name__)

_TOLD_OF_BATCH = 10  # errors of tuples that one batch left out
_MS_PER_S = 1000


class Progress:
    """Collects what the driver loop reports; any thread may read it.

    `last_failure` is the cause of the last failed attempt, `last_attempt` that attempt. `errors` are the last ones by step.
    `replays` counts the batches that were processed twice, could not be, and differed. `last_recorded` is when the last batch
    of this run was recorded, on the clock of the topology; 0 before the first.

    `kept`: how many batches are remembered.
    `run_id`: the name of this run.
    `placements`: where each state commits.
    `publish`: called with each event, in the thread that reports it.
    `totals`: adds up what operations did.
    """

    def __init__(
        self,
        name: str,
        kept: int,
        run_id: str = "",
        placements: Mapping[str, Placement] | None = None,
        publish: Callable[[TopologyEvent], None] | None = None,
        totals: OperationTotals | None = None,
    ) -> None:
        self._name, self._run_id, self._placements = name, run_id, placements or {}
        self._publish, self._totals = publish or (lambda event: None), totals
        self._lock = threading.Lock()
        self._recent: deque[BatchCommitted] = deque(maxlen=kept)
        self.errors = LastErrors()
        self.batches = 0
        self.failures = self.left_out = 0
        self._rows: dict[str, int] = {}
        self._lags: Mapping[str, Lag | None] = {}
        self._share = 1.0
        self._metrics: dict[str, int] = {}
        self.last_failure: Failure | None = None
        self.last_attempt: TransactionAttempt | None = None
        self.replays = {"checked": 0, "skipped": 0, "differed": 0}
        self._said: set[tuple[str, str]] = set()
        self._told_of: set[str] = set()  # steps that give other results at a replay
        self._first: float | None = None
        self.last_recorded = self._defined = 0.0

    def note_committed(
        self,
        batch: Batch,
        committed: Committed,
        left_out: Sequence[Failure],
        at_ms: int,
        lags: Mapping[str, Lag | None],
        share: float,
    ) -> None:
        """A batch is committed.

        `committed`: what it changed.
        `left_out`: its tuples that were left out, as dead letters.
        `at_ms`: when it was recorded, since 1970.
        `lags`: what the spouts say of their lag now.
        `share`: how much of their limits later batches get.
        """
        output, times = batch.output, batch.times
        points = times.defined, times.started, times.processed, times.committing, times.committed, times.recorded
        came_in_s = None if self._first is None else times.defined - self._defined
        counters = self._counters(output.metrics, committed.metrics, at_ms)
        event = BatchCommitted(
            self._name,
            self._run_id,
            at_ms,
            *batch.attempt,
            batch.tries,
            "in_process" if batch.runner.here else "spark",
            Read(output.rows, dict(lags), came_in_s, batch.size, batch.tasks, batch.sizes),
            Phases(*map(sub, points[1:], points)),
            times.recorded,
            share if batch.share is None else batch.share,
            self._placements,
            committed.keys,
            committed.key_counts,
            output.bytes_shuffled,
            output.bytes_collected,
            len(left_out),
            counters,
            output.bytes_spilled,
        )
        with self._lock:
            self._recent.append(event)
            self.batches += 1
            self.left_out += len(left_out)
            for name, rows in output.rows.items():
                self._rows[name] = self._rows.get(name, 0) + rows
            self._lags, self._share, self._defined = event.read.lags, share, times.defined
            if counters:
                add_counts(self._metrics, counters)
            self._first = times.defined if self._first is None else self._first
            self.last_recorded = times.recorded
        if self._totals is not None:
            self._totals.add_batch(event, output, committed, bool(batch.runner.commits))
            if left_out:
                self._totals.add_left_out(left_out, times.recorded)
                for failure in left_out[-_TOLD_OF_BATCH:]:
                    self.errors.add(failure.step, f"left out {failure.row}: {_text(failure)}", at_ms / _MS_PER_S)
        self._publish(event)

    def _counters(self, processing: Mapping[str, int], commit: Mapping[str, int], at_ms: int) -> dict[str, int]:
        """Return what operations counted in a batch, and say what they remarked, once of each kind."""
        counters = dict(processing)
        if commit:
            add_counts(counters, commit)
        for step, kind, text in take_remarks(counters) if counters else ():
            if (step, kind) not in self._said:
                self._said.add((step, kind))
                logger.warning("topology %s: step %s: %s", self._name, step, text)
                self.errors.add(step, text, at_ms / _MS_PER_S)
        return counters

    def note_failed(
        self,
        batch: Batch,
        failure: Failure,
        at_ms: int,
        retry_in_s: float | None,
        now: float = 0.0,
        waits: str = "",
        leaves_out: bool = False,
    ) -> None:
        """An attempt at a batch failed; it is tried again after some seconds, or not (None).

        `leaves_out`: whether the last try leaves out the tuple that raised.
        """
        with self._lock:
            self.failures += 1
            self.last_failure, self.last_attempt = failure, batch.attempt
        if self._totals is not None:
            self._totals.add_failure(failure.step, now)
        on = "" if failure.row is None else f" on tuple {failure.row}"
        event = AttemptFailed(
            self._name, self._run_id, at_ms, *batch.attempt, batch.tries,
            failure.step, failure.row, failure.cause, retry_in_s, failure.details, waits, leaves_out,
        )  # fmt: skip
        text = f"attempt {batch.attempt} failed{on}: {_text(failure)}"
        self.errors.add(failure.step, text, at_ms / _MS_PER_S, event)
        self._publish(event)

    def note_checked(self, attempt: TransactionAttempt, checked: Checked, at_ms: int) -> None:
        """A batch was processed twice. Tells once of each step that differs."""
        difference = checked.difference
        counts = {"checked": checked.done, "skipped": not checked.done, "differed": difference is not None}
        with self._lock:
            self.replays = {name: count + counts[name] for name, count in self.replays.items()}
        if difference is None or difference.step in self._told_of:
            return
        self._told_of.add(difference.step)
        self.errors.add(difference.step, str(difference), at_ms / _MS_PER_S)
        step, row, first, second, reordered = difference
        self._publish(ReplayDiffered(self._name, self._run_id, at_ms, *attempt, step, row, first, second, reordered))

    def events(self) -> list[BatchCommitted]:
        """Return the last batches, oldest first."""
        with self._lock:
            return list(self._recent)

    @property
    def tuples(self) -> int:
        """How many tuples all sources gave in this run."""
        with self._lock:
            return sum(self._rows.values())

    def sources(self) -> tuple[list[dict[str, Any]], float]:
        """Return the rows of each source in this run with its lag, and which share of their limits they may use now."""
        with self._lock:
            sources = [
                {
                    "description": name,
                    "numInputRows": self._rows.get(name, 0),
                    "lag": None if lag is None else lag._asdict(),
                }
                for name, lag in self._lags.items()
            ]
            return sources, self._share

    def metrics(self) -> dict[str, int]:
        """Return what operations counted in all batches of this run."""
        with self._lock:
            return dict(self._metrics)

    @property
    def seconds(self) -> float:
        """Return the seconds from the first definition to the last commit."""
        with self._lock:
            return 0.0 if self._first is None else self.last_recorded - self._first


def _text(failure: Failure) -> str:
    return f"{failure.cause}\n{failure.details}" if failure.details else failure.cause
