"""The interfaces of spouts: begin with `interfaces.py`. The spouts themselves are in the package `spouts`."""

from trident.extras import Extra, needs_package
from trident.spout.interfaces import (
    Away,
    BadRow,
    BatchCoordinator,
    BatchTraits,
    DeclaresSpoutType,
    Definition,
    Emitter,
    IBatchSpout,
    ICommitterTridentSpout,
    ITridentSpout,
    Lag,
    NamesItsSources,
    PartitionRead,
    Quick,
    SaysWhereItBegins,
    SpoutType,
    TransactionAttempt,
)
from trident.spout.partitioned import (
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    OpaquePartitionedEmitter,
    PartitionCollector,
    PartitionedCoordinator,
    PartitionedEmitter,
)
from trident.spout.rich import (
    Activated,
    DeclaresOutputFields,
    IRichSpout,
    OutputFieldsDeclarer,
    SpoutOutputCollector,
    TopologyContext,
)

__all__ = [
    "Activated", "Away", "BadRow", "BatchCoordinator", "BatchTraits", "DeclaresOutputFields", "DeclaresSpoutType",
    "Definition", "Emitter", "Extra", "IBatchSpout", "ICommitterTridentSpout", "IOpaquePartitionedTridentSpout",
    "IPartitionedTridentSpout", "IRichSpout", "ITridentSpout", "Lag", "NamesItsSources", "OpaquePartitionedEmitter",
    "OutputFieldsDeclarer", "PartitionCollector", "PartitionRead", "PartitionedCoordinator", "PartitionedEmitter",
    "Quick", "SaysWhereItBegins", "SpoutOutputCollector", "SpoutType", "TopologyContext", "TransactionAttempt",
    "needs_package",
]  # fmt: skip
