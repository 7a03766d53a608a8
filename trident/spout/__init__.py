"""The interfaces of spouts; the spouts themselves are in the package `spouts`."""

from trident.spout.interfaces import (
    BatchCoordinator,
    DeclaresSpoutType,
    Definition,
    Emitter,
    IBatchSpout,
    ITridentSpout,
    KnowsSize,
    Quick,
    SizedCoordinator,
    SpoutType,
    TransactionAttempt,
)

__all__ = [
    "BatchCoordinator",
    "DeclaresSpoutType",
    "Definition",
    "Emitter",
    "IBatchSpout",
    "ITridentSpout",
    "KnowsSize",
    "Quick",
    "SizedCoordinator",
    "SpoutType",
    "TransactionAttempt",
]
