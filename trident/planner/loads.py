"""The resources that the stages of a batch ask for: the sum of the loads of their steps, as in Storm."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from trident.graph import Resources
from trident.planner.placing import place
from trident.planner.plan import Plan


@dataclass(frozen=True)
class StageLoad:
    """The resources that a task of a stage asks for, for all its steps together.

    `stage`: its number, from 1.
    `entry`: the entry whose tasks ask for the most cores; a stage gives all of its tasks the same.
    `cpu_percent`, `memory_mb`: percent of a core, MiB on and off the heap together; 0 if nothing is asked for.
    """

    stage: int
    entry: str
    cpu_percent: float
    memory_mb: float

    @property
    def cpus(self) -> int:
        """The number of whole cores, because Spark gives a task no fraction."""
        return max(1, math.ceil(self.cpu_percent / 100))


def stage_loads(plan: Plan, in_executors: Collection[str] = ()) -> tuple[StageLoad, ...]:
    """Return the loads of the stages in the workers, in order; empty if no step asks for anything.

    `in_executors` are the states that executors commit, in stages of their own.
    """
    loads = tuple(_stage(plan, number, entries) for number, entries in enumerate(_levels(plan, in_executors), 1))
    return loads if any(load.cpu_percent or load.memory_mb for load in loads) else ()


def commit_loads(plan: Plan, in_executors: Collection[str] = ()) -> list[str]:
    """Return the ids of steps with a load that run in the driver, and of static states, which run nowhere."""
    in_workers = {
        id_ for entries in _levels(plan, in_executors) for entry in entries for id_ in plan.fragments[entry].ids
    }
    return [id_ for id_ in plan.resources if id_ not in in_workers]


def _levels(plan: Plan, in_executors: Collection[str]) -> list[tuple[str, ...]]:
    return [tuple(spout.id for spout in plan.spouts), *place(plan, in_executors).levels]


def _stage(plan: Plan, number: int, entries: tuple[str, ...]) -> StageLoad:
    cpu = {entry: sum(one.cpu_percent or 0 for one in _asked(plan, entry)) for entry in entries}
    memory = (sum((one.memory_mb or 0) + (one.off_heap_mb or 0) for one in _asked(plan, entry)) for entry in entries)
    most = max(cpu, key=lambda entry: cpu[entry])
    return StageLoad(number, most, cpu[most], max(memory))


def _asked(plan: Plan, entry: str) -> Iterator[Resources]:
    for id_ in plan.fragments[entry].ids:
        if id_ in plan.resources:
            yield plan.resources[id_]
