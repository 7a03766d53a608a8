"""Other numbers of workers and executors for a topology that runs; its tasks keep their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from trident.errors import ConfigError, TopologyError
from trident.storm.execution.task_layout import TaskLayout, lay_out
from trident.storm.spark.tickets import Launch

__all__ = ["rebalanced"]


def rebalanced(launch: Launch, workers: int | None, executors: Mapping[str, int]) -> Launch:
    """Return what the workers run after a rebalance; components that are not named keep their number of executors.

    Raises
    ------
    TopologyError
        No such component, or a number of executors that its tasks do not allow.
    ConfigError
        Fewer than one worker.
    """
    layout = launch.layout
    if workers is None:
        workers = layout.workers
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"rebalance: workers={workers!r} must be a whole number of at least 1")
    _check(layout, executors)
    threads = {**Counter(place.component for place in layout.executors), **executors}
    ackers = launch.conf.ackers  # tasks stay, those of ackers too
    conf = replace(launch.conf, workers=workers, acker_executors=ackers)
    return replace(launch, conf=conf, layout=lay_out(launch.topology, workers, ackers, threads))


def _check(layout: TaskLayout, executors: Mapping[str, int]) -> None:
    for name, number in executors.items():
        if name not in layout.tasks:
            raise TopologyError(f"rebalance: no component {name!r} among {sorted(layout.tasks)}")
        tasks = len(layout.tasks[name])
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= tasks:
            raise TopologyError(
                f"rebalance: component {name!r} has {tasks} tasks, so it can have 1 to {tasks} executors, not {number!r}; "
                "declare more tasks with set_num_tasks"
            )
