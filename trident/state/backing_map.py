"""BackingMap: the base class of stores. Two methods, and what else a store may do; the defaults suit a plain store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trident.roles import Role, adapt

if TYPE_CHECKING:
    from trident.state.kinds import KeptChanges, Key, LaterWrite
    from trident.state.table import OpaqueTable
    from trident.state.txid import Sentinel, Txid


@dataclass(frozen=True)
class MapFacts:
    """What is known of a backing map, and what else it can do: a method of the map, if it has one of that name.

    Attributes
    ----------
    commits_atomically
        A commit is written whole, with its sentinel, or not at all. The sentinel of any other map is written a second time
        when the whole commit is acknowledged, sealed, so that a store that lost the end of a commit is found.
    gives_copies
        What is read was decoded for this call, so readers may change it. Anything else is copied for them.
    shares_keys
        Each partition sees the keys of all. In any other map, a query asks all partitions that a user's updater writes.
    keeps_columns
        `multi_get_opaque` may return a table that combines.
    has_typed_columns
        Stored values have the declared type, as in a column, and their bytes name no other type.
    kept_changes
        What its commits have changed; None: that is not kept.
    past_caches
        The map behind a memory: a snapshot read must not see what a crashed commit remembered; None: it remembers nothing.
    unclaimed_txid
        Returns the last batch of which there are values, 0 without any; asked where there is no sentinel. None: no copy of the
        values can lack it.
    keeps_attempts
        Returns whether opaque values say which attempt wrote them.
    multi_get_opaque
        Reads opaque values as `multi_get` does, as a table that is made for this call; returns None where rows are faster, or
        fit better. A map that returned a table may be given one by the next `multi_put`. `KeyColumns` are the distinct keys of
        `OpaqueMap.multi_combine`: for a table that combines, it is given what the table made of its values, for the same keys.
    commit_with_record
        `(later)`: from now on give the write of a commit to `later` at its `end`: it will be made together with the record of
        its batch. The next `read_sentinel` shows whether it was.
    """

    commits_atomically: bool = False
    gives_copies: bool = False
    shares_keys: bool = False
    keeps_columns: bool = False
    has_typed_columns: bool = False
    kept_changes: KeptChanges | None = None
    past_caches: BackingMap | None = None
    unclaimed_txid: Callable[[], int] | None = None
    keeps_attempts: Callable[[], bool] = lambda: True
    multi_get_opaque: Callable[[Sequence[Key]], OpaqueTable | None] | None = None
    commit_with_record: Callable[[Callable[[LaterWrite], None]], None] | None = None


class BackingMap(Role, ABC):
    """A key-value store under a map of `trident.state`: one partition, used by one thread at a time.

    `multi_get` and `multi_put` are all that a store must have. A store that writes `move_sentinel` (with `read_sentinel`)
    fences writers; one that writes `multi_delete`, `key_pages` or `reset` deletes, lists, can be emptied. Methods besides are
    named in `MapFacts`. None of them is another one: `multi_get_opaque` says before it reads that rows fit better; a put of
    None is a value, and no deletion; only a memory knows what a commit that crashed has left in it (`past_caches`).
    """

    facts: MapFacts = MapFacts()

    @abstractmethod
    def multi_get(self, keys: Sequence[Key]) -> Sequence[Any]:
        """Read many keys: one entry per key, in the order asked, None where never written."""

    @abstractmethod
    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write many distinct keys. Return once all are written; on an error any of them may have been.

        Raises
        ------
        FencedError
            Another writer has moved the sentinel: nothing that it wrote was changed.
        StateLossDetected
            The sentinel that this writer laid is gone.
        BackendError, CorruptValueError
            The store refused or did not answer, or a value cannot be encoded.
        """

    def begin(self, txid: Txid) -> None:
        """A commit begins; drop the unfinished puts of an earlier one.

        A put outside of `begin` and `end` is written when it returns; the claim at a start and the seal of a commit are such.
        """

    def end(self, txid: Txid) -> None:
        """The commit's puts are complete; return once they are durable."""

    def read_sentinel(self) -> Sentinel | None:
        """Return the sentinel of this partition, None if there is none."""
        raise self._lacks("read_sentinel")

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Replace the sentinel that this instance read or wrote last; from now on puts succeed only while it is there (R9).

        A store that has this stores all fields of a `Sentinel`; for any other they go under reserved keys. It is written
        unsealed when a commit begins and again, sealed, when all puts are acknowledged (see `MapFacts`).

        It is a compare-and-set, "none" included; without a read before it, the move reads by itself. A move that is sent
        again, because no answer came, finds the record that was read or its own. With `force` it may also go back, or to
        another incarnation.

        Raises
        ------
        FencedError, StateLossDetected, StatePlaceError
            The store has another sentinel; see `trident.state.sentinel.displaced`. Nothing was written.
        """
        raise self._lacks("move_sentinel")

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete keys; absent ones are ignored. Fenced as `multi_put` is. Without it a removed key stays as a stored None."""
        raise self._lacks("multi_delete")

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys, in pages of a size that suits the store, without the sentinel's.

        A key that exists from the first page to the last is listed exactly once. Partitions that share a store may each list
        the keys of all.
        """
        raise self._lacks("key_pages")

    def reset(self) -> None:
        """Forget every key and the sentinel of this partition, for `state_recovery="discard_totals"`."""
        raise self._lacks("reset")


def backing_map(given: Any) -> BackingMap:
    """Return the backing map that an object with at least `multi_get` and `multi_put` is."""
    store: BackingMap = adapt(BackingMap, given)
    return store


_warnings_left = False


def leave_warnings() -> None:
    """Say that this process is a worker: the driver has opened the same states, and has warned of what a server may lose."""
    global _warnings_left
    _warnings_left = True


def warnings_left() -> bool:
    return _warnings_left
