"""Makes typed statistics of what committed batches have counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from trident.observe.batch_committed import Phases
from trident.observe.operation_statistics import (
    BatchFigures,
    Edge,
    EdgeStatistics,
    Operation,
    OperationFigures,
    OperationsStatistics,
    OperationStatistics,
    OperationWindow,
)
from trident.observe.rolling_totals import ALL_TIME, WINDOWS_S, Difference
from trident.runtime.driver.figure_names import TOPOLOGY, Key
from trident.runtime.driver.operation_totals import OperationTotals

__all__ = ["read_statistics"]

_NS_PER_S = 1e9
_NS_PER_MS = 1e6
_MS_PER_S = 1000.0

Sums = Mapping[str, float]


def read_statistics(
    totals: OperationTotals, operations: Mapping[str, Operation], edges: Sequence[Edge], now: float
) -> OperationsStatistics:
    """Return the statistics of all windows as of a time of the monotonic clock."""
    differences = totals.over((*WINDOWS_S, ALL_TIME), now)
    latest = differences[WINDOWS_S[0]]
    capacities = {
        id_: latest.added.get(Key(id_, "busy_ns"), 0.0) / _NS_PER_S / max(latest.seconds, 1e-9) / operation.slots
        for id_, operation in operations.items()
    }
    return OperationsStatistics(
        tuple(_window(window, difference, operations, edges, capacities) for window, difference in differences.items())
    )


def _window(
    window_s: int,
    difference: Difference[Key],
    operations: Mapping[str, Operation],
    edges: Sequence[Edge],
    capacities: Mapping[str, float],
) -> OperationWindow:
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    sent: dict[tuple[str, str], int] = defaultdict(int)
    for (operation, measure, to), amount in difference.added.items():
        if to:
            sent[operation, to] += int(amount)
        else:
            sums[operation][measure] += amount
    along = tuple(EdgeStatistics(edge, 0 if edge.reads else sent[edge.source, edge.target]) for edge in edges)
    into, out = defaultdict(list), defaultdict(list)
    for each in along:
        if not each.edge.reads:
            into[each.edge.target].append(each)
            out[each.edge.source].append(each)
    batches = sums[TOPOLOGY]["batches"]
    told = {
        id_: OperationStatistics(
            operation,
            _figures(operation, sums[id_], sum(one.tuples for one in out[id_]), capacities[id_], batches),
            tuple(into[id_]),
            tuple(out[id_]),
        )
        for id_, operation in operations.items()
    }
    return OperationWindow(window_s, difference.seconds, _batches(sums[TOPOLOGY], told), told, along)


def _figures(operation: Operation, sums: Sums, sent: int, capacity: float, batches: float) -> OperationFigures:
    given = sums.get("emitted" if operation.kind == "spout" else "executed", 0)
    busy_ns, is_state = sums.get("busy_ns", 0.0), operation.kind == "state"
    return OperationFigures(
        int(sums.get("emitted", 0)),
        0 if operation.kind == "spout" else int(given),
        sent,
        int(sums.get("failed", 0)),
        int(sums.get("dead_letters", 0)),
        busy_ns / _NS_PER_S,
        busy_ns / given / _NS_PER_MS if given else None,
        capacity,
        int(sums.get("keys", 0)),
        int(batches) if is_state else 0,
        sums.get("commit_ns", 0.0) / batches / _NS_PER_MS if is_state and batches else None,
    )


def _batches(sums: Sums, operations: Mapping[str, OperationStatistics]) -> BatchFigures:
    count = sums.get("batches", 0)
    phases = {phase: sums.get(f"{phase}_s", 0.0) / count * _MS_PER_S for phase in Phases._fields} if count else None
    figures = [each.figures for each in operations.values()]
    return BatchFigures(
        int(count),
        sum(each.figures.emitted for each in operations.values() if each.operation.kind == "spout"),
        sum(each.emitted for each in figures),
        sum(each.transferred for each in figures),
        int(sums.get("retries", 0)),
        int(sums.get("failed", 0)),
        sum(each.dead_letters for each in figures),
        None if phases is None else sum(phases.values()),
        phases,
    )
