"""`TopologyContext`: what a task knows of itself and of the topology around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trident.errors import TopologyError

__all__ = ["TopologyContext"]


@dataclass(frozen=True)
class TopologyContext:
    """Where a task runs. It has the three attributes of the context of Trident's spouts, so such a spout runs here too.

    Attributes
    ----------
    topology
        The name of the topology.
    component
        The component that the task belongs to.
    task_id
        The number of the task in the topology, from 1.
    task, tasks
        The number of the task in its component, from 0, and how many tasks that has.
    worker
        The number of the worker that runs the task, from 0.
    tasks_by_component
        The ids of the tasks of every component, in order.
    """

    topology: str
    component: str
    task_id: int
    task: int
    tasks: int
    worker: int
    tasks_by_component: Mapping[str, tuple[int, ...]]

    def component_tasks(self, component: str) -> tuple[int, ...]:
        """Return the ids of the tasks of a component; `TopologyError` if there is none of that name."""
        try:
            return self.tasks_by_component[component]
        except KeyError:
            raise TopologyError(f"no component {component!r} among {sorted(self.tasks_by_component)}") from None
