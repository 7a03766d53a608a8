"""Keys and values as rows: read and written in bulk, a window of keys at a time; as bytes in buckets, or as columns."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cassandra.query import BatchStatement, BatchType, BoundStatement

from states.cassandra.cluster_session import CassandraConnection
from states.cassandra.cql_columns import CqlColumns, cells_of_list
from states.cassandra.options import CassandraOptions
from trident.errors import StateError
from trident.state.encoding.codec import decode, decode_keys, encode, encode_keys
from trident.state.interfaces import Key, StateType
from trident.storekit import by_count, by_size

BATCH_BYTES = 40 << 10
"""The largest batch of several rows. The server's own limit is 50 KiB by default, and it counts a little more."""

_ROW_BYTES = 64  # the most that the server counts for a row in addition to its cells
_PAGE = 1000
_WINDOW_REQUESTS = 4  # per bucket, on average; with one, every second bucket would need a second, nearly empty request
_PUTS, _GETS = 10, 30
"""The most partitions of one request: by default the server warns of a batch of more, and slows down with longer reads."""

Cells = Sequence[bytes | None]
"""Values of a statement, as they are sent."""


class BucketColumns:
    """Keys and values that are bytes, as the columns of a table that states share: rows of a bucket are one partition.

    `lists`: the cells that rows have in common which are listed together.
    """

    names_of_key, names_of_rest = ["state", "bucket", "key"], ["value"]

    def __init__(self, state: str, buckets: int) -> None:
        self.lists = [(state.encode(), number.to_bytes(4, "big")) for number in range(buckets)]

    def names(self, keys: Sequence[Key]) -> list[Any]:
        """Return keys as the table has them."""
        return encode_keys(keys)

    def there(self, names: Sequence[Any]) -> Sequence[Any]:
        """Return the names that a row may have, each once."""
        return list(dict.fromkeys(names))

    def key_cells(self, names: Sequence[Any]) -> list[tuple[bytes, ...]]:
        crc, buckets = zlib.crc32, self.lists
        return [(*buckets[crc(name) % len(buckets)], name) for name in names]

    def cells(self, names: Sequence[Any], values: Sequence[bytes]) -> list[tuple[bytes | None, ...]]:
        """Return rows, of which the columns of the key come first."""
        return [(*cells, value) for cells, value in zip(self.key_cells(names), values, strict=True)]

    def values_by_key(self, rows: Sequence[Any]) -> dict[Any, Any]:
        return dict(rows)

    def keys_of(self, rows: Sequence[Sequence[Any]]) -> list[Key]:
        return decode_keys([key for (key,) in rows])


