"""Keys and values as rows: read and written in bulk, a window of keys at a time. A bucket of rows is a Cassandra partition."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cassandra.query import BatchStatement, BatchType, BoundStatement

from states.cassandra.cluster_session import CassandraConnection
from states.cassandra.cql_columns import LENGTH, BytesColumns, Cells, CqlColumns
from states.cassandra.options import CassandraOptions
from states.cassandra.schema import PARTITION, quote_name
from trident.state.interfaces import Key
from trident.storekit import by_count, by_size

BATCH_BYTES = 40 << 10
"""The largest batch of several rows. The server's own limit is 50 KiB by default, and it counts a little more."""

_ROW_BYTES, _CELL_BYTES = 48, 16  # the most that the server counts in addition to the bytes of the cells
_PAGE = 1000
_WINDOW_REQUESTS = 4  # per bucket, on average; with one, every second bucket would need a second, nearly empty request
_OF_BUCKET = " AND ".join(f"{name} = ?" for name in PARTITION)


class StateRows:
    """The rows of one state.

    `table`: its name as CQL.
    `columns`: those of its rows, beside the two that name the state and the bucket.
    """

    def __init__(
        self,
        connection: CassandraConnection,
        options: CassandraOptions,
        table: str,
        columns: BytesColumns | CqlColumns,
        state: str,
    ) -> None:
        self._connection, self._columns, self._width = connection, columns, columns.width
        self._what, self._concurrency = f"of state {state!r} in {table}", options.max_concurrency
        self._partitions = [(state.encode(), number.to_bytes(4, "big")) for number in range(options.buckets)]
        self._puts, self._gets = options.rows_per_batch, options.rows_per_read
        # How many keys are in memory in addition to the caller's lists.
        self._window = options.buckets * self._puts * _WINDOW_REQUESTS
        read, write, ttl = options.read_consistency, options.write_consistency, options.ttl_s
        own = list(map(quote_name, columns.types))
        key, names, at = ", ".join(own[: self._width]), ", ".join([*PARTITION, *own]), "USING TIMESTAMP ?"
        places = ", ".join("?" * (len(own) + len(PARTITION)))
        asked = f"({key}) IN ?" if self._width > 1 else f"{key} IN ?"
        self._get = connection.prepare(f"SELECT {', '.join(own)} FROM {table} WHERE {_OF_BUCKET} AND {asked}", read)
        self._list = connection.prepare(f"SELECT {key} FROM {table} WHERE {_OF_BUCKET}", read)
        self._put = connection.prepare(
            f"INSERT INTO {table} ({names}) VALUES ({places}) {at}{f' AND TTL {ttl}' if ttl else ''}", write
        )
        self._delete = connection.prepare(f"DELETE FROM {table} {at} WHERE {_OF_BUCKET} AND {asked}", write)
        self._empty = connection.prepare(f"DELETE FROM {table} {at} WHERE {_OF_BUCKET}", write)

    def get(self, keys: Sequence[Key]) -> list[Any]:
        """Read many keys: one entry per key, in the order asked."""
        names, found = self._columns.names(keys), dict[Any, Any]()
        for window in by_count(self._columns.there(names), self._window):
            selects = (_bind(self._get, cells) for cells in self._key_groups(window, self._gets))
            rows = [row for some in self._run(selects, f"read {len(keys)} keys") for row in some]
            found.update(self._columns.values_by_key(rows))
        return [found.get(name) for name in names]

    def put(self, keys: Sequence[Key], values: Sequence[Any], timestamp: int, check: Callable[[], None]) -> None:
        """Write many keys; `check` is called before each window is sent."""
        names, at = self._columns.names(keys), timestamp.to_bytes(8, "big")
        for first in range(0, len(names), self._window):
            check()
            window = slice(first, first + self._window)
            rows = self._columns.cells(names[window], values[window])
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
        at = timestamp.to_bytes(8, "big")
        self._send((_bind(self._empty, (at, *partition)) for partition in self._partitions), "delete the keys")

    def pages(self) -> Iterator[list[Key]]:
        """Iterate over all keys; small partitions share a page."""
        page: list[Sequence[Any]] = []
        for partition in self._partitions:
            select = _bind(self._list, partition)
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

    def _by_partition(self, rows: Sequence[Cells]) -> Mapping[Cells, list[Cells]]:
        """Return rows by the bucket of their keys: the CRC-32 of the bytes of the key's cells, one after the other."""
        crc, partitions, width = zlib.crc32, self._partitions, self._width
        names: Sequence[Any] = [row[0] for row in rows] if width == 1 else [b"".join(row[:width]) for row in rows]  # type: ignore[arg-type]
        groups: dict[Cells, list[Cells]] = {}
        for name, row in zip(names, rows, strict=True):
            groups.setdefault(partitions[crc(name) % len(partitions)], []).append(row)
        return groups

    def _key_groups(self, names: Sequence[Any], most: int) -> Iterator[Cells]:
        """Return the cells of a bucket and a list of so many keys in it at a time."""
        for partition, keys in self._by_partition(self._columns.key_cells(names)).items():
            # One column is listed by itself, several as tuples.
            asked = [key[0] if self._width == 1 else _lengths_first(key) for key in keys]
            for some in by_count(asked, most):
                yield (*partition, LENGTH(len(some)) + _lengths_first(some))

    def _batches(self, rows: Sequence[Cells], at: bytes) -> Iterator[Any]:
        more = _ROW_BYTES + _CELL_BYTES * (len(self._columns.types) - self._width)
        for partition, group in self._by_partition(rows).items():
            sizes = (sum(map(len, filter(None, row))) + more for row in group)
            for some in by_size(group, sizes, self._puts, BATCH_BYTES):
                yield self._batch(partition, some, at)

    def _batch(self, partition: Cells, rows: Sequence[Cells], at: bytes) -> Any:
        bound = _bind(self._put, (*partition, *rows[0], at))
        if len(rows) == 1:
            return bound
        batch = BatchStatement(BatchType.UNLOGGED, consistency_level=bound.consistency_level)
        batch.is_idempotent = True
        for row in rows:  # with one statement for all, because making it costs more than everything else here
            bound.values = [*partition, *row, at]
            batch.add(bound)
        return batch


def _lengths_first(cells: Sequence[Any]) -> bytes:
    return b"".join([LENGTH(len(cell)) + cell for cell in cells])


def _bind(statement: Any, cells: Cells) -> Any:
    bound = BoundStatement(statement)
    bound.values = list(cells)
    return bound
