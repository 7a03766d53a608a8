"""OpaqueMap: exact whatever a replay adds or drops, because each value keeps the value before it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from trident.errors import StaleTransactionError
from trident.state.encoding.equal_keys import typed_keys
from trident.state.interfaces import FormerTypes, IBackingMap, Key, StateType, ValueUpdater
from trident.state.key_counts import count_keys
from trident.state.map_commits import CommittedMap
from trident.state.opaque_columns import OpaqueColumns
from trident.state.txid import Snapshot, Txid
from trident.state.values import Combine, CombinerUpdates, OpaqueValue, owned, values_to_store
from trident.state.winners import Winners

if TYPE_CHECKING:
    from trident.state.columns.number_columns import NumberColumns

_HEAD: Callable[[Any], tuple[int, int]] = itemgetter(0, 1)  # txid and attempt of an OpaqueValue


class OpaqueMap(CommittedMap):
    """Exact with transactional and opaque spouts, whatever a replay adds or drops.

    Different from Storm: values carry the attempt (H1 closed), a stored txid above the current one is an error before
    anything is written, and the same key twice in one update is refused.
    """

    kind = StateType.OPAQUE

    def __init__(
        self,
        backing: IBackingMap[Any],
        name: str = "state",
        partition: int = 0,
        migrate: FormerTypes | None = None,
    ) -> None:
        super().__init__(backing, name, partition)
        self._migrate = migrate
        if migrate is not None:
            self.facts = replace(self.facts, migrates=True, has_typed_columns=self.backing.facts.has_typed_columns)
        if migrate is not None and migrate.types:
            self.facts = replace(self.facts, keeps_columns=False)
        # The keys and values that this commit wrote as columns, to be made when they are asked for; not yet in `_written`.
        self._unmerged: Callable[[], Iterable[tuple[Key, OpaqueValue]]] | None = None
        self._by_columns = False  # the store gave columns, so it takes them

    @property
    def _has_former_types(self) -> bool:
        return self._migrate is not None and bool(self._migrate.types)

    def keeps_attempts(self) -> bool:
        """Whether stored values say which attempt wrote them; they do unless the backing map says no."""
        return bool(self.backing.keeps_attempts())

    def multi_combine(
        self, parts: Sequence[Sequence[Any]], values: Any, function: Combine | Sequence[Combine]
    ) -> Any | None:
        """Update distinct keys as `multi_update` does, all at once: numbers in columns.

        Parameters
        ----------
        parts
            The keys: for each grouping field its values, a list or an Arrow array.
        values
            A column of the values to combine, none of them null; or structs, of whose fields only means are null.
        function
            The function that combines; of structs one for each field.

        Returns
        -------
        Any | None
            The column of new values. None if this store, these values or an earlier update of the commit rule it out:
            nothing was written, use `multi_update`.
        """
        commit = self._current()
        if self._has_written() or self._has_former_types:
            return None
        found = self.backing.multi_get_columns(parts)
        if found is None:
            return None
        self._refuse_later(found, commit, lambda at: tuple(part[at] for part in map(_listed, parts)), behind=commit)
        new = found.combined(values, function, commit)
        if new is None:
            return None
        self.backing.multi_put_columns(found, new)
        count_keys(asked=len(new), written=len(new))
        self._unmerged = partial(_by_key, parts, new)  # after the put, because a failed one must not look written (R10)
        return new.curr

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        """Write `[txid, attempt, base, f(base)]` for each key, where base is the value before this batch."""
        keys, txid = self._distinct(keys), self._current()
        bases, written = self._bases(keys, txid), self._written
        values = _updated(bases, updaters)
        # What this commit wrote earlier is the base, but `prev` stays the value before the batch.
        prevs = [written[k].prev if k in written else b for k, b in zip(keys, bases, strict=True)] if written else bases
        txids, attempts = [int(txid)] * len(keys), [txid.attempt] * len(keys)
        stored = list(values_to_store(values, updaters))
        if self._migrate is not None and self._has_former_types:
            prevs, stored = (list(self._migrate.stored(side, txid.attempt)) for side in (prevs, stored))
        new = OpaqueColumns(txids, attempts, prevs, stored)
        self._put(keys, new if self._by_columns else list(new))
        return values

    def multi_get_at(self, keys: Sequence[Key], snapshot: Snapshot) -> list[Any]:
        """Read keys as they were after `snapshot.txid` (R12), without a lock, from any process.

        Raises
        ------
        StaleTransactionError
            A key was written by a batch after `snapshot.txid + 1`: take a newer snapshot and read again.

        Notes
        -----
        `REMOVAL_LAG` batches after the snapshot, a key that was removed since may be gone. A reader that may be so late must
        check the age of the snapshot after the read (as `StateView` does).
        """
        if not keys:
            return []
        keys = typed_keys(keys)
        found = None if self._has_former_types else self.backing.multi_find(keys)
        count_keys(asked=len(keys))
        if found is not None:
            self._refuse_later(found, snapshot.txid + 1, lambda at: keys[at], behind=snapshot.txid)
            return found.values_before(snapshot.txid + 1, snapshot.winners)
        # Past every memory, because a commit that crashed here is under way until the next begin_commit.
        stored = self.backing.multi_get_stored(keys)
        values = self._before(snapshot.txid + 1, snapshot.winners, keys, stored, behind=snapshot.txid)
        return self._given(values if self._migrate is None else self._migrate.declared(values))

    def get_tuples_at(self, snapshot: Snapshot) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows as they were after `snapshot.txid`, as `get_tuples` does.

        Raises
        ------
        StaleTransactionError
            A key was written by a batch after `snapshot.txid + 1`: take a newer snapshot.
        """
        return self._rows(partial(self.multi_get_at, snapshot=snapshot))

    def _read(self, keys: Sequence[Key]) -> Sequence[OpaqueValue | None]:
        found = None if self._written or self._has_former_types else self.backing.multi_get_opaque(keys)
        self._by_columns = found is not None
        if found is None:
            return super()._read(keys)
        count_keys(asked=len(keys))
        return found

    def _put(self, keys: Sequence[Key], stored: Sequence[OpaqueValue | None]) -> None:
        if type(stored) is OpaqueColumns and not self._puts_at_commit:
            self.backing.multi_put(keys, stored)
            count_keys(written=len(keys))
            self._unmerged = partial(zip, list(keys), stored, strict=True)  # after the put, as above
        else:
            super()._put(keys, stored)

    def _latest(self, found: Sequence[OpaqueValue | None]) -> list[Any]:
        if type(found) is OpaqueColumns:
            return found.currs
        return [None if stored is None else stored[3] for stored in found]

    def _has_written(self) -> bool:
        return super()._has_written() or self._unmerged is not None

    def _forget_written(self) -> None:
        super()._forget_written()
        self._unmerged = None

    def _bases(self, keys: Sequence[Key], txid: Txid) -> list[Any]:
        if self._unmerged is not None:
            self._written.update(self._unmerged())
            self._unmerged = None
        bases = self._before(int(txid), txid.winners, keys, self._read(keys), behind=int(txid))
        written = self._written
        return [written[k].curr if k in written else b for k, b in zip(keys, bases, strict=True)] if written else bases

    def _refuse_later(self, found: NumberColumns, txid: int, key_at: Callable[[int], Key], behind: int) -> None:
        later = found.first_after(txid)
        if later is not None:
            at, stored_txid = later
            raise StaleTransactionError(self.name, key_at(at), int(behind), stored_txid)

    def _before(
        self, txid: int, winners: Winners, keys: Sequence[Key], found: Sequence[OpaqueValue | None], behind: int
    ) -> list[Any]:
        """Return the value before batch `txid`; an error says that batch `behind` is behind a stored one."""
        found = migrated(found, winners, self._migrate)
        # One batch wrote many keys, so each (txid, attempt) is judged once.
        heads = found.heads() if type(found) is OpaqueColumns else _heads_of(found)
        if heads and max(heads)[0] > txid:
            later = ((k, s.txid) for k, s in zip(keys, found, strict=True) if s is not None and s.txid > txid)
            key, stored_txid = next(later)
            raise StaleTransactionError(self.name, key, behind, stored_txid)
        fell = {head for head in heads if not OpaqueValue(*head, None, None).stands_before(txid, winners)}
        if not fell:
            return self._latest(found)
        return [None if s is None else s.prev if s[:2] in fell else s.curr for s in found]


def migrated(
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
        new = iter(migrate.converted(old, *types[at][1:]))
        for place in places:
            now[place] = found[place]._replace(prev=next(new), curr=next(new))  # type: ignore[union-attr]
    return now


def _heads_of(found: Sequence[OpaqueValue | None]) -> set[tuple[int, int]]:
    return set(map(_HEAD, found if None not in found else [stored for stored in found if stored is not None]))


def _updated(bases: list[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
    if type(updaters) is CombinerUpdates:
        return updaters.update_all(bases)
    return [updater.update(base) for base, updater in zip(owned(bases), updaters, strict=True)]


def _by_key(parts: Sequence[Sequence[Any]], new: NumberColumns) -> Iterable[tuple[Key, OpaqueValue]]:
    return zip(zip(*map(_listed, parts), strict=True), new.values(), strict=True)


def _listed(values: Any) -> Sequence[Any]:
    """Return the values of a list or an Arrow array."""
    return values if isinstance(values, (list, tuple)) else list(values.to_pylist())
