"""Runs topologies of spouts and bolts for tests: without threads, with a clock that the test moves."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.observe.events import ReportedError
from trident.roles import Closes
from trident.storm.execution.executors import Executor, make_executor
from trident.storm.execution.launch import Launch, TaskError
from trident.storm.execution.messages import Body
from trident.storm.interfaces import BaseRichSpout, SpoutOutputCollector, TopologyContext
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology
from trident.storm.storm_tuples import DEFAULT_STREAM, Origin, StreamDeclarer

__all__ = ["CompletedTopology", "MockedSpout", "SteppedCluster", "complete_topology"]

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

    def send(self, task: int, body: Body) -> None:
        self._queues[task].extend(self._link(task, body))

    def is_open(self, task: int) -> bool:
        return True

    def wait_until_open(self, task: int) -> None:
        """Queues are never full here."""

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
        """Step until nothing happens any more at this time; `TopologyError` if a spout or a cycle of bolts emits for ever."""
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

    spout = instance

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


@dataclass(frozen=True)
class CompletedTopology:
    """What came out: by mocked spout, the numbers of its rows that were acknowledged, and that failed at least once; errors."""

    acked: Mapping[str, Sequence[int]]
    failed: Mapping[str, Sequence[int]]
    errors: Sequence[ReportedError]
    _read: Mapping[tuple[str, str], Sequence[tuple[Any, ...]]]

    def tuples(self, component: str, stream_id: str = DEFAULT_STREAM) -> list[tuple[Any, ...]]:
        """Return the values that a component emitted to a stream, in order of emission."""
        return list(self._read.get((component, stream_id), ()))


def complete_topology(
    topology: StormTopology,
    mocked_spouts: Mapping[str, Sequence[Sequence[Any]]],
    conf: StormConfig | Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    **settings: Any,
) -> CompletedTopology:
    """Run a topology on given rows in place of its spouts, until every tree is complete or has failed once.

    Parameters
    ----------
    mocked_spouts
        The rows that each spout emits to its stream `default`, once each; a spout that is not named emits nothing.
    seed
        Another seed delivers tuples in another order.

    Examples
    --------
    >>> from trident.storm import BaseBasicBolt, TopologyBuilder
    >>> from trident.storm.testing import MockedSpout, complete_topology
    >>> class Split(BaseBasicBolt):
    ...     def declare_output_fields(self, declarer):
    ...         declarer.declare("word: string")
    ...
    ...     def execute(self, tuple, collector):
    ...         for word in tuple["line"].split():
    ...             collector.emit([word])
    >>> builder = TopologyBuilder()
    >>> lines = builder.set_spout("lines", MockedSpout("line"))
    >>> split = builder.set_bolt("split", Split()).shuffle_grouping("lines")
    >>> done = complete_topology(builder.create_topology(), {"lines": [["the cow"], ["the moon"]]})
    >>> sorted(done.tuples("split"))
    [('cow',), ('moon',), ('the',), ('the',)]
    """
    seen = defaultdict[tuple[str, str], list[tuple[Any, ...]]](list)

    def watch(origin: Origin, values: tuple[Any, ...]) -> None:
        seen[origin.component, origin.stream].append(values)

    def link(task: int, body: Body) -> tuple[Body]:
        for values, origin, _, _ in body if isinstance(body, list) else ():
            if topology.components[origin.component].streams[origin.stream].direct:
                watch(origin, values)  # one copy each, and no grouping sees it
        return (body,)

    mocked = _mock_spouts(topology, mocked_spouts)
    with SteppedCluster(mocked, conf, seed=seed, link=link, watch=watch, **settings) as cluster:
        cluster.run()
        while cluster.pending:
            cluster.advance(cluster.conf.message_timeout_s)
            cluster.run()
        tasks = {name: range(len(cluster.layout.tasks[name])) for name in mocked_spouts}
        made = {name: [cluster.instance(name, at) for at in ats] for name, ats in tasks.items()}
        acked = {name: sorted(at for each in of for at in each.acked) for name, of in made.items()}
        failed = {name: sorted(at for each in of for at in each.failed) for name, of in made.items()}
        return CompletedTopology(acked, failed, tuple(cluster.errors), seen)


def _mock_spouts(topology: StormTopology, rows_of: Mapping[str, Sequence[Sequence[Any]]]) -> StormTopology:
    for name in sorted(set(rows_of) - set(topology.spouts)):
        raise TopologyError(f"mocked_spouts names {name!r}, which is not a spout; there are {sorted(topology.spouts)}")
    spouts = {}
    for name, spec in topology.spouts.items():
        stream, rows = spec.streams.get(DEFAULT_STREAM), rows_of.get(name, ())
        if rows and stream is None:
            raise TopologyError(
                f"spout {name!r} has no stream {DEFAULT_STREAM!r} to emit rows to; it has {sorted(spec.streams)}"
            )
        fields = stream.fields if stream is not None else ()
        spouts[name] = replace(spec, made=MockedSpout(fields, *rows, replay=False))
    return StormTopology(spouts, topology.bolts)


class MockedSpout(BaseRichSpout):
    """Emits each row once, tracked by its number, and again after each failure; `acked`, `failed`: numbers, in order."""

    def __init__(self, fields: FieldsLike, *rows: Sequence[Any], replay: bool = True) -> None:
        self._fields = Fields(fields)
        self._rows = [tuple(row) for row in rows]
        self._replay = replay
        self.acked: list[int] = []
        self.failed: list[int] = []

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare(self._fields)

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Give this task its share of the rows."""
        self._collector = collector
        self._waiting = deque(range(context.task, len(self._rows), context.tasks))

    def next_tuple(self) -> None:
        if self._waiting:
            at = self._waiting.popleft()
            self._collector.emit(self._rows[at], at)

    def ack(self, msg_id: Any) -> None:
        self.acked.append(msg_id)

    def fail(self, msg_id: Any) -> None:
        self.failed.append(msg_id)
        if self._replay:
            self._waiting.append(msg_id)
