"""The interfaces of spouts; the spouts themselves are in the package `spouts`.

Begin with `interfaces.py`: `ITridentSpout` with its `BatchCoordinator` and `Emitter`, `IBatchSpout` for rows in the driver, and
what each may offer in addition. `partitioned.py` has sources in partitions, `rich.py` Storm's spout of single tuples.
docs/writing-a-spout.md writes one of each.
"""

from trident.spout.completing import (
    CompletedByProcessing,
    PartitionRead,
)
from trident.spout.interfaces import (
    Away,
    BatchCoordinator,
    ChoosesPositions,
    CommitterCoordinator,
    DeclaresSpoutType,
    Definition,
    Emitter,
    IBatchSpout,
    ICommitterTridentSpout,
    ITridentSpout,
    KnowsAway,
    KnowsLag,
    KnowsSize,
    Lag,
    Preparing,
    Quick,
    SizedCoordinator,
    SpoutType,
    Throttled,
    TransactionAttempt,
)
from trident.spout.partitioned import (
    ClosesWithTopology,
    GatesBatches,
    HearsSuccess,
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
    LimitsBatches,
    OutputFieldsDeclarer,
    SpoutOutputCollector,
    TopologyContext,
)

__all__ = [
    "Activated",
    "Away",
    "BatchCoordinator",
    "ChoosesPositions",
    "ClosesWithTopology",
    "CommitterCoordinator",
    "CompletedByProcessing",
    "DeclaresOutputFields",
    "DeclaresSpoutType",
    "Definition",
    "Emitter",
    "GatesBatches",
    "HearsSuccess",
    "IBatchSpout",
    "ICommitterTridentSpout",
    "IOpaquePartitionedTridentSpout",
    "IPartitionedTridentSpout",
    "IRichSpout",
    "ITridentSpout",
    "KnowsAway",
    "KnowsLag",
    "KnowsSize",
    "Lag",
    "LimitsBatches",
    "OpaquePartitionedEmitter",
    "OutputFieldsDeclarer",
    "PartitionCollector",
    "PartitionRead",
    "PartitionedCoordinator",
    "PartitionedEmitter",
    "Preparing",
    "Quick",
    "SizedCoordinator",
    "SpoutOutputCollector",
    "SpoutType",
    "Throttled",
    "TopologyContext",
    "TransactionAttempt",
]
