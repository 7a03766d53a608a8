"""The three kinds of maps over any two-method backing map, by their names.

`map_commits.py` is the life cycle of a commit, `opaque_map.py` and `transactional_maps.py` are the rules of the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trident.errors import StaleTransactionError
from trident.state.interfaces import FormerTypes, IBackingMap, Key, StateType, ValueUpdater, state_type
from trident.state.map_commits import CommittedMap
from trident.state.opaque_map import OpaqueMap
from trident.state.txid import Txid
from trident.state.values import TransactionalValue, own, owned, values_to_store

# TransactionalMap skips a batch that a value already includes; NonTransactionalMap keeps the bare value.


class TransactionalMap(CommittedMap):
    """Exact with transactional spouts: a batch that is already in a value is not applied again.

    Different from Storm: a stored txid above the current one is an error (H5), and all puts are made at the commit. If
    a key that is updated twice were put twice, a crash between the puts would leave the first update under this txid,
    and the replay would skip the second.
    """

    kind = StateType.TRANSACTIONAL
    _puts_at_commit = True

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        """Apply each updater unless the stored value already includes this txid; return the values that are stored now."""
        keys, commit = self._distinct(keys), self._current()
        txid = int(commit)
        values: list[Any] = []
        put_keys: list[Key] = []
        puts: list[Any] = []
        for key, stored, updater in zip(keys, self._read_not_after(keys, commit), updaters, strict=True):
            base = None if stored is None else own(stored.value)
            if stored is not None and stored.includes(txid) and key not in self._written:
                values.append(base)  # an earlier attempt of this very batch wrote it, and a replay is identical
                continue
            value = updater.update(base)
            values.append(value)
            put_keys.append(key)
            puts.append(value)
        self._put(put_keys, [TransactionalValue(txid, value) for value in values_to_store(puts, updaters)])
        return values

    def _latest(self, found: Sequence[TransactionalValue | None]) -> list[Any]:
        return [None if stored is None else stored[1] for stored in found]

    def _bases(self, keys: Sequence[Key], txid: Txid) -> list[Any]:
        return [None if stored is None else stored.value for stored in self._read_not_after(keys, txid)]

    def _read_not_after(self, keys: Sequence[Key], txid: Txid) -> Sequence[TransactionalValue | None]:
        found = self._read(keys)
        for key, stored in zip(keys, found, strict=True):
            if stored is not None and stored.txid > txid:
                raise StaleTransactionError(self.name, key, int(txid), stored.txid)
        return found


class NonTransactionalMap(CommittedMap):
    """The bare value: a replay applies twice. For states where that is harmless."""

    kind = StateType.NON_TRANSACTIONAL

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        keys, txid = self._distinct(keys), self._current()
        bases = owned(self._bases(keys, txid))
        values = [updater.update(base) for base, updater in zip(bases, updaters, strict=True)]
        self._put(keys, values_to_store(values, updaters))
        return values

    def _latest(self, found: Sequence[Any]) -> list[Any]:
        return list(found)

    def _bases(self, keys: Sequence[Key], txid: Txid) -> list[Any]:
        return list(self._read(keys))


_KINDS: dict[StateType, Callable[..., CommittedMap]] = {
    StateType.OPAQUE: OpaqueMap,
    StateType.TRANSACTIONAL: TransactionalMap,
    StateType.NON_TRANSACTIONAL: NonTransactionalMap,
}


def map_for(
    kind: StateType | str, backing: IBackingMap[Any], name: str, partition: int, migrate: FormerTypes | None = None
) -> Any:
    """Return the map of `kind` over `backing`; only an opaque one reads what former declarations wrote."""
    if migrate is not None and state_type(kind) is StateType.OPAQUE:
        return OpaqueMap(backing, name, partition, migrate)
    return _KINDS[state_type(kind)](backing, name, partition)
