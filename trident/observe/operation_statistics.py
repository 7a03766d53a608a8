"""The statistics of operations as typed values: for each window the figures of a topology, its operations and edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trident.observe.rolling_totals import ALL_TIME, window_over

__all__ = [
    "BatchFigures",
    "Edge",
    "EdgeStatistics",
    "Operation",
    "OperationFigures",
    "OperationKind",
    "OperationStatistics",
    "OperationWindow",
    "OperationsStatistics",
]

OperationKind = Literal["spout", "step", "exchange", "state", "query"]


@dataclass(frozen=True)
class Operation:
    """An operation of a plan, as `explain` names it.

    Attributes
    ----------
    id, label, detail
        The id of its node, the last part of that, and what it does.
    stage
        The number of the stage that it first runs in; `stage_title` says where that is.
    tasks
        In how many partitions or tasks it runs.
    slots
        How many of them can run at once.
    state
        The state that it updates or queries.
    """

    id: str
    kind: OperationKind
    label: str
    detail: str
    stage: int
    stage_title: str
    tasks: int
    slots: int
    state: str | None = None


@dataclass(frozen=True)
class Edge:
    """Tuples go from one operation to another; `grouping` says to which task. `reads`: a query reads a state instead."""

    source: str
    target: str
    grouping: str
    reads: bool = False


@dataclass(frozen=True)
class OperationFigures:
    """What an operation did in the committed batches of a window. A latency is None if nothing was measured.

    Attributes
    ----------
    emitted, executed
        Tuples that it gave, and that it was given. Of a state: the new values that steps behind it read, and the tuples that
        reached it.
    transferred
        Rows that it sent on all its edges. A combiner sends partial sums, so these are fewer.
    failed
        Attempts at batches that ended in it.
    dead_letters
        Tuples that it raised on and that were left out.
    busy_s
        Seconds that it worked, those of all tasks together.
    execute_latency_ms
        Milliseconds per tuple. What runs in one kernel is timed together.
    capacity
        The share of the last ten minutes in which it was busy, of the slots that it has.
    keys, commits, commit_latency_ms
        Of a state: keys that were updated, commits, and how long one takes.
    """

    emitted: int = 0
    executed: int = 0
    transferred: int = 0
    failed: int = 0
    dead_letters: int = 0
    busy_s: float = 0.0
    execute_latency_ms: float | None = None
    capacity: float = 0.0
    keys: int = 0
    commits: int = 0
    commit_latency_ms: float | None = None


@dataclass(frozen=True)
class EdgeStatistics:
    """The rows that went along an edge."""

    edge: Edge
    tuples: int


@dataclass(frozen=True)
class OperationStatistics:
    """An operation and what it did."""

    operation: Operation
    figures: OperationFigures
    inputs: tuple[EdgeStatistics, ...] = ()
    outputs: tuple[EdgeStatistics, ...] = ()


@dataclass(frozen=True)
class BatchFigures:
    """What a topology did in a window.

    Attributes
    ----------
    batches, tuples
        That were committed; tuples of all sources.
    emitted
        Tuples that all operations gave.
    retries
        Attempts that committed batches took beyond the first.
    failed
        Attempts that failed.
    complete_latency_ms
        The mean time from the definition of a batch to its record.
    phases_ms
        The mean time of each phase.
    """

    batches: int = 0
    tuples: int = 0
    emitted: int = 0
    transferred: int = 0
    retries: int = 0
    failed: int = 0
    dead_letters: int = 0
    complete_latency_ms: float | None = None
    phases_ms: Mapping[str, float] | None = None


@dataclass(frozen=True)
class OperationWindow:
    """The statistics over one window; `window_s` and `seconds` as for spouts and bolts."""

    window_s: int
    seconds: float
    figures: BatchFigures
    operations: Mapping[str, OperationStatistics]
    edges: tuple[EdgeStatistics, ...]

    def per_second(self, amount: float) -> float:
        """Return how much that is per second of the window."""
        return amount / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class OperationsStatistics:
    """The statistics of a topology, over ten minutes, three hours, a day and all time."""

    windows: tuple[OperationWindow, ...]

    def over(self, window_s: int = ALL_TIME) -> OperationWindow:
        """Return those of one window: 600, 10,800 or 86,400 seconds, or 0 for all time; `KeyError` if there is no such one."""
        return window_over(self.windows, window_s)
