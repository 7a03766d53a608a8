"""The interfaces of spouts; the spouts themselves are in the package `spouts`.

All is in `interfaces.py`: `ITridentSpout` with its `BatchCoordinator` and `Emitter`, `IBatchSpout` for rows in the driver, and
what each may offer in addition. docs/writing-a-spout.md writes one of each.
"""

from trident.spout.interfaces import (
    BatchCoordinator,
    DeclaresSpoutType,
    Definition,
    Emitter,
    IBatchSpout,
    ITridentSpout,
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

__all__ = [
    "BatchCoordinator",
    "DeclaresSpoutType",
    "Definition",
    "Emitter",
    "IBatchSpout",
    "ITridentSpout",
    "KnowsLag",
    "KnowsSize",
    "Lag",
    "Preparing",
    "Quick",
    "SizedCoordinator",
    "SpoutType",
    "Throttled",
    "TransactionAttempt",
]
