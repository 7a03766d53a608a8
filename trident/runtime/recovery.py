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
    for name, partitions in states.items():
        recorded = log.state.layouts.get(name)
        count = recorded[0] if recorded is not None else len(partitions)
        laid_out = partitions if count == len(partitions) else [make(name, p, count) for p in range(count)]
        if hasattr(partitions[0], "read_sentinel"):
            _reconcile_state(log, name, laid_out, policy)
            if laid_out is not partitions:
                _lay_anew(log, name, partitions)
        kind = getattr(getattr(partitions[0], "kind", None), "value", "custom")
        if recorded != (len(partitions), kind):
            log.append(LayoutRecord(name, len(partitions), kind))


def _reconcile_state(log: TransactionLog, name: str, partitions: Sequence[Any], policy: str) -> None:
    found = [state.read_sentinel() for state in partitions]
    try:
        for partition, sentinel in enumerate(found):
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


def _next_txid(log: TransactionLog, name: str, partition: int) -> Txid:
    """The commit that would come next, with an attempt above all of this epoch: only earlier drivers are legal."""
    state = log.state
    attempt = (log.epoch + 1 << RETRY_BITS) - 1
    return Txid(state.txid + 1, attempt, state.winners, state.incarnation, state.expected(name, partition))


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
    state = log.state
    if state.txid:
        sentinel = Sentinel(state.incarnation, state.txid, state.winners.winner(state.txid) or 0)
        for instance in partitions:
            instance.move_sentinel(sentinel, force=True)
