"""The sentinel: one record per state partition that tells whether store and log belong together (R8, R9).

Before a commit writes anything, what the store says of its last commit is compared with what the log says. The
comparison is `check_sentinel`, a function of values; the rest finds a place in the store for the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.errors import FencedError, StateMismatchError
from trident.state.interfaces import FencedMap, IBackingMap, Key
from trident.state.txid import Sentinel, Txid

__all__ = ["SENTINEL_KEY", "ReservedKeySentinel", "check_sentinel", "fenced", "is_sentinel_key"]

SENTINEL_KEY = "\x00trident-sentinel"


def check_sentinel(state: str, partition: int, found: Sentinel | None, txid: Txid) -> None:
    """Check what the store has against what the log expects, for a commit of `txid`.

    Legal are: the expected sentinel itself, and one that a failed attempt of ours left behind (same incarnation, a
    later (txid, attempt) than expected, not above this commit's, and not a winner, or the log would know the touch).

    Raises
    ------
    FencedError
        The store is at or beyond this commit by a higher attempt: this writer was replaced.
    StateMismatchError
        Anything else. Nothing was written.
    """
    expected = txid.expected
    if found == expected:
        return
    if found is not None and found.incarnation == txid.incarnation:
        at, own = (found.txid, found.attempt), (int(txid), txid.attempt)
        # A later batch by an *earlier* attempt is no successor of this writer: the end of the log was lost.
        if found.attempt > txid.attempt or (found.attempt == txid.attempt and found.txid > txid):
            raise FencedError(f"state {state!r} partition {partition}", str(txid.sentinel), str(found))
        floor = (expected.txid, expected.attempt) if expected is not None else (0, 0)
        if floor < at <= own and (at == own or found.txid == txid or not txid.winners.won(*at)):
            return
    wanted = str(expected) if expected is not None else f"no commit of incarnation {txid.incarnation}"
    raise StateMismatchError(state, partition, wanted, str(found) if found is not None else "no commit at all")


class ReservedKeySentinel:
    """Keeps the sentinel of a two-method backing map under a reserved key of that map.

    It detects a wiped, rolled-back or foreign store. It cannot fence a writer that sleeps between two puts: for that a
    map implements `FencedMap`.
    """

    def __init__(self, backing: IBackingMap[Any], partition: int) -> None:
        self._backing = backing
        self._key: Key = (SENTINEL_KEY, partition)

    def read_sentinel(self) -> Sentinel | None:
        """Read the reserved key."""
        (stored,) = self._backing.multi_get([self._key])
        return None if stored is None else Sentinel(*stored)

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Write the reserved key."""
        self._backing.multi_put([self._key], [sentinel])


def fenced(backing: IBackingMap[Any], partition: int) -> FencedMap:
    """Return the map itself if it keeps its own sentinel, else one kept under a reserved key."""
    return backing if isinstance(backing, FencedMap) else ReservedKeySentinel(backing, partition)


def is_sentinel_key(keys: Sequence[Key]) -> bool:
    """Whether a request is for a sentinel that is kept under the reserved key: it is read and written by itself."""
    return len(keys) == 1 and keys[0][:1] == (SENTINEL_KEY,)
