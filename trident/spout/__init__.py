"""The interfaces of spouts; the spouts themselves are in the package `spouts`."""

from trident.spout.interfaces import (
    BatchCoordinator,
    Definition,
    Emitter,
    IBatchSpout,
    ITridentSpout,
    SizedCoordinator,
    SpoutType,
    TransactionAttempt,
)

__all__ = [
    "BatchCoordinator",
    "Definition",
    "Emitter",
    "IBatchSpout",
    "ITridentSpout",
    "SizedCoordinator",
    "SpoutType",
    "TransactionAttempt",
]
