"""What every executor is, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random, SystemRandom
from time import monotonic
from typing import Any

import cloudpickle

from trident.errors import TopologyError
from trident.storm.execution.collectors import TaskCounts
from trident.storm.execution.messages import Carrier, Delivery, Outbox
from trident.storm.execution.out_streams import OutStream, chooser_of
from trident.storm.interfaces import TopologyContext
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import ACKER, ExecutorPlace, SpoutSpec, StormTopology, TaskLayout, lay_out
from trident.storm.storm_tuples import Origin

Report = Callable[[str, int, BaseException], None]


class TaskError(Exception):
    """An exception out of a task's code; `__cause__` is that exception."""

    def __init__(self, component: str, task: int, doing: str) -> None:
        super().__init__(component, task, doing)
        self.component, self.task, self.doing = component, task, doing

    def __str__(self) -> str:
        return f"component {self.component!r}, task {self.task}: {self.doing}: {self.__cause__!r}"


class Executor:
    """One thread's work: one or more tasks of one component. `open`, `step` and `close` are called by that thread.

    `active`: whether spouts are asked for tuples.
    `instances`: the objects of its tasks, once it is open; `collectors`, `counts`: what those emit with, what they did.
    `call_since`: when the last call of a task's code began, on the clock of its worker; 0 before the first. Other threads read
    it.
    `uncounted_since`: since when it has worked without having added that to its totals; 0 if it has. Other threads read it.
    """

    def __init__(self, place: ExecutorPlace, setting: Setting) -> None:
        self.place, self.active, self._setting = place, True, setting
        uncontrolled = setting.read_by(place.component, on_cycle=True)
        self._outbox = Outbox(setting.mail, setting.layout.tasks.get(ACKER, ()), uncontrolled)
        self.instances: dict[int, Any] = {}
        self.collectors: dict[int, Any] = {}
        self.counts: dict[int, TaskCounts[Any]] = {}
        self._ends: dict[int, Callable[[], None]] = {}
        self.call_since = self.uncounted_since = 0.0

    @property
    def at_rest(self) -> bool:
        """Whether it will send nothing more unless something arrives; what waits for it is in its inbox."""
        return True

    @property
    def pending(self) -> int:
        """How many tracked messages of its spouts are not answered."""
        return 0

    def open(self) -> None:
        """Make the tasks' instances and prepare them."""
        raise NotImplementedError

    def step(self, deliveries: Sequence[Delivery]) -> float:
        """Process deliveries; return for how many seconds there is nothing to do unless others come."""
        raise NotImplementedError

    def close(self) -> None:
        """Clean up the instances. The unanswered messages of spouts go back to where they came from."""
        for task, end in self._ends.items():
            try:
                end()
            except Exception as error:  # noqa: BLE001  the other instances are cleaned up too
                self._setting.report(self.place.component, task, error)
            self.collectors[task].close()
        self._outbox.flush()

    def _given(self, task: int) -> tuple[Any, ...]:
        """Return what a task's collector is made of, its context first."""
        setting, component = self._setting, self.place.component
        random, context = setting.random(), setting.context(self.place, task)
        report = partial(setting.report, component, task)
        debug = setting.conf_of(component)["debug"]
        return context, setting.streams(context, random), self._outbox, random, setting.clock, report, debug


@dataclass(frozen=True)
class Launch:
    """What all workers of a topology run.

    `pickled`: its spouts and bolts, pickled by component: every task has an instance of its own.
    """

    topology: StormTopology
    pickled: Mapping[str, bytes]
    layout: TaskLayout
    conf: StormConfig

    @staticmethod
    def of(topology: StormTopology, conf: StormConfig) -> Launch:
        """Return what runs a topology as it was declared.

        Raises `TopologyError`: a component cannot be pickled: it holds a connection, a lock or an open file.
        """
        pickled = {}
        for name, spec in topology.components.items():
            made = spec.spout if isinstance(spec, SpoutSpec) else spec.bolt
            try:
                pickled[name] = cloudpickle.dumps(made)
            except Exception as error:
                raise TopologyError(
                    f"component {name!r}: {type(made).__name__} cannot be pickled to be sent to a worker ({error}); open "
                    "connections, files and threads in open() or prepare(), not before"
                ) from error
        return Launch(topology, pickled, lay_out(topology, conf.workers, conf.ackers), conf)

    def setting(self, mail: Carrier, report: Report, **others: Any) -> Setting:
        return Setting(self.topology, self.pickled, self.layout, self.conf, mail, report, **others)


_seeds = SystemRandom()


@dataclass(frozen=True)
class Setting(Launch):
    """What all executors of a worker have in common.

    `report`: takes component, task and an error that the user's code reported.
    `clock`: seconds, from any beginning.
    `random`: returns a new source of edges.
    `watch`: sees every tuple that is emitted to a stream that is not direct; for tests.
    """

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
        """Return a spout or bolt of a task's own."""
        try:
            return cloudpickle.loads(self.pickled[component])
        except Exception as error:
            raise TaskError(component, task, "unpickle it in the worker") from error

    def streams(self, context: TopologyContext, random: Random) -> dict[str, OutStream]:
        """Return the streams that a task emits to by name, with the groupings of all bolts that read them."""
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
                choosers.append(partial(_seen, self.watch, origin))
            streams[name] = OutStream(origin, spec, choosers, frozenset(direct))
        return streams

    def conf_of(self, component: str) -> dict[str, Any]:
        """Return the settings that a component's tasks get."""
        return {**self.conf.as_mapping(), **self.topology.components[component].conf}

    def read_by(self, component: str, on_cycle: bool = False) -> frozenset[int]:
        """Return the tasks that a component sends to: those that are on a cycle with it, or the others."""
        return frozenset(
            task
            for bolt in self.topology.bolts.values()
            if any(each.component == component for each in bolt.inputs)
            and ((component, bolt.id) in self.topology.on_cycles) is on_cycle
            for task in self.layout.tasks[bolt.id]
        )


def _seen(watch: Callable[[Origin, tuple[Any, ...]], None], origin: Origin, values: Sequence[Any]) -> Sequence[int]:
    watch(origin, tuple(values))
    return ()
