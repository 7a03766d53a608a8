"""The figures of a topology's operations for OpenMetrics, made when a scrape asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from trident.statistics.operation_statistics import OperationFigures, OperationsStatistics
from trident.statistics.rolling_totals import WINDOWS_S

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["operation_metrics"]

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
