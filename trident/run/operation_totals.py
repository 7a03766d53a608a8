"""OperationTotals: what the operations of a topology did in its committed batches, in windows, and statistics made of that.

The counts of several batches are collected and then added up together, because adding up one batch after the other, by name,
would take longer than some steps do.

`meanings_of` names what the passes over fragments count: which operation each number belongs to, and as what.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from trident.counts import add_counts
from trident.engine.task_output import EACH, HEAD, NS, ROWS, TaskOutput
from trident.engine.task_output import Figures as Counts
from trident.graph import PersistNode
from trident.observe.batch_committed import BatchCommitted, Phases, sum_lags
from trident.observe.component_statistics import (
    ComponentDescription,
    ComponentStatistics,
    Edge,
    EdgeStatistics,
    Figures,
    TopologyStatistics,
    WindowStatistics,
)
from trident.observe.time_series import WINDOWS_S, Difference, TimeSeries, TimeSpan, Windows
from trident.plan import Fragment, Plan
from trident.plan.plan import place
from trident.run.committer import Committed
from trident.steps.failures import Failure

TOPOLOGY = ""
"""In place of an operation: the topology."""

_LONGEST_S = 1.0
_MOST_WAITING = 32  # more would be old objects for Python's cycle collector, which looks at them again and again
_NS_PER_S = 1e9
_NS_PER_MS = 1e6
_MS_PER_S = 1000.0

Sums = Mapping[str, float]
_Waiting = tuple[bool, Counts, Counts, Mapping[str, int], BatchCommitted]
_Lists = dict[str, list[list[int]]]
"""By entry, figures that are added up number by number."""


class Key(NamedTuple):
    """What a total counts.

    `operation`: the id of its node, or `TOPOLOGY`.
    `measure`: `emitted`, `executed`, `busy_ns`, `commit_ns` and others; or `sent`: rows on the edge to the operation `to`.
    """

    operation: str
    measure: str
    to: str = ""


Meanings = tuple[tuple[tuple[Key, int], ...], ...]
"""For each number of a fragment's figures: the totals that it is added to, or subtracted from (1, -1)."""


class OperationTotals:
    """Adds up what committed batches counted, and tells it to `series`. Attempts that failed have counted only their failure.

    `in_executors`: the states that executors commit.
    `now`: the beginning, on the clock of the batches.
    """

    def __init__(self, plan: Plan, in_executors: Collection[str], now: float) -> None:
        self._writers = {node.id: node for node in plan.commits if isinstance(node, PersistNode)}
        self._steps = {node.state: node.id for node in self._writers.values()}
        self._meanings = self._of(plan.fragments)
        self._placed = self._of(place(plan, in_executors).fragments) if in_executors else {}
        self._windows: Windows[Key] = Windows(now)
        self.series = TimeSeries(now)
        self._waiting: list[_Waiting] = []
        self._first = now
        self._lock = threading.Lock()

    def _of(self, fragments: Mapping[str, Fragment]) -> dict[str, Meanings]:
        return {entry: meanings_of(fragment, self._writers) for entry, fragment in fragments.items()}

    def add_batch(self, event: BatchCommitted, output: TaskOutput, committed: Committed, in_executors: bool) -> None:
        """Take in a committed batch: what its two halves counted.

        `in_executors`: whether tasks committed states, so that their fragments ran in the executors.
        """
        waiting, at = self._waiting, event.recorded_at
        if not waiting:
            self._first = at
        elif at - self._first > _LONGEST_S:
            with self._lock:  # before this one, which is of another time
                self._add_up()
            self._first = at
        waiting.append((in_executors, output.figures, committed.figures, committed.took_ns, event))
        rare = event.tries > 1 or output.put_back or committed.put_back
        if rare or len(waiting) >= _MOST_WAITING:
            with self._lock:
                self._add_up()
                if rare:
                    self._add_rare(event, output, committed)

    def add_left_out(self, failures: Iterable[Failure], now: float) -> None:
        """Take in the tuples that a committed batch left out."""
        self._count("dead_letters", (failure.step for failure in failures), now)

    def add_failure(self, step: str, now: float) -> None:
        self._count("failed", (TOPOLOGY, step), now)
        self.series.add(TimeSpan(failed=1), now)

    def _count(self, measure: str, operations: Iterable[str], now: float) -> None:
        amounts: dict[Key, float] = defaultdict(float)
        for operation in operations:
            amounts[Key(operation, measure)] += 1
        with self._lock:
            self._add_up()
            self._windows.add(amounts, now)

    def over_all(self, now: float) -> dict[int, Difference[Key]]:
        """Return what was added within each window, by their lengths."""
        with self._lock:
            self._add_up()
            return self._windows.over_all(now)

    def _add_up(self) -> None:
        count = len(self._waiting)  # the loop may append meanwhile
        batches = self._waiting[:count]
        del self._waiting[:count]
        if not batches:
            return
        plan: _Lists = defaultdict(list)
        placed: _Lists = defaultdict(list)
        took: dict[str, int] = defaultdict(int)
        keys: dict[str, int] = defaultdict(int)
        for in_executors, processed, committed, took_ns, event in batches:
            here = placed if in_executors else plan
            for entry, figures in processed.items():
                here[entry].append(figures)
            for entry, figures in committed.items():
                plan[entry].append(figures)
            for node, nanoseconds in took_ns.items():
                took[node] += nanoseconds
            for state, updated in event.keys_updated.items():
                keys[state] += updated
        amounts = self._amounts_by_key(plan, placed, took, keys)
        events = [batch[-1] for batch in batches]
        amounts[Key(TOPOLOGY, "batches")] += len(events)
        for phase, seconds in zip(Phases._fields, _columns([event.phases for event in events]), strict=True):
            amounts[Key(TOPOLOGY, f"{phase}_s")] += seconds
        self._windows.add(amounts, events[-1].recorded_at)
        self.series.add(_span_of(events), events[-1].recorded_at)

    def _amounts_by_key(
        self, plan: _Lists, placed: _Lists, took: Mapping[str, int], keys: Mapping[str, int]
    ) -> dict[Key, float]:
        amounts: dict[Key, float] = defaultdict(float)
        for lists, meanings in ((plan, self._meanings), (placed, self._placed)):
            for entry, rows in lists.items():
                for total, meaning in zip(_columns(rows), meanings[entry], strict=True):
                    for key, sign in meaning if total else ():
                        amounts[key] += sign * total
        for node, nanoseconds in took.items():
            for key, _ in self._meanings[node][NS]:
                amounts[key] += nanoseconds
        for state, updated in keys.items():
            amounts[Key(self._steps[state], "keys")] += updated
        return amounts

    def _add_rare(self, event: BatchCommitted, output: TaskOutput, committed: Committed) -> None:
        amounts: dict[Key, float] = {Key(TOPOLOGY, "retries"): event.tries - 1}
        put_back = dict(output.put_back)
        add_counts(put_back, committed.put_back)
        for step, rows in put_back.items():
            amounts[Key(step, "executed")] = rows
        self._windows.add(amounts, event.recorded_at)


