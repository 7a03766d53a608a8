"""The figures of a topology for OpenMetrics: tables of metrics, read when a scrape asks; `MetricsServer` answers."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trident.extras import needs_package
from trident.observe.batch_committed import BatchCommitted
from trident.observe.component_statistics import Figures
from trident.observe.events import AttemptFailed, ReplayDiffered, TopologyEvent
from trident.observe.health import is_stalled
from trident.observe.time_series import ALL_TIME, WINDOWS_S
from trident.observe.topology_status import TopologyStatus
from trident.servers.server_thread import is_loopback, listens_at, stranger, url_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of the buckets of `trident_batch_seconds`."""

OTHER = "(other)"
_MOST_COUNTERS = 200  # of operations; a name made of data must not fill the memory of what scrapes them
_CLIENT_S = 10.0  # within which a client sends its request

Values = Mapping[Any, Any]
"""By the values of a metric's labels except the topology's, which all have; for a histogram, buckets and sum."""


class _Family(NamedTuple):
    """A metric: its name after `trident_`, how its values are read, and the names of its labels."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    text: str
    values: Callable[[Any], Values]
    labels: tuple[str, ...] = ()


_counter, _gauge, _histogram = (partial(_Family, kind) for kind in ("counter", "gauge", "histogram"))


def _families(topology: str, table: Sequence[_Family], source: Any) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    for each in table:
        family: Any = kinds[each.kind](f"trident_{each.name}", each.text, labels=("topology", *each.labels))
        for labels, value in each.values(source).items():
            # Names are data, and may have a lone surrogate.
            texts = [one.encode(errors="backslashreplace").decode() for one in (topology, *labels)]
            family.add_metric(texts, *(value if isinstance(value, tuple) else (value,)))
        yield family


class _Counts:
    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.rows: Counter[tuple[str]] = Counter()
        self.keys: Counter[tuple[str, str]] = Counter()
        self.counters: Counter[tuple[str]] = Counter()
        self.buckets: dict[str, list[int]] = {}
        self.seconds: dict[str, float] = defaultdict(float)
        self.txid = 0
        self.last: BatchCommitted | None = None

    def add(self, event: BatchCommitted) -> None:
        self.totals["batches"] += 1
        self.totals["dead_letters"] += event.dead_letters
        self.totals["shuffled"] += event.bytes_shuffled
        self.totals["collected"] += event.bytes_collected
        for source in event.read.lags:
            self.rows[source,] += event.read.rows.get(source, 0)
        for state, counts in event.key_counts.items():
            for op, count in zip(counts._fields, counts, strict=True):
                self.keys[state, op] += count
        for name, count in event.counters.items():
            known = (name,) in self.counters or len(self.counters) < _MOST_COUNTERS
            self.counters[name if known else OTHER,] += count
        phases = event.phases
        for phase, seconds in (*zip(phases._fields, phases, strict=True), ("total", phases.total)):
            self.buckets.setdefault(phase, [0] * (len(BOUNDS_S) + 1))[bisect_left(BOUNDS_S, seconds)] += 1
            self.seconds[phase] += seconds
        self.last = event

    def total(self, name: str) -> Values:
        return {(): self.totals[name]}

    def times(self) -> Values:
        names = [*map(str, BOUNDS_S), "+Inf"]
        return {
            (phase,): (list(zip(names, map(float, accumulate(buckets)), strict=True)), self.seconds[phase])
            for phase, buckets in self.buckets.items()
        }


def _of_last(values: Callable[[BatchCommitted], Values]) -> Callable[[_Counts], Values]:
    """Return what reads values of the last batch; there are none before the first."""
    return lambda counts: {} if counts.last is None else values(counts.last)


def _lags(batch: BatchCommitted) -> Values:
    return {(source, lag.unit): lag.amount for source, lag in batch.read.lags.items() if lag is not None}


def _rates(batch: BatchCommitted) -> Values:
    return {(name,): batch.rates(batch.read.rows.get(name, 0))["inputRowsPerSecond"] for name in batch.read.lags}


_OF_BATCHES: Sequence[_Family] = (
    _counter("batches_committed", "Batches that were committed.", lambda of: of.total("batches")),
    _counter("attempts_failed", "Attempts at batches that failed.", lambda of: of.total("failures")),
    _counter("dead_letters", "Tuples that were left out as dead letters.", lambda of: of.total("dead_letters")),
    _histogram("batch_seconds", "How long the phases of a batch took; phase=total: all of it.", _Counts.times, ("phase",)),
    _counter("tuples", "Tuples that a source gave.", lambda of: of.rows, ("source",)),
    _counter("state_keys", "Keys that were read from a store, found in a memory, written.",
        lambda of: of.keys, ("state", "op")),
    _counter("shuffled_bytes", "Bytes that Spark's tasks sent each other.", lambda of: of.total("shuffled")),
    _counter("collected_bytes", "Bytes that Spark's tasks returned to the driver.", lambda of: of.total("collected")),
    _counter("operation_count", "Counters of operations.", lambda of: of.counters, ("counter",)),
    _gauge("last_txid", "The last committed batch.", lambda of: {(): of.txid}),
    _gauge("last_commit_timestamp_seconds", "When the last batch was committed, since 1970.",
        _of_last(lambda last: {(): last.timestamp_ms / 1000})),
    _gauge("throttle_ratio", "How much of their limits the sources may read, 1: all.", _of_last(lambda last: {(): last.share})),
    _gauge("source_lag", "What a source had beyond the last batch.", _of_last(_lags), ("source", "unit")),
    _gauge("source_tuples_per_second", "At which rate the last batch came in.", _of_last(_rates), ("source",)),
    _gauge("state_placement", "Where a state commits: 1.",
        _of_last(lambda last: dict.fromkeys(last.placements.items(), 1)), ("state", "placement")),
)  # fmt: skip


def _of_listeners(figure: str) -> Callable[[Sequence[Mapping[str, Any]]], Values]:
    def values(listeners: Sequence[Mapping[str, Any]]) -> Values:
        sums: Counter[tuple[str]] = Counter()
        for each in listeners:  # two listeners may be of one class
            sums[each["name"],] += each[figure]
        return sums

    return values


_OF_LISTENERS: Sequence[_Family] = (
    _counter("listener_dropped", "Events that were dropped before they reached a listener.",
        _of_listeners("dropped"), ("listener",)),
    _counter("listener_errors", "Errors of a listener.", _of_listeners("errors"), ("listener",)),
)  # fmt: skip


def _by_component(
    of: Callable[[Figures], float | None], window_s: int = ALL_TIME
) -> Callable[[TopologyStatus], Values]:
    def values(status: TopologyStatus) -> Values:
        figures = {(name,): of(each.figures) for name, each in status.statistics.over(window_s).components.items()}
        return {labels: value for labels, value in figures.items() if value is not None}

    return values


def _stalled_value(status: TopologyStatus) -> Values:
    return {(): float(is_stalled(status.at_work))}


_STALLED = "Whether something has not moved for long, as the page says: 1 or 0."
_OF_OPERATIONS: Sequence[_Family] = (
    _gauge("running_batch_seconds", "How long the next batch has been running, 0: none is running.",
        lambda of: {(): 0.0 if of.at_work.batch is None else of.at_work.batch.seconds}),
    _gauge("stalled", _STALLED, _stalled_value),
    _counter("replays_verified", "Batches that were processed twice; skipped: that failed; differed: of those checked.",
        lambda of: {(outcome,): count for outcome, count in of.more.get("replays", {}).items()}, ("outcome",)),
    *(
        _counter(f"operation_{name}", text, _by_component(of), ("operation",))
        for name, text, of in (
            ("executed", "Tuples that an operation was given.", lambda figures: figures.executed),
            ("emitted", "Tuples that an operation gave.", lambda figures: figures.emitted),
            ("failed", "Attempts at batches that ended in an operation.", lambda figures: figures.failed),
            ("busy_seconds", "Seconds that an operation worked, in all tasks.", lambda figures: figures.busy_s),
        )
    ),
    _gauge("operation_capacity_ratio", "Share of ten minutes in which an operation was busy.",
        _by_component(lambda figures: figures.capacity, WINDOWS_S[0]), ("operation",)),
)  # fmt: skip


class Metrics:
    """What is counted of a Trident topology. `take` is called by its thread, `collect` by a scrape's."""

    def __init__(self, topology: str, listeners: Callable[[], Sequence[Mapping[str, Any]]] = list) -> None:
        self._topology, self._listeners = topology, listeners
        self._lock = threading.Lock()
        self._counts = _Counts()
        self.status: Callable[[], TopologyStatus] | None = None

    def take(self, event: TopologyEvent) -> None:
        with self._lock:
            if isinstance(event, AttemptFailed):
                self._counts.totals["failures"] += 1
                return
            if isinstance(event, ReplayDiffered):
                return  # its batch is not committed yet, and may be one of many: the status counts them
            self._counts.txid = event.txid
            if isinstance(event, BatchCommitted):
                self._counts.add(event)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            families = list(_families(self._topology, _OF_BATCHES, self._counts))
        yield from (*families, *_families(self._topology, _OF_LISTENERS, self._listeners()))
        if self.status is not None:
            yield from _families(self._topology, _OF_OPERATIONS, self.status())


