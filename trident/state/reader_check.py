"""What a reader finds in a store, compared with the log that it reads by, beside a writer that may be at work (R8, R12)."""

from __future__ import annotations

from trident.errors import StateReadError
from trident.state.sentinel import described, wanted
from trident.state.txid import Sentinel, Txid, epoch_of

__all__ = ["check_reading"]


def check_reading(
    state: str, partition: int, found: Sentinel | None, before: Txid, after: Txid, place: str = ""
) -> None:
    """Check what a reader has found in the store, beside a writer that may be at work, against the log.

    Nothing may be missing that the log had when it was read before the store, and nothing may be there that the log could
    not have when it was read after it: a writer lays each sentinel before the log says that its batch is committed.

    Parameters
    ----------
    before, after
        The batch that comes next, by the log as it was read before and after the store; the attempt says nothing.
    place
        What the state is called in its own sentinels; "" compares no place.

    Raises
    ------
    StateReadError
        Store and log do not belong together; it says what was found.
    """
    wrong = _wrong(found, before, after, place)
    if wrong:
        raise StateReadError(state, partition, wanted(before), described(found), wrong)


def _wrong(found: Sentinel | None, before: Txid, after: Txid, place: str) -> str:
    expected = before.expected
    if found is None:
        return "" if expected is None or expected.txid == 0 else "it was emptied or moved away"
    if place and found.place not in ("", place):
        return f"it belongs to {found.place!r}"
    if found.incarnation.startswith(f"{before.incarnation} ("):
        return "it lost data since"  # a store that knows so says it there
    if found.incarnation != before.incarnation:
        return "" if expected is None and found.txid == 0 and found.sealed else "it belongs to another log"
    if found == expected:
        return "" if found.sealed or found.txid == 0 or found.txid >= before else "the end of that batch was lost"
    return _wrong_beyond(found, expected, after)


def _wrong_beyond(found: Sentinel, expected: Sentinel | None, after: Txid) -> str:
    """What is wrong with another sentinel than the expected one, in a store of this log."""
    at, touched = found[1:3], after.expected
    if expected is not None and at < expected[1:3]:
        return "it is an older copy"
    if found.txid > after:
        return "it is ahead of the log, of which the end was lost"
    if after.epochs is not None and epoch_of(found.attempt) not in after.epochs:
        return "a driver has written it that this log does not know"
    won = found.txid < after and after.winners.winner(found.txid) == found.attempt
    if won and (touched is None or touched[1:3] < at):
        return "the log does not know that this batch has changed it"
    return ""  # committed meanwhile, being committed now, or left behind by an attempt that failed
