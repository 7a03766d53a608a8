"""The totals of a topology of spouts and bolts for OpenMetrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from trident.observe.at_work import STALLED, is_stalled
from trident.observe.rolling_totals import ALL_TIME, WINDOWS_S
from trident.storm.statistics.statistics_figures import ComponentStatistics
from trident.storm.statistics.topology_status import TopologyStatus

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["StormMetrics"]

_COUNTED = {
    "emitted": "Tuples that a component emitted, by stream.",
    "transferred": "Copies of tuples that were sent to tasks, by stream.",
    "executed": "Tuples that a bolt was given.",
    "acked": "Tuples that a bolt, or messages that a spout, was told of as processed.",
    "failed": "Tuples that a bolt failed; messages of a spout that failed or timed out.",
}
_LATENCIES = {
    "execute": "Mean time within execute, over ten minutes.",
    "process": "Mean time from the call of execute to the ack, over ten minutes.",
    "complete": "Mean time from a spout's emit to the ack of its whole tree, over ten minutes.",
}
_OF_OUTPUTS = ("emitted", "transferred")
_PER_SECOND = 1000  # milliseconds


class StormMetrics:
    """Names the figures of a status when a scrape asks for them.

    Parameters
    ----------
    status
        Returns the status of now.
    """

    def __init__(self, status: Callable[[], TopologyStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Iterate over the metrics, as `prometheus_client` asks for them."""
        status = self._status()
        components = status.statistics.over(ALL_TIME).components.values()
        latest = status.statistics.over(WINDOWS_S[0]).components.values()
        for measure, text in _COUNTED.items():
            yield _counter(measure, text, status.name, components)
        for kind, text in _LATENCIES.items():
            values = {each.component: asdict(each.figures)[f"{kind}_latency_ms"] for each in latest}
            seconds = {name: value / _PER_SECOND for name, value in values.items() if value is not None}
            yield _gauge(f"{kind}_seconds", text, status.name, seconds)
        capacities = {each.component: each.figures.capacity or 0.0 for each in latest}
        yield _gauge(
            "capacity_ratio", "Share of ten minutes in which the busiest executor was busy.", status.name, capacities
        )
        at_work = status.at_work
        calls: dict[str, float] = {}
        for call in at_work.calls:
            calls[call.component] = max(calls.get(call.component, 0.0), call.seconds)
        yield _gauge(
            "running_call_seconds",
            "For how long a call of a component has run, if a second or more.",
            status.name,
            calls,
        )
        yield _of_topology("stalled", STALLED, status.name, float(is_stalled(at_work)))
        yield _of_topology(
            "unanswered_seconds",
            "Seconds since a message was acknowledged, 0: nothing is pending.",
            status.name,
            at_work.moved_s if at_work.left else 0.0,
        )
        yield _of_topology("pending_messages", "Messages of spouts that are not answered.", status.name, status.pending)
        yield _of_topology("workers", "Workers that have been heard of.", status.name, len(status.workers))
        yield _of_topology("uptime_seconds", "Seconds since the start.", status.name, status.uptime_s)


def _counter(measure: str, text: str, topology: str, components: Iterable[ComponentStatistics]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    counter = CounterMetricFamily(
        f"trident_storm_{measure}", text, labels=("topology", "component", "source", "stream")
    )
    for component in components:
        spout = component.kind == "spout"
        if spout and measure == "executed":
            continue
        for each in component.outputs if spout or measure in _OF_OUTPUTS else component.inputs:
            counter.add_metric(
                (topology, component.component, each.component, each.stream), asdict(each.figures)[measure]
            )
    return counter


def _gauge(name: str, text: str, topology: str, values: Mapping[str, float]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    gauge = GaugeMetricFamily(f"trident_storm_{name}", text, labels=("topology", "component"))
    for component, value in values.items():
        gauge.add_metric((topology, component), value)
    return gauge


def _of_topology(name: str, text: str, topology: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    gauge = GaugeMetricFamily(f"trident_storm_{name}", text, labels=("topology",))
    gauge.add_metric((topology,), value)
    return gauge
