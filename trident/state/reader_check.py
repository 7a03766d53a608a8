"""Compares what a reader finds in a store with the log, beside a writer that may be at work (R8, R12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from trident.errors import StateReadError
from trident.state.interfaces import State
from trident.state.sentinel import described, is_expected, is_foreign, move_note, wanted
from trident.state.txid import Sentinel, Txid, epoch_of

_ROUNDS = 3


class _Log(Protocol):
    def commits(self, state: str, partitions: int) -> Sequence[Txid]: ...


def compare_stores(name: str, partitions: Sequence[State], log: Callable[[], _Log]) -> None:
    """Compare the sentinels of a state's partitions with the log; those without (a user's own state) are not compared.

    A mismatch is looked at again, because a start may change the store before the log says so.
    """
    for rounds_left in reversed(range(_ROUNDS)):
        try:
            check_partitions(name, partitions, lambda: log().commits(name, len(partitions)))
            return
        except StateReadError:
            if not rounds_left:
                raise


def check_partitions(name: str, partitions: Sequence[State], commits: Callable[[], Sequence[Txid]]) -> None:
    """Compare each partition's sentinel with the log; on a mismatch the log is read again.

    `commits`: returns for each partition the next commit, by the log of now.
    """
    before = commits()
    for partition, state in enumerate(partitions):
        check_partition(name, partition, state, before[partition], lambda at=partition: commits()[at])  # type: ignore[misc]


def check_partition(name: str, partition: int, state: State, before: Txid, again: Callable[[], Txid]) -> None:
    """Compare one partition's sentinel with the log; `before` and `again`: its next commit by the log, then and now."""
    if before.incarnation is None or not state.offers("read_sentinel"):
        return
    found, place = state.read_sentinel(), state.place
    try:
        check_reading(name, partition, found, before, before, place)
    except StateReadError:
        check_reading(name, partition, found, before, again(), place)


def check_reading(
    state: str, partition: int, found: Sentinel | None, before: Txid, after: Txid, place: str = ""
) -> None:
    """Compare what a reader found in the store with the log, while a writer may be at work.

    The store must have everything that the log had before the store was read, and nothing that the log could not have
    after it, because a writer writes each sentinel before the log says that its batch is committed.

    `before`, `after`: the next batch, by the log as read before and after the store; the attempt has no meaning.
    `place`: the name of the state in its own sentinels; "" compares no place.
    Raises `StateReadError`: store and log do not belong together; the error says what was found.
    """
    wrong = _wrong(found, before, after, place)
    if wrong:
        raise StateReadError(state, partition, wanted(before), described(found), wrong)


def _wrong(found: Sentinel | None, before: Txid, after: Txid, place: str) -> str:
    if found is None:
        return "" if is_expected(found, before) else "it was emptied or moved away"
    if is_foreign(found, place):
        return f"it belongs to {found.place!r}"
    if note := move_note(found, str(before.incarnation)):
        return f"the state was {note}" if note.startswith("moved") else "a move into this place has not ended"
    if found.incarnation.startswith(f"{before.incarnation} ("):
        return "it lost data since"  # a store that knows of the loss writes this
    if is_expected(found, before):
        return ""
    if found.incarnation != before.incarnation:
        return "it belongs to another log"
    if found == before.expected:
        return "the end of that batch was lost"
    return _wrong_beyond(found, before.expected, after)


def _wrong_beyond(found: Sentinel, expected: Sentinel | None, after: Txid) -> str:
    """Say what is wrong with a sentinel that is not the expected one, in a store of this log."""
    at, touched = found[1:3], after.expected
    if expected is not None and at < expected[1:3]:
        return "it is an older copy"
    if found.txid > after:
        return "it is ahead of the log, whose end was lost"
    if after.epochs is not None and epoch_of(found.attempt) not in after.epochs:
        return "it was written by a driver that this log does not know"
    won = found.txid < after and after.winners.winner(found.txid) == found.attempt
    if won and (touched is None or touched[1:3] < at):
        return "the log does not know that this batch has changed it"
    return ""  # committed meanwhile, being committed now, or left behind by an attempt that failed
