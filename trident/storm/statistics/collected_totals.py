"""`Collected`: the snapshots of all workers put together, whichever of them start again in between."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from trident.observe.component_statistics import (
    ComponentDescription,
    ComponentStatistics,
    Edge,
    EdgeStatistics,
    ExecutorStatistics,
    Figures,
    TopologyStatistics,
    WindowStatistics,
)
from trident.observe.rolling_totals import ALL_TIME, WINDOWS_S, Difference, Windows
from trident.observe.time_series import TimeSpan
from trident.storm.execution.task_layout import ExecutorPlace, TaskLayout
from trident.storm.groupings import Grouping
from trident.storm.statistics.worker_snapshots import CountKey, WorkerSnapshot
from trident.storm.storm_topology import StormTopology

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
        return TopologyStatistics(
            tuple(
                _Window(self._topology, layout, capacities).of(window, difference)
                for window, difference in differences.items()
            )
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


class _Window:
    """Groups what was added in one window."""

    def __init__(self, topology: StormTopology, layout: TaskLayout, capacities: Mapping[ExecutorPlace, float]) -> None:
        self._topology, self._layout, self._capacities = topology, layout, capacities
        self._components: dict[str, Sums] = defaultdict(lambda: defaultdict(float))
        self._tasks: dict[int, Sums] = defaultdict(lambda: defaultdict(float))
        self._inputs: dict[tuple[str, str, str], Sums] = defaultdict(lambda: defaultdict(float))
        self._outputs: dict[tuple[str, str], Sums] = defaultdict(lambda: defaultdict(float))

    def of(self, window: int, difference: Difference[CountKey]) -> WindowStatistics:
        for key, value in difference.added.items():
            if not key.component.startswith("__"):  # ticks are no tuples of the topology
                self._add(key, value)
        whole: Sums = defaultdict(float)
        for component in self._topology.components:
            spout = component in self._topology.spouts
            for measure, value in self._components[component].items():
                if spout or measure in ("emitted", "transferred"):
                    whole[measure] += value
        components = {component: self._component(component) for component in self._layout.tasks}
        return WindowStatistics(window, difference.seconds, _figures(whole), components)

    def _add(self, key: CountKey, value: float) -> None:
        component = self._layout.component_of[key.task]
        self._components[component][key.measure] += value
        self._tasks[key.task][key.measure] += value
        if key.component:
            self._inputs[component, key.component, key.stream][key.measure] += value
        elif key.stream:
            self._outputs[component, key.stream][key.measure] += value

    def _component(self, component: str) -> ComponentStatistics:
        places = [place for place in self._layout.executors if place.component == component]
        capacity = max(self._capacities[place] for place in places)
        return ComponentStatistics(
            self._described(component),
            _figures(self._components[component], capacity),
            tuple(
                EdgeStatistics(edge, _figures(self._inputs[component, edge.source, edge.stream]))
                for edge in self._edges(component)
            ),
            tuple(
                EdgeStatistics(Edge(component, stream=stream), _figures(sums))
                for (of, stream), sums in sorted(self._outputs.items())
                if of == component
            ),
            tuple(self._executor(place) for place in places),
        )

    def _described(self, component: str) -> ComponentDescription:
        spout, bolt = self._topology.spouts.get(component), self._topology.bolts.get(component)
        tasks = len(self._layout.tasks[component])
        if spout is not None:
            return ComponentDescription(component, "spout", component, type(spout.spout).__name__, tasks)
        detail = "" if bolt is None else type(bolt.bolt).__name__
        return ComponentDescription(component, "acker" if bolt is None else "bolt", component, detail, tasks)

    def _edges(self, component: str) -> list[Edge]:
        bolt = self._topology.bolts.get(component)
        inputs = () if bolt is None else bolt.inputs
        return [Edge(each.component, component, _text(each.grouping), stream=each.stream) for each in inputs]

    def _executor(self, place: ExecutorPlace) -> ExecutorStatistics:
        sums: Sums = defaultdict(float)
        for task in place.tasks:
            for measure, value in self._tasks[task].items():
                sums[measure] += value
        return ExecutorStatistics(place.tasks, place.worker, _figures(sums, self._capacities[place]))


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
