"""What the operations, or the spouts, bolts and ackers, of a topology did in each window, as typed values; its picture."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from trident.naming import page_entry
from trident.observe.batch_committed import Phases
from trident.observe.time_series import ALL_TIME, WINDOWS_S, Difference

ComponentKind = Literal["spout", "step", "exchange", "state", "query", "bolt", "acker"]


Entry = dict[str, Any]


@dataclass(frozen=True)
class ComponentDescription:
    """A component as it was declared; an operation as `explain` names it."""

    id: str
    kind: ComponentKind
    label: str
    detail: str
    tasks: int
    slots: int = 1  # how many of the tasks can run at once
    stage: int | None = None  # the first one in which an operation runs
    stage_title: str = ""
    state: str | None = None  # that it updates or queries


@dataclass(frozen=True)
class Edge:
    """A stream from one component to another; `grouping` says to which task. `reads`: a query reads a state instead."""

    source: str
    target: str = ""  # an output stream of a bolt has none, no matter which components read it
    grouping: str = ""
    reads: bool = False
    stream: str = "default"


@dataclass(frozen=True)
class Figures:
    """What was counted within a window. A latency is None if nothing was measured; what cannot be counted is 0."""

    emitted: int = 0  # by a state: the new values that steps behind it read
    transferred: int = 0  # copies to tasks, or rows on edges: a combiner sends partial sums, so these are fewer
    executed: int = 0  # without ticks
    acked: int = 0  # of an operation: what was committed
    failed: int = 0  # of a spout those that timed out, too; of an operation attempts that ended in it
    execute_latency_ms: float | None = None  # what runs in one kernel is timed together
    process_latency_ms: float | None = None  # of one tuple in about twenty
    complete_latency_ms: float | None = None  # from the emit to the ack of the tree, or from definition to record
    capacity: float = 0.0  # of ten minutes: the busiest executor, or the slots of an operation
    busy_s: float = 0.0  # summed over all tasks
    dead_letters: int = 0
    keys: int = 0
    commits: int = 0
    commit_latency_ms: float | None = None
    batches: int = 0
    tuples: int = 0
    retries: int = 0  # attempts beyond the first of each batch
    phases_ms: Mapping[str, float] | None = None


@dataclass(frozen=True)
class EdgeStatistics:
    """What went along an edge: as seen by its target, or of an output stream by its source."""

    edge: Edge
    figures: Figures

    @property
    def tuples(self) -> int:
        return self.figures.executed or self.figures.emitted


@dataclass(frozen=True)
class ExecutorStatistics:
    """The figures of one executor: the thread that runs these tasks."""

    tasks: tuple[int, ...]
    worker: int
    figures: Figures

    @property
    def name(self) -> str:
        """The first and the last task, as Storm names executors."""
        return f"[{self.tasks[0]}-{self.tasks[-1]}]"


@dataclass(frozen=True)
class ComponentStatistics:
    """The figures of a component, of its edges, and of its executors, which only spouts and bolts have."""

    described: ComponentDescription
    figures: Figures
    inputs: tuple[EdgeStatistics, ...] = ()
    outputs: tuple[EdgeStatistics, ...] = ()
    executors: tuple[ExecutorStatistics, ...] = ()

    @property
    def tasks(self) -> int:
        return self.described.tasks


@dataclass(frozen=True)
class WindowStatistics:
    """The statistics over one window; `figures` has `emitted` and `transferred` of all components, the rest of its spouts."""

    window_s: int
    seconds: float  # what it covers: less while the topology is younger, at most a twentieth more after that
    figures: Figures
    components: Mapping[str, ComponentStatistics]

    @property
    def edges(self) -> list[EdgeStatistics]:
        return [edge for each in self.components.values() for edge in each.inputs]

    def per_second(self, amount: float) -> float:
        return amount / max(self.seconds, 1e-3)


@dataclass(frozen=True)
class TopologyStatistics:
    """The statistics of a topology, over ten minutes, three hours, a day and all time."""

    windows: tuple[WindowStatistics, ...]

    def over(self, window_s: int = ALL_TIME) -> WindowStatistics:
        """Return the figures of one of `WINDOWS_S`, or of `ALL_TIME`; `KeyError` for any other."""
        for each in self.windows:
            if each.window_s == window_s:
                return each
        raise KeyError(f"no window of {window_s} seconds; there are {[each.window_s for each in self.windows]}")


TOPOLOGY = ""  # in place of an operation: the topology
_NS_PER_S = 1e9
_NS_PER_MS = 1e6
_MS_PER_S = 1000.0

Sums = Mapping[str, float]


class Key(NamedTuple):
    """What a total counts; with `to` the measure `sent`: rows on the edge to that operation."""

    operation: str
    measure: str
    to: str = ""


def statistics_of(
    differences: Mapping[int, Difference[Key]], operations: Mapping[str, ComponentDescription], edges: Sequence[Edge]
) -> TopologyStatistics:
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
    phases_ms, figures = _phases_ms(whole), [each.figures for each in components.values()]
    tuples = sum(each.figures.emitted for each in components.values() if each.described.kind == "spout")
    of_all = Figures(
        emitted=sum(each.emitted for each in figures),
        transferred=sum(each.transferred for each in figures),
        acked=tuples,
        failed=int(whole.get("failed", 0)),
        complete_latency_ms=None if phases_ms is None else sum(phases_ms.values()),
        dead_letters=sum(each.dead_letters for each in figures),
        batches=int(whole.get("batches", 0)),
        tuples=tuples,
        retries=int(whole.get("retries", 0)),
        phases_ms=phases_ms,
    )
    return WindowStatistics(window_s, difference.seconds, of_all, components)


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


def _phases_ms(sums: Sums) -> dict[str, float] | None:
    batches = sums.get("batches", 0)
    return {phase: sums.get(f"{phase}_s", 0.0) / batches * _MS_PER_S for phase in Phases._fields} if batches else None


def picture(window: WindowStatistics, states: Sequence[Mapping[str, Any]] = ()) -> Entry:
    """Return stages, nodes and edges, with the rates of a window."""
    components = [each for each in window.components.values() if each.described.kind != "acker"]
    stages = {each.described.stage: each.described.stage_title for each in components}
    return {
        "stages": [{"number": number, "title": title} for number, title in stages.items() if number is not None],
        "nodes": [*(_node(window, each) for each in components), *(_state(window, each) for each in states)],
        "edges": [
            *(_edge(window, each) for each in window.edges),
            *(_update(window, each) for each in states if each["component"] is not None),
        ],
    }


def state_node(state: str) -> str:
    return f"state {state}"


def _node(window: WindowStatistics, component: ComponentStatistics) -> Entry:
    described, figures = component.described, component.figures
    latencies = (figures.process_latency_ms, figures.execute_latency_ms, figures.complete_latency_ms)
    return {
        **page_entry(described, "id", "label", "detail", "stage", "tasks"),
        **page_entry(figures, "emitted", "executed", "failed", "capacity"),
        "kind": "persist" if described.kind == "state" else described.kind,
        "executors": len(component.executors) or component.tasks,
        "latencyMs": next((each for each in latencies if each is not None), None),
        "perSecond": window.per_second(figures.emitted if described.kind == "spout" else figures.executed),
        "unit": "tuples",
    }


def _state(window: WindowStatistics, state: Mapping[str, Any]) -> Entry:
    return {
        "id": state_node(state["state"]),
        "label": state["state"],
        "kind": "state",
        "detail": f"{state['kind'] or 'own kind'} in {state['store']}",
        "guarantee": state["guarantee"],
        "stage": None,
        "perSecond": window.per_second(state["keysUpdated"]),
        "unit": "keys",
        "isState": True,
    }


def _edge(window: WindowStatistics, statistics: EdgeStatistics) -> Entry:
    edge = statistics.edge
    return {
        **page_entry(edge, "source", "target", "stream", "grouping"),
        "kind": "reads" if edge.reads else "tuples",
        "tuples": statistics.tuples,
        "tuplesPerSecond": None if edge.reads else window.per_second(statistics.tuples),
        "unit": "keys" if edge.reads else "tuples",
    }


def _update(window: WindowStatistics, state: Mapping[str, Any]) -> Entry:
    return {
        "source": state["component"],
        "target": state_node(state["state"]),
        "stream": "default",
        "grouping": "",
        "kind": "tuples",
        "tuples": state["keysUpdated"],
        "tuplesPerSecond": window.per_second(state["keysUpdated"]),
        "unit": "keys",
    }
