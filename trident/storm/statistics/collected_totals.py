"""`Collected`: the snapshots of all workers put together, whichever of them start again in between."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from trident.observe.component_statistics import (
    ComponentDescription,
    ComponentKind,
    ComponentStatistics,
    Edge,
    EdgeStatistics,
    ExecutorStatistics,
    Figures,
    TopologyStatistics,
    WindowStatistics,
)
from trident.observe.time_series import ALL_TIME, WINDOWS_S, Difference, TimeSpan, Windows
from trident.storm.execution.task_layout import ExecutorPlace, TaskLayout
from trident.storm.groupings import Grouping, Subscription
from trident.storm.statistics.worker_snapshots import CountKey, WorkerSnapshot
from trident.storm.storm_topology import SpoutSpec, StormTopology

_MILLISECONDS = 1000
_CAPACITY_WINDOW_S = WINDOWS_S[0]
Sums = defaultdict[str, float]


class _Start(NamedTuple):
    """The last snapshot of a worker since it started."""

    start: int
    number: int
    totals: dict[CountKey, float]


class Collected:
    """Adds up what snapshots report.

    A worker that starts again counts from 0: its snapshots have another start, and all that they report is new. Tasks keep
    their totals when they move to other executors or workers.
    """

    def __init__(self, topology: StormTopology, now: float) -> None:
        self._topology = topology
        self._windows: Windows[CountKey] = Windows(now)
        self._last: dict[int, _Start] = {}
        self._lock = threading.Lock()

    def take(self, snapshot: WorkerSnapshot, now: float) -> TimeSpan:
        """Take in a snapshot; one that is older than the last of its start is left out. Returns what its spouts did since."""
        start, number, worker = snapshot["start"], snapshot["number"], snapshot["worker"]
        totals = {CountKey(*key): value for key, value in snapshot["totals"]}
        with self._lock:
            last = self._last.get(worker)
            before: Mapping[CountKey, float] = {}
            if last is not None and last.start == start:
                if last.number >= number:
                    return TimeSpan()
                before = last.totals
            self._last[worker] = _Start(start, number, totals)
            added = {key: value - before.get(key, 0) for key, value in totals.items()}
            self._windows.add(added, now)
        of_spouts: dict[str, float] = defaultdict(float)
        for key, value in added.items():
            if not key.component:
                of_spouts[key.measure] += value
        timed, took_s = int(of_spouts["complete_samples"]), of_spouts["complete_s"]
        return TimeSpan(tuples=of_spouts["acked"], timed=timed, took_s=took_s, failed=int(of_spouts["failed"]))

    def statistics(self, layout: TaskLayout, now: float, uncounted_s: Mapping[int, float]) -> TopologyStatistics:
        """Return the statistics of all windows, by the executors that there are now.

        `uncounted_s` has, by an executor's first task, for how long it has worked on what it has not counted yet.
        """
        with self._lock:
            differences = {window: self._windows.over(window, now) for window in (*WINDOWS_S, ALL_TIME)}
        capacities = _capacities(layout, differences[_CAPACITY_WINDOW_S], uncounted_s)
        windows = differences.items()
        return TopologyStatistics(
            tuple(self._window(layout, capacities, window, difference) for window, difference in windows)
        )

    def _window(
        self,
        layout: TaskLayout,
        capacities: Mapping[ExecutorPlace, float],
        window: int,
        difference: Difference[CountKey],
    ) -> WindowStatistics:
        whole: Sums = defaultdict(float)
        sums: dict[int | str | tuple[str, str, str], Sums] = defaultdict(lambda: defaultdict(float))
        for key, value in difference.added.items():
            if key.component.startswith("__"):  # ticks are no tuples of the topology
                continue
            component = layout.component_of[key.task]
            edge = (key.component, component, key.stream) if key.component else (component, "", key.stream)
            for of in (component, key.task, edge):
                sums[of][key.measure] += value
            if component in self._topology.spouts or key.measure in ("emitted", "transferred"):
                whole[key.measure] += value
        components = {name: self._component(name, layout, capacities, sums) for name in layout.tasks}
        return WindowStatistics(window, difference.seconds, _figures(whole), components)

    def _component(
        self,
        name: str,
        layout: TaskLayout,
        capacities: Mapping[ExecutorPlace, float],
        sums: Mapping[int | str | tuple[str, str, str], Sums],
    ) -> ComponentStatistics:
        component = self._topology.components.get(name)
        kind: ComponentKind = "acker"
        made: object = None
        inputs: tuple[Subscription, ...] = ()
        if isinstance(component, SpoutSpec):
            kind, made = "spout", component.spout
        elif component is not None:
            kind, made, inputs = "bolt", component.bolt, component.inputs
        read = [Edge(each.component, name, _text(each.grouping), stream=each.stream) for each in inputs]
        sent = sorted(of for of in sums if isinstance(of, tuple) and of[:2] == (name, "") and of[2])
        executors = tuple(
            ExecutorStatistics(place.tasks, place.worker, _figures(_added(sums, place.tasks), capacities[place]))
            for place in layout.executors
            if place.component == name
        )
        return ComponentStatistics(
            ComponentDescription(
                name, kind, name, "" if made is None else type(made).__name__, len(layout.tasks[name])
            ),
            _figures(_added(sums, [name]), max(each.figures.capacity for each in executors)),
            tuple(EdgeStatistics(e, _figures(_added(sums, [(e.source, e.target, e.stream)]))) for e in read),
            tuple(EdgeStatistics(Edge(name, stream=of[2]), _figures(sums[of])) for of in sent),
            executors,
        )


def _capacities(
    layout: TaskLayout, difference: Difference[CountKey], uncounted_s: Mapping[int, float]
) -> Mapping[ExecutorPlace, float]:
    busy: dict[int, float] = defaultdict(float)
    for key, value in difference.added.items():
        if key.measure in ("execute_s", "busy_s"):
            busy[key.task] += value
    seconds = max(difference.seconds, 1e-9)
    return {
        place: (sum(busy[task] for task in place.tasks) + min(seconds, uncounted_s.get(place.tasks[0], 0.0))) / seconds
        for place in layout.executors
    }


def _added(sums: Mapping[Any, Sums], of: Iterable[Any]) -> Sums:
    added: Sums = defaultdict(float)
    for each in of:
        for measure, value in sums.get(each, {}).items():
            added[measure] += value
    return added


def _text(grouping: Grouping) -> str:
    kind = grouping.kind.replace("_", " ")
    return f"{kind} ({', '.join(grouping.fields)})" if grouping.fields else kind


def _figures(sums: Mapping[str, float], capacity: float = 0.0) -> Figures:
    def mean(seconds: str, of: str) -> float | None:
        count = sums.get(of, 0)
        return sums.get(seconds, 0.0) / count * _MILLISECONDS if count else None

    emitted, transferred, executed, acked, failed = (
        int(sums.get(measure, 0)) for measure in ("emitted", "transferred", "executed", "acked", "failed")
    )
    return Figures(
        emitted,
        transferred,
        executed,
        acked,
        failed,
        mean("execute_s", "executed"),
        mean("process_s", "process_samples"),
        mean("complete_s", "complete_samples"),
        capacity,
    )
