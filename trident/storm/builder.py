"""`TopologyBuilder`: where a topology of spouts and bolts is declared, how each runs and what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Self

from trident.errors import EnvironmentProblem, TopologyError
from trident.extras import check_pyspark
from trident.fields import Fields, FieldsLike
from trident.roles import missing
from trident.setting_types import close_to
from trident.spout.rich import DeclaresOutputFields, fields_of_rich_spout
from trident.storm.interfaces import CustomStreamGrouping, IBasicBolt, IRichBolt, IRichSpout, is_basic, takes
from trident.storm.storm_config import MOST_THREADS, StormConfig
from trident.storm.storm_topology import Component, Grouping, GroupingKind, StormTopology, Subscription
from trident.storm.storm_tuples import DEFAULT_STREAM, StreamDeclarer, StreamSpec

if TYPE_CHECKING:
    from trident.storm.spark.running_storm import RunningStormTopology


class TopologyBuilder:
    """Declares spouts and bolts and what connects them. Nothing runs until a cluster gets what `create_topology` returns."""

    def __init__(self) -> None:
        self._spouts: dict[str, Component] = {}
        self._bolts: dict[str, Component] = {}

    def set_spout(self, id: str, spout: IRichSpout, parallelism: int = 1) -> SpoutDeclarer:
        """Add a spout that `parallelism` threads run.

        `TopologyError` if the id is taken or not valid, the object is not a spout, or its fields cannot be read.
        """
        has = "a spout has open, next_tuple, ack, fail and close. Derive it from BaseRichSpout"
        self._check("set_spout", id, parallelism, spout, IRichSpout, has)
        declarer = StreamDeclarer(id)
        if isinstance(spout, DeclaresOutputFields):
            spout.declare_output_fields(declarer)
        streams = dict(declarer.streams) or {DEFAULT_STREAM: StreamSpec(fields_of_rich_spout(spout))}
        self._spouts[id] = Component(id, spout, streams, parallelism, parallelism)
        return SpoutDeclarer(self._spouts, id)

    def set_bolt(self, id: str, bolt: IRichBolt | IBasicBolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt that `parallelism` threads run; say with the groupings of the result what it reads.

        `TopologyError` if the id is taken or not valid, the object is not a bolt, or its fields cannot be read.
        """
        has = "a bolt has prepare, execute, cleanup and declare_output_fields. Derive it from BaseBasicBolt or BaseRichBolt"
        self._check("set_bolt", id, parallelism, bolt, IRichBolt, has)
        basic = is_basic(bolt)  # then `prepare` has to be that of a basic one too
        if not takes(bolt.prepare, 2 if basic else 3):
            kind, found = ("basic", "execute(tuple, collector)") if basic else ("rich", "execute(tuple)")
            wanted = "prepare(conf, context)" if basic else "prepare(conf, context, collector)"
            raise TopologyError(
                f"bolt {id!r}: {type(bolt).__name__} has {found}, so it is a {kind} bolt, which needs {wanted}; its prepare is "
                f"{signature(bolt.prepare)}"
            )
        declarer = StreamDeclarer(id)
        bolt.declare_output_fields(declarer)
        self._bolts[id] = Component(id, bolt, dict(declarer.streams), parallelism, parallelism)
        return BoltDeclarer(self._bolts, id)

    def create_topology(self) -> StormTopology:
        """Return what was declared, checked as a whole.

        `TopologyError` if there is no spout; a bolt reads nothing, an unknown component or stream, or a field that is not
        there; a direct stream is read without `direct_grouping`, or the other way round.
        """
        topology = StormTopology(dict(self._spouts), dict(self._bolts))
        if not topology.spouts:
            raise TopologyError("the topology has no spout; add one with set_spout")
        for bolt in topology.bolts.values():
            if not bolt.inputs:
                raise TopologyError(
                    f"bolt {bolt.id!r} reads nothing; subscribe it to a stream, e.g. .shuffle_grouping('…')"
                )
            for each in bolt.inputs:
                _check_input(topology, bolt, each)
        return topology

    def start(
        self, conf: StormConfig | Mapping[str, Any] | None = None, *, active: bool = True, **settings: Any
    ) -> RunningStormTopology:
        """Run the topology on Spark; return once all its workers are up.

        With `active=False` no spout is asked for a tuple before `activate()` is called on what this returns.

        Raises
        ------
        TopologyError, ConfigError
            As `create_topology`; a component cannot be pickled; an unknown or impossible setting.
        EnvironmentProblem
            No Java, no `pyzmq`, or fewer Spark slots than workers.
        TopologyDiedError
            Its workers died too often while they started, for instance because a spout cannot be opened.
        """
        return start_on_spark(self.create_topology(), StormConfig.of(conf, **settings), active)

    def _check(self, call: str, id: str, parallelism: int, made: object, role: type, has: str) -> None:
        if isinstance(made, type):
            raise TopologyError(
                f"component {id!r}: {made.__name__} is a class; give an instance of it, {made.__name__}(…)"
            )
        if not isinstance(id, str) or not id or id.startswith("__"):
            raise TopologyError(f"{id!r} cannot name a component; use a text that does not begin with '__'")
        if id in self._spouts or id in self._bolts:
            raise TopologyError(f"component {id!r} is set twice; the ids of spouts and bolts differ from each other")
        if isinstance(parallelism, bool) or not isinstance(parallelism, int) or not 1 <= parallelism <= MOST_THREADS:
            raise TopologyError(
                f"component {id!r}: parallelism={parallelism!r} must be a whole number from 1 to {MOST_THREADS:,}"
            )
        lacking = next(iter(missing(made, role)), None)
        if lacking is not None:
            raise TopologyError(f"{call}({id!r}): {type(made).__name__} has no {lacking}(); {has}")


