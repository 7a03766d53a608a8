"""`TopologyBuilder`: where a topology of spouts and bolts is declared. Each call checks what can be checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trident.errors import EnvironmentProblem, TopologyError
from trident.extras import check_pyspark
from trident.roles import missing
from trident.spout.rich import DeclaresOutputFields, fields_of_rich_spout
from trident.storm.checks import check_signatures, check_topology
from trident.storm.declarers import BoltDeclarer, SpoutDeclarer
from trident.storm.interfaces import IBasicBolt, IRichBolt, IRichSpout
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import BoltSpec, SpoutSpec, StormTopology
from trident.storm.streams import DEFAULT_STREAM, StreamDeclarer, StreamSpec

if TYPE_CHECKING:
    from trident.storm.spark.running_storm import RunningStormTopology


class TopologyBuilder:
    """Declares spouts and bolts and what connects them. Nothing runs until a cluster gets what `create_topology` returns.

    Examples
    --------
    >>> from trident.storm import BaseBasicBolt, BaseRichSpout, TopologyBuilder
    >>> class Sentences(BaseRichSpout):
    ...     def declare_output_fields(self, declarer):
    ...         declarer.declare("sentence: string")
    >>> class Split(BaseBasicBolt):
    ...     def declare_output_fields(self, declarer):
    ...         declarer.declare("word: string")
    ...
    ...     def execute(self, tuple, collector):
    ...         for word in tuple["sentence"].split():
    ...             collector.emit([word])
    >>> builder = TopologyBuilder()
    >>> spout = builder.set_spout("sentences", Sentences())
    >>> bolt = builder.set_bolt("split", Split(), 2).shuffle_grouping("sentences")
    >>> list(builder.create_topology().components)
    ['sentences', 'split']
    """

    def __init__(self) -> None:
        self._spouts: dict[str, SpoutSpec] = {}
        self._bolts: dict[str, BoltSpec] = {}

    def set_spout(self, id: str, spout: IRichSpout, parallelism: int = 1) -> SpoutDeclarer:
        """Add a spout that `parallelism` threads run.

        Raises
        ------
        TopologyError
            The id is taken or not valid, the object is not a spout, or its fields cannot be read.
        """
        self._check(id, parallelism, spout)
        lacking = list(missing(spout, IRichSpout))
        if lacking:
            raise TopologyError(
                f"set_spout({id!r}): {type(spout).__name__} has no {lacking[0]}(); a spout has open, next_tuple, ack, fail "
                "and close. Derive it from BaseRichSpout"
            )
        declarer = StreamDeclarer(id)
        if isinstance(spout, DeclaresOutputFields):
            spout.declare_output_fields(declarer)
        streams = dict(declarer.streams) or {DEFAULT_STREAM: StreamSpec(fields_of_rich_spout(spout))}
        self._spouts[id] = SpoutSpec(id, parallelism, parallelism, streams, {}, spout)
        return SpoutDeclarer(self._spouts, id)

    def set_bolt(self, id: str, bolt: IRichBolt | IBasicBolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt that `parallelism` threads run; say with the groupings of the result what it reads.

        Raises
        ------
        TopologyError
            The id is taken or not valid, the object is not a bolt, or its fields cannot be read.
        """
        self._check(id, parallelism, bolt)
        lacking = list(missing(bolt, IRichBolt))
        if lacking:
            raise TopologyError(
                f"set_bolt({id!r}): {type(bolt).__name__} has no {lacking[0]}(); a bolt has prepare, execute, cleanup and "
                "declare_output_fields. Derive it from BaseBasicBolt or BaseRichBolt"
            )
        check_signatures(id, bolt)
        declarer = StreamDeclarer(id)
        bolt.declare_output_fields(declarer)
        self._bolts[id] = BoltSpec(id, parallelism, parallelism, dict(declarer.streams), {}, bolt, ())
        return BoltDeclarer(self._bolts, id)

    def create_topology(self) -> StormTopology:
        """Return what was declared, checked as a whole.

        Raises
        ------
        TopologyError
            There is no spout; a bolt reads nothing, an unknown component or stream, or a field that is not there; a direct
            stream is read without `direct_grouping`, or the other way round.
        """
        topology = StormTopology(dict(self._spouts), dict(self._bolts))
        check_topology(topology)
        return topology

    def start(
        self, conf: StormConfig | Mapping[str, Any] | None = None, *, active: bool = True, **settings: Any
    ) -> RunningStormTopology:
        """Run the topology on Spark; return once all its workers are up.

        With `active=False` no spout is asked for a tuple before `activate()` is called on what this returns.

        Raises
        ------
        TopologyError
            As `create_topology`; or a component cannot be pickled.
        ConfigError
            An unknown or impossible setting.
        EnvironmentProblem
            No Java, no `pyzmq`, or fewer Spark slots than workers.
        TopologyDiedError
            Its workers died too often while they started, for instance because a spout cannot be opened.
        """
        return start_on_spark(self.create_topology(), StormConfig.of(conf, **settings), active)

    def _check(self, id: str, parallelism: int, made: object) -> None:
        if isinstance(made, type):
            raise TopologyError(
                f"component {id!r}: {made.__name__} is a class; give an instance of it, {made.__name__}(…)"
            )
        if not isinstance(id, str) or not id or id.startswith("__"):
            raise TopologyError(f"{id!r} cannot name a component; use a text that does not begin with '__'")
        if id in self._spouts or id in self._bolts:
            raise TopologyError(f"component {id!r} is set twice; the ids of spouts and bolts differ from each other")
        if isinstance(parallelism, bool) or not isinstance(parallelism, int) or parallelism < 1:
            raise TopologyError(f"component {id!r}: parallelism={parallelism!r} must be a whole number of at least 1")


def start_on_spark(topology: StormTopology, conf: StormConfig, active: bool = True) -> RunningStormTopology:
    """Run a topology on Spark; return once all its workers are up. See `TopologyBuilder.start`."""
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
