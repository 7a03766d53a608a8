"""The life cycle of a commit, which the three kinds of maps share: the sentinel first, then the puts, the seal last.

One commit::

    begin_commit(txid)   compares the sentinel, then moves it forward; from here on an older writer is fenced
    multi_update(...)    one read, the rule of the kind, one write (of a TransactionalMap, or if any partition may write any
                         key: at the commit)
    commit(txid)         the backing map makes the puts durable; then the sentinel is sealed

What this commit wrote counts in place of what the store shows until it ends, so a key may be updated in several calls.

A removed key is stored as None by the rule of its kind, so a replay finds what it needs and a snapshot read finds the value
before. The key itself is deleted `REMOVAL_LAG` batches later, if the removal was committed and the key was not written since.
A process that ends earlier leaves the None behind, which every read treats as absent.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from trident.counts import count_keys
from trident.errors import CommitOrderError, UnsupportedOperation
from trident.roles import adapt
from trident.state.backing_map import backing_map
from trident.state.encoding.equal_keys import CanonicalKeys, typed_keys
from trident.state.forwarding import PassedAbility, innermost
from trident.state.interfaces import IBackingMap, Key, State, StateFacts, StateType, ValueUpdater
from trident.state.sentinel import SENTINEL_KEY, ReservedKeySentinel, check_sentinel, fenced
from trident.state.txid import EMPTIED, Sentinel, Txid
from trident.state.values import OpaqueValue, TransactionalValue, own_all

REMOVAL_LAG = 16
"""How many batches a removed key stays in the store as None, for readers that are that many batches behind."""


class CommittedMap(State, ABC):
    """What the three kinds share: the commit's life cycle, the sentinel, and the keys that it wrote so far."""

    kind: StateType
    kept_changes = PassedAbility("kept_changes", "backing")
    commit_with_record = PassedAbility("commit_with_record", "backing")
    _puts_at_commit = False

    def __init__(self, backing: IBackingMap[Any], name: str = "state", partition: int = 0) -> None:
        self.backing, self.name, self.place, self.partition = backing_map(backing), name, name, partition
        known, self._guard = self.backing.facts, fenced(self.backing, partition)
        keeps_columns = known.keeps_columns and self.kind is StateType.OPAQUE
        fences, resets = self._guard is self.backing, self.backing.offers("reset")
        self.facts = StateFacts(fences, known.shares_keys, keeps_columns, can_be_emptied=resets)
        self.past_caches = self.backing if known.past_caches is None else known.past_caches
        self._deletes = self.backing.offers("multi_delete")
        self._removed: dict[
            Key, Txid
        ] = {}  # by key, not yet deleted, the commit that removed it; that may not have ended
        self._txid: Txid | None = None
        self._written: dict[Key, Any] = {}
        # What this commit wrote as a table, to be made when it is asked for; not yet in `_written`.
        self._unmerged: Callable[[], Iterable[tuple[Key, Any]]] | None = None
        self._removed_absent: list[Key] = []
        adapt(State, self)  # what this class can do besides

    def share_keys(self) -> None:
        # Nothing is deleted from now on: another partition may write a key while this one deletes it.
        self._puts_at_commit, self._deletes, self._removed = True, False, {}

    def written_keys(self) -> Collection[Key]:
        return [*self._written, *self._removed_absent]

    def begin_commit(self, txid: int) -> None:
        """Compare and move the sentinel. An unfinished commit of an earlier attempt is forgotten."""
        commit = txid if isinstance(txid, Txid) else Txid(txid)
        self._forget()
        if commit.incarnation is not None:
            check_sentinel(self.name, self.partition, self._guard.read_sentinel(), commit, self.name)
        self._begin(commit)
        if self._removed:
            self._delete_removed(commit)
        self._txid = commit

    def commit(self, txid: int) -> None:
        begun = self._txid
        if begun is None or begun != txid or (isinstance(txid, Txid) and txid.attempt != begun.attempt):
            found = "no commit began" if begun is None else f"the commit that began is of batch {begun!s}"
            raise CommitOrderError(f"commit({txid!s}) of state {self.name!r} without its begin_commit: {found}")
        if self._puts_at_commit and self._written:
            self.backing.multi_put(list(self._written), list(self._written.values()))
            count_keys(written=len(self._written))
        self.backing.end(begun)
        if not self.backing.facts.commits_atomically:
            # Everything is acknowledged. A store that loses any of it later loses the seal too, because the seal comes last.
            self._lay_sentinel(begun, sealed=True)
        self._forget()

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Read values: within a commit as the commit sees them, outside of one the latest write of each key."""
        keys, txid = typed_keys(keys), self._txid
        if txid is not None:
            return own_all(self._bases(keys, txid))
        return self._changeable(self._latest(self._read(keys)))

    @abstractmethod
    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        """Update distinct keys by the rule of the kind; return the values that are stored now."""

    def multi_update_once(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        """Update keys that no other call of this commit updates, so that they need not be remembered until its end."""
        remembers = self._has_written() or self._puts_at_commit
        values = self.multi_update(keys, updaters)
        if not remembers:
            self._forget_written()
        return values

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Replace the values of distinct keys, by the rule of the kind."""
        self.multi_update(keys, [_Replace(value) for value in values])

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """Remove keys as part of the current batch, by a put of None; absent keys are ignored."""
        distinct = CanonicalKeys(dict.fromkeys(typed_keys(keys)))
        found = list(zip(distinct, self.multi_get(distinct), strict=True))
        there = CanonicalKeys(key for key, value in found if value is not None)
        self.multi_put(there, [None] * len(there))
        if self._deletes:
            self._removed.update(dict.fromkeys(there, self._current()))
        if self._puts_at_commit:  # what another partition writes now would be there or not by the order of the two
            self._removed_absent += (key for key, value in found if value is None)

    def get_tuples(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows: the fields of each key, then the value of the latest write, page by page.

        A key whose value is None has no row: it was removed, or never had a value.
        """
        for page in self.key_pages():
            values = self.multi_get(page)
            yield from [(*key, value) for key, value in zip(page, values, strict=True) if value is not None]

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys that the store holds, removed ones included, page by page."""
        if not self.backing.offers("key_pages"):
            raise UnsupportedOperation(
                f"list state {self.name!r}: a {type(innermost(self.backing)).__name__} cannot list its keys; ask for the "
                "keys that you know with multi_get, use a store that can (memory, Delta, Redis, PostgreSQL, Cassandra), or "
                "give your own map key_pages()"
            )
        if isinstance(self._guard, ReservedKeySentinel):
            return ([key for key in page if key[:1] != (SENTINEL_KEY,)] for page in self.backing.key_pages())
        return self.backing.key_pages()

    def read_sentinel(self) -> Sentinel | None:
        return self._guard.read_sentinel()

    def begun_txid(self) -> int:
        """Return the batch whose commit began last, if the sentinel does not say it; it may be in the store in part."""
        return self._guard.begun_txid() if isinstance(self._guard, ReservedKeySentinel) else 0

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Write the sentinel, with the name of this state; `force` also moves it back."""
        self._guard.move_sentinel(sentinel._replace(place=self.name), force)

    def reset(self) -> None:
        """Empty the partition, sentinel included; the backing map must be able to."""
        if not self.backing.offers("reset"):
            raise UnsupportedOperation(
                f"empty state {self.name!r}: a {type(innermost(self.backing)).__name__} has no reset(); empty the store by "
                "its own means, or give the state a new key prefix"
            )
        self._forget()
        self._removed = {}
        # Laid over what was read last alone: nothing is removed from another writer that came since.
        self.move_sentinel(Sentinel(EMPTIED, 0, 0), force=True)
        self.backing.reset()

    def close(self) -> None:
        self.backing.close()

    def _lay_sentinel(self, commit: Txid, sealed: bool) -> None:
        own = commit.sentinel_at(self.name, sealed)
        if own is not None:
            self._guard.move_sentinel(own)

    def _forget(self) -> None:
        self._txid, self._removed_absent = None, []
        self._forget_written()

    def _has_written(self) -> bool:
        return bool(self._written) or self._unmerged is not None

    def _forget_written(self) -> None:
        self._written, self._unmerged = {}, None

    def put_stored(self, commit: Txid, keys: Sequence[Key], stored: Sequence[Any]) -> None:
        """Write what another place stores for keys, as it is, in a commit of its own."""
        self._forget()
        self._begin(commit)
        self.backing.multi_put(keys, stored)
        self.backing.end(commit)
        if not self.backing.facts.commits_atomically:
            self._lay_sentinel(commit, sealed=True)

    def _begin(self, commit: Txid) -> None:
        if isinstance(self._guard, ReservedKeySentinel):
            self.backing.begin(commit)  # because a sentinel under a reserved key is one of the puts of the commit
            self._lay_sentinel(commit, sealed=self.backing.facts.commits_atomically)
        else:
            # Before the first put, because from here on the earlier writer of the partition is fenced.
            self._lay_sentinel(commit, sealed=self.backing.facts.commits_atomically)
            self.backing.begin(commit)

    def _delete_removed(self, txid: Txid) -> None:
        """Delete keys that were removed long ago and stayed so; called once the commit holds the fence."""
        for key in [key for key, by in self._removed.items() if by >= txid or not txid.winners.won(by, by.attempt)]:
            del self._removed[key]  # an attempt that lost; its replay decides again
        due = {key: by for key, by in self._removed.items() if by <= txid - REMOVAL_LAG}
        if due:
            stored = self.backing.multi_get(list(due))
            self.backing.multi_delete(
                [k for (k, by), found in zip(due.items(), stored, strict=True) if self._is_tombstone(found, by)]
            )
            self._removed = {key: by for key, by in self._removed.items() if key not in due}

    def _is_tombstone(self, found: Any, by: Txid) -> bool:
        """Whether `found` is what the commit `by` wrote for a key that it removed."""
        if self.kind is StateType.OPAQUE:
            return isinstance(found, OpaqueValue) and (found.txid, found.attempt, found.curr) == (by, by.attempt, None)
        return (
            bool(found == TransactionalValue(int(by), None)) if self.kind is StateType.TRANSACTIONAL else found is None
        )

    def _latest(self, found: Sequence[Any]) -> list[Any]:
        """Return the values of the latest writes, which are the last fields of what is stored."""
        return [None if stored is None else stored[-1] for stored in found]

    @abstractmethod
    def _bases(self, keys: Sequence[Key], txid: Txid) -> list[Any]:
        """Return the values that the updates of the commit `txid` start from."""

    def _changeable(self, values: list[Any]) -> list[Any]:
        """Return values that a reader may change in place, from what the backing map returned."""
        return values if self.backing.facts.gives_copies else own_all(values)

    def _read(self, keys: Sequence[Key]) -> Sequence[Any]:
        # A store may show a commit's own puts late (buffered until the end) or never (evicted at once).
        if not keys:
            return []
        count_keys(asked=len(keys))
        stored, written = self.backing.multi_get(keys), self._written
        return [written.get(key, found) for key, found in zip(keys, stored, strict=True)] if written else stored

    def _put(self, keys: Sequence[Key], stored: Sequence[Any]) -> None:
        if keys:
            # Store first, memory second, because a failed put must not look written (R10).
            if not self._puts_at_commit:
                self.backing.multi_put(keys, stored)
                count_keys(written=len(keys))
            self._written.update(zip(keys, stored, strict=True))

    def _current(self) -> Txid:
        if self._txid is None:
            raise CommitOrderError(f"state {self.name!r} was updated outside begin_commit and commit")
        return self._txid

    def _distinct(self, keys: Sequence[Key]) -> Sequence[Key]:
        # Two updaters of one key would both see the old value and one of them would be lost (H11).
        keys = typed_keys(keys)
        if len(set(keys)) != len(keys):
            seen: set[Key] = set()
            twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ValueError(f"key {twice!r} occurs more than once in one update of state {self.name!r}")
        return keys


class _Replace:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def update(self, stored: Any) -> Any:
        return self.value
