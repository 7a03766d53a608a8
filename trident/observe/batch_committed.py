"""BatchCommitted: the event of a batch, with all its figures; `RecentBatches`: those of the batches that are remembered."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from trident.counts import NO_KEYS, KeyCounts
from trident.naming import counted, page_entry
from trident.spout.interfaces import Lag, TransactionAttempt

Placement = Literal["driver", "executors"]
"""Where a state commits."""
Entry = dict[str, Any]

_SHORTEST_S = 1e-9
_RECENT_S, _SHORTEST_RECENT_S = 10.0, 1e-3


class Phases(NamedTuple):
    """How many seconds each phase of a batch took; together they are its whole time.

    Attributes
    ----------
    define
        Asking the spouts what the batch contains.
    process
        Reading the sources and running the steps up to the states.
    wait
        From the end of processing to the beginning of the commit: waiting for the commits of earlier batches.
    commit, record
        Updating the states; making the batch's record in the log durable.
    """

    define: float
    process: float
    wait: float
    commit: float
    record: float

    @property
    def total(self) -> float:
        """The whole time."""
        return sum(self)


class Read(NamedTuple):
    """What a batch read: the rows of each source, and how far that was ahead when it was last asked (None: it does not say).

    Attributes
    ----------
    came_in_s
        Seconds since the batch before was defined, in which these rows came; None for the first batch.
    size, sizes
        About how many bytes the batch has, and each source gave; None if a source does not say.
    tasks
        Into how many parts it was cut.
    """

    rows: Mapping[str, int]
    lags: Mapping[str, Lag | None]
    came_in_s: float | None = None
    size: int | None = None
    tasks: int = 0
    sizes: Mapping[str, int | None] = {}

    @property
    def tuples(self) -> int:
        """The rows of all sources."""
        return sum(self.rows.values())


def sum_lags(lags: Iterable[Lag]) -> list[Lag]:
    amounts: dict[str, int] = {}
    for each in lags:
        amounts[each.unit] = amounts.get(each.unit, 0) + each.amount
    return [Lag(amount, unit) for unit, amount in amounts.items()]


class BatchCommitted(NamedTuple):
    """A batch is committed: its record is durable.

    Attributes
    ----------
    attempt, tries
        The attempt that won; how many it took in this run, without those that ended because an earlier batch failed.
    recorded_at
        When its record was durable, in seconds of a monotonic clock.
    share
        How much of their limits the spouts could use for it.
    keys_updated
        By state, how many keys (or rows of `partition_persist`) it got.
    key_counts
        By state, how many keys were read, found in a memory, and written. A state that does not count has zeros.
    bytes_shuffled, bytes_collected
        What Spark's tasks sent each other, and what they returned to the driver. 0 in this process.
    dead_letters
        How many of its tuples were left out.
    counters
        What operations counted, as `operation/counter`.
    bytes_spilled
        What Spark's stages wrote to disk because memory was short, where they passed on much; then later batches are smaller.
    """

    topology: str
    run_id: str
    timestamp_ms: int
    txid: int
    attempt: int
    tries: int
    engine: Literal["spark", "in_process"]
    read: Read
    phases: Phases
    recorded_at: float
    share: float
    placements: Mapping[str, Placement]
    keys_updated: Mapping[str, int]
    key_counts: Mapping[str, KeyCounts]
    bytes_shuffled: int
    bytes_collected: int
    dead_letters: int
    counters: Mapping[str, int]
    bytes_spilled: int = 0

    @property
    def tuples(self) -> int:
        """How many tuples all sources gave."""
        return self.read.tuples

    def rates(self, rows: int) -> dict[str, float]:
        """Return how many rows came and were processed per second, under PySpark's names."""
        came = 0.0 if self.read.came_in_s is None else rows / max(self.read.came_in_s, _SHORTEST_S)
        return {"inputRowsPerSecond": came, "processedRowsPerSecond": rows / max(self.phases.total, _SHORTEST_S)}

    def as_dict(self) -> dict[str, Any]:
        """Return the event as plain data, an entry of `recent_progress`; names as in PySpark's `StreamingQueryProgress`."""
        rows, durations = self.read.rows, {**self.phases._asdict(), "total": self.phases.total}
        return {
            **event_entry("batchCommitted", self, "attempt", "engine", "share", "recorded_at"),
            **page_entry(self, "bytes_shuffled", "bytes_collected", "bytes_spilled"),
            "numAttempts": self.tries,
            "numInputRows": self.tuples,
            "numInputBytes": self.read.size,
            "numTasks": self.read.tasks,
            **self.rates(self.tuples),
            "sources": [  # with the names of PySpark's `SourceProgress`
                {
                    "description": name,
                    "numInputRows": rows.get(name, 0),
                    **self.rates(rows.get(name, 0)),
                    "lag": None if lag is None else lag._asdict(),
                }
                for name, lag in self.read.lags.items()
            ],
            "durationMs": {phase: seconds * 1000 for phase, seconds in durations.items()},
            "placements": dict(self.placements),
            "stateKeysUpdated": dict(self.keys_updated),
            "stateKeys": {name: counts._asdict() for name, counts in self.key_counts.items()},
            "numDeadLetters": self.dead_letters,
            "metrics": dict(self.counters),
        }

    def __str__(self) -> str:
        attempt, phases = TransactionAttempt(self.txid, self.attempt), self.phases
        spent = ", ".join(f"{name} {seconds * 1000:,.1f}" for name, seconds in phases._asdict().items())
        left_out = f"; {counted(self.dead_letters, 'tuple')} left out: a dead letter each" if self.dead_letters else ""
        return (
            f"topology {self.topology}: batch {attempt} committed, {counted(self.tuples, 'tuple')} in "
            f"{phases.total * 1000:,.1f} ms ({spent}){left_out}"
        )


