"""The memory that the stages of a batch ask for: the sum of the loads of their steps, as in Storm."""

from __future__ import annotations

from collections.abc import Collection

from trident.planner.placing import place
from trident.planner.plan import Plan


def stage_memory(plan: Plan, in_executors: Collection[str] = ()) -> list[float]:
    """Return how many MiB a task of each stage in the workers asks for, in order; of different tasks the most.

    `in_executors` are the states that executors commit, in stages of their own.
    """
    return [
        max((sum(plan.memory_mb.get(id_, 0) for id_ in plan.fragments[entry].ids) for entry in entries), default=0)
        for entries in _levels(plan, in_executors)
    ]


def commit_loads(plan: Plan, in_executors: Collection[str] = ()) -> list[str]:
    """Return the ids of steps with a load that run in the driver, and of static states, which run nowhere."""
    in_workers = {
        id_ for entries in _levels(plan, in_executors) for entry in entries for id_ in plan.fragments[entry].ids
    }
    return [id_ for id_ in plan.memory_mb if id_ not in in_workers]


def _levels(plan: Plan, in_executors: Collection[str]) -> list[tuple[str, ...]]:
    return [tuple(spout.id for spout in plan.spouts), *place(plan, in_executors).levels]
