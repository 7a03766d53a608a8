"""Whether the code of an upgrade has committed a batch: from then on there is no way back to the code before it.

The record of the topology notes the last epoch of the log before the first driver of the new code. A batch of a later epoch
is of the new code, also if its driver died before it could tell.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from trident.cluster.state.cluster_records import StormBase
from trident.coordination.log_address import open_reader
from trident.coordination.log_state import LogState
from trident.state.txid import RETRY_BITS

__all__ = ["epoch_before", "has_committed_since", "log_before", "proved", "with_proof"]

_EPOCH = "epoch"


def has_committed_since(log: LogState, epoch: int) -> bool:
    """Whether the last committed batch is of a later epoch."""
    winner = log.winners.winner(log.txid) if log.txid else None
    return winner is not None and winner >> RETRY_BITS > epoch


def proved(base: StormBase) -> StormBase:
    """Return the record of a topology whose new code runs."""
    return replace(base, previous_code_hash="", previous={})


def with_proof(base: StormBase, log: LogState) -> StormBase:
    """Return the record as the log says before a driver starts: proved, or with the epoch after which a batch is a proof."""
    if not base.previous_code_hash:
        return base
    if _EPOCH not in base.previous:
        return replace(base, previous={**base.previous, _EPOCH: log.epoch})
    return proved(base) if has_committed_since(log, base.previous[_EPOCH]) else base


def epoch_before(base: StormBase) -> int:
    """Return the last epoch of the log before the code of this record."""
    return int(base.previous.get(_EPOCH, 0))


def log_before(log_dir: str | None) -> LogState:
    """Return what a log says before a driver starts; None for one in memory, of which no batch outlives a driver."""
    if log_dir is not None:
        with closing(open_reader(log_dir)) as reader:
            if reader.is_there():
                return reader.refresh()
    return LogState("", "")
