"""A topology as data: what `TopologyBuilder.create_topology` returns, and which task runs in which executor of which worker."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from trident.storm.interfaces import CustomStreamGrouping, IBasicBolt, IRichBolt, IRichSpout
from trident.storm.storm_tuples import StreamSpec

ACKER = "__acker"

GroupingKind = Literal[
    "shuffle", "fields", "all", "global", "none", "direct", "local_or_shuffle", "partial_key", "custom"
]


@dataclass(frozen=True)
class Grouping:
    """One grouping; `fields` for `fields` and `partial_key`, `chooser` for `custom`."""

    kind: GroupingKind
    fields: tuple[str, ...] = ()
    chooser: CustomStreamGrouping | None = None


@dataclass(frozen=True)
class Subscription:
    """A stream that a bolt reads, and how its tuples are spread over the bolt's tasks."""

    component: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True)
class Component:
    """A spout or a bolt as it was set; `conf` is what `add_configuration` added for this component alone."""

    id: str
    made: IRichSpout | IRichBolt | IBasicBolt
    streams: Mapping[str, StreamSpec]
    executors: int
    tasks: int
    conf: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[Subscription, ...] = ()


@dataclass(frozen=True)
class StormTopology:
    """Spouts and bolts by their ids, checked as a whole."""

    spouts: Mapping[str, Component]
    bolts: Mapping[str, Component]

    @cached_property
    def components(self) -> Mapping[str, Component]:
        """All components, in the order in which they were set: spouts, then bolts."""
        return {**self.spouts, **self.bolts}

    def readers(self, component: str, stream: str) -> Iterator[tuple[Component, Subscription]]:
        """Iterate over the bolts that read a stream, each with its subscription."""
        for bolt in self.bolts.values():
            for each in bolt.inputs:
                if (each.component, each.stream) == (component, stream):
                    yield bolt, each

    @cached_property
    def on_cycles(self) -> frozenset[tuple[str, str]]:
        """The pairs (from, to) of components whose tuples may come back to where they came from.

        A full queue does not block senders along such a pair: each would wait for the other, for ever.
        """
        ahead = {component: self._reachable(component) for component in self.components}
        return frozenset(
            (each.component, bolt.id)
            for bolt in self.bolts.values()
            for each in bolt.inputs
            if each.component in ahead[bolt.id] | {bolt.id}
        )

    def _reachable(self, component: str) -> set[str]:
        components: set[str] = set()
        waiting = [component]
        while waiting:
            at = waiting.pop()
            new = {b.id for b in self.bolts.values() if any(s.component == at for s in b.inputs)} - components
            components |= new
            waiting += new
        return components


@dataclass(frozen=True)
class ExecutorPlace:
    """One thread of one worker, and the tasks that it runs."""

    component: str
    tasks: tuple[int, ...]
    worker: int


@dataclass(frozen=True)
class TaskLayout:
    """All executors of a topology. Tasks keep their numbers for as long as the topology runs; executors may move."""

    executors: tuple[ExecutorPlace, ...]
    workers: int

    @cached_property
    def tasks(self) -> Mapping[str, tuple[int, ...]]:
        by_component: dict[str, list[int]] = {}
        for each in self.executors:
            by_component.setdefault(each.component, []).extend(each.tasks)
        return {component: tuple(sorted(tasks)) for component, tasks in by_component.items()}

    @cached_property
    def component_of(self) -> Mapping[int, str]:
        return {task: each.component for each in self.executors for task in each.tasks}

    @cached_property
    def worker_of(self) -> Mapping[int, int]:
        return {task: each.worker for each in self.executors for task in each.tasks}

    def in_worker(self, worker: int) -> tuple[ExecutorPlace, ...]:
        return tuple(each for each in self.executors if each.worker == worker)


def lay_out(
    topology: StormTopology, workers: int, ackers: int, executors: Mapping[str, int] | None = None
) -> TaskLayout:
    """Deal executors to workers in turn, component after component, as Storm does; a rebalance gives their numbers."""
    places: list[ExecutorPlace] = []
    next_task = 1
    wanted = {name: (each.tasks, each.executors) for name, each in topology.components.items()}
    for component, (tasks, threads) in {**wanted, **({ACKER: (ackers, ackers)} if ackers else {})}.items():
        numbers = range(next_task, next_task + tasks)
        next_task += tasks
        threads = min((executors or {}).get(component, threads), tasks)
        for at in range(threads):
            share = tuple(numbers[at * tasks // threads : (at + 1) * tasks // threads])
            places.append(ExecutorPlace(component, share, len(places) % workers))
    return TaskLayout(tuple(places), workers)
