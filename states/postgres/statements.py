"""The table of a state, and the SQL over it.

A row is `(key, value)`, both bytes. The first byte of an encoded key is a control character; the sentinel of partition P is
the row `sentinel:P`.
"""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["FIRST", "FREE", "MAX_NAME_BYTES", "NEXT", "Statements", "table_name"]

MAX_NAME_BYTES = 63
"""PostgreSQL cuts off what is longer."""

FREE = "SELECT 1"
"""The fence of a write that compares nothing."""
FIRST = "INSERT INTO {table} VALUES (%(name)b, %(new)b) ON CONFLICT DO NOTHING RETURNING 1"
"""The fence of a write that must find no sentinel."""
NEXT = "UPDATE {table} SET value = %(new)b WHERE key = %(name)b AND value = %(base)b RETURNING 1"
"""The fence of a write that must find the sentinel `base`."""

# Rows are joined with the fence, so where that found nothing to replace nothing is written.
_WRITE = """
    WITH fence AS ({fence}),
    deleted AS (DELETE FROM {table} USING fence WHERE key = ANY(%(deleted)b::bytea[])),
    put AS (
        INSERT INTO {table} SELECT k, v FROM fence, unnest(%(keys)b::bytea[], %(values)b::bytea[]) AS rows (k, v)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value
    )
    SELECT count(*) FROM fence
"""


class Statements:
    """The statements of one table, as psycopg takes them."""

    def __init__(self, schema: str | None, table: str) -> None:
        self.table = ".".join(map(_quoted, [table] if schema is None else [schema, table]))
        self.read = self._bytes("SELECT key, value FROM {table} WHERE key = ANY(%b::bytea[])")
        # A page each, and no cursor: that would keep a transaction open while the caller works.
        self.list = self._bytes("SELECT key FROM {table} WHERE key > %b AND key < ' '::bytea ORDER BY key LIMIT %b")
        self.empty = self._bytes("TRUNCATE {table}")
        # With room for the next version of each row in its page the index need not change.
        self.create = self._bytes(
            "CREATE TABLE IF NOT EXISTS {table} (key bytea PRIMARY KEY, value bytea NOT NULL) WITH (fillfactor = 70)"
        )
        self._writes = {fence: self._bytes(_WRITE.replace("{fence}", fence)) for fence in (FREE, FIRST, NEXT)}

    def write(self, fence: str) -> bytes:
        """Return the statement that writes rows behind a fence; its result is 0 where the fence refuses."""
        return self._writes[fence]

    def _bytes(self, statement: str) -> bytes:
        return statement.replace("{table}", self.table).encode()


def table_name(prefix: str) -> str:
    """Return the name of a state's table: the prefix, with a hash in place of the end of one that is too long."""
    name = prefix.replace("\0", "%00")
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    return f"{name.encode()[:46].decode(errors='ignore')}-{blake2b(name.encode(), digest_size=8).hexdigest()}"


def _quoted(name: str) -> str:
    """Return an identifier as it is written in a statement that has arguments."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'
