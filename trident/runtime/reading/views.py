"""Reading states: by queries of a running batch, by `RunningTopology.state` and by other processes (R12)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, Any

from trident.errors import (
    EnvironmentProblem,
    KeyConflictError,
    StaleTransactionError,
    StateError,
    UnsupportedOperation,
    WrongKeyError,
)
from trident.fields import Fields, is_nested
from trident.runtime.reading.commit_gate import ROUNDS, read_in_rounds
from trident.runtime.reading.state_frames import (
    SHOWN_ROWS,
    columns_of_rows,
    frame_of,
    html_of_state,
    html_or_why,
    pandas_of,
    table_of_state,
    with_results,
)
from trident.runtime.reading.state_partitions import (
    RankedRow,
    Row,
    RowListing,
    StatePartitions,
    begins,
    state_for_query,
    with_values,
)
from trident.runtime.reading.store_check import StoreCheck
from trident.state.encoding.declared_keys import declared_keys, declared_prefix, keys_of_list
from trident.state.encoding.equal_keys import OneForm
from trident.state.interfaces import Key, State, state_of
from trident.state.kinds import KeptChanges
from trident.state.removals import REMOVAL_LAG
from trident.state.txid import Snapshot

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LISTING_ROUNDS = 5  # a listing takes longer than a read


class StateView:
    """All partitions of a state as one map (or one value) at a committed snapshot.

    An opaque state shows exactly the batches 1 … T, over any number of keys, while T+1 is being written. Values of other
    kinds hold no `prev`, so a read shows their latest write.

    `partitions`: the state's instances, by partition.
    `snapshot`: returns the snapshot to read at; called again if a key is newer.
    `gate`: holding it delays the next commit, for reads that commits overtake again and again.
    `now`: returns the newest snapshot, for readers whose `snapshot` does not change for a while. They get
    `StaleTransactionError` when it is too old, and take another one for all that they read together.
    `check`: compares the stores with the log, once per snapshot; None: they are not compared.
    `columns`: names and types of the rows: the key's fields, then the value.
    `free_keys`: whether a user's updater chooses the keys.
    `results`: of several aggregates in one value, the fields of their results: `to_pandas` shows these, and not what is
    remembered.
    `txid`: the batch whose state the last call read; None before the first.
    """

    def __init__(
        self,
        partitions: Sequence[State],
        snapshot: Callable[[], Snapshot],
        name: str = "state",
        now: Callable[[], Snapshot] | None = None,
        gate: AbstractContextManager[Any] | None = None,
        check: StoreCheck | None = None,
        columns: Fields = Fields(),
        free_keys: bool = False,
        results: Fields = Fields(),
    ) -> None:
        self.txid: int | None = None
        self._columns, self._results = columns, results
        self._key = Fields.of(columns.names[:-1], columns.types[:-1])
        self._check = check
        self._gate = gate
        self._partitions, self._snapshot, self._name = partitions, snapshot, name
        self._now, self._renews = now or snapshot, now is None
        self._free_keys, self._all = free_keys, StatePartitions(partitions, name, free_keys)
        # A window has no columns, and the keys of an updater are not declared.
        self._is_total = len(columns) == 1 and columns.types[0] is not None and not free_keys
        has_keys = len(columns) != 1 or free_keys
        self._listing = RowListing(partitions, self._all, name, has_keys, self._read_at)
        # Threads share the instances of a running topology, and a store need not be thread-safe.
        self._lock = threading.Lock()

    @staticmethod
    def for_query(
        partitions: Sequence[State],
        snapshot: Callable[[], Snapshot],
        name: str = "state",
        now: Callable[[], Snapshot] | None = None,
        check: StoreCheck | None = None,
        free_keys: bool = False,
        columns: Fields = Fields(),
    ) -> Any:
        """Return what a query function gets: a view, or the user's own state itself."""
        if partitions[0].offers("multi_get") or partitions[0].offers("multi_get_at"):
            return StateView(partitions, snapshot, name, now, check=check, free_keys=free_keys, columns=columns)
        return state_for_query(partitions, name, free_keys)

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        """Read many keys, all at the same snapshot: one entry per key, in the order asked, None where absent.

        A key is a tuple of the grouping fields' values; a bare value is accepted for a key of one field. Values are
        compared as the field's type compares them: 1 is 1.0 for a double.

        Raises `WrongKeyError`: a key has too many parts or too few, or one that is no value of its field's type; or the state
        has no keys.
        """
        given = keys_of_list(keys, self._name)
        if not len(self._key):
            if self._is_total:
                raise WrongKeyError(f"state {self._name!r} holds a single value, and no keys; read it with get()")
            return self._read(given)
        wanted = declared_keys(given, self._key, self._name)
        there = OneForm(key for key in wanted if key is not None)
        values = self._read(there)
        if len(there) < len(wanted):
            found = iter(values)
            values = [None if key is None else next(found) for key in wanted]
        return values

    def _read(self, keys: Sequence[Any]) -> list[Any]:
        values: list[Any] = self._retried(lambda snapshot: self._read_at(keys, snapshot))
        return values

    def get(self) -> Any:
        """Read the single value of a snapshottable state."""
        if len(self._key):
            raise WrongKeyError(
                f"state {self._name!r} has a value per key ({', '.join(self._key.names)}), and no single one; read it with "
                "multi_get(keys)"
            )
        return self._retried(self._all.total)

    def get_tuples(self, prefix: Any = None, limit: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows: the key's fields, then the value. No order is promised.

        A state whose partitions each list their keys in one page (memory, Delta) is listed at one committed snapshot. Of
        any other state each page is read at one snapshot, and the next page may be of a later one.

        `prefix`: only these keys: a text that the first field begins with, or a tuple of the first fields.
        `limit`: the most rows to return; None: all.
        """
        return self._tuples(self._prefix(prefix), limit)

    def top(self, count: int, by: str | None = None, prefix: Any = None) -> list[Row]:
        """Return the rows with the greatest values, the greatest first, of equal ones that with the smallest key first.

        Values are ordered as in Spark: a NaN is greater than any number, None comes last. The rows are those of
        `get_tuples`, all of which are read.

        `count`: how many rows at most.
        `by`: of several aggregates in one value the one to order by.
        `prefix`: of these keys only, as of `get_tuples`.

        Raises `StateError`: `by` is missing or is none of the aggregates, or the values have no order.
        Raises `WrongKeyError`: the state holds a single value.
        Raises `UnsupportedOperation`: the store cannot list its keys (Memcached).
        """
        if self._is_total:
            raise WrongKeyError(f"state {self._name!r} holds a single value; read it with get()")
        member = self._ordered_by(by)
        rows = self._tuples(self._prefix(prefix), None)
        try:
            return nlargest(count, rows, lambda row: RankedRow(row[:-1], row[-1][member] if member else row[-1]))
        except TypeError as error:
            raise StateError(
                f"list the greatest values of state {self._name!r}: they have no order: {error}"
            ) from error

    def _ordered_by(self, by: str | None) -> str | None:
        """Return which aggregate of several in one value is meant; None if the value is not several."""
        value = Fields.of(self._columns.names[-1:], self._columns.types[-1:])
        columns = self._results if len(self._results) else value
        names = list(columns.names)
        wanted = names[0] if by is None and len(names) == 1 else by
        if wanted not in names:
            raise StateError(f"list the greatest values of state {self._name!r} by {by!r}: by is one of {names}")
        if is_nested(type_ := columns.type_of(wanted)):
            raise StateError(
                f"list the greatest values of state {self._name!r}: {wanted!r} is {type_}, which has no order"
            )
        return wanted if len(self._results) else None

    def _tuples(self, prefix: Any, limit: int | None) -> Iterator[tuple[Any, ...]]:
        if self._is_total:
            rows = iter(self._retried(self._listing.at))
        elif self._listing.has_pages:
            rows = self._rows(prefix, limit)
        else:
            with self._lock:
                rows = iter([row for row in self._listing.of_user() if begins(row, prefix)])
        yield from islice(rows, limit)

    def _prefix(self, prefix: Any) -> Any:
        """Return a prefix as keys in their one form begin; refuse one with which no key can begin."""
        if not len(self._key) or prefix is None:
            return prefix
        if not isinstance(prefix, str):
            found = declared_prefix(prefix, self._key, self._name)
            return (None,) * len(self._columns) if found is None else found  # no key is as long as that
        if self._key.types[0] not in (None, "string"):
            raise WrongKeyError(
                f"list the keys of state {self._name!r} that begin with {prefix!r}: they begin with {self._key.names[0]}, of "
                f"type {self._key.types[0]}; give a tuple of the first fields"
            )
        return prefix

    def _rows(self, prefix: Any, limit: int | None) -> Iterator[tuple[Any, ...]]:
        rows = self._retried(lambda snapshot: self._listing.in_one_page(snapshot, prefix, limit))
        if rows is not None:
            yield from rows
            return
        for index, state in enumerate(self._partitions):
            for page in self._locked(state.key_pages()):
                keys = self._own(page, index, prefix)
                yield from with_values(keys, self.multi_get(keys))

    def pages_of(self, partition: int) -> Iterator[list[Row]]:
        """Iterate over the rows of one partition, in pages of a size that suits the store."""
        state = self._partitions[partition]
        if not (self._listing.has_keys and self._listing.has_pages) or state.offers("at"):
            yield self._retried(lambda snapshot: self._listing.at(snapshot, partition))
            return
        for page in self._locked(state.key_pages()):
            keys = self._own(page, partition)
            yield with_values(keys, self.multi_get(keys))

    def at(self, txid: int) -> StateView:
        """Return the state as it was after batch `txid`, where the store keeps earlier batches (Delta).

        Raises `StateError`: the batch is not committed yet, or is not retained any more; the message names those that are.
        Raises `UnsupportedOperation`: the store keeps no earlier batches.
        """
        snapshot = self._snapshot()
        if txid > snapshot.txid:
            raise StateError(f"read state {self._name!r} as of batch {txid}: {snapshot.txid} is the last one committed")
        then = Snapshot(txid, snapshot.winners)
        with self._lock:
            self.compare()
            partitions = [state_of(self._time_travelling(state).at(then)) for state in self._partitions]
        return StateView(
            partitions,
            lambda: then,
            self._name,
            columns=self._columns,
            free_keys=self._free_keys,
            results=self._results,
        )

    def to_arrow(self) -> pa.Table:
        """Return the key fields and the value of all keys as an Arrow table, all as of one committed batch.

        Columns are named as of `to_dataframe`. Several aggregates in one value are a column each, without what they remember
        beside their result.

        Raises `StateError`: commits overtook the reading again and again, or values do not fit their column.
        Raises `UnsupportedOperation`: the store cannot list its keys (Memcached).
        """
        rows = self.rows_at_once()
        columns = columns_of_rows(self._name, rows) if self._free_keys else self._columns
        return table_of_state(self._name, *with_results(columns, rows, self._results))

    def to_pandas(self) -> pd.DataFrame:
        """Return the key fields and the value of all keys as a DataFrame of pandas; see `to_arrow`.

        Raises `EnvironmentProblem`: there is no pandas.
        """
        return pandas_of(self.to_arrow())

    def __repr__(self) -> str:
        return f"StateView({self._name!r}{'' if self.txid is None else f', after batch {self.txid}'})"

    def first_rows(self) -> str:
        """Return the first rows as HTML."""
        rows = partial(self.get_tuples, limit=SHOWN_ROWS + 1)
        return html_of_state(f"state {self._name}", self._columns, self._results, rows, lambda: self.txid)

    def _repr_html_(self) -> str:
        return html_or_why(f"state {self._name}", self.first_rows)

    def to_dataframe(self, spark: SparkSession) -> DataFrame:
        """Return the key fields and the value of all keys as a DataFrame, all as of one committed batch.

        The value's column has the name of the aggregate's field (`value` if an updater declared none).

        The fields of keys that an updater chooses are `key`, or `key_1`, `key_2` … if there are several.

        The tasks of Spark read the store if it is a Delta table and this session can read such tables. The rows of any other
        store that can list its keys pass through this process. States that are not opaque show their latest writes.

        Raises `StateError`: commits overtook the reading again and again.
        Raises `UnsupportedOperation`: the store cannot list its keys (Memcached).
        """
        if self._partitions[0].offers("to_dataframe"):
            with suppress(EnvironmentProblem):
                return self._frame_of_table(spark, self._partitions[0])
        rows = self.rows_at_once()
        return frame_of(
            spark, self._name, columns_of_rows(self._name, rows) if self._free_keys else self._columns, rows
        )

    def _frame_of_table(self, spark: SparkSession, table: State) -> DataFrame:
        with self._lock:
            self.compare()
            snapshot = self._snapshot()
            frame: DataFrame = table.to_dataframe(spark, snapshot)
            keys = frame.columns[:-1] if self._free_keys else self._columns.names[:-1]
            frame = frame.toDF(*keys, self._columns.names[-1])
            self.txid = snapshot.txid
            return frame

    def rows_at_once(self) -> list[Row]:
        """Return all rows as of one committed batch: the key's fields, then the value; only the value if there is no key."""
        try:
            rows: list[Row] = self._retried(self._listing.at, LISTING_ROUNDS)
        except StaleTransactionError as error:
            raise StateError(
                f"list state {self._name!r} as of one batch: its topology commits batches faster than its keys can be listed. "
                "List it page by page with get_tuples(), stop the topology meanwhile, or keep the state in Delta"
            ) from error
        return rows

    @property
    def kept_changes(self) -> KeptChanges:
        """What commits have changed in all partitions. Raises `UnsupportedOperation`: that is not kept."""
        found = self._partitions[0].kept_changes
        if found is None:
            raise UnsupportedOperation(f"state {self._name!r} keeps no changes: declare it with changes=")
        return found

    def _time_travelling(self, state: State) -> State:
        if not state.offers("at"):
            raise UnsupportedOperation(
                f"state {self._name!r} cannot be read as of an earlier batch: its store is not a Delta table"
            )
        return state

    def close(self) -> None:
        """Close the instances."""
        for state in self._partitions:
            state.close()

    def _retried(self, read: Callable[[Snapshot], Any], rounds: int = ROUNDS) -> Any:
        def once() -> Any:
            snapshot = self._snapshot()
            try:
                found = read(snapshot)
            except StaleTransactionError:
                self.compare()  # a store that is ahead of its log looks as if its commits overtook the reader
                raise
            if self._check is not None:
                self._check.after_reading(snapshot.txid)
            self.txid = snapshot.txid
            return found

        with self._lock:
            return read_in_rounds(once, _was_overtaken, self._gate, rounds) if self._renews else once()

    def compare(self) -> None:
        """Compare the stores with the log; `StateReadError` if they do not belong together."""
        if self._check is not None:
            self._check.compare()

    def _own(self, page: Sequence[Key], partition: int, prefix: Any = None) -> list[Key]:
        keys: list[Key] = self._retried(lambda snapshot: self._listing.own(page, partition, snapshot, prefix))
        return keys

    def _locked(self, pages: Iterator[Sequence[Key]]) -> Iterator[Sequence[Key]]:
        while True:
            with self._lock:
                page = next(pages, None)
            if page is None:
                return
            yield page

    def _read_at(self, keys: Sequence[Key], snapshot: Snapshot) -> list[Any]:
        values = self._all.multi_get(keys, snapshot)
        if None in values and (now := self._now().txid) >= snapshot.txid + REMOVAL_LAG:
            # Keys of the snapshot may have been removed and deleted during this read.
            raise StaleTransactionError(self._name, "an absent key", snapshot.txid, now)
        return values


def _was_overtaken(error: Exception) -> bool:
    # What different partitions say of a key may also be of different batches, where values hold no `prev`.
    return isinstance(error, (StaleTransactionError, KeyConflictError))
