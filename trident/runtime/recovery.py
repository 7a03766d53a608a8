"""At start: do log and stores belong together (R8)? If not: refuse, adopt the stores, or empty the states.

All states are compared before anything is written. Then, in this order: what the policy asks for; the record that this
driver may write; and a claim on the place of each state that is new to the log, or has another number of partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trident.coordination.log import TransactionLog
from trident.coordination.records import AdoptRecord, LayoutRecord, ResetRecord, StartRecord
from trident.errors import BackendError, FencedError, StateMismatchError, StatePlaceError
from trident.planner import Plan
from trident.runtime.capabilities import kinds_of
from trident.state.interfaces import StateType
from trident.state.sentinel import check_sentinel
from trident.state.txid import RETRY_BITS, Epochs, Sentinel, Txid, epoch_of

__all__ = ["reconcile"]

logger = logging.getLogger(__name__)

Make = Callable[[str, int, int], Any]

_TRIES = 3
_ABOVE_ALL = 1 << 62
"""An attempt that no sentinel is ahead of: a store that is ahead of the log is a mismatch, nobody was replaced."""


@dataclass
class _Found:
    """A state that keeps sentinels, as this start finds it.

    Attributes
    ----------
    laid_out
        Its partitions as the log knows them.
    sentinels
        What their stores say.
    mismatch
        Why store and log do not belong together; None if they do.
    """

    name: str
    laid_out: Sequence[Any]
    sentinels: list[Sentinel | None]
    mismatch: StateMismatchError | None = None


def reconcile(plan: Plan, log: TransactionLog, states: Mapping[str, Sequence[Any]], policy: str, make: Make) -> None:
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
    opened: list[Any] = []

    def laid_out(name: str, partitions: Sequence[Any]) -> Sequence[Any]:
        count = log.state.layouts.get(name, (len(partitions),))[0]
        if count == len(partitions):
            return partitions
        others = [make(name, partition, count) for partition in range(count)]
        opened.extend(others)
        return others

    try:
        founds = [
            _compare(log, name, laid_out(name, partitions))
            for name, partitions in states.items()
            if hasattr(partitions[0], "read_sentinel")
        ]
        _recover(log, founds, policy)
        log.append(StartRecord(log.epoch))
        by_name = {found.name: found for found in founds}
        for name, partitions in states.items():
            _lay_out(log, name, kinds[name], partitions, by_name.get(name))
    finally:
        for instance in opened:
            if hasattr(instance, "close"):
                instance.close()


def _compare(log: TransactionLog, name: str, partitions: Sequence[Any]) -> _Found:
    found = _Found(name, partitions, [instance.read_sentinel() for instance in partitions])
    try:
        for partition, sentinel in enumerate(found.sentinels):
            check_sentinel(name, partition, sentinel, _next_txid(log, name, partition), _place(partitions[0]))
    except StateMismatchError as mismatch:
        found.mismatch = mismatch
    return found


def _place(state: Any) -> str:
    """What a state is called in its sentinels; "" of a user's own that does not say."""
    return getattr(state, "place", "")


def _next_txid(log: TransactionLog, name: str, partition: int) -> Txid:
    """The commit that would come next, to be compared with what drivers of earlier epochs left behind."""
    state = log.state
    expected = state.expected(name, partition)
    return Txid(state.txid + 1, _ABOVE_ALL, state.winners_of(name), state.incarnation, expected, _epochs(log))


# ---- what the policy asks for ----------------------------------------------------------------------------------------


def _recover(log: TransactionLog, founds: Sequence[_Found], policy: str) -> None:
    mismatches = [found for found in founds if found.mismatch is not None]
    for found in mismatches:
        assert found.mismatch is not None
        # Another state's values are not ours to remove.
        if policy == "refuse" or (policy == "restart" and isinstance(found.mismatch, StatePlaceError)):
            raise found.mismatch
        logger.warning("state %r: %s; state_recovery=%s", found.name, found.mismatch, policy)
    if not mismatches:
        return
    if policy == "adopt":
        _adopt(log, founds)
        return
    for found in mismatches:
        for instance in found.laid_out:
            instance.reset()
        log.append(ResetRecord(found.name))


def _adopt(log: TransactionLog, founds: Sequence[_Found]) -> None:
    """Take the stores as they are: the last batch of any of them counts as committed, with whatever values it left.

    All states or none: a state that fits the old end of the log need not fit the new one. The sentinels are all laid before
    the first record, and by an epoch that the log does not know yet: after a crash in between they fit no log, and the
    next start adopts all of them again.
    """
    state, attempt = log.state, log.epoch << RETRY_BITS
    base = max(
        [state.txid, *(sentinel.txid for found in founds for sentinel in found.sentinels if sentinel is not None)]
    )
    records = []
    for found in founds:
        foreign = base > state.txid or any(s is not None and not _knows(log, s) for s in found.sentinels)
        if base:
            for instance in found.laid_out:
                instance.move_sentinel(Sentinel(state.incarnation, base, attempt), force=True)
        laid = dict.fromkeys(range(len(found.laid_out)), (base, attempt)) if base else {}
        records.append(AdoptRecord(found.name, base, foreign, laid))
    for record in records:
        log.append(record)


def _knows(log: TransactionLog, sentinel: Sentinel) -> bool:
    """Whether the log knows who won the batches up to a sentinel: it is of a driver of this log."""
    return sentinel.incarnation == log.state.incarnation and epoch_of(sentinel.attempt) in _epochs(log)


def _epochs(log: TransactionLog) -> Epochs:
    """The epochs of earlier drivers that may have written."""
    return Epochs(((0, log.epoch - 1),)) if log.state.epochs is None else log.state.epochs


# ---- claims ----------------------------------------------------------------------------------------------------------


def _lay_out(
    log: TransactionLog, name: str, kind: StateType | None, partitions: Sequence[Any], found: _Found | None
) -> None:
    """Claim the place of a state that is new to the log or laid out otherwise; keys stay where they are.

    Partitions that go are claimed as well: their keys have other writers now, and the old one must be fenced.
    """
    layout = (len(partitions), "custom" if kind is None else kind.value)
    if log.state.layouts.get(name) == layout:
        return
    attempt = None
    if found is not None:
        attempt = log.epoch << RETRY_BITS
        for instance in [*partitions, *found.laid_out[len(partitions) :]]:
            _claim(log, instance)
    log.append(LayoutRecord(name, *layout, attempt))


def _claim(log: TransactionLog, instance: Any) -> None:
    """Lay this driver's sentinel; a driver that was replaced may still move its own a few times, while it wakes up."""
    claim = Sentinel(log.state.incarnation, log.state.txid, log.epoch << RETRY_BITS)
    for left in reversed(range(_TRIES)):
        try:
            instance.move_sentinel(claim, force=True)
            return
        except (FencedError, BackendError):
            found = instance.read_sentinel()
            if not left or found is None or found.incarnation != claim.incarnation:
                raise