def start_on_spark(topology: StormTopology, conf: StormConfig, active: bool = True) -> RunningStormTopology:
    check_pyspark("a LocalCluster")
    try:
        from trident.storm.spark.running_storm import RunningStormTopology
    except ModuleNotFoundError as error:
        if error.name != "zmq":
            raise
        raise EnvironmentProblem(
            "spouts and bolts on Spark need the package pyzmq: pip install 'trident-spark[storm]'. A LocalCluster does not"
        ) from error
    return RunningStormTopology(topology, conf, active)


class SpoutDeclarer:
    """How a spout runs."""

    def __init__(self, declared: dict[str, Component], id: str) -> None:
        self._all, self._id = declared, id

    def set_num_tasks(self, tasks: int) -> Self:
        """Give the component this many instances, not fewer than threads; a rebalance may use up to as many threads."""
        executors = self._all[self._id].executors
        if isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < executors:
            raise TopologyError(
                f"set_num_tasks({tasks!r}) of component {self._id!r}: it has {executors} executors, "
                "and each needs at least one task"
            )
        return self._change(tasks=tasks)

    def add_configuration(self, name: str, value: Any) -> Self:
        """Set a setting for this component alone: one of `StormConfig`, or one of your own for its `conf`."""
        conf = self._all[self._id].conf
        return self._change(conf={**conf, **StormConfig.for_one_component(name, value)})

    def _change(self, **changes: Any) -> Self:
        self._all[self._id] = replace(self._all[self._id], **changes)
        return self


