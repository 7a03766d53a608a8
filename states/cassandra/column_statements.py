"""Keys and values as rows of columns: each key is a Cassandra partition, so that its owner reads it by its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cassandra.query import BatchStatement, BatchType, BoundStatement

from states.cassandra.cluster_session import CassandraConnection
from states.cassandra.cql_columns import CqlColumns, cells_of_list, listed
from states.cassandra.options import CassandraOptions
from states.cassandra.row_statements import BATCH_BYTES, PAGE, StateRows
from trident.errors import StateError
from trident.state.encoding.codec import decode, decode_keys, encode, encode_keys
from trident.state.interfaces import Key
from trident.storekit import by_count, by_size
from trident.storekit.plain_columns import TXID

_PUTS, _GETS = 10, 30
"""The most partitions of one request: by default the server warns of a batch of more, and slows down with longer reads."""
_ROW_BYTES = 64  # the most that the server counts for a row in addition to its cells
_WINDOW = 10_000


class ColumnStatements(StateRows):
    """The rows of one state in a table of its own."""

    def __init__(
        self, connection: CassandraConnection, table: str, columns: CqlColumns, options: CassandraOptions
    ) -> None:
        super().__init__(connection, options, f"in {table}")
        self._table, self._columns = table, columns
        keys, read, write = columns.keys, options.read_consistency, options.write_consistency
        tests = [f"{key.quoted} = ?" for key in keys]
        names, places = listed(columns.read), ", ".join("?" * len(columns.read))
        ttl = f" AND TTL {options.ttl_s}" if options.ttl_s else ""
        asked = " AND ".join([*tests[:-1], f"{keys[-1].quoted} IN ?"])
        self._get = connection.prepare(f"SELECT {names} FROM {table} WHERE {asked}", read)
        self._keys = connection.prepare(f"SELECT {listed(keys)} FROM {table}", read)
        self._any = connection.prepare(f"SELECT {listed(keys)} FROM {table} LIMIT 1", read)
        self._put = connection.prepare(f"INSERT INTO {table} ({names}) VALUES ({places}) USING TIMESTAMP ?{ttl}", write)
        self._delete = connection.prepare(f"DELETE FROM {table} USING TIMESTAMP ? WHERE {' AND '.join(tests)}", write)

    def get(self, keys: Sequence[Key]) -> list[Any]:
        names, found = self._columns.names(keys), dict[Key, Any]()
        there = [key for key in dict.fromkeys(names) if not self._columns.has_no_row(key)]
        for window in by_count(there, _WINDOW):
            for rows in self._run(self._selects(window), f"read {len(keys)} keys"):
                found.update(self._columns.stored(list(rows)))
        return [found.get(key) for key in names]

    def put(self, keys: Sequence[Key], values: Sequence[Any], timestamp: int, check: Callable[[], None]) -> None:
        names = self._columns.names(keys)
        self._columns.refuse_keys(names)
        at = (timestamp).to_bytes(8, "big")
        for window in by_count(range(len(names)), _WINDOW):
            check()
            rows = self._columns.cells([names[n] for n in window], [values[n] for n in window])
            self._send(self._batches(self._put, [(*row, at) for row in rows]), f"write {len(keys)} keys")

    def delete(self, keys: Sequence[Key], timestamp: int, check: Callable[[], None]) -> None:
        there = [key for key in self._columns.names(keys) if not self._columns.has_no_row(key)]
        at = (timestamp).to_bytes(8, "big")
        for window in by_count(there, _WINDOW):
            check()
            rows = [(at, *cells) for cells in self._columns.key_cells(window)]
            self._send(self._batches(self._delete, rows), f"delete {len(keys)} keys")

    def delete_all(self, timestamp: int) -> None:
        for page in self.pages():
            self.delete(page, timestamp, lambda: None)

    def pages(self) -> Iterator[list[Key]]:
        """Iterate over all keys, in the order of their tokens."""
        select, page = BoundStatement(self._keys), list[Sequence[Any]]()
        select.values, select.fetch_size = [], PAGE
        for row in self._connection.paged(select, f"list the keys {self._what}"):
            page.append(row)
            if len(page) == PAGE:
                yield self._loaded(page)
                page = []
        if page:
            yield self._loaded(page)

    # ---- the witness ----------------------------------------------------------------------------------------------

    def witness_of(self, key: Key, stored: Any) -> bytes:
        """Return what tells that a row was written: its batch, if it says that, and its key."""
        (name,) = encode_keys(self._columns.names([key]))
        return encode([stored[0] if self._has_txid else None, name])

    def has(self, witness: bytes) -> bool:
        """Whether the row of a witness is in the table, as it was written or later."""
        txid, name = decode(witness)
        rows = [
            row for found in self._run(self._selects(decode_keys([name])), "look for the last commit") for row in found
        ]
        if not rows or not self._has_txid:
            return bool(rows)
        since = rows[0][len(self._columns.keys)]
        return since is None or bool(since >= txid)

    def refuse_rows(self) -> None:
        """Refuse a table that has rows although no record is left of it, because what is written may be older than they."""
        if self._connection.execute(self._any.bind(()), f"look for a row {self._what}"):
            raise StateError(
                f"table {self._table} has rows, and no record of their timestamps is left, which may hide what is written. "
                "Nothing was written. Bring trident_records back together with it, or TRUNCATE it"
            )

    # ---- inside ---------------------------------------------------------------------------------------------------

    @property
    def _has_txid(self) -> bool:
        own = self._columns.own
        return bool(own) and own[0].name == TXID

    def _loaded(self, rows: Sequence[Sequence[Any]]) -> list[Key]:
        parts = zip(self._columns.keys, zip(*rows, strict=True), strict=True)
        return list(zip(*(key.loaded(part) for key, part in parts), strict=True))

    def _selects(self, keys: Sequence[Key]) -> Iterator[Any]:
        groups: dict[Sequence[bytes], list[bytes]] = {}
        for *first, last in self._columns.key_cells(keys):
            groups.setdefault(tuple(first), []).append(last)
        for firsts, lasts in groups.items():
            for some in by_count(lasts, min(self._options.rows_per_read, _GETS)):
                yield self._bound(self._get, [*firsts, cells_of_list(some)])

    def _batches(self, statement: Any, rows: Sequence[Sequence[bytes | None]]) -> Iterator[Any]:
        sizes = (sum(len(cell or b"") for cell in row) + _ROW_BYTES for row in rows)
        most = min(self._options.rows_per_batch, _PUTS)
        for some in by_size(rows, sizes, most, BATCH_BYTES):
            yield self._batch(statement, some)

    def _batch(self, statement: Any, rows: Sequence[Sequence[bytes | None]]) -> Any:
        if len(rows) == 1:
            return self._bound(statement, rows[0])
        batch = BatchStatement(BatchType.UNLOGGED, consistency_level=statement.consistency_level)
        batch.is_idempotent = True
        for row in rows:
            batch.add(self._bound(statement, row))
        return batch

    @staticmethod
    def _bound(statement: Any, cells: Iterable[bytes | None]) -> Any:
        """Return a statement with values that are the bytes of their cells already."""
        bound = BoundStatement(statement)
        bound.values = list(cells)
        return bound
