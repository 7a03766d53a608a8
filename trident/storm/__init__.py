"""Spouts, bolts and ackers: message by message, at least once, in milliseconds.

Begin with `builder.py` (what users declare) and `execution/` (what runs it).
"""

from trident.errors import FailedException, ReportedFailedException
from trident.storm.builder import BoltDeclarer, SpoutDeclarer, TopologyBuilder
from trident.storm.interfaces import (
    BaseBasicBolt,
    BaseRichBolt,
    BaseRichSpout,
    BasicOutputCollector,
    CustomStreamGrouping,
    IBasicBolt,
    IRichBolt,
    IRichSpout,
    OutputCollector,
    SpoutOutputCollector,
    TopologyContext,
)
from trident.storm.state_lookup import StateLookupBolt
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology
from trident.storm.storm_tuples import StreamDeclarer, Tuple
from trident.storm.topology_handle import LocalCluster, LocalTopology, TopologyDiedError, WorkerLostError

__all__ = [
    "BaseBasicBolt", "BaseRichBolt", "BaseRichSpout", "BasicOutputCollector", "BoltDeclarer", "CustomStreamGrouping",
    "FailedException", "IBasicBolt", "IRichBolt", "IRichSpout", "LocalCluster", "LocalTopology", "OutputCollector",
    "ReportedFailedException", "SpoutDeclarer", "SpoutOutputCollector", "StateLookupBolt", "StormConfig", "StormTopology",
    "StreamDeclarer", "TopologyBuilder", "TopologyContext", "TopologyDiedError", "Tuple", "WorkerLostError",
]  # fmt: skip