class BoltDeclarer(SpoutDeclarer):
    """How a bolt runs, and what it reads: one call for each stream that it subscribes to."""

    def shuffle_grouping(self, component: str, stream_id: str = DEFAULT_STREAM) -> Self:
        """Spread tuples evenly over the tasks."""
        return self._subscribe("shuffle", component, stream_id)

    def fields_grouping(self, component: str, fields: FieldsLike, stream_id: str = DEFAULT_STREAM) -> Self:
        """Send tuples with equal values of these fields to the same task."""
        return self._subscribe("fields", component, stream_id, fields)

    def partial_key_grouping(self, component: str, fields: FieldsLike, stream_id: str = DEFAULT_STREAM) -> Self:
        """Send tuples with equal values of these fields to one of two tasks, the one that got less so far."""
        return self._subscribe("partial_key", component, stream_id, fields)

    def all_grouping(self, component: str, stream_id: str = DEFAULT_STREAM) -> Self:
        """Send a copy of each tuple to every task."""
        return self._subscribe("all", component, stream_id)

    def global_grouping(self, component: str, stream_id: str = DEFAULT_STREAM) -> Self:
        """Send all tuples to one task, the one with the lowest id."""
        return self._subscribe("global", component, stream_id)

    def none_grouping(self, component: str, stream_id: str = DEFAULT_STREAM) -> Self:
        """Leave the choice to the framework, which shuffles."""
        return self._subscribe("none", component, stream_id)

    def direct_grouping(self, component: str, stream_id: str = DEFAULT_STREAM) -> Self:
        """Read a direct stream: its emitter names the task."""
        return self._subscribe("direct", component, stream_id)

    def local_or_shuffle_grouping(self, component: str, stream_id: str = DEFAULT_STREAM) -> Self:
        """Spread tuples evenly over the tasks of the emitter's own worker, or over all if it has none."""
        return self._subscribe("local_or_shuffle", component, stream_id)

    def custom_grouping(self, component: str, grouping: CustomStreamGrouping, stream_id: str = DEFAULT_STREAM) -> Self:
        """Let an object of yours choose the tasks."""
        if not isinstance(grouping, CustomStreamGrouping):
            raise TopologyError(
                f"custom_grouping of bolt {self._id!r}: {type(grouping).__name__} needs prepare(context, source, "
                "target_tasks) and choose_tasks(task_id, values)"
            )
        return self._subscribe("custom", component, stream_id, chooser=grouping)

    def _subscribe(
        self, kind: GroupingKind, component: str, stream: str, fields: FieldsLike = (), **chooser: CustomStreamGrouping
    ) -> Self:
        grouping, inputs = Grouping(kind, Fields(fields).names, **chooser), self._all[self._id].inputs
        if kind in ("fields", "partial_key") and not grouping.fields:
            raise TopologyError(f"bolt {self._id!r}: a grouping by fields needs at least one field")
        for each in inputs:
            if (each.component, each.stream) == (component, stream):
                raise TopologyError(
                    f"bolt {self._id!r} reads stream {stream!r} of {component!r} twice "
                    f"({each.grouping.kind} and {kind}); choose one grouping"
                )
        return self._change(inputs=(*inputs, Subscription(component, stream, grouping)))


def _check_input(topology: StormTopology, bolt: Component, each: Subscription) -> None:
    source = topology.components.get(each.component)
    if source is None:
        raise TopologyError(
            f"bolt {bolt.id!r} reads component {each.component!r}, which is not set"
            f"{close_to(each.component, topology.components, otherwise='')}"
        )
    stream = source.streams.get(each.stream)
    if stream is None:
        raise TopologyError(
            f"bolt {bolt.id!r} reads stream {each.stream!r} of component {each.component!r}, which declares "
            f"{sorted(source.streams) or 'none'}{close_to(each.stream, source.streams, otherwise='')}"
        )
    if stream.direct != (each.grouping.kind == "direct"):
        found, wanted = ("direct", "direct_grouping") if stream.direct else ("not direct", "another grouping")
        raise TopologyError(
            f"bolt {bolt.id!r} reads stream {each.stream!r} of component {each.component!r} with {each.grouping.kind} "
            f"grouping, but the stream is {found}; use {wanted}"
        )
    for field in each.grouping.fields:
        if field not in stream.fields:
            raise TopologyError(
                f"bolt {bolt.id!r} groups stream {each.stream!r} of component {each.component!r} by field {field!r}, but it "
                f"has {list(stream.fields)}{close_to(field, stream.fields, otherwise='')}"
            )
