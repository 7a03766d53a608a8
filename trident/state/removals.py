"""Removals: when a key that a batch removed may disappear from the store.

A removed key is stored as None by the rule of its kind, so a replay finds what it needs and a snapshot read finds the
value before. The key itself is deleted `REMOVAL_LAG` batches later, if the removal was committed and the key was not written
since. The writer that holds the fence asks the store for that right before it deletes. A process that ends earlier leaves
the None behind, which every read treats as absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.state.backing_map import BackingMap
from trident.state.interfaces import Key, StateType
from trident.state.txid import Txid
from trident.state.values import OpaqueValue, TransactionalValue

REMOVAL_LAG = 16
"""How many batches a removed key stays in the store as None, for readers that are that many batches behind."""


class Removals:
    """The keys that one instance removed and has not deleted yet; none if the store cannot delete."""

    def __init__(self, backing: BackingMap, kind: StateType) -> None:
        self._backing, self._kind = backing, kind
        self._deletes = backing.offers("multi_delete")
        self._removing: dict[Key, None] = {}
        self._removed: dict[Key, Txid] = {}

    def begin(self, txid: Txid) -> None:
        """Delete keys that were removed long ago and stayed so; called once the commit holds the fence."""
        self._removing = {}
        if not self._removed or not self._deletes:
            return
        for key in [key for key, by in self._removed.items() if by >= txid or not txid.winners.won(by, by.attempt)]:
            del self._removed[key]  # an attempt that lost; its replay decides again
        due = {key: by for key, by in self._removed.items() if by <= txid - REMOVAL_LAG}
        if due:
            stored = self._backing.multi_get(list(due))
            self._backing.multi_delete(
                [k for (k, by), found in zip(due.items(), stored, strict=True) if self._left(found, by)]
            )
            for key in due:
                del self._removed[key]

    def keep_all(self) -> None:
        """Delete nothing from now on: another partition may write a key while this one deletes it."""
        self._deletes = False

    def note(self, keys: Sequence[Key]) -> None:
        """The current commit removed these keys."""
        if self._deletes:
            self._removing.update(dict.fromkeys(keys))

    def end(self, txid: Txid) -> None:
        """The commit ended."""
        self._removed.update(dict.fromkeys(self._removing, txid))
        self._removing = {}

    def forget(self) -> None:
        """The store was emptied."""
        self._removing, self._removed = {}, {}

    def _left(self, found: Any, by: Txid) -> bool:
        """Whether `found` is what the commit `by` wrote for a key that it removed."""
        if self._kind is StateType.OPAQUE:
            return isinstance(found, OpaqueValue) and (found.txid, found.attempt, found.curr) == (by, by.attempt, None)
        return (
            bool(found == TransactionalValue(int(by), None)) if self._kind is StateType.TRANSACTIONAL else found is None
        )
