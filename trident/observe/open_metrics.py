"""The figures of a topology for OpenMetrics: they are added up as events come, and named when a scrape asks for them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from trident.observe.at_work import STALLED, AtWork, is_stalled
from trident.observe.batch_committed import BatchCommitted
from trident.observe.events import AttemptFailed, TopologyEvent
from trident.observe.operation_statistics import OperationFigures, OperationsStatistics
from trident.observe.rolling_totals import WINDOWS_S

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["BOUNDS_S", "OTHER", "Metrics"]

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of the buckets of `trident_batch_seconds`."""

OTHER = "(other)"
_MOST_COUNTERS = 200  # of operations; a name made of data must not fill the memory of what scrapes them


class _Times:
    """The seconds of one phase, in buckets."""

    def __init__(self) -> None:
        self.buckets, self.total = [0] * (len(BOUNDS_S) + 1), 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self.total += seconds

    def told(self) -> tuple[list[tuple[str, float]], float]:
        names = [*map(str, BOUNDS_S), "+Inf"]
        return list(zip(names, map(float, accumulate(self.buckets)), strict=True)), self.total


class Metrics:
    """What is counted of one topology. `take` is called by the topology's thread, `collect` by that of a scrape.

    Parameters
    ----------
    topology
        The value of the label `topology`, which every metric has.
    listeners
        Returns the figures of the listeners.

    Attributes
    ----------
    operations
        Returns the statistics of the operations; None before the topology is open.
    at_work
        Returns what the topology works on; None before it runs.
    """

    def __init__(self, topology: str, listeners: Callable[[], Sequence[Mapping[str, Any]]] = list) -> None:
        self._topology, self._listeners = topology, listeners
        self._lock = threading.Lock()
        self._totals = dict.fromkeys(("batches", "failures", "dead_letters", "shuffled", "collected"), 0)
        self._rows: dict[str, int] = {}
        self._keys: dict[tuple[str, str], int] = {}
        self._counters: dict[str, int] = {}
        self._times: dict[str, _Times] = {}
        self.operations: Callable[[], OperationsStatistics] | None = None
        self.at_work: Callable[[], AtWork] | None = None
        self._txid = 0
        self._last: BatchCommitted | None = None

    def take(self, event: TopologyEvent) -> None:
        """Add an event to the figures."""
        with self._lock:
            if isinstance(event, BatchCommitted):
                self._committed(event)
            elif isinstance(event, AttemptFailed):
                self._totals["failures"] += 1
            self._txid = event.txid if not isinstance(event, AttemptFailed) else self._txid

    def _committed(self, event: BatchCommitted) -> None:
        totals = self._totals
        totals["batches"] += 1
        totals["dead_letters"] += event.dead_letters
        totals["shuffled"] += event.bytes_shuffled
        totals["collected"] += event.bytes_collected
        for source in event.read.lags:
            self._rows[source] = self._rows.get(source, 0) + event.read.rows.get(source, 0)
        for state, counts in event.key_counts.items():
            for op, count in zip(counts._fields, counts, strict=True):
                self._keys[state, op] = self._keys.get((state, op), 0) + count
        for name, count in event.counters.items():
            name = name if name in self._counters or len(self._counters) < _MOST_COUNTERS else OTHER
            self._counters[name] = self._counters.get(name, 0) + count
        phases = event.phases
        for phase, seconds in (*zip(phases._fields, phases, strict=True), ("total", phases.total)):
            if phase not in self._times:
                self._times[phase] = _Times()
            self._times[phase].add(seconds)
        self._last = event

    def collect(self) -> Iterator[Metric]:
        """Iterate over the metrics, as `prometheus_client` asks for them."""
        with self._lock:
            families = [*self._of_batches(), *self._of_data(), *self._of_now()]
        yield from (*families, *self._of_listeners())
        if self.at_work is not None:
            yield from self._of_work(self.at_work())
        if self.operations is not None:
            yield from operation_metrics(self._topology, self.operations())

    def _of_batches(self) -> Iterator[Metric]:
        totals = self._totals
        yield self._counter("batches_committed", "Batches that were committed.", {(): totals["batches"]})
        yield self._counter("attempts_failed", "Attempts at batches that failed.", {(): totals["failures"]})
        yield self._counter("dead_letters", "Tuples that were left out as dead letters.", {(): totals["dead_letters"]})
        yield self._histogram()

    def _of_data(self) -> Iterator[Metric]:
        rows = {(source,): count for source, count in self._rows.items()}
        yield self._counter("tuples", "Tuples that a source gave.", rows, "source")
        yield self._counter(
            "state_keys", "Keys that were read from a store, found in a memory, written.", self._keys, "state", "op"
        )
        shuffled, collected = self._totals["shuffled"], self._totals["collected"]
        yield self._counter("shuffled_bytes", "Bytes that Spark's tasks sent each other.", {(): shuffled})
        yield self._counter("collected_bytes", "Bytes that Spark's tasks returned to the driver.", {(): collected})
        counters = {(name,): count for name, count in self._counters.items()}
        yield self._counter("operation_count", "Counters of operations.", counters, "counter")

    def _of_now(self) -> Iterator[Metric]:
        yield self._gauge("last_txid", "The last committed batch.", {(): self._txid})
        last = self._last
        if last is None:
            return
        at = {(): last.timestamp_ms / 1000}
        yield self._gauge("last_commit_timestamp_seconds", "When the last batch was committed, since 1970.", at)
        yield self._gauge("throttle_ratio", "How much of their limits the sources may read, 1: all.", {(): last.share})
        lags = {(source, lag.unit): lag.amount for source, lag in last.read.lags.items() if lag is not None}
        yield self._gauge("source_lag", "What a source had beyond the last batch.", lags, "source", "unit")
        rates = {(source,): self._rate(last, source) for source in last.read.lags}
        yield self._gauge("source_tuples_per_second", "At which rate the last batch came in.", rates, "source")
        where = dict.fromkeys(last.placements.items(), 1)
        yield self._gauge("state_placement", "Where a state commits: 1.", where, "state", "placement")

    def _of_work(self, at_work: AtWork) -> Iterator[Metric]:
        running = 0.0 if at_work.batch is None else at_work.batch.seconds
        yield self._gauge(
            "running_batch_seconds", "For how long the batch has run that is next, 0: none runs.", {(): running}
        )
        yield self._gauge("stalled", STALLED, {(): float(is_stalled(at_work))})

    def _of_listeners(self) -> Iterator[Metric]:
        told = self._listeners()
        for figure, text in (("dropped", "Events that a listener was not told."), ("errors", "Errors of a listener.")):
            sums: dict[tuple[str, ...], int] = {}
            for one in told:  # two listeners may be of one class
                sums[one["name"],] = sums.get((one["name"],), 0) + one[figure]
            yield self._counter(f"listener_{figure}", text, sums, "listener")

    @staticmethod
    def _rate(batch: BatchCommitted, source: str) -> float:
        return batch.rates(batch.read.rows.get(source, 0))["inputRowsPerSecond"]

    # A value is told by the values of its labels, without that of the topology, which all have.

    def _counter(self, name: str, text: str, values: Mapping[Any, float], *labels: str) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(f"trident_{name}", text, labels=("topology", *labels))
        for key, value in values.items():
            family.add_metric((self._topology, *key), value)
        return family

    def _gauge(self, name: str, text: str, values: Mapping[Any, float], *labels: str) -> Metric:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(f"trident_{name}", text, labels=("topology", *labels))
        for key, value in values.items():
            family.add_metric((self._topology, *key), value)
        return family

    def _histogram(self) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        text = "How long the phases of a batch took; phase=total: all of it."
        family = HistogramMetricFamily("trident_batch_seconds", text, labels=("topology", "phase"))
        for phase, times in self._times.items():
            buckets, total = times.told()
            family.add_metric((self._topology, phase), buckets, total)
        return family


