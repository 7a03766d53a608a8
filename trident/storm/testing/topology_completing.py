"""`complete_topology`: what a topology makes of given tuples, for users' tests.

A spout of given tuples, for tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.observe.events import ReportedError
from trident.storm.execution.messages import Body
from trident.storm.interfaces import BaseRichSpout, SpoutOutputCollector, TopologyContext
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import SpoutSpec, StormTopology
from trident.storm.storm_tuples import Origin
from trident.storm.streams import DEFAULT_STREAM, StreamDeclarer
from trident.storm.testing.stepped_cluster import SteppedCluster


@dataclass(frozen=True)
class CompletedTopology:
    """What came out.

    Attributes
    ----------
    acked, failed
        By mocked spout, the numbers of its rows that were acknowledged, and that failed at least once.
    errors
        What tasks raised or reported.
    """

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

    Raises
    ------
    TopologyError
        A name is no spout, or a spout to be mocked has no stream `default`.

    Examples
    --------
    >>> from trident.storm import BaseBasicBolt, BaseRichSpout, TopologyBuilder
    >>> from trident.storm.testing import complete_topology
    >>> class Lines(BaseRichSpout):
    ...     def declare_output_fields(self, declarer):
    ...         declarer.declare("line: string")
    >>> class Split(BaseBasicBolt):
    ...     def declare_output_fields(self, declarer):
    ...         declarer.declare("word: string")
    ...
    ...     def execute(self, tuple, collector):
    ...         for word in tuple["line"].split():
    ...             collector.emit([word])
    >>> class Sink(BaseBasicBolt):
    ...     def execute(self, tuple, collector):
    ...         pass
    >>> builder = TopologyBuilder()
    >>> lines = builder.set_spout("lines", Lines())
    >>> split = builder.set_bolt("split", Split()).shuffle_grouping("lines")
    >>> sink = builder.set_bolt("sink", Sink()).shuffle_grouping("split")
    >>> done = complete_topology(builder.create_topology(), {"lines": [["the cow"], ["the moon"]]})
    >>> sorted(done.tuples("split"))
    [('cow',), ('moon',), ('the',), ('the',)]
    """
    unknown = sorted(set(mocked_spouts) - set(topology.spouts))
    if unknown:
        raise TopologyError(
            f"mocked_spouts names {unknown[0]!r}, which is not a spout; there are {sorted(topology.spouts)}"
        )
    spouts = {name: _mocked(spec, mocked_spouts.get(name, ())) for name, spec in topology.spouts.items()}
    seen = _Seen(topology)
    with SteppedCluster(
        StormTopology(spouts, topology.bolts), conf, seed=seed, link=seen.link, watch=seen.watch, **settings
    ) as cluster:
        return _completed(cluster, mocked_spouts, seen)


def _completed(cluster: SteppedCluster, mocked: Iterable[str], seen: _Seen) -> CompletedTopology:
    """Run until nothing is pending, and return what came out."""
    cluster.run()
    while cluster.pending:
        cluster.advance(cluster.conf.message_timeout_s)
        cluster.run()
    tasks = {name: range(len(cluster.layout.tasks[name])) for name in mocked}
    made = {name: [cluster.instance(name, at) for at in ats] for name, ats in tasks.items()}
    return CompletedTopology(
        {name: sorted(at for each in spouts for at in each.acked) for name, spouts in made.items()},
        {name: sorted(at for each in spouts for at in each.failed) for name, spouts in made.items()},
        tuple(cluster.errors),
        seen.values,
    )


class _Seen:
    """Notes each emitted tuple once, however many tasks get a copy."""

    def __init__(self, topology: StormTopology) -> None:
        self._topology = topology
        self.values: dict[tuple[str, str], list[tuple[Any, ...]]] = {}

    def watch(self, origin: Origin, values: tuple[Any, ...]) -> None:
        self.values.setdefault((origin.component, origin.stream), []).append(values)

    def link(self, task: int, body: Body) -> tuple[Body]:
        for values, origin, _, _ in body if isinstance(body, list) else ():
            if self._topology.components[origin.component].streams[origin.stream].direct:
                self.watch(origin, values)  # one copy each, and no grouping sees it
        return (body,)


def _mocked(spec: SpoutSpec, rows: Sequence[Sequence[Any]]) -> SpoutSpec:
    stream = spec.streams.get(DEFAULT_STREAM)
    if rows and stream is None:
        raise TopologyError(
            f"spout {spec.id!r} has no stream {DEFAULT_STREAM!r} to emit rows to; it has {sorted(spec.streams)}"
        )
    fields = stream.fields if stream is not None else ()
    return replace(spec, spout=MockedSpout(fields, *rows, replay=False))


class MockedSpout(BaseRichSpout):
    """Emits each row once, tracked by its number, and again after each failure.

    Attributes
    ----------
    acked, failed
        The numbers of the rows, in the order in which they were acknowledged or failed.
    """

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
