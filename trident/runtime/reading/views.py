"""Reading states: by queries of a running batch, by `RunningTopology.state` and by other processes (R12)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Any

from trident.errors import StaleTransactionError, StateError, UnsupportedOperation
from trident.runtime.reading.commit_gate import read_in_rounds
from trident.runtime.reading.store_check import StoreCheck
from trident.runtime.steps.partitions import partitions_of
from trident.state.abilities import (
    Closable,
    ITupleCollection,
    SnapshotGettable,
    SnapshotReadable,
    TableState,
    TimeTravelling,
)
from trident.state.interfaces import Key, ReadOnlyMapState, ReadOnlySnapshottable
from trident.state.map_abilities import ListableMap
from trident.state.removals import REMOVAL_LAG
from trident.state.txid import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["StateView"]


class StateView:
    """All partitions of a state as one map (or one value) at a committed snapshot.

    An opaque state shows exactly the batches 1 … T, over any number of keys, while T+1 is being written. Values of other
    kinds hold no `prev`, so a read shows their latest write.

    Parameters
    ----------
    partitions
        The state's instances, by partition.
    snapshot
        Returns the snapshot to read at; called again if a key is newer.
    gate
        Holding it delays the next commit, for reads that commits overtake again and again.
    now
        Returns the newest snapshot, for readers whose `snapshot` does not change for a while. They get
        `StaleTransactionError` when it is too old, and take another one for all that they read together.
    check
        Compares the stores with the log, once per snapshot; None: they are not compared.

    Attributes
    ----------
    txid
        The batch as of which the last read was; None before the first.
    """

    def __init__(
        self,
        partitions: Sequence[Any],
        snapshot: Callable[[], Snapshot],
        name: str = "state",
        now: Callable[[], Snapshot] | None = None,
        gate: AbstractContextManager[Any] | None = None,
        check: StoreCheck | None = None,
    ) -> None:
        self.txid: int | None = None
        self._check = check
        self._gate = gate
        self._partitions, self._snapshot, self._name = partitions, snapshot, name
        self._now, self._renews = now or snapshot, now is None
        self._past = isinstance(partitions[0], SnapshotReadable)
        # Threads share the instances of a running topology, and a store need not be thread-safe.
        self._lock = threading.Lock()

    @staticmethod
    def for_query(
        partitions: Sequence[Any],
        snapshot: Callable[[], Snapshot],
        name: str = "state",
        now: Callable[[], Snapshot] | None = None,
        check: StoreCheck | None = None,
    ) -> Any:
        """Return what a query function gets: a view, or a state of the user's itself."""
        if isinstance(partitions[0], (SnapshotReadable, ReadOnlyMapState)):
            return StateView(partitions, snapshot, name, now, check=check)
        return partitions[0]

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        """Read many keys, all at the same snapshot: one entry per key, in the order asked, None where absent.

        A key is a tuple of the grouping fields' values; a bare value is accepted for a key of one field.
        """
        wanted = [key if isinstance(key, tuple) else (key,) for key in keys]
        values: list[Any] = self._retried(lambda snapshot: self._read_at(wanted, snapshot))
        return values

    def get(self) -> Any:
        """Read the single value of a snapshottable state."""
        state = self._partitions[0]
        if self._past and isinstance(state, SnapshotGettable):
            return self._retried(lambda snapshot: state.get_at(snapshot))
        if not isinstance(state, ReadOnlySnapshottable):
            raise UnsupportedOperation(f"state {self._name!r} is not snapshottable; read it with multi_get(keys)")
        return self._retried(lambda snapshot: state.get())

    def get_tuples(self, prefix: Any = None, limit: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows: the key's fields, then the value. No order is promised.

        A state whose partitions each list their keys in one page (memory, Delta) is listed at one committed snapshot. Of
        any other state each page is read at one snapshot, and the next page may be of a later one.

        Parameters
        ----------
        prefix
            Only these keys: a text that the first field begins with, or a tuple of the first fields.
        limit
            The most rows to return; None: all.
        """
        if isinstance(self._partitions[0], ListableMap):
            rows = self._rows(prefix, limit)
        else:
            rows = (row for row in self._users_rows() if _begins(row, prefix))
        yield from islice(rows, limit)

    def _rows(self, prefix: Any, limit: int | None) -> Iterator[tuple[Any, ...]]:
        rows = self._retried(lambda snapshot: self._whole_listing(snapshot, prefix, limit))
        if rows is not None:
            yield from rows
            return
        for index, state in enumerate(self._partitions):
            for page in self._locked(state.key_pages()):
                keys = self._own(page, index, prefix)
                yield from _with_values(keys, self.multi_get(keys))

    def at(self, txid: int) -> StateView:
        """Return the state as it was after batch `txid`, where the store keeps earlier batches (Delta).

        Raises
        ------
        StateError
            The batch is not committed yet, or is not retained any more; the message names those that are.
        UnsupportedOperation
            The store keeps no earlier batches.
        """
        snapshot = self._snapshot()
        if txid > snapshot.txid:
            raise StateError(f"read state {self._name!r} as of batch {txid}: {snapshot.txid} is the last one committed")
        then = Snapshot(txid, snapshot.winners)
        with self._lock:
            self._compare()
            partitions = [self._time_travelling(state).at(then) for state in self._partitions]
        return StateView(partitions, lambda: then, self._name)

    def to_dataframe(self, spark: SparkSession) -> DataFrame:
        """Return the key fields and `value` of all keys as a DataFrame, where the store is a table (Delta).

        It shows the newest writes; for an opaque state this may include the batch that is being committed.
        """
        with self._lock:
            self._compare()
            frames: list[DataFrame] = [self._table(state).to_dataframe(spark) for state in self._partitions]
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.union(frame)
        return whole

    def _time_travelling(self, state: Any) -> TimeTravelling:
        if not isinstance(state, TimeTravelling):
            raise self._unsupported("read as of an earlier batch")
        return state

    def _table(self, state: Any) -> TableState:
        if not isinstance(state, TableState):
            raise self._unsupported("become a DataFrame")
        return state

    def _unsupported(self, what: str) -> UnsupportedOperation:
        return UnsupportedOperation(f"state {self._name!r} cannot {what}: its store is no Delta table")

    def close(self) -> None:
        """Close the instances."""
        for state in self._partitions:
            if isinstance(state, Closable):
                state.close()

    def _retried(self, read: Callable[[Snapshot], Any]) -> Any:
        def once() -> Any:
            snapshot = self._snapshot()
            try:
                found = read(snapshot)
            except StaleTransactionError:
                self._compare()  # a store that is ahead of its log looks as if its commits overtook the reader
                raise
            if self._check is not None:
                self._check.after_reading(snapshot.txid)
            self.txid = snapshot.txid
            return found

        with self._lock:
            return read_in_rounds(once, _was_overtaken, self._gate) if self._renews else once()

    def _compare(self) -> None:
        if self._check is not None:
            self._check.compare()

    def _users_rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of a state that is not one of our maps."""
        if not isinstance(self._partitions[0], ITupleCollection):
            raise UnsupportedOperation(f"the store of state {self._name!r} cannot list its keys")
        with self._lock:
            return [row for state in self._partitions for row in state.get_tuples()]

    def _whole_listing(self, snapshot: Snapshot, prefix: Any, limit: int | None) -> list[tuple[Any, ...]] | None:
        """Return the rows at a snapshot that was taken before the keys were listed; None if a partition has several pages."""
        keys: list[Key] = []
        for index, state in enumerate(self._partitions):
            pages = state.key_pages()
            keys += self._own(next(pages, ()), index, prefix)
            if next(pages, None) is not None:
                return None
        rows: list[tuple[Any, ...]] = []
        step = len(keys) if limit is None else max(limit, 1000)  # removed keys are listed too, and have no row
        while keys and (limit is None or len(rows) < limit):
            read, keys = keys[:step], keys[step:]
            rows += _with_values(read, self._read_at(read, snapshot))
        return rows

    def _own(self, page: Sequence[Key], partition: int, prefix: Any) -> list[Key]:
        """Return the keys of this partition: partitions that share a store may each list the keys of all."""
        places = partitions_of(page, len(self._partitions))
        return [page[at] for at in places.get(partition, ()) if _begins(page[at], prefix)]

    def _locked(self, pages: Iterator[Sequence[Key]]) -> Iterator[Sequence[Key]]:
        while True:
            with self._lock:
                page = next(pages, None)
            if page is None:
                return
            yield page

    def _read_at(self, keys: Sequence[Key], snapshot: Snapshot) -> list[Any]:
        values: list[Any] = [None] * len(keys)
        for partition, places in partitions_of(keys, len(self._partitions)).items():
            state, wanted = self._partitions[partition], [keys[at] for at in places]
            found = state.multi_get_at(wanted, snapshot) if self._past else state.multi_get(wanted)
            for at, value in zip(places, found, strict=True):
                values[at] = value
        if None in values and (now := self._now().txid) >= snapshot.txid + REMOVAL_LAG:
            # Keys of the snapshot may have been removed and deleted during this read.
            raise StaleTransactionError(self._name, "an absent key", snapshot.txid, now)
        return values


def _was_overtaken(error: Exception) -> bool:
    return isinstance(error, StaleTransactionError)


def _begins(key: Sequence[Any], prefix: Any) -> bool:
    if prefix is None:
        return True
    if isinstance(prefix, str):
        return isinstance(key[0], str) and key[0].startswith(prefix)
    return key[: len(prefix)] == tuple(prefix)


def _with_values(keys: Sequence[Key], values: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(*key, value) for key, value in zip(keys, values, strict=True) if value is not None]
