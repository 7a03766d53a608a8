"""The interfaces of spouts; the spouts themselves are in the package `spouts`.

Begin with `interfaces.py`: `ITridentSpout` with its `BatchCoordinator` and `Emitter`, and `IBatchSpout` for rows in the
driver. `partitioned.py` has sources in partitions, `rich.py` Storm's spout of single tuples, and which kind an object is.
docs/writing-a-spout.md shows how to write each.
"""

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
    "IPartitionedTridentSpout", "IRichSpout", "ITridentSpout", "Lag", "OpaquePartitionedEmitter",
    "OutputFieldsDeclarer", "PartitionCollector", "PartitionRead", "PartitionedCoordinator", "PartitionedEmitter",
    "Quick", "SaysWhereItBegins", "SpoutOutputCollector", "SpoutType", "TopologyContext", "TransactionAttempt",
    "needs_package",
]  # fmt: skip