def event_entry(kind: str, of: Any, *names: str) -> dict[str, Any]:
    at = datetime.fromtimestamp(of.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {"event": kind, "name": of.topology, "timestamp": at, "batchId": of.txid, **page_entry(of, "run_id", *names)}


class RecentBatches:
    """Figures of the batches of the last ten seconds, on the clock of `recorded_at`; of fewer, if fewer are remembered."""

    def __init__(self, batches: Sequence[BatchCommitted], now: float, age_s: float) -> None:
        self._all = batches
        self._recent = [each for each in batches if each.recorded_at > now - _RECENT_S]
        span = min(_RECENT_S, age_s)
        if self._recent and len(self._recent) == len(batches):
            span = now - batches[0].recorded_at + batches[0].phases.total
        self._span_s = max(span, _SHORTEST_RECENT_S)

    @property
    def tasks(self) -> int:
        return self._all[-1].read.tasks if self._all else 0

    def rates(self) -> Entry:
        return {
            "tuplesPerSecond": sum(each.tuples for each in self._recent) / self._span_s,
            "batchesPerSecond": len(self._recent) / self._span_s,
            "overSeconds": self._span_s,
        }

    def phases(self) -> Entry:
        count = len(self._all)
        means = [sum(column) / count * 1000 for column in zip(*(each.phases for each in self._all), strict=True)]
        of_phases = dict(zip((*Phases._fields, "total"), (*means, sum(means)), strict=True)) if count else {}
        return {"batches": count, "meanMs": {name: of_phases.get(name) for name in (*Phases._fields, "total")}}

    def sources(self, sources: Sequence[Mapping[str, Any]]) -> list[Entry]:
        """Return the sources with rows and lag; `secondsBehind` is how long that takes at the rate of now, None if unknown."""
        entries = []
        for each in sources:
            name, lag = each["description"], each["lag"]
            rate = sum(batch.read.rows.get(name, 0) for batch in self._recent) / self._span_s
            read = sum(_read(batch, name, lag["unit"]) for batch in self._recent) if lag else 0
            entries.append(
                {
                    "source": name,
                    "tuples": each["numInputRows"],
                    "tuplesPerSecond": rate,
                    "lag": lag,
                    "secondsBehind": lag["amount"] / read * self._span_s if read else None,
                }
            )
        return entries

    def left_out(self, states: Iterable[str]) -> list[Entry]:
        """Return the windows that half of the tuples of the remembered batches came to in vain: too late, without a time."""
        given, entries = sum(each.tuples for each in self._all), []
        for state in states:
            why = (f"{state}/late", f"{state}/no_event_time")
            count = sum(each.counters.get(name, 0) for each in self._all for name in why)
            if count and count * 2 >= given:
                entries.append({"state": state, "tuples": count, "of": given})
        return entries

    def keys(self, state: str) -> Entry:
        counts = [each.key_counts.get(state, NO_KEYS) for each in self._all]
        read, cached, written = (sum(column) for column in zip(NO_KEYS, *counts, strict=True))
        return {"keysRead": read, "keysCached": cached, "keysWritten": written}


def _read(batch: BatchCommitted, source: str, unit: str) -> int:
    """Return how much of a source a batch has in the unit of its lag; 0 if that is not known."""
    return {"records": batch.read.rows, "bytes": batch.read.sizes}.get(unit, {}).get(source) or 0