# The figures of a topology's operations for OpenMetrics, made when a scrape asks for them.

_COUNTED: Mapping[str, tuple[str, Callable[[OperationFigures], float]]] = {
    "executed": ("Tuples that an operation was given.", lambda figures: figures.executed),
    "emitted": ("Tuples that an operation gave.", lambda figures: figures.emitted),
    "failed": ("Attempts at batches that ended in an operation.", lambda figures: figures.failed),
    "busy_seconds": ("Seconds that an operation worked, in all tasks.", lambda figures: figures.busy_s),
}


def operation_metrics(topology: str, statistics: OperationsStatistics) -> Iterator[Metric]:
    """Iterate over the metrics: totals of this run, and the capacities."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = ("topology", "operation")
    operations = statistics.over().operations
    for name, (text, value_of) in _COUNTED.items():
        counter = CounterMetricFamily(f"trident_operation_{name}", text, labels=labels)
        for id_, each in operations.items():
            counter.add_metric((topology, id_), value_of(each.figures))
        yield counter
    capacity = GaugeMetricFamily(
        "trident_operation_capacity_ratio", "Share of ten minutes in which an operation was busy.", labels=labels
    )
    for id_, each in statistics.over(WINDOWS_S[0]).operations.items():
        capacity.add_metric((topology, id_), each.figures.capacity)
    yield capacity
