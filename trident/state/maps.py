"""The three kinds of maps over any two-method backing map, each with its rule; see also `map_commits.py`."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from trident.counts import count_keys
from trident.errors import StaleTransactionError
from trident.state.backing_map import BackingMap
from trident.state.encoding.equal_keys import typed_keys
from trident.state.interfaces import FormerTypes, IBackingMap, Key, StateType, ValueUpdater, state_type
from trident.state.map_commits import CommittedMap
from trident.state.table import KeyColumns, OpaqueTable, as_list
from trident.state.txid import Snapshot, Txid, Winners
from trident.state.values import (
    Combine,
    CombinerUpdates,
    OpaqueValue,
    TransactionalValue,
    own,
    own_all,
    values_to_store,
)


class OpaqueMap(CommittedMap):
    """Exact with transactional and opaque spouts, whatever a replay adds or drops.

    Different from Storm: values carry the attempt (H1 closed), a stored txid above the current one is an error before
    anything is written, and the same key twice in one update is refused.
    """

    kind = StateType.OPAQUE

    def __init__(
        self, backing: IBackingMap[Any], name: str = "state", partition: int = 0, migrate: FormerTypes | None = None
    ) -> None:
        super().__init__(backing, name, partition)
        self._migrate = migrate
        self._has_former_types = migrate is not None and bool(migrate.types)
        if migrate is not None:
            keeps, typed = self.facts.keeps_columns and not migrate.types, self.backing.facts.has_typed_columns
            self.facts = replace(self.facts, migrates=True, has_typed_columns=typed, keeps_columns=keeps)
        self._by_table = False  # the store gave a table, so it takes one

    def keeps_attempts(self) -> bool:
        """Whether stored values say which attempt wrote them; they do unless the backing map says no."""
        return bool(self.backing.facts.keeps_attempts())

    def multi_combine(
        self, parts: Sequence[Sequence[Any]], values: Any, function: Combine | Sequence[Combine]
    ) -> Any | None:
        """Update distinct keys as `multi_update` does, all at once: numbers in columns.

        `parts` has for each grouping field its values, a list or an Arrow array; `values` is a column to combine, none of
        them null, or structs, of whose fields only means are null; `function` says how, of structs for each field. Returns
        the column of new values, for `pyarrow.array`; None if this store, these values or an earlier update of the commit
        rule it out: nothing was written, use `multi_update`.
        """
        commit = self._current()
        if self._has_written():
            return None
        keys = KeyColumns(parts)
        found = self._table(keys, self.backing)
        if found is None:
            return None
        self._refuse_later(keys, found, commit, behind=commit)
        new = found.combine_with(values, function, commit)
        if new is None:
            return None
        count_keys(asked=len(new))
        self._put_table(keys, new)
        return new.currs

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        """Write `[txid, attempt, base, f(base)]` for each key, where base is the value before this batch."""
        txid, keys = self._current(), self._distinct(keys)
        bases, written = self._bases(keys, txid), self._written
        if type(updaters) is CombinerUpdates:
            values = updaters.update_all(bases)
        else:
            values = [updater.update(base) for base, updater in zip(own_all(bases), updaters, strict=True)]
        # What this commit wrote earlier is the base, but `prev` stays the value before the batch.
        prevs = [written[k].prev if k in written else b for k, b in zip(keys, bases, strict=True)] if written else bases
        heads = [int(txid)] * len(keys), [txid.attempt] * len(keys)
        stored = list(values_to_store(values, updaters))
        if self._migrate is not None and self._has_former_types:
            prevs, stored = (list(self._migrate.widen(side, txid.attempt)) for side in (prevs, stored))
        new = OpaqueTable((*heads, prevs, stored))
        self._put(keys, new if self._by_table else list(new))
        return values

    def multi_get_at(self, keys: Sequence[Key], snapshot: Snapshot) -> list[Any]:
        """Read keys as they were after `snapshot.txid` (R12), without a lock, from any process.

        `REMOVAL_LAG` batches later a key that was removed since may be gone: a reader that may be so late must check the age
        of the snapshot after the read (as `StateView` does).

        Raises
        ------
        StaleTransactionError
            A key was written by a batch after `snapshot.txid + 1`: take a newer snapshot and read again.
        """
        if not keys:
            return []
        keys = typed_keys(keys)
        count_keys(asked=len(keys))
        # Past every memory, because a commit that crashed here is under way until the next begin_commit.
        table = self._table(keys, self.past_caches)
        stored = self.past_caches.multi_get(keys) if table is None else table
        values = self._before(snapshot.txid + 1, snapshot.winners, keys, stored, behind=snapshot.txid)
        values = values if self._migrate is None or not self._migrate.fields else self._migrate.narrow(values)
        return self._changeable(values) if table is None else values

    def _table(self, keys: Sequence[Key], store: BackingMap) -> OpaqueTable | None:
        """Return what a store has as a table; None: it gives rows, or they have former types."""
        read = store.facts.multi_get_opaque
        return None if read is None or self._has_former_types else read(keys)

    def _read(self, keys: Sequence[Key]) -> Sequence[OpaqueValue | None]:
        found = self._table(keys, self.backing) if keys and not self._written else None
        self._by_table = found is not None
        if found is None:
            return super()._read(keys)
        count_keys(asked=len(keys))
        return found

    def _put(self, keys: Sequence[Key], stored: Sequence[OpaqueValue | None]) -> None:
        if type(stored) is OpaqueTable and not self._puts_at_commit:
            self._put_table(list(keys), stored)
        else:
            super()._put(keys, stored)

    def _put_table(self, keys: Sequence[Key], table: OpaqueTable) -> None:
        self.backing.multi_put(keys, table)
        count_keys(written=len(keys))
        # After the put, because a failed one must not look written (R10).
        self._unmerged = partial(zip, keys, table, strict=True)

    def _latest(self, found: Sequence[OpaqueValue | None]) -> list[Any]:
        return as_list(found.currs) if type(found) is OpaqueTable else super()._latest(found)

    def _bases(self, keys: Sequence[Key], txid: Txid) -> list[Any]:
        if self._unmerged is not None:
            self._written.update(self._unmerged())
            self._unmerged = None
        bases = self._before(int(txid), txid.winners, keys, self._read(keys), behind=int(txid))
        written = self._written
        return [written[k].curr if k in written else b for k, b in zip(keys, bases, strict=True)] if written else bases

    def _refuse_later(self, keys: Sequence[Key], found: OpaqueTable, txid: int, behind: int) -> None:
        later = found.first_after(txid)
        if later is not None:
            at, stored_txid = later
            raise StaleTransactionError(self.name, keys[at], int(behind), stored_txid)

    def _before(
        self, txid: int, winners: Winners, keys: Sequence[Key], found: Sequence[OpaqueValue | None], behind: int
    ) -> list[Any]:
        """Return the value before batch `txid`; an error says that batch `behind` is behind a stored one."""
        if type(found) is not OpaqueTable:
            found = OpaqueTable.of(migrate_values(found, winners, self._migrate))
        self._refuse_later(keys, found, txid, behind)
        return found.values_before(txid, winners)


def migrate_values(
    found: Sequence[OpaqueValue | None], winners: Winners, migrate: FormerTypes | None
) -> Sequence[OpaqueValue | None]:
    """Return stored values, those of former types migrated: the attempt of a value says which declaration wrote it."""
    types = () if migrate is None else migrate.types
    if migrate is None or not types:
        return found
    # Of a declaration that began after a reader was opened only the log knows up to which attempts the one before wrote.
    bounds = [now[0] for now, _ in zip(winners.types, types, strict=False)]
    bounds += [until for until, *_ in types[len(bounds) :]]
    former: dict[int, list[int]] = {}
    for place, stored in enumerate(found):
        if stored is not None and stored.attempt < bounds[-1]:
            former.setdefault(bisect_right(bounds, stored.attempt), []).append(place)
    now = list(found)
    for at, places in former.items():
        old = [part for place in places for part in found[place][2:]]  # type: ignore[index]
        new = iter(migrate.convert(old, *types[at][1:]))
        for place in places:
            now[place] = found[place]._replace(prev=next(new), curr=next(new))  # type: ignore[union-attr]
    return now


class TransactionalMap(CommittedMap):
    """Exact with transactional spouts: a batch that is already in a value is not applied again.

    Different from Storm: a stored txid above the current one is an error (H5), and all puts are made at the commit. If a key
    were put twice, a crash between the puts would leave the first update under this txid, and the replay would skip the
    second.
    """

    kind = StateType.TRANSACTIONAL
    _puts_at_commit = True

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        """Apply each updater unless the stored value already includes this txid; return the values that are stored now."""
        commit, keys = self._current(), self._distinct(keys)
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
        txid, keys = self._current(), self._distinct(keys)
        bases = own_all(self._bases(keys, txid))
        values = [updater.update(base) for base, updater in zip(bases, updaters, strict=True)]
        self._put(keys, values_to_store(values, updaters))
        return values

    def _latest(self, found: Sequence[Any]) -> list[Any]:
        return list(found)

    def _bases(self, keys: Sequence[Key], txid: Txid) -> list[Any]:
        return list(self._read(keys))


def map_for(
    kind: StateType | str, backing: IBackingMap[Any], name: str, partition: int, migrate: FormerTypes | None = None
) -> Any:
    """Return the map of `kind` over `backing`; only an opaque one reads what former declarations wrote."""
    kind = state_type(kind)
    if kind is StateType.OPAQUE:
        return OpaqueMap(backing, name, partition, migrate)
    return (TransactionalMap if kind is StateType.TRANSACTIONAL else NonTransactionalMap)(backing, name, partition)
