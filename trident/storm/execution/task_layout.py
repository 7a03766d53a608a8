"""Which task runs in which executor of which worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trident.storm.storm_topology import ACKER, StormTopology


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
        """The tasks of each component, in order; ackers included."""
        by_component: dict[str, list[int]] = {}
        for each in self.executors:
            by_component.setdefault(each.component, []).extend(each.tasks)
        return {component: tuple(sorted(tasks)) for component, tasks in by_component.items()}

    @cached_property
    def component_of(self) -> Mapping[int, str]:
        """The component of each task."""
        return {task: each.component for each in self.executors for task in each.tasks}

    @cached_property
    def worker_of(self) -> Mapping[int, int]:
        """The worker that runs each task."""
        return {task: each.worker for each in self.executors for task in each.tasks}

    def in_worker(self, worker: int) -> tuple[ExecutorPlace, ...]:
        """Return the executors of one worker."""
        return tuple(each for each in self.executors if each.worker == worker)


def lay_out(
    topology: StormTopology, workers: int, ackers: int, executors: Mapping[str, int] | None = None
) -> TaskLayout:
    """Deal executors to workers in turn, component after component, as Storm does.

    `executors`: how many executors components have, where that differs from the declaration: after a rebalance.
    """
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
