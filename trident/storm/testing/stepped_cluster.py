"""`SteppedCluster`: the executors and ackers of a topology in one thread, delivery by delivery, in a seeded order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

from trident.errors import TopologyError
from trident.observe.events import ReportedError
from trident.roles import Closes
from trident.storm.execution.executor import Executor, Launch, TaskError
from trident.storm.execution.messages import Body
from trident.storm.execution.storm_worker import make_executor
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology
from trident.storm.storm_tuples import Origin

Link = Callable[[int, Body], Iterable[Body]]
"""Takes the task and what is sent to it; returns what arrives: nothing if it is lost, two of it if it is doubled."""


class SteppedCluster(Closes):
    """Runs a topology step by step. Nothing happens between two calls, and time stands still until `advance`.

    A step takes the first delivery of one task's queue. The seed chooses the task, so other seeds are other orders of events;
    what is sent to one task stays in order, as on a real link.

    Parameters
    ----------
    seed
        Chooses the order of deliveries, and the edges of the tuple trees.
    link
        Every delivery passes through it; loses or doubles some.
    watch
        Sees every tuple that is emitted to a stream that is not direct.

    Examples
    --------
    >>> from trident.storm import BaseBasicBolt, TopologyBuilder
    >>> from trident.storm.testing import MockedSpout, SteppedCluster
    >>> class Failing(BaseBasicBolt):
    ...     def execute(self, tuple, collector):
    ...         collector.reset_timeout(tuple)
    >>> builder = TopologyBuilder()
    >>> lines = builder.set_spout("lines", MockedSpout("line", ["a"], ["b"]))
    >>> bolt = builder.set_bolt("bolt", Failing()).shuffle_grouping("lines")
    >>> with SteppedCluster(builder.create_topology()) as cluster:
    ...     cluster.run()
    ...     cluster.spout("lines").acked
    [0, 1]
    """

    def __init__(
        self,
        topology: StormTopology,
        conf: StormConfig | Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        link: Link | None = None,
        watch: Callable[[Origin, tuple[Any, ...]], None] | None = None,
        **settings: Any,
    ) -> None:
        self.conf = StormConfig.of(conf, **settings)
        self.topology = topology
        self.now = 0.0
        self.errors: list[ReportedError] = []
        self._random = Random(seed)
        self._link: Link = link or (lambda task, body: (body,))
        launch = Launch.of(topology, self.conf)
        self.layout = launch.layout
        self._queues: dict[int, deque[Body]] = {task: deque() for task in self.layout.component_of}
        self._setting = launch.setting(
            self,
            lambda component, task, error: self.errors.append(ReportedError.of(component, task, error)),
            clock=lambda: self.now,
            random=lambda: Random(self._random.getrandbits(64)),
            watch=watch,
        )
        self._executors: dict[int, Executor] = {}
        for place in self.layout.executors:
            self._open(make_executor(place, self._setting))

    # ---- Mail ---------------------------------------------------------------------------------------------------------

    def send(self, task: int, body: Body) -> None:
        self._queues[task].extend(self._link(task, body))

    def is_open(self, task: int) -> bool:
        return True

    def wait_until_open(self, task: int) -> None:
        """Queues are never full here."""

    # ---- what a test does ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Deliver one thing, or ask all spouts if there is none; whether anything happened."""
        waiting = [task for task, queue in self._queues.items() if queue]
        if waiting:
            task = self._random.choice(waiting)
            self._run(self._executors[task], [(task, self._queues[task].popleft())])
            return True
        for executor in self.executors:
            self._run(executor, [])
        return any(self._queues.values())

    def run(self, max_steps: int = 1_000_000) -> None:
        """Step until nothing happens any more at this time.

        Raises
        ------
        TopologyError
            It does not come to rest: a spout or a cycle of bolts emits for ever.
        """
        for _ in range(max_steps):
            if not self.step():
                return
        raise TopologyError(
            f"the topology was not at rest after {max_steps} steps; step() runs an endless one piece by piece"
        )

    def advance(self, seconds: float) -> None:
        """Let time pass at once; what it brings about happens in the next steps."""
        self.now += seconds

    def kill(self, task: int) -> None:
        """Lose the executor of a task with all that waits for it, and start it again with fresh instances."""
        lost = self._executors[task]
        for each in lost.place.tasks:
            self._queues[each].clear()
        self._open(make_executor(lost.place, self._setting))

    def instance(self, component: str, task: int = 0) -> Any:
        """Return the spout or bolt object of the component's task of this number, from 0."""
        number = self.layout.tasks[component][task]
        return self._executors[number].instances[number]

    def spout(self, component: str, task: int = 0) -> Any:
        """Return the spout object of a task."""
        return self.instance(component, task)

    def waiting(self, component: str) -> int:
        """Return how many deliveries wait for a component."""
        return sum(len(self._queues[task]) for task in self.layout.tasks[component])

    @property
    def pending(self) -> int:
        """How many tracked messages are not answered."""
        return sum(each.pending for each in self.executors)

    def close(self) -> None:
        """Clean up all spouts and bolts."""
        for each in self.executors:
            each.close()

    def _open(self, executor: Executor) -> None:
        self._executors |= dict.fromkeys(executor.place.tasks, executor)
        executor.open()

    @property
    def executors(self) -> list[Executor]:
        """All executors."""
        return list({id(each): each for each in self._executors.values()}.values())

    def _run(self, executor: Executor, deliveries: list[tuple[int, Body]]) -> None:
        try:
            executor.step(deliveries)
        except TaskError as error:
            self.errors.append(ReportedError.of(error.component, error.task, error))
            self.kill(error.task)
