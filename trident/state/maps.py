"""OpaqueMap, TransactionalMap and NonTransactionalMap: the value rules over any two-method backing map.

The way of one commit is the same for all three::

    begin_commit(txid)   the sentinel is compared, then moved forward: from here on an older writer is fenced
    multi_update(...)    one read, the rule of the kind, one write (of a TransactionalMap: at the commit)
    commit(txid)         the backing map makes the puts durable; then the sentinel is sealed

What this very commit wrote is remembered until the commit ends and laid over what the store shows, so a key may be
updated in several calls. An updater gets an object of its own, and so does a reader: if it changes it in place, nothing
stored changes (R13).
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from decimal import Decimal
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Any
from uuid import UUID

from trident.errors import CommitOrderError, StaleTransactionError, UnsupportedOperation
from trident.state.columns import ColumnarMap, Combine, StoredColumns, fallen
from trident.state.encoding.equal_keys import one_nan
from trident.state.interfaces import (
    BackingMapLifecycle,
    IBackingMap,
    Key,
    ListableMap,
    Resettable,
    StateType,
    ValueUpdater,
    state_type,
)
from trident.state.removals import Removals
from trident.state.sentinel import SENTINEL_KEY, ReservedKeySentinel, check_sentinel, fenced, is_atomic
from trident.state.txid import Sentinel, Snapshot, Txid, Winners
from trident.state.values import (
    CombinerUpdates,
    CombinerValueUpdater,
    OpaqueValue,
    ReducerValueUpdater,
    TransactionalValue,
)

__all__ = ["NonTransactionalMap", "OpaqueMap", "TransactionalMap", "map_for"]


class _CommittedMap(ABC):
    """What the three kinds share: the commit's life cycle, the sentinel, and the keys that it wrote so far."""

    kind: StateType
    _puts_at_commit = False

    def __init__(self, backing: IBackingMap[Any], name: str = "state", partition: int = 0) -> None:
        self.backing, self.name, self.partition = backing, name, partition
        self._guard = fenced(backing, partition)
        self._is_atomic = is_atomic(backing)
        # Asked once: a look at all methods of a protocol costs as much as a small commit.
        self._lifecycle = backing if isinstance(backing, BackingMapLifecycle) else None
        self._decodes = getattr(backing, "gives_copies", False)
        self._removals = Removals(backing, self.kind)
        self._txid: Txid | None = None
        self._written: dict[Key, Any] = {}

    def begin_commit(self, txid: int) -> None:
        """Compare and move the sentinel. An unfinished commit of an earlier attempt is forgotten."""
        commit = Txid.of(txid)
        self._forget()
        if commit.sentinel is not None:
            found = self._guard.read_sentinel()
            check_sentinel(self.name, self.partition, found, commit, self.name)
        reserved_key = isinstance(self._guard, ReservedKeySentinel)
        if reserved_key:
            self._begin(commit)  # a sentinel under a reserved key is one of the puts of the commit
        # Before the first put: whoever held the partition until now is fenced from here on.
        self._lay_sentinel(commit, sealed=self._is_atomic)
        if not reserved_key:
            self._begin(commit)
        self._removals.begin(commit)
        self._txid = commit

    def commit(self, txid: int) -> None:
        """Make the puts durable."""
        begun = self._txid
        if begun is None or begun != txid or (isinstance(txid, Txid) and txid.attempt != begun.attempt):
            found = "no commit began" if begun is None else f"the commit that began is of batch {begun!s}"
            raise CommitOrderError(f"commit({txid!s}) of state {self.name!r} without its begin_commit: {found}")
        if self._puts_at_commit and self._written:
            self.backing.multi_put(list(self._written), list(self._written.values()))
        if self._lifecycle is not None:
            self._lifecycle.end(begun)
        self._removals.end(begun)
        if not self._is_atomic:
            # All is acknowledged: a store that loses any of it from here on loses the seal too, since that came last.
            self._lay_sentinel(begun, sealed=True)
        self._forget()

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Read values: within a commit as the commit sees them, outside of one the latest write of each key."""
        keys, txid = one_nan(keys), self._txid
        if txid is not None:
            return _owned(self._bases(keys, txid))
        current = getattr(self.backing, "multi_get_current", None)  # of a SerializedMap: it decodes no more than that
        return self._given(self._latest(self._read(keys))) if current is None or not keys else current(keys)

    @abstractmethod
    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        """Update distinct keys by the rule of the kind; return the values that now stand."""

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Replace the values of distinct keys, by the rule of the kind."""
        self.multi_update(keys, [_Replace(value) for value in values])

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """Remove keys as part of the current batch; absent keys are ignored.

        A removal is a put of None by the rule of the kind, so a replay undoes it or does it again as it must. A store
        that can delete keys deletes those that stayed removed `REMOVAL_LAG` batches later.
        """
        distinct = list(dict.fromkeys(one_nan(keys)))
        there = [key for key, value in zip(distinct, self.multi_get(distinct), strict=True) if value is not None]
        self.multi_put(there, [None] * len(there))
        self._removals.note(there)

    def get_tuples(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows: the parts of each key, then the value of the latest write, page by page.

        A key whose value is None is no row: it was removed, or is as good as never written.

        Raises
        ------
        UnsupportedOperation
            The store cannot list its keys.
        """
        return self._rows(self.multi_get)

    def _rows(self, read: Callable[[Sequence[Key]], list[Any]]) -> Iterator[tuple[Any, ...]]:
        for page in self.key_pages():
            yield from [(*key, value) for key, value in zip(page, read(page), strict=True) if value is not None]

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys that the store holds, removed ones included, page by page."""
        if not isinstance(self.backing, ListableMap):
            raise UnsupportedOperation(
                f"list state {self.name!r}: a {type(self.backing).__name__} cannot list its keys; ask for the keys that "
                "you know with multi_get, or use a store that can (memory, Delta, Redis, Cassandra)"
            )
        if isinstance(self._guard, ReservedKeySentinel):
            return ([key for key in page if key[:1] != (SENTINEL_KEY,)] for page in self.backing.key_pages())
        return self.backing.key_pages()

    @property
    def place(self) -> str:
        """What the state is called in its sentinels, so that no other state takes its place."""
        return self.name

    def read_sentinel(self) -> Sentinel | None:
        """Return what the store says of this partition's last commit."""
        return self._guard.read_sentinel()

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Lay the sentinel, in the name of this state; `force` also moves it back."""
        self._guard.move_sentinel(sentinel._replace(place=self.name), force)

    def reset(self) -> None:
        """Empty the partition, sentinel included; the backing map must be able to."""
        if not isinstance(self.backing, Resettable):
            raise UnsupportedOperation(
                f"empty state {self.name!r}: a {type(self.backing).__name__} has no reset(); empty the store by its "
                "own means, or give the state a new key prefix"
            )
        self._forget()
        self._removals.forget()
        self.backing.reset()

    def close(self) -> None:
        """Close the backing map, if it has something to close."""
        close = getattr(self.backing, "close", None)
        if close is not None:
            close()

    def _lay_sentinel(self, commit: Txid, sealed: bool) -> None:
        if commit.incarnation is not None:
            self._guard.move_sentinel(Sentinel(commit.incarnation, int(commit), commit.attempt, self.name, sealed))

    def _begin(self, commit: Txid) -> None:
        if self._lifecycle is not None:
            self._lifecycle.begin(commit)

    def _forget(self) -> None:
        """No commit is under way."""
        self._txid, self._written = None, {}

    @abstractmethod
    def _latest(self, found: Sequence[Any]) -> list[Any]:
        """Return the values of the latest writes."""

    @abstractmethod
    def _bases(self, keys: Sequence[Key], txid: Txid) -> list[Any]:
        """Return the values that the updates of the commit `txid` start from."""

    def _given(self, values: list[Any]) -> list[Any]:
        """Return what a reader may change in place, of what the backing map gave."""
        return values if self._decodes else _owned(values)

    def _read(self, keys: Sequence[Key]) -> Sequence[Any]:
        # A store may show a commit's own puts late (buffered until the end) or never (evicted at once).
        if not keys:
            return []
        stored, written = self.backing.multi_get(keys), self._written
        if not written:
            return stored
        return [written.get(key, found) for key, found in zip(keys, stored, strict=True)]

    def _put(self, keys: list[Key], stored: list[Any]) -> None:
        if keys:
            # Store first, memory second: a failed put must not look written (R10).
            if not self._puts_at_commit:
                self.backing.multi_put(keys, stored)
            self._written.update(zip(keys, stored, strict=True))

    def _current(self) -> Txid:
        if self._txid is None:
            raise CommitOrderError(f"state {self.name!r} was updated outside begin_commit and commit")
        return self._txid

    def _distinct(self, keys: Sequence[Key]) -> list[Key]:
        # Two updaters of one key would both see the old value and one of them would be lost (H11).
        keys = one_nan(keys)
        if len(set(keys)) != len(keys):
            seen: set[Key] = set()
            twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ValueError(f"key {twice!r} occurs more than once in one update of state {self.name!r}")
        return list(keys)


class OpaqueMap(_CommittedMap):
    """Exact with transactional and opaque spouts, whatever a replay adds or drops.

    Different from Storm: values carry the attempt (H1 closed), a stored txid above the current one is an error before
    anything is written, and the same key twice in one update is refused.
    """

    kind = StateType.OPAQUE

    def __init__(self, backing: IBackingMap[Any], name: str = "state", partition: int = 0) -> None:
        super().__init__(backing, name, partition)
        self._columnar = backing if isinstance(backing, ColumnarMap) else None
        self.keeps_columns = self._columnar is not None  # may `multi_combine` be of use?
        self._combined: StoredColumns | None = None  # what this commit wrote as columns; not yet in `_written`

    def keeps_attempts(self) -> bool:
        """Whether the store tells later which attempt wrote a value: unless the backing map says no."""
        asked = getattr(self.backing, "keeps_attempts", None)
        return asked is None or bool(asked())

    def multi_combine(self, parts: Sequence[Sequence[Any]], values: Any, function: Combine) -> Any | None:
        """Update distinct keys as `multi_update` does, all at once: numbers in columns.

        Parameters
        ----------
        parts
            The keys: for each grouping field its values, a list or an Arrow array.
        values
            A column of what each key is combined with, none of it null.
        function
            How.

        Returns
        -------
        Any | None
            The column of new values. None if that cannot be done with this store, these values or this late in the commit:
            nothing was written, use `multi_update`.
        """
        txid = self._current()
        if self._columnar is None or self._written or self._combined is not None:
            return None
        found = self._columnar.multi_get_columns(parts)
        if found is None:
            return None
        new = found.combine(values, function, fallen(found, int(txid), txid.winners, self.name, int(txid)))
        if new is not None:
            self._columnar.multi_put_columns(found, int(txid), txid.attempt)
            self._combined = found  # after the put: a failed one must not look written (R10)
        return new

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        """Write `[txid, attempt, base, f(base)]` for each key, where base is what stood before this batch."""
        keys, txid = self._distinct(keys), self._current()
        bases, written = self._bases(keys, txid), self._written
        values = _updated(_owned(bases), updaters)
        # What this commit wrote before is a base, but what stood before the batch stays `prev`.
        prevs = [written[k].prev if k in written else b for k, b in zip(keys, bases, strict=True)] if written else bases
        fields = zip(repeat(int(txid)), repeat(txid.attempt), prevs, _kept(values, updaters), strict=False)
        self._put(keys, list(map(tuple.__new__, repeat(OpaqueValue), fields)))  # past OpaqueValue's own slow __new__
        return values

    def multi_get_at(self, keys: Sequence[Key], snapshot: Snapshot) -> list[Any]:
        """Read keys as they were after `snapshot.txid` (R12), without a lock, from any process.

        Raises
        ------
        StaleTransactionError
            A key was written by a batch after `snapshot.txid + 1`: take a newer snapshot and read again.

        Notes
        -----
        `REMOVAL_LAG` batches after the snapshot a key that was removed since may be gone. Who reads so late looks, after
        the read, how old the snapshot has become (as `StateView` does).
        """
        if not keys:
            return []
        found = None if self._columnar is None else self._columnar.multi_find(keys)
        if found is not None:
            return found.stood(fallen(found, snapshot.txid + 1, snapshot.winners, self.name, snapshot.txid))
        # Past every memory: a commit that crashed here is under way until the next begin_commit, whoever went on since.
        read = getattr(self.backing, "multi_get_stored", self.backing.multi_get)
        keys = one_nan(keys)
        return self._given(self._before(snapshot.txid + 1, snapshot.winners, keys, read(keys), behind=snapshot.txid))

    def get_tuples_at(self, snapshot: Snapshot) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows as they were after `snapshot.txid`, as `get_tuples` does.

        Raises
        ------
        StaleTransactionError
            A key was written by a batch after `snapshot.txid + 1`: take a newer snapshot.
        """
        return self._rows(partial(self.multi_get_at, snapshot=snapshot))

    def _latest(self, found: Sequence[OpaqueValue | None]) -> list[Any]:
        return [None if stored is None else stored[3] for stored in found]

    def _forget(self) -> None:
        super()._forget()
        self._combined = None

    def _bases(self, keys: Sequence[Key], txid: Txid) -> list[Any]:
        if self._combined is not None:
            self._written.update(self._combined.written(int(txid), txid.attempt))
            self._combined = None
        bases = self._before(int(txid), txid.winners, keys, self._read(keys), behind=int(txid))
        written = self._written
        return [written[k].curr if k in written else b for k, b in zip(keys, bases, strict=True)] if written else bases

    def _before(
        self, txid: int, winners: Winners, keys: Sequence[Key], found: Sequence[OpaqueValue | None], behind: int
    ) -> list[Any]:
        """Return what stood before batch `txid`; an error says that batch `behind` is behind a stored one."""
        # One batch wrote many keys, so each (txid, attempt) is judged once.
        heads = set(map(_HEAD, found if None not in found else [stored for stored in found if stored is not None]))
        if any(written_by > txid for written_by, _ in heads):
            later = ((k, s.txid) for k, s in zip(keys, found, strict=True) if s is not None and s.txid > txid)
            key, stored_txid = next(later)
            raise StaleTransactionError(self.name, key, behind, stored_txid)
        fell = {head for head in heads if not OpaqueValue(*head, None, None).stands_before(txid, winners)}
        if not fell:
            return [None if stored is None else stored[3] for stored in found]
        return [None if s is None else s.prev if s[:2] in fell else s.curr for s in found]


class TransactionalMap(_CommittedMap):
    """Exact with transactional spouts: a batch that is already in a value is not applied again.

    Different from Storm: a stored txid above the current one is an error (H5), and all puts are made at the commit. If
    a key that is updated twice were put twice, a crash between the puts would leave the first update under this txid,
    and the replay would skip the second.
    """

    kind = StateType.TRANSACTIONAL
    _puts_at_commit = True

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        """Apply each updater unless the stored value already includes this txid; return what stands."""
        keys, commit = self._distinct(keys), self._current()
        txid = int(commit)
        values: list[Any] = []
        put_keys: list[Key] = []
        puts: list[Any] = []
        for key, stored, updater in zip(keys, self._read_not_after(keys, commit), updaters, strict=True):
            if stored is not None and stored.txid == txid and key not in self._written:
                values.append(
                    _own(stored.value)
                )  # an earlier attempt of this very batch wrote it; a replay is identical
                continue
            value = updater.update(None if stored is None else _own(stored.value))
            values.append(value)
            put_keys.append(key)
            puts.append(value)
        self._put(put_keys, [TransactionalValue(txid, value) for value in _kept(puts, updaters)])
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


class NonTransactionalMap(_CommittedMap):
    """The bare value: a replay applies twice. For states where that is harmless."""

    kind = StateType.NON_TRANSACTIONAL

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        """Apply each updater to the stored value."""
        keys, txid = self._distinct(keys), self._current()
        bases = _owned(self._bases(keys, txid))
        values = [updater.update(base) for base, updater in zip(bases, updaters, strict=True)]
        self._put(keys, _kept(values, updaters))
        return values

    def _latest(self, found: Sequence[Any]) -> list[Any]:
        return list(found)

    def _bases(self, keys: Sequence[Key], txid: Txid) -> list[Any]:
        return list(self._read(keys))


_HEAD: Callable[[Any], tuple[int, int]] = itemgetter(0, 1)  # txid and attempt of an OpaqueValue

_IMMUTABLE: frozenset[type[Any]] = frozenset(
    (type(None), bool, int, float, complex, str, bytes, Decimal, UUID, dt.date, dt.datetime, dt.time, dt.timedelta)
)


def _owned(bases: list[Any]) -> list[Any]:
    """Return what updaters and readers may change in place."""
    return bases if _IMMUTABLE.issuperset(map(type, bases)) else list(map(_own, bases))


def _own(base: Any) -> Any:
    """Return what an updater or a reader may change in place: a copy, unless the value cannot change."""
    if type(base) in _IMMUTABLE or (type(base) is tuple and all(type(part) in _IMMUTABLE for part in base)):
        return base
    return deepcopy(base)


def _kept(values: list[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
    """Return what is stored of new values: copies, unless an aggregate made them, for the user may change the others later."""
    return values if updaters and type(updaters[0]) in (CombinerValueUpdater, ReducerValueUpdater) else _owned(values)


def _updated(bases: list[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
    if isinstance(updaters, CombinerUpdates):
        return updaters.update_all(bases)
    return [updater.update(base) for base, updater in zip(bases, updaters, strict=True)]


class _Replace:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def update(self, stored: Any) -> Any:
        return self.value


_KINDS: dict[StateType, Callable[..., _CommittedMap]] = {
    StateType.OPAQUE: OpaqueMap,
    StateType.TRANSACTIONAL: TransactionalMap,
    StateType.NON_TRANSACTIONAL: NonTransactionalMap,
}


def map_for(kind: StateType | str, backing: IBackingMap[Any], name: str, partition: int) -> Any:
    """Return the map of `kind` over `backing`."""
    return _KINDS[state_type(kind)](backing, name, partition)