def _span_of(events: Sequence[BatchCommitted]) -> TimeSpan:
    took, lags = [event.phases.total for event in events], events[-1].read.lags.values()
    return TimeSpan(
        tuples=sum(event.tuples for event in events),
        timed=len(events),
        took_s=sum(took),
        longest_s=max(took),
        lags={each.unit: each.amount for each in sum_lags(filter(None, lags))},
        is_whole=None not in lags,
    )


def _columns(rows: Sequence[Sequence[float]]) -> Iterator[float]:
    return map(sum, zip(*rows, strict=False))  # all of one length; to count them would take as long as to add them up


def meanings_of(fragment: Fragment, states: Mapping[str, PersistNode]) -> Meanings:
    """Return what the figures of a fragment mean; `states` are the nodes that update one, by id."""
    found: list[list[tuple[Key, int]]] = [[] for _ in range(HEAD + EACH * (len(fragment.steps) + len(fragment.sinks)))]
    entry = fragment.entry
    own = ["busy_ns", "commit_ns"] if entry in states else ["busy_ns"]
    of_entry = [(Key(entry, measure), -1) for measure in own]  # the time of a step is part of the entry's
    found[ROWS] += _row_meanings(fragment, entry)
    found[NS] += [(Key(entry, measure), 1) for measure in own]
    for number, step in enumerate(fragment.steps):
        at = HEAD + EACH * number
        found[at] += _row_meanings(fragment, step.id)
        found[at + 1] += [(Key(step.id, "busy_ns"), 1), *of_entry]
    for number, sink in enumerate(fragment.sinks, len(fragment.steps)):
        at = HEAD + EACH * number
        found[at].append((Key(sink.source, "sent", sink.target), 1))
        found[at + 1] += [(Key(sink.target, "busy_ns"), 1), *of_entry]
    return tuple(map(tuple, found))


def _row_meanings(fragment: Fragment, source: str) -> Iterator[tuple[Key, int]]:
    """Iterate over what the rows mean that an entry or a step gives."""
    yield Key(source, "emitted"), 1
    for step in fragment.steps:
        for each in step.sources:
            if each == source:
                yield Key(step.id, "executed"), 1
                yield Key(source, "sent", step.id), 1
    for sink in fragment.sinks:
        if sink.source == source:
            yield Key(sink.target, "executed"), 1


def read_statistics(
    totals: OperationTotals, operations: Mapping[str, ComponentDescription], edges: Sequence[Edge], now: float
) -> TopologyStatistics:
    """Return the statistics of all windows as of a time of the monotonic clock."""
    differences = totals.over_all(now)
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
