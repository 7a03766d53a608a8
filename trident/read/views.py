"""Reading states: by queries of a running batch, by `RunningTopology.state` and by other processes (R12).

The rows of a state are also typed columns: a table, a DataFrame of pandas or of Spark, and what a notebook shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from heapq import nlargest
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trident.arrow import UNFIT, arrow_type, python_of, strict_column
from trident.errors import (
    EnvironmentProblem,
    StaleTransactionError,
    StateError,
    UnsupportedOperation,
    WrongKeyError,
    describe,
)
from trident.extras import needs_package
from trident.fields import Fields, free_name, is_nested
from trident.graph import Node, PersistNode, StateNode
from trident.log.log_state import LogState
from trident.naming import counted
from trident.notebook import pre_block, table
from trident.operations.several import MultiAggregate, result_fields
from trident.read.state_partitions import RankedRow, Row, StatePartitions, begins
from trident.setting_types import count_of
from trident.state.encoding.equal_keys import CanonicalKeys, declared_keys, declared_prefix, keys_of_list
from trident.state.interfaces import State
from trident.state.kinds import KeptChanges
from trident.state.txid import Snapshot
from trident.steps.key_columns import partition_of_total

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

LISTING_ROUNDS = 5  # a listing takes longer than a read
_SHOWN_ROWS = 20


class StateView:
    """All partitions of a state as one map (or one value) at a committed snapshot.

    An opaque state shows exactly the batches 1 … T, over any number of keys, while T+1 is being written. Values of other
    kinds hold no `prev`, so a read shows their latest write.

    `partitions`: the state's instances, by partition.
    `snapshot`: returns the snapshot to read at; called again if a key is newer. None: it is the newest one of `log`.
    `columns`: of the rows: the key's fields, then the value. `results`: of several aggregates in one value, the fields of their
    results, which `to_pandas` shows.
    `log`: returns the state of the log, which the stores are compared with; None: they are not. Readers with both get
    `StaleTransactionError` when their `snapshot` is too old, and take another one for all that they read together.
    `gate`: holding it delays the next commit, for reads that commits overtake again and again.
    """

    def __init__(
        self,
        partitions: Sequence[State],
        snapshot: Callable[[], Snapshot] | None,
        name: str = "state",
        columns: Fields = Fields(),
        free_keys: bool = False,
        results: Fields = Fields(),
        log: Callable[[], LogState] | None = None,
        gate: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._name, self._columns, self._results, self._free_keys = name, columns, results, free_keys
        self._key = Fields.of(columns.names[:-1], columns.types[:-1])
        # A window has no columns, and the keys of an updater are not declared.
        self._is_total = len(columns) == 1 and columns.types[0] is not None and not free_keys
        has_keys = len(columns) != 1 or free_keys
        self._parts = StatePartitions(partitions, name, snapshot, log, gate, free_keys, has_keys)

    @property
    def txid(self) -> int | None:
        """The batch whose state the last call read; None before the first."""
        return self._parts.txid

    def _current(self) -> StatePartitions:
        return self._parts

    @staticmethod
    def for_query(
        partitions: Sequence[State],
        snapshot: Callable[[], Snapshot],
        node: StateNode,
        log: Callable[[], LogState] | None = None,
    ) -> Any:
        """Return what a query function gets: a view, or the user's own state itself, which sees what all partitions hold."""
        if partitions[0].offers("multi_get") or partitions[0].facts.multi_get_at is not None:
            return StateView(partitions, snapshot, node.name, columns_of(node), node.free_keys, log=log)
        if not node.free_keys:
            return partitions[partition_of_total(len(partitions))].given
        if len(partitions) > 1 and not partitions[0].facts.shares_keys:
            raise UnsupportedOperation(
                f"state {node.name!r} has {len(partitions)} partitions, and a query function gets one of them: if each of "
                f"them sees what all hold, say so with shares_keys = True in {type(partitions[0]).__name__}; else give the "
                "state one partition, or make it a map (multi_get), whose partitions are all asked"
            )
        return partitions[0].given

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        """Read many keys, all at the same snapshot: one entry per key, in the order asked, None where absent.

        A key is a tuple of the grouping fields' values; a bare value is accepted for a key of one field. Values are compared
        as the field's type compares them: 1 is 1.0 for a double.

        Raises `WrongKeyError`: a key has too many parts or too few, or one that is no value of its field's type; or the state
        has no keys.
        """
        parts, given = self._current(), keys_of_list(keys, self._name)
        if not self._key.names:
            if self._is_total:
                raise WrongKeyError(f"state {self._name!r} holds a single value, and no keys; read it with get()")
            return parts.multi_get(given)
        wanted = declared_keys(given, self._key, self._name)
        there = CanonicalKeys(filter(None, wanted))
        values = parts.multi_get(there)
        if len(there) == len(wanted):
            return values
        found = iter(values)
        return [None if key is None else next(found) for key in wanted]

    def get(self) -> Any:
        """Read the single value of a snapshottable state."""
        parts = self._current()
        if len(self._key):
            raise WrongKeyError(
                f"state {self._name!r} has a value per key ({', '.join(self._key.names)}), and no single one; read it with "
                "multi_get(keys)"
            )
        return parts.read(parts.total)

    def get_tuples(self, prefix: Any = None, limit: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows: the key's fields, then the value. No order is promised.

        A state whose partitions each list their keys in one page (memory, Delta) is listed at one committed snapshot. Of
        any other state each page is read at one snapshot, and the next page may be of a later one.

        `prefix`: only these keys: a text that the first field begins with, or a tuple of the first fields.
        `limit`: the most rows to return; None: all.
        """
        limit = None if limit is None else count_of("limit", limit)
        return self._tuples(self._current(), self._prefix(prefix), limit)

    def top(self, count: int, by: str | None = None, prefix: Any = None) -> list[Row]:
        """Return the `count` rows with the greatest values, the greatest first, of equal ones that with the smallest key first.

        Values are ordered as in Spark: a NaN is greater than any number, None comes last. All rows of `get_tuples` are read.

        `by`: of several aggregates in one value the one to order by.
        `prefix`: of these keys only, as of `get_tuples`.

        Raises `StateError`: `by` is missing or is none of the aggregates, or the values have no order.
        Raises `WrongKeyError`: the state holds a single value.
        Raises `UnsupportedOperation`: the store cannot list its keys (Memcached).
        """
        if self._is_total:
            raise WrongKeyError(f"state {self._name!r} holds a single value; read it with get()")
        count, value = count_of("count", count), Fields.of(self._columns.names[-1:], self._columns.types[-1:])
        columns = self._results if len(self._results) else value
        names = list(columns.names)
        wanted = names[0] if by is None and len(names) == 1 else by
        if wanted not in names:
            raise StateError(f"list the greatest values of state {self._name!r} by {by!r}: by is one of {names}")
        if is_nested(type_ := columns.type_of(wanted)):
            raise StateError(
                f"list the greatest values of state {self._name!r}: {wanted!r} is {type_}, which has no order"
            )
        member = wanted if len(self._results) else None
        rows = self._tuples(self._current(), self._prefix(prefix), None)
        try:
            return nlargest(count, rows, lambda row: RankedRow(row[:-1], row[-1][member] if member else row[-1]))
        except TypeError as error:
            raise StateError(
                f"list the greatest values of state {self._name!r}: they have no order: {error}"
            ) from error

    def _tuples(self, parts: StatePartitions, prefix: Any, limit: int | None) -> Iterator[tuple[Any, ...]]:
        rows: Iterable[Row] | None
        if self._is_total:
            rows = parts.read(parts.rows)
        elif parts.has_pages:
            rows = parts.read(lambda snapshot: parts.rows_of_one_page(snapshot, prefix, limit))
            if rows is None:
                pages = (parts.pages(partition, prefix) for partition in range(len(parts.instances)))
                rows = chain.from_iterable(chain.from_iterable(pages))
        else:
            with parts.lock:
                rows = [row for row in parts.rows_of_user() if begins(row, prefix)]
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

    def pages_of(self, partition: int) -> Iterator[list[Row]]:
        """Iterate over the rows of one partition, in pages of a size that suits the store."""
        parts = self._current()
        if not (parts.has_keys and parts.has_pages) or parts.instances[0].facts.at is not None:
            yield parts.read(lambda snapshot: parts.rows(snapshot, partition))
        else:
            yield from parts.pages(partition)

    def at(self, txid: int) -> StateView:
        """Return the state as it was after batch `txid`, where the store keeps earlier batches (Delta).

        Raises `StateError`: the batch is not committed yet, or is not retained any more; the message names those that are.
        Raises `UnsupportedOperation`: the store keeps no earlier batches.
        """
        parts = self._current()
        snapshot = parts.snapshot()
        if (txid := count_of("txid", txid)) > snapshot.txid:
            raise StateError(f"read state {self._name!r} as of batch {txid}: {snapshot.txid} is the last one committed")
        then = Snapshot(txid, snapshot.winners)
        with parts.lock:
            parts.compare()
            past = parts.at(then, range(len(parts.instances)))
            if not past:
                raise UnsupportedOperation(
                    f"state {self._name!r} cannot be read as of an earlier batch: its store is not a Delta table"
                )
        return StateView(past, lambda: then, self._name, self._columns, self._free_keys, self._results)

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

        Whole numbers stay whole where some are missing, maps become dicts; `EnvironmentProblem`: there is no pandas.
        """
        with needs_package("to_pandas()", "spark", "pandas"):
            import pandas  # noqa: F401  only to see whether it is there: pyarrow imports it by itself
        frame: pd.DataFrame = self.to_arrow().to_pandas(integer_object_nulls=True, maps_as_pydicts="strict")
        return frame

    def __repr__(self) -> str:
        return f"StateView({self._name!r}{'' if self.txid is None else f', after batch {self.txid}'})"

    def first_rows(self) -> str:
        """Return the first rows as HTML, for a notebook."""
        read = list(self.get_tuples(limit=_SHOWN_ROWS + 1))
        first, columns, after = read[:_SHOWN_ROWS], self._columns, self.txid
        fits = all(len(row) == len(columns) for row in read)
        columns, shown = with_results(columns, first, self._results if fits else Fields())
        head = columns.names if all(len(row) == len(columns) for row in shown) else ()
        count = f"the first {_SHOWN_ROWS} rows" if len(read) > len(first) else counted(len(first), "row")
        what = [f"state {self._name}", count, *([] if after is None else [f"after batch {after}"])]
        return table(head, shown, ", ".join(what))

    def _repr_html_(self) -> str:
        return html_or_why(f"state {self._name}", self.first_rows)

    def to_dataframe(self, spark: SparkSession) -> DataFrame:
        """Return the key fields and the value of all keys as a DataFrame, all as of one committed batch.

        The value's column has the name of the aggregate's field (`value` if an updater declared none); the fields of keys
        that an updater chooses are `key`, or `key_1`, `key_2` … if there are several.

        The tasks of Spark read the store if it is a Delta table and this session can read such tables. The rows of any other
        store that can list its keys pass through this process. States that are not opaque show their latest writes.

        Raises `StateError`: commits overtook the reading again and again.
        Raises `UnsupportedOperation`: the store cannot list its keys (Memcached).
        """
        if self._current().instances[0].facts.to_dataframe is not None:
            with suppress(EnvironmentProblem):
                return self._frame_of_table(spark)
        rows = self.rows_at_once()
        columns = columns_of_rows(self._name, rows) if self._free_keys else self._columns
        found = table_of_state(self._name, columns, rows)
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(
            found.schema, prefer_timestamp_ntz=True
        )  # else Spark shifts them by the session's zone
        if not spark.version.startswith("3."):
            return spark.createDataFrame(found, schema)
        values = zip(*map(python_of, found.columns), strict=True)  # PySpark 3.5 takes no tables
        return spark.createDataFrame(list(values), schema)

    def _frame_of_table(self, spark: SparkSession) -> DataFrame:
        parts = self._parts
        read: Any = parts.instances[0].facts.to_dataframe  # of these very parts, which another thread may replace
        with parts.lock:
            parts.compare()
            snapshot = parts.snapshot()
            frame: DataFrame = read(spark, snapshot)
            keys = frame.columns[:-1] if self._free_keys else self._columns.names[:-1]
            frame = frame.toDF(*keys, self._columns.names[-1])
            parts.txid = snapshot.txid
            return frame

    def rows_at_once(self) -> list[Row]:
        """Return all rows as of one committed batch: the key's fields, then the value; only the value if there is no key."""
        parts = self._current()
        try:
            return parts.read(parts.rows, LISTING_ROUNDS)
        except StaleTransactionError as error:
            raise StateError(
                f"list state {self._name!r} as of one batch: its topology commits batches faster than its keys can be listed. "
                "List it page by page with get_tuples(), stop the topology meanwhile, or keep the state in Delta"
            ) from error

    @property
    def kept_changes(self) -> KeptChanges:
        """What commits have changed in all partitions; `UnsupportedOperation`: that is not kept."""
        found = self._parts.instances[0].facts.kept_changes
        if found is None:
            raise UnsupportedOperation(f"state {self._name!r} keeps no changes: declare it with changes=")
        return found

    def compare(self) -> None:
        """Compare the stores with the log; `StateReadError` if they do not belong together."""
        self._parts.compare()

    def close(self) -> None:
        for state in self._parts.instances:
            state.close()


def columns_of(state: StateNode) -> Fields:
    """Return the columns of a state's rows: the fields of its key, and the value, under a name that no field of the key has."""
    keys, named = state.key_fields, state.value.names[0] if len(state.value) else "value"
    value = free_name(named, keys.names)
    return Fields.of([*keys.names, value], [*keys.types, state.value.types[0] if len(state.value) else None])


def columns_of_rows(state: str, rows: Sequence[Sequence[Any]]) -> Fields:
    """Return columns for the rows of a state whose keys an updater chooses: `key` (or `key_1`, `key_2` …) and `value`."""
    widths = {len(row) for row in rows} or {2}
    if len(widths) > 1:
        raise StateError(
            f"the rows of state {state!r} cannot become columns: its updater writes keys of {min(widths) - 1} and of "
            f"{max(widths) - 1} fields. Read them with get_tuples()"
        )
    fields = widths.pop() - 1
    names = ["key"] if fields == 1 else [f"key_{at}" for at in range(1, fields + 1)]
    return Fields.of([*names, "value"], [None] * (fields + 1))


def results_in(nodes: Iterable[Node], state: str) -> Fields:
    """Return the results of a state that holds several aggregates, without what they remember; no field for another state."""
    for node in nodes:
        if isinstance(node, PersistNode) and node.state == state and node.aggregation is not None:
            several = node.aggregation.aggregator
            return result_fields(several) if isinstance(several, MultiAggregate) else Fields()
    return Fields()


def with_results(columns: Fields, rows: Iterable[Sequence[Any]], results: Fields) -> tuple[Fields, list[Sequence[Any]]]:
    """Return columns and rows with a column for each result in place of the value, if there are several results."""
    if not len(results):
        return columns, list(rows)
    keys = columns.names[:-1]
    names = [free_name(name, keys) for name in results.names]
    wide = Fields.of([*keys, *names], [*columns.types[:-1], *results.types])
    return wide, [(*row[:-1], *(row[-1][name] for name in results.names)) for row in rows]


def table_of_state(state: str, columns: Fields, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Return rows as a table; a column whose type is not declared gets its values' type. `StateError`: a value does not fit."""
    arrays = []
    for at, (name, type_) in enumerate(zip(columns.names, columns.types, strict=True)):
        values = [row[at] for row in rows]
        try:
            arrays.append(pa.array(values) if type_ is None else strict_column(name, type_, arrow_type(type_), values))
        except UNFIT as error:
            declared = "has no declared type" if type_ is None else f"is declared as {type_}"
            raise StateError(
                f"the rows of state {state!r} cannot become columns: {name!r} {declared}, and {error}. Read them with "
                "get_tuples()"
            ) from error
    return pa.table(arrays, names=list(columns.names))


def html_or_why(what: str, html: Callable[[], str]) -> str:
    """Return what a notebook shows of an object, or why it cannot be read."""
    try:
        return html()
    except Exception as error:  # noqa: BLE001  of a store, perhaps a user's or a closed one: an object can always be shown
        return pre_block(f"{what}: {describe(error)}")