def _by_stream(measure: str) -> Callable[[TopologyStatus], Values]:
    of_outputs = measure in ("emitted", "transferred")

    def values(status: TopologyStatus) -> Values:
        return {
            (name, along.edge.source, along.edge.stream): getattr(along.figures, measure)
            for name, each in status.statistics.over().components.items()
            if each.described.kind != "spout" or measure != "executed"
            for along in (each.outputs if of_outputs or each.described.kind == "spout" else each.inputs)
        }

    return values


def _seconds(latency: str) -> Callable[[TopologyStatus], Values]:
    def of(figures: Figures) -> float | None:
        latency_ms: float | None = getattr(figures, f"{latency}_latency_ms")
        return None if latency_ms is None else latency_ms / 1000

    return _by_component(of, WINDOWS_S[0])


def _running_calls(status: TopologyStatus) -> Values:
    calls: dict[tuple[str], float] = {}
    for call in status.at_work.calls:
        calls[call.component,] = max(calls.get((call.component,), 0.0), call.seconds)
    return calls


_OF_BOLTS: Sequence[_Family] = (
    *(
        _counter(f"storm_{measure}", text, _by_stream(measure), ("component", "source", "stream"))
        for measure, text in (
            ("emitted", "Tuples that a component emitted, by stream."),
            ("transferred", "Copies of tuples that were sent to tasks, by stream."),
            ("executed", "Tuples that a bolt was given."),
            ("acked", "Tuples that a bolt acked; messages of a spout that were processed completely."),
            ("failed", "Tuples that a bolt failed; messages of a spout that failed or timed out."),
        )
    ),
    *(
        _gauge(f"storm_{latency}_seconds", f"Mean time {text}, over ten minutes.", _seconds(latency), ("component",))
        for latency, text in (
            ("execute", "within execute"),
            ("process", "from the call of execute to the ack"),
            ("complete", "from a spout's emit to the ack of its whole tree"),
        )
    ),
    _gauge("storm_capacity_ratio", "Share of ten minutes in which the busiest executor was busy.",
        _by_component(lambda figures: figures.capacity, WINDOWS_S[0]), ("component",)),
    _gauge("storm_running_call_seconds", "For how long a call of a component has run, if a second or more.",
        _running_calls, ("component",)),
    _gauge("storm_stalled", _STALLED, _stalled_value),
    _gauge("storm_unanswered_seconds", "Seconds since a message was acknowledged, 0: nothing is pending.",
        lambda of: {(): of.at_work.moved_s if of.at_work.left else 0.0}),
    _gauge("storm_pending_messages", "Messages of spouts that are not answered.", lambda of: {(): of.pending}),
    _gauge("storm_workers", "Workers that have been heard from.", lambda of: {(): len(of.workers)}),
    _gauge("storm_uptime_seconds", "Seconds since the start.", lambda of: {(): of.uptime_s}),
)  # fmt: skip


