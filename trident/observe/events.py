"""What happens to a topology, as typed values, which the log, the metrics and the listeners show; the last errors.

What an event says is worked out when it is asked for: a batch of one row takes hardly longer than the words about it. The
message of a log record is the event itself: a handler that shows text gets its sentence, `JsonFormatter` its figures.
"""

import json
import logging
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from trident.observe.batch_committed import BatchCommitted, Placement, event_entry
from trident.spout.interfaces import TransactionAttempt

event_logger = logging.getLogger("trident.events")
"""The logger of events: INFO; WARNING for a batch that left tuples out, an attempt that failed (but for a tuple that is then
left out) and a replay that differed; ERROR for an end by an error."""

WHOLE_TOPOLOGY = "__topology"  # the component of an error that ended the topology
_KEPT = 10
_MOST_COMPONENTS = 1000


class TopologyStarted(NamedTuple):
    """A topology started: log, states, spouts and engine are open.

    Attributes
    ----------
    run_id
        A name for this run of it.
    timestamp_ms
        Milliseconds since 1970.
    txid
        The last batch that earlier runs committed, 0 if there is none.
    """

    topology: str
    run_id: str
    timestamp_ms: int
    txid: int
    placements: Mapping[str, Placement]

    def as_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        return {**event_entry("topologyStarted", self), "placements": dict(self.placements)}

    def __str__(self) -> str:
        return f"topology {self.topology}: started after batch {self.txid}"


class AttemptFailed(NamedTuple):
    """An attempt at a batch failed.

    Attributes
    ----------
    tries
        How often this batch has failed in this run, this time included.
    step, row, cause
        The step that raised; its tuple as text, if it was a single one; the error.
    retry_in_s
        Seconds until it is tried again; None if it is not, and the topology ends.
    details
        The traceback; "" if there is none. Not in the log's lines.
    waits
        What does not answer, and since when, if that is the cause; else "". Such a try does not count.
    leaves_out
        Whether the last try leaves out a tuple that raises, as a dead letter: then this is only a note.
    """

    topology: str
    run_id: str
    timestamp_ms: int
    txid: int
    attempt: int
    tries: int
    step: str
    row: str | None
    cause: str
    retry_in_s: float | None
    details: str = ""
    waits: str = ""
    leaves_out: bool = False

    @property
    def will_retry(self) -> bool:
        """Whether it is tried again."""
        return self.retry_in_s is not None

    def as_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        return {
            **event_entry("attemptFailed", self, "attempt", "step", "row", "cause", "will_retry"),
            "numAttempts": self.tries,
            "retryInMs": None if self.retry_in_s is None else self.retry_in_s * 1000,
            "waits": self.waits or None,
        }

    def __str__(self) -> str:
        attempt = TransactionAttempt(self.txid, self.attempt)
        then = "not trying again" if self.retry_in_s is None else f"trying again in {self.retry_in_s:.1f} s"
        if self.leaves_out:
            then = "the last try leaves the tuple out, as a dead letter"
        waits = f"{self.waits}: " if self.waits else ""
        return f"topology {self.topology}: {waits}batch {attempt} failed in step {self.step!r} ({self.cause}); {then}"


class ReplayDiffered(NamedTuple):
    """A step gave other results when a batch was processed twice (`verify_replays`); reported once for each step.

    Attributes
    ----------
    step, row
        The step or state; the tuple that it was given, as text, None if several tuples make a row together.
    first, second
        The first row, as text, that only one of the two runs gave; "nothing" if it gave only rows that the other gave too.
    reordered
        Whether the second run had the tuples in another order; if not, it had the very same tables.
    """

    topology: str
    run_id: str
    timestamp_ms: int
    txid: int
    attempt: int
    step: str
    row: str | None
    first: str
    second: str
    reordered: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        return event_entry("replayDiffered", self, "attempt", "step", "row", "first", "second", "reordered")

    def __str__(self) -> str:
        what = StepDifference(self.step, self.row, self.first, self.second, self.reordered)
        return (
            f"topology {self.topology}: batch {TransactionAttempt(self.txid, self.attempt)}: {what}. A replay of such a batch "
            "may change the totals of a transactional state; use no clock, random number, counter or order in this step"
        )


class StepDifference(NamedTuple):
    """A step that gave other rows for the same ones; each as of `ReplayDiffered`."""

    step: str
    row: str | None
    first: str
    second: str
    reordered: bool

    def __str__(self) -> str:
        how = "in another order" if self.reordered else "again"
        made = f"{'' if self.row is None else f'of {self.row} it makes '}{self.first}, then {self.second}"
        return f"step {self.step!r} gives other results when the same tuples are processed {how}: {made}"