class StateRows:
    """The rows of one state.

    `what`: the state and its table, for messages.
    """

    def __init__(
        self,
        connection: CassandraConnection,
        options: CassandraOptions,
        table: str,
        columns: BucketColumns | CqlColumns,
        what: str,
    ) -> None:
        self._connection, self._columns, self._table, self._what = connection, columns, table, what
        self._concurrency, self._shared = options.max_concurrency, len(columns.lists[0])
        self._puts, self._gets = options.rows_per_batch, options.rows_per_read
        # How many keys are in memory in addition to the caller's lists.
        self._window = options.buckets * self._puts * _WINDOW_REQUESTS
        if not self._shared:  # each row is a partition
            self._puts, self._gets, self._window = min(self._puts, _PUTS), min(self._gets, _GETS), 10_000
        read, write, ttl = options.read_consistency, options.write_consistency, options.ttl_s
        keys, names = columns.names_of_key, [*columns.names_of_key, *columns.names_of_rest]
        tests, places, at = [f"{key} = ?" for key in keys], ", ".join("?" * len(names)), "USING TIMESTAMP ?"
        asked, of_list = " AND ".join([*tests[:-1], f"{keys[-1]} IN ?"]), " AND ".join(tests[: self._shared])
        where, alone = f" WHERE {of_list}" if of_list else "", ", ".join(keys[self._shared :])
        self._get = connection.prepare(f"SELECT {', '.join(names[self._shared :])} FROM {table} WHERE {asked}", read)
        self._list = connection.prepare(f"SELECT {alone} FROM {table}{where}", read)
        self._put = connection.prepare(
            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places}) {at}{f' AND TTL {ttl}' if ttl else ''}", write
        )
        self._delete = connection.prepare(f"DELETE FROM {table} {at} WHERE {asked}", write)
        self._empty = connection.prepare(f"DELETE FROM {table} {at}{where}", write) if where else None

    def get(self, keys: Sequence[Key]) -> list[Any]:
        """Read many keys: one entry per key, in the order asked."""
        names, found = self._columns.names(keys), dict[Any, Any]()
        for window in by_count(self._columns.there(names), self._window):
            selects = (_bind(self._get, cells) for cells in self._key_groups(window, self._gets))
            for rows in self._run(selects, f"read {len(keys)} keys"):
                found.update(self._columns.values_by_key(list(rows)))
        return [found.get(name) for name in names]

    def put(self, keys: Sequence[Key], values: Sequence[Any], timestamp: int, check: Callable[[], None]) -> None:
        """Write many keys; `check` is called before each window is sent."""
        names, at = self._columns.names(keys), timestamp.to_bytes(8, "big")
        for window in by_count(range(len(names)), self._window):
            check()
            rows = self._columns.cells([names[n] for n in window], [values[n] for n in window])
            self._send(self._batches(rows, at), f"write {len(keys)} keys")

    def delete(self, keys: Sequence[Key], timestamp: int, check: Callable[[], None]) -> None:
        """Delete many keys; `check` is called before each window is sent."""
        at = timestamp.to_bytes(8, "big")
        for window in by_count(self._columns.there(self._columns.names(keys)), self._window):
            check()
            asked = self._key_groups(window, self._puts)
            self._send((_bind(self._delete, (at, *cells)) for cells in asked), f"delete {len(keys)} keys")

    def delete_all(self, timestamp: int) -> None:
        """Delete every key that was written at or before a timestamp."""
        if self._empty is None:
            for page in self.pages():
                self.delete(page, timestamp, lambda: None)
        else:
            cells = ((timestamp.to_bytes(8, "big"), *shared) for shared in self._columns.lists)
            self._send((_bind(self._empty, one) for one in cells), "delete the keys")

    def pages(self) -> Iterator[list[Key]]:
        """Iterate over all keys; small partitions share a page."""
        page: list[Sequence[Any]] = []
        for shared in self._columns.lists:
            select = _bind(self._list, shared)
            select.fetch_size = _PAGE
            for row in self._connection.iter_rows(select, f"list the keys {self._what}"):
                page.append(row)
                if len(page) == _PAGE:
                    yield self._columns.keys_of(page)
                    page = []
        if page:
            yield self._columns.keys_of(page)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _run(self, statements: Iterator[Any], doing: str) -> Iterator[Any]:
        return self._connection.stream(statements, self._concurrency, f"{doing} {self._what}")

    def _send(self, statements: Iterator[Any], doing: str) -> None:
        for _ in self._run(statements, doing):
            pass

    def _key_groups(self, names: Sequence[Any], most: int) -> Iterator[Cells]:
        """Return the cells of so many keys at a time that differ in their last one."""
        groups: dict[tuple[bytes, ...], list[bytes]] = {}
        for *first, last in self._columns.key_cells(names):
            groups.setdefault(tuple(first), []).append(last)
        return ((*first, cells_of_list(some)) for first, group in groups.items() for some in by_count(group, most))

    def _batches(self, rows: Sequence[Cells], at: bytes) -> Iterator[Any]:
        groups: dict[Cells, list[Cells]] = {}
        for row in rows:
            groups.setdefault(row[: self._shared], []).append(row)
        for group in groups.values():
            sizes = (sum(map(len, filter(None, row))) + _ROW_BYTES for row in group)
            for some in by_size(group, sizes, self._puts, BATCH_BYTES):
                yield self._batch(some, at)

    def _batch(self, rows: Sequence[Cells], at: bytes) -> Any:
        bound = _bind(self._put, (*rows[0], at))
        if len(rows) == 1:
            return bound
        batch = BatchStatement(BatchType.UNLOGGED, consistency_level=bound.consistency_level)
        batch.is_idempotent = True
        for row in rows:  # with one statement for all, because making it costs more than everything else here
            bound.values = [*row, at]
            batch.add(bound)
        return batch


class ColumnRows(StateRows):
    """The rows of a state in a table of its own, which has columns: each key is a partition. Some of them are witnesses."""

    def __init__(
        self, connection: CassandraConnection, options: CassandraOptions, table: str, columns: CqlColumns
    ) -> None:
        super().__init__(connection, options, table, columns, f"in {table}")
        self._width = len(columns.keys)
        self._has_txid = columns.kind is not StateType.NON_TRANSACTIONAL

    def witness_of(self, key: Key, stored: Any) -> bytes:
        """Return what tells that a row was written: its batch, if it says that, and its key."""
        (name,) = encode_keys(self._columns.names([key]))
        return encode([stored[0] if self._has_txid else None, name])

    def has(self, witness: bytes) -> bool:
        """Whether the row of a witness is in the table, as it was written or later."""
        txid, name = decode(witness)
        (cells,) = self._key_groups(decode_keys([name]), 1)
        rows = self._connection.execute(_bind(self._get, cells), f"look for the last commit {self._what}")
        if not rows or not self._has_txid:
            return bool(rows)
        since = rows[0][self._width]
        return since is None or bool(since >= txid)

    def refuse_rows(self) -> None:
        """Refuse a table that has rows although no record is left of it, because what is written may be older than they."""
        if next(self.pages(), None) is not None:
            raise StateError(
                f"table {self._table} has rows, and no record of their timestamps is left, which may hide what is written. "
                "Nothing was written. Bring trident_records back together with it, or TRUNCATE it"
            )


def _bind(statement: Any, cells: Cells) -> Any:
    bound = BoundStatement(statement)
    bound.values = list(cells)
    return bound