class StormMetrics:
    """The figures of a topology of spouts and bolts; `status` returns its status of now."""

    def __init__(self, status: Callable[[], TopologyStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield from _families(status.name, _OF_BOLTS, status)


class MetricsServer:
    """Serves the metrics of one topology, and of this process; raises `ConfigError` if the address cannot be listened on."""

    def __init__(self, topology: str, metrics: Metrics | StormMetrics, host: str, port: int) -> None:
        with needs_package("metrics_port", "metrics", "prometheus-client", "prometheus_client"):
            import prometheus_client as prometheus
        registry = prometheus.CollectorRegistry()  # one of its own: two topologies of a process have two ports
        with listens_at("metrics cannot be served at", host, port):
            self._server, self._thread = prometheus.start_http_server(port, host, registry)
        self._thread.name = f"trident-{topology}-metrics"
        self._server.RequestHandlerClass = _patient(self._server.RequestHandlerClass)
        self._server.set_app(_guard_app(self._server.get_app(), is_loopback(host)))
        for collector in (prometheus.GCCollector, prometheus.PlatformCollector, prometheus.ProcessCollector):
            collector(registry=registry)
        registry.register(metrics)  # after the guard, so that nothing is served without it
        self.host, self.port = host, int(self._server.server_address[1])
        self.url = f"{url_of(host, self.port)}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _patient(handler: Any) -> Any:
    """Return a handler that waits some seconds for a request, and says nothing of a client that sends half of one."""

    class Handler(handler):  # type: ignore[misc]
        timeout = _CLIENT_S

        def handle(self) -> None:
            with suppress(OSError):
                super().handle()

        def finish(self) -> None:
            with suppress(OSError):
                super().finish()

    return Handler


def _guard_app(app: Any, loopback: bool) -> Any:
    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        cause = stranger(environ.get("HTTP_HOST", ""), environ.get("HTTP_ORIGIN"), loopback)
        if cause is None:
            answered: Iterable[bytes] = app(environ, start)
            return answered
        start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [cause.encode()]

    return answer
