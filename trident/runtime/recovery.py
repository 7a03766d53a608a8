"""At start: do log and stores belong together (R8)? If not: refuse, adopt the store, or empty the state."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trident.coordination.coordinator import RETRY_BITS
from trident.coordination.log import TransactionLog
from trident.coordination.records import AdoptRecord, LayoutRecord, ResetRecord
from trident.errors import StateMismatchError
from trident.planner import Plan
from trident.runtime.capabilities import kinds_of
from trident.state.sentinel import check_sentinel
from trident.state.txid import Sentinel, Txid

__all__ = ["reconcile"]

logger = logging.getLogger(__name__)


def reconcile(plan: Plan, log: TransactionLog, states: Mapping[str, Sequence[Any]], policy: str, make: Any) -> None:
    """Bring log and stores together before the first batch.

    Parameters
    ----------
    states
        By name, the state of each partition, as the topology wants it now.
    policy
        `"refuse"`, `"adopt"` or `"restart"`, see `Config.state_recovery`.
    make
        `make(state, partition, partitions)` opens a partition of another layout.

    Raises
    ------
    StateMismatchError
        They do not belong together and the policy is to refuse. Nothing was written.
    """
    kinds = kinds_of(plan, states)
    for name, partitions in states.items():
        recorded = log.state.layouts.get(name)
        count = recorded[0] if recorded is not None else len(partitions)
        laid_out = partitions if count == len(partitions) else [make(name, p, count) for p in range(count)]
        kind = kinds[name]
        layout = (len(partitions), "custom" if kind is None else kind.value)
        unfinished = False
        if hasattr(partitions[0], "read_sentinel"):
            unfinished = _reconcile_state(log, name, laid_out, policy)
            if unfinished or (recorded is not None and recorded != layout):
                _lay_anew(log, name, partitions)
        if unfinished or recorded != layout:
            log.append(LayoutRecord(name, *layout))


def _reconcile_state(log: TransactionLog, name: str, partitions: Sequence[Any], policy: str) -> bool:
    """Check every partition; returns whether an earlier start was killed while it laid the sentinels anew."""
    found = [state.read_sentinel() for state in partitions]
    anew = {p for p, sentinel in enumerate(found) if sentinel is not None and sentinel == _anew(log)}
    try:
        for partition, sentinel in enumerate(found):
            if partition not in anew:
                check_sentinel(name, partition, sentinel, _next_txid(log, name, partition))
    except StateMismatchError as mismatch:
        if policy == "refuse":
            raise
        logger.warning("state %r: %s; state_recovery=%s", name, mismatch, policy)
        if policy == "restart":
            for state in partitions:
                state.reset()
            log.append(ResetRecord(name))
        else:
            _adopt(log, name, partitions, found)
        return False
    return any(found[partition] != log.state.expected(name, partition) for partition in anew)


def _anew(log: TransactionLog) -> Sentinel | None:
    """The sentinel of a partition that is laid anew: at the last committed batch."""
    state = log.state
    return Sentinel(state.incarnation, state.txid, state.winners.winner(state.txid) or 0) if state.txid else None


def _next_txid(log: TransactionLog, name: str, partition: int) -> Txid:
    """The commit that would come next, with an attempt above all of this epoch: only earlier drivers are legal."""
    state = log.state
    attempt = (log.epoch + 1 << RETRY_BITS) - 1
    return Txid(state.txid + 1, attempt, state.winners_of(name), state.incarnation, state.expected(name, partition))


def _adopt(log: TransactionLog, name: str, partitions: Sequence[Any], found: Sequence[Sentinel | None]) -> None:
    """Take the store as it is: its last batch counts as committed, with whatever values it left."""
    state = log.state
    base = max([state.txid, *(sentinel.txid for sentinel in found if sentinel is not None)])
    foreign = base > state.txid or any(s is not None and s.incarnation != state.incarnation for s in found)
    attempt = log.epoch << RETRY_BITS
    laid = {}
    if base:
        for partition, instance in enumerate(partitions):
            instance.move_sentinel(Sentinel(state.incarnation, base, attempt), force=True)
            laid[partition] = (base, attempt)
    log.append(AdoptRecord(name, base, foreign, laid))


def _lay_anew(log: TransactionLog, name: str, partitions: Sequence[Any]) -> None:
    """Another number of partitions: keys stay where they are, each new partition gets the last committed sentinel."""
    sentinel = _anew(log)
    if sentinel is not None:
        for instance in partitions:
            instance.move_sentinel(sentinel, force=True)