class TopologyTerminated(NamedTuple):
    """A topology ended; everything that it opened is closed.

    Attributes
    ----------
    txid
        The last committed batch.
    exception, error_class
        The error that ended it, as text, and the name of its class; None if it was stopped.
    """

    topology: str
    run_id: str
    timestamp_ms: int
    txid: int
    exception: str | None
    error_class: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        return event_entry("topologyTerminated", self, "exception", "error_class")

    def __str__(self) -> str:
        if self.error_class is None:
            return f"topology {self.topology} stopped after batch {self.txid}"
        return f"topology {self.topology} ended at batch {self.txid}: {self.exception}"


TopologyEvent = TopologyStarted | BatchCommitted | AttemptFailed | ReplayDiffered | TopologyTerminated


class TopologyListener:
    """Receives the events of a topology. Override what you need; each method does nothing by default.

    Each listener has a thread of its own, which calls it with one event after the other, in order. So it may take its time,
    and whatever it does, the topology goes on: an exception is logged (the first of each listener) and counted, and while
    1,000 events wait for a slow listener, the oldest are dropped, which is logged once and counted. `status["listeners"]`
    has the figures. When the topology ends, it waits up to five seconds for its listeners.
    """

    def on_topology_started(self, event: TopologyStarted) -> None:
        """The topology runs; only listeners that were given to `start` receive this."""

    def on_batch_committed(self, event: BatchCommitted) -> None:
        """A batch is committed: what it counted is durable, and readers see it."""

    def on_attempt_failed(self, event: AttemptFailed) -> None:
        """An attempt at a batch failed; `event.will_retry` says whether another follows."""

    def on_replay_differed(self, event: ReplayDiffered) -> None:
        """A step would give other results at a replay; once for each step, with `verify_replays` only."""

    def on_topology_terminated(self, event: TopologyTerminated) -> None:
        """The topology ended, by `stop` or by an error; the last event."""


def event_of(record: logging.LogRecord) -> TopologyEvent | None:
    return record.msg if isinstance(record.msg, TopologyEvent) else None


class JsonFormatter(logging.Formatter):
    """Makes each log record one line of JSON, with `timestamp`, `level`, `logger` and `message`; events with their figures too.

    Examples
    --------
    >>> import logging, sys
    >>> handler = logging.StreamHandler(sys.stdout)
    >>> handler.setFormatter(JsonFormatter())
    >>> logger = logging.getLogger("doc")
    >>> logger.addHandler(handler)
    >>> logger.warning("%d rows", 7)  # doctest: +ELLIPSIS
    {"timestamp": "...", "level": "WARNING", "logger": "doc", "message": "7 rows"}
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        event = event_of(record)
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry = {"timestamp": at, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if event is not None:
            entry |= event.as_dict()
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


@dataclass(frozen=True)
class ReportedError:
    """An error of a component, as status and page show it; `task` 0: of no task."""

    component: str
    task: int
    host: str
    time: float  # in seconds since 1970
    text: str  # with the traceback
    attempt: AttemptFailed | None = None  # that it ended

    @classmethod
    def of(cls, component: str, task: int, error: BaseException) -> Self:
        return cls(component, task, socket.gethostname(), time.time(), "".join(traceback.format_exception(error)))


class LastErrors:
    """The last ten errors of each component. Any thread may use it."""

    def __init__(self) -> None:
        self._errors: dict[str, deque[ReportedError]] = {}
        self._host = socket.gethostname()
        self._lock = threading.Lock()

    def add(self, component: str, text: str, at: float, attempt: AttemptFailed | None = None) -> None:
        with self._lock:
            if component not in self._errors and len(self._errors) < _MOST_COMPONENTS:
                self._errors[component] = deque(maxlen=_KEPT)
            if component in self._errors:
                self._errors[component].append(ReportedError(component, 0, self._host, at, text, attempt))

    def all(self) -> list[ReportedError]:
        with self._lock:
            errors = [each for of_component in self._errors.values() for each in of_component]
        return sorted(errors, key=lambda each: each.time)


class ErrorFeed:
    """Returns each error of a running topology once, for a caller that reports errors elsewhere; for one thread."""

    def __init__(self, errors: Callable[[], Sequence[ReportedError]]) -> None:
        self._errors = errors
        self._reported: frozenset[ReportedError] = frozenset()

    def new(self) -> list[ReportedError]:
        errors = self._errors()
        new = [each for each in errors if each not in self._reported]
        self._reported = frozenset(errors)
        return new
