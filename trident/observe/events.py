"""What happens to a topology, as typed values: it starts, an attempt fails, a batch is committed, it ends.

`recent_progress`, log records, metrics and listeners all show these events. What an event says is worked out when it is asked
for, because a batch of one row takes hardly longer than the words about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from trident.observe.batch_committed import BatchCommitted, Placement, event_head
from trident.spout.interfaces import TransactionAttempt

__all__ = ["AttemptFailed", "TopologyEvent", "TopologyStarted", "TopologyTerminated"]


class TopologyStarted(NamedTuple):
    """A topology started: log, states, spouts and engine are open.

    Attributes
    ----------
    topology, run_id
        Its name, and a name for this run of it.
    timestamp_ms
        Milliseconds since 1970.
    txid
        The last batch that earlier runs committed, 0 if there is none.
    placements
        Where each state commits.
    """

    topology: str
    run_id: str
    timestamp_ms: int
    txid: int
    placements: Mapping[str, Placement]

    def as_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        told = event_head("topologyStarted", self.topology, self.run_id, self.timestamp_ms, self.txid)
        return {**told, "placements": dict(self.placements)}

    def __str__(self) -> str:
        return f"topology {self.topology}: started after batch {self.txid}"


class AttemptFailed(NamedTuple):
    """An attempt at a batch failed.

    Attributes
    ----------
    topology, run_id, timestamp_ms, txid, attempt
        As of `BatchCommitted`.
    tries
        How often this batch has failed in this run, with this time.
    step, row, cause
        The step that raised; its tuple as text, if it was a single one; the error.
    retry_in_s
        Seconds until it is tried again; None if it is not, and the topology ends.
    details
        The traceback; "" if there is none. Not in the log's lines.
    waits
        What does not answer, and since when, if that is the cause; else "". Such a try does not count.
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

    @property
    def will_retry(self) -> bool:
        """Whether it is tried again."""
        return self.retry_in_s is not None

    def as_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        return {
            **event_head("attemptFailed", self.topology, self.run_id, self.timestamp_ms, self.txid),
            "attempt": self.attempt,
            "numAttempts": self.tries,
            "step": self.step,
            "row": self.row,
            "cause": self.cause,
            "willRetry": self.will_retry,
            "retryInMs": None if self.retry_in_s is None else self.retry_in_s * 1000,
            "waits": self.waits or None,
        }

    def __str__(self) -> str:
        attempt = TransactionAttempt(self.txid, self.attempt)
        then = "not trying again" if self.retry_in_s is None else f"trying again in {self.retry_in_s:.1f} s"
        waits = f"{self.waits}: " if self.waits else ""
        return f"topology {self.topology}: {waits}batch {attempt} failed in step {self.step!r} ({self.cause}); {then}"


class TopologyTerminated(NamedTuple):
    """A topology ended; everything that it opened is closed.

    Attributes
    ----------
    topology, run_id, timestamp_ms
        As of `TopologyStarted`.
    txid
        The last committed batch.
    exception
        The error that ended it, as text; None if it was stopped.
    error_class
        The name of the error's class.
    """

    topology: str
    run_id: str
    timestamp_ms: int
    txid: int
    exception: str | None
    error_class: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        told = event_head("topologyTerminated", self.topology, self.run_id, self.timestamp_ms, self.txid)
        return {**told, "exception": self.exception, "errorClass": self.error_class}

    def __str__(self) -> str:
        if self.error_class is None:
            return f"topology {self.topology} stopped after batch {self.txid}"
        return f"topology {self.topology} ended at batch {self.txid}: {self.exception}"


TopologyEvent = TopologyStarted | BatchCommitted | AttemptFailed | TopologyTerminated
