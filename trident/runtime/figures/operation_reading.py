"""Makes typed statistics of what committed batches have counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from trident.observe.batch_committed import Phases
from trident.observe.component_statistics import (
    ComponentDescription,
    ComponentStatistics,
    Edge,
    EdgeStatistics,
    Figures,
    TopologyStatistics,
    WindowStatistics,
)
from trident.observe.rolling_totals import ALL_TIME, WINDOWS_S, Difference
from trident.runtime.figures.operation_totals import TOPOLOGY, Key, OperationTotals

_NS_PER_S = 1e9
_NS_PER_MS = 1e6
_MS_PER_S = 1000.0

Sums = Mapping[str, float]


def read_statistics(
    totals: OperationTotals, operations: Mapping[str, ComponentDescription], edges: Sequence[Edge], now: float
) -> TopologyStatistics:
    """Return the statistics of all windows as of a time of the monotonic clock."""
    differences = totals.over((*WINDOWS_S, ALL_TIME), now)
    latest = differences[WINDOWS_S[0]]
    capacities = {
        id_: latest.added.get(Key(id_, "busy_ns"), 0.0) / _NS_PER_S / max(latest.seconds, 1e-9) / operation.slots
        for id_, operation in operations.items()
    }
    return TopologyStatistics(
        tuple(_window(window, difference, operations, edges, capacities) for window, difference in differences.items())
    )


def _window(
    window_s: int,
    difference: Difference[Key],
    operations: Mapping[str, ComponentDescription],
    edges: Sequence[Edge],
    capacities: Mapping[str, float],
) -> WindowStatistics:
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    sent: dict[tuple[str, str], int] = defaultdict(int)
    for (operation, measure, to), amount in difference.added.items():
        if to:
            sent[operation, to] += int(amount)
        else:
            sums[operation][measure] += amount
    into, out = defaultdict(list), defaultdict(list)
    for edge in edges:
        rows = 0 if edge.reads else sent[edge.source, edge.target]
        along = EdgeStatistics(edge, Figures(rows, rows, rows, rows))
        into[edge.target].append(along)
        out[edge.source].append(along)
    whole = sums[TOPOLOGY]
    components = {
        id_: ComponentStatistics(
            operation,
            _figures(operation, sums[id_], sum(each.tuples for each in out[id_]), capacities[id_], whole),
            tuple(into[id_]),
            tuple(out[id_]),
        )
        for id_, operation in operations.items()
    }
    return WindowStatistics(window_s, difference.seconds, _of_topology(whole, components), components)


def _figures(operation: ComponentDescription, sums: Sums, sent: int, capacity: float, whole: Sums) -> Figures:
    is_spout, is_state = operation.kind == "spout", operation.kind == "state"
    emitted, executed = int(sums.get("emitted", 0)), int(sums.get("executed", 0))
    given, busy_ns, batches = emitted if is_spout else executed, sums.get("busy_ns", 0.0), whole.get("batches", 0)
    left_out = int(sums.get("dead_letters", 0))
    latency_ms = busy_ns / given / _NS_PER_MS if given else None
    phases_ms = _phases_ms(whole)
    return Figures(
        emitted=emitted,
        transferred=sent,
        executed=0 if is_spout else executed,
        acked=emitted if is_spout else executed - left_out,  # only what is committed is counted
        failed=int(sums.get("failed", 0)),
        execute_latency_ms=latency_ms,
        process_latency_ms=None if is_spout else latency_ms,
        complete_latency_ms=sum(phases_ms.values()) if is_spout and phases_ms else None,
        capacity=capacity,
        busy_s=busy_ns / _NS_PER_S,
        dead_letters=left_out,
        keys=int(sums.get("keys", 0)),
        commits=int(batches) if is_state else 0,
        commit_latency_ms=sums.get("commit_ns", 0.0) / batches / _NS_PER_MS if is_state and batches else None,
    )


def _of_topology(sums: Sums, operations: Mapping[str, ComponentStatistics]) -> Figures:
    phases_ms, figures = _phases_ms(sums), [each.figures for each in operations.values()]
    tuples = sum(each.figures.emitted for each in operations.values() if each.described.kind == "spout")
    return Figures(
        emitted=sum(each.emitted for each in figures),
        transferred=sum(each.transferred for each in figures),
        acked=tuples,
        failed=int(sums.get("failed", 0)),
        complete_latency_ms=None if phases_ms is None else sum(phases_ms.values()),
        dead_letters=sum(each.dead_letters for each in figures),
        batches=int(sums.get("batches", 0)),
        tuples=tuples,
        retries=int(sums.get("retries", 0)),
        phases_ms=phases_ms,
    )


def _phases_ms(sums: Sums) -> dict[str, float] | None:
    batches = sums.get("batches", 0)
    return {phase: sums.get(f"{phase}_s", 0.0) / batches * _MS_PER_S for phase in Phases._fields} if batches else None
