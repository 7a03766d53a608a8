"""The table of a state whose keys and values are bytes, and the SQL over it (R8, R9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from psycopg import errors

from states.postgres.connection import Clause, FencedWrite, Session, packed_bytes
from states.postgres.options import PostgresOptions, identifier, table_name
from trident.servers.postgres_connection import PostgresConnection, make
from trident.state.interfaces import StateConf
from trident.storekit import InTransaction, Puts, StoredRows, by_count, by_size

_READ = "SELECT key, value FROM {table} WHERE key = ANY(%b::bytea[])"
# A cursor would keep a transaction open while the caller works.
_LIST = "SELECT key FROM {table} WHERE key > %b AND key < ' '::bytea ORDER BY key LIMIT %b"
# With room in its page for the next version of each row, the index need not change.
_CREATE = "CREATE TABLE IF NOT EXISTS {table} (key bytea PRIMARY KEY, value bytea NOT NULL) WITH (fillfactor = 70)"
# Rows are joined with the fence, so nothing is written if the fence found nothing to replace. In the order of the index,
# because neighbours share its pages.
_CLAUSE = """
    fence AS ({fence}),
    deleted AS (DELETE FROM {table} USING fence WHERE key = ANY(%(deleted)b::bytea[])),
    put AS (
        INSERT INTO {table} SELECT k, v FROM fence, unnest(%(keys)b::bytea[], %(values)b::bytea[]) AS rows (k, v)
        ORDER BY k
        ON CONFLICT (key) DO UPDATE SET value = excluded.value
    )
"""
_FREE = "SELECT 1"
_FIRST = "INSERT INTO {table} VALUES (%(name)b, %(new)b) ON CONFLICT DO NOTHING RETURNING 1"
_NEXT = "UPDATE {table} SET value = %(new)b WHERE key = %(name)b AND value = %(found)b RETURNING 1"


class PostgresRows(StoredRows):
    """One state's table, which the first write creates."""

    max_key_bytes = 2_600  # an entry of an index takes a third of a page at most

    def __init__(self, options: PostgresOptions, conf: StateConf, what: str) -> None:
        names = [name for name in (options.schema, options.table or table_name(conf.prefix)) if name is not None]
        # Twice the percent sign, because every statement has arguments.
        self._table = identifier(*names).replace("%", "%%")
        self._options, self._session = options, Session(options, what, conf.read_only)

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of the keys that exist."""
        found: dict[bytes, bytes] = {}
        for some in by_count(keys, self._options.max_keys_per_call):
            found.update(self._rows(f"read {len(keys)} keys", _READ, packed_bytes(some)))
        return found

    def pages(self) -> Iterator[Sequence[bytes]]:
        """Iterate over the keys in their order, page by page."""
        last = b""
        while page := self._rows("list the keys", _LIST, last, self._options.max_keys_per_call):
            yield [key for (key,) in page]
            last = page[-1][0]

    def empty(self) -> None:
        with suppress(errors.UndefinedTable):
            self._session.run(
                "empty the table", lambda connection: connection.execute(self._sql("TRUNCATE {table}"), ())
            )

    def close(self) -> None:
        self._session.close()

    def write(self, puts: Puts, sentinel: bytes = b"", found: bytes | None = None, new: bytes = b"") -> bool:
        """Write all or nothing; return False if the sentinel's row is not `found`."""
        doing, write = f"write {len(puts)} keys", self._fenced(puts, sentinel, found, new)
        try:
            return self._session.run(doing, write.send)
        except errors.UndefinedTable:
            if found is not None:
                return False
            self._session.run("make the table", self._create)
            return self._session.run(doing, write.send)

    def write_later(self, puts: Puts, sentinel: bytes, found: bytes | None, new: bytes) -> InTransaction:
        if found is None:
            self._session.run("make the table", self._create)
        return self._session.leave(f"write {len(puts)} keys", self._fenced(puts, sentinel, found, new))

    def _fenced(self, puts: Puts, sentinel: bytes, found: bytes | None, new: bytes) -> FencedWrite:
        fence = _FREE if not sentinel else _FIRST if found is None else _NEXT
        deleted = [key for key, value in puts.items() if value is None]
        keys = [key for key, value in puts.items() if value is not None]
        values, most = [value for value in puts.values() if value is not None], self._options
        places = by_size(range(len(keys)), map(len, values), most.max_keys_per_call, most.max_bytes_per_call)
        chunks = [slice(place[0], place[-1] + 1) for place in places] or [slice(0)]

        def clauses() -> Iterator[Clause]:
            for at, chunk in enumerate(chunks):
                arrays = {"deleted": [] if at else deleted, "keys": keys[chunk], "values": values[chunk]}
                given = {name: packed_bytes(array) for name, array in arrays.items()}
                yield (
                    self._sql(_CLAUSE, _FREE if at else fence),
                    {"name": sentinel, "found": found, "new": new, **given},
                )

        return FencedWrite(len(chunks), clauses)

    def _create(self, connection: PostgresConnection) -> None:
        make(connection, self._sql(_CREATE))

    def _rows(self, doing: str, query: str, *arguments: Any) -> list[Any]:
        def read(connection: PostgresConnection) -> list[Any]:
            with connection.cursor(binary=True) as cursor:
                return cursor.execute(self._sql(query), arguments).fetchall()

        try:
            return self._session.run(doing, read)
        except errors.UndefinedTable:
            return []

    def _sql(self, statement: str, fence: str = "") -> bytes:
        return statement.replace("{fence}", fence).replace("{table}", self._table).encode()
