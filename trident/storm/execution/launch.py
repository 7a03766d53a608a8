"""What all workers of a topology run (`Launch`), and what the executors of one worker are given (`Setting`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random, SystemRandom
from time import monotonic
from typing import Any

import cloudpickle

from trident.errors import TopologyError
from trident.storm.execution.messages import Carrier
from trident.storm.execution.out_streams import OutStream, chooser_of
from trident.storm.interfaces import TopologyContext
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import ExecutorPlace, StormTopology, TaskLayout, lay_out
from trident.storm.storm_tuples import Origin

Report = Callable[[str, int, BaseException], None]


class TaskError(Exception):
    """An exception out of a task's code; `__cause__` is that exception."""

    def __init__(self, component: str, task: int, doing: str) -> None:
        super().__init__(component, task, doing)
        self.component, self.task, self.doing = component, task, doing

    def __str__(self) -> str:
        return f"component {self.component!r}, task {self.task}: {self.doing}: {self.__cause__!r}"


@dataclass(frozen=True)
class Launch:
    """What all workers of a topology run; its components are pickled, as every task has an instance of its own."""

    topology: StormTopology
    pickled: Mapping[str, bytes]
    layout: TaskLayout
    conf: StormConfig

    @staticmethod
    def of(topology: StormTopology, conf: StormConfig) -> Launch:
        """Return what runs a topology; `TopologyError` if a component cannot be pickled, as one with a connection."""
        pickled = {}
        for name, spec in topology.components.items():
            try:
                pickled[name] = cloudpickle.dumps(spec.made)
            except Exception as error:
                raise TopologyError(
                    f"component {name!r}: {type(spec.made).__name__} cannot be pickled to be sent to a worker ({error}); open "
                    "connections, files and threads in open() or prepare(), not before"
                ) from error
        return Launch(topology, pickled, lay_out(topology, conf.workers, conf.ackers), conf)

    def setting(self, mail: Carrier, report: Report, **others: Any) -> Setting:
        return Setting(self.topology, self.pickled, self.layout, self.conf, mail, report, **others)


_seeds = SystemRandom()


@dataclass(frozen=True)
class Setting(Launch):
    """What all executors of a worker have in common; `random` returns a new source of edges, `watch` is for tests."""

    mail: Carrier
    report: Report
    clock: Callable[[], float] = monotonic
    random: Callable[[], Random] = lambda: Random(_seeds.getrandbits(128))
    watch: Callable[[Origin, tuple[Any, ...]], None] | None = None

    def context(self, place: ExecutorPlace, task: int) -> TopologyContext:
        tasks = self.layout.tasks
        own = tasks[place.component]
        return TopologyContext(self.conf.name, place.component, task, own.index(task), len(own), place.worker, tasks)

    def instance(self, component: str, task: int) -> Any:
        try:
            return cloudpickle.loads(self.pickled[component])
        except Exception as error:
            raise TaskError(component, task, "unpickle it in the worker") from error

    def streams(self, context: TopologyContext, random: Random) -> dict[str, OutStream]:
        streams = {}
        for name, spec in self.topology.components[context.component].streams.items():
            origin = Origin(context.component, context.task_id, name, spec.fields)
            choosers, direct = [], set[int]()
            for bolt, each in self.topology.readers(context.component, name):
                tasks = self.layout.tasks[bolt.id]
                if spec.direct:
                    direct |= set(tasks)
                    continue
                local = [task for task in tasks if self.layout.worker_of[task] == context.worker]
                choosers.append(chooser_of(each.grouping, origin, context, tasks, local, random))
            if self.watch is not None:  # it chooses no task
                choosers.append(partial(_show, self.watch, origin))
            streams[name] = OutStream(origin, spec, choosers, frozenset(direct))
        return streams

    def conf_of(self, component: str) -> dict[str, Any]:
        return {**self.conf.as_mapping(), **self.topology.components[component].conf}

    def read_by(self, component: str, on_cycle: bool = False) -> frozenset[int]:
        return frozenset(
            task
            for bolt in self.topology.bolts.values()
            if any(each.component == component for each in bolt.inputs)
            and ((component, bolt.id) in self.topology.on_cycles) is on_cycle
            for task in self.layout.tasks[bolt.id]
        )


def _show(watch: Callable[[Origin, tuple[Any, ...]], None], origin: Origin, values: Sequence[Any]) -> Sequence[int]:
    watch(origin, tuple(values))
    return ()
