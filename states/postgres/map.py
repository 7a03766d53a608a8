"""The map of one partition: over the columns of declared fields, or over `key` and `value`, which are bytes (R8, R9)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from states.postgres.beside_table import CommittedView
from states.postgres.columns import ByteColumns, Columns, packed_bytes
from states.postgres.options import PostgresOptions
from states.postgres.typed_rows import Statement, TypedRows
from trident.errors import CommitOrderError
from trident.redaction import redacted
from trident.retention import Sweeps
from trident.servers.log_addresses import Database
from trident.state.backing_map import MapFacts
from trident.state.encoding.codec import decode_keys
from trident.state.interfaces import Key, StateConf
from trident.state.table import OpaqueTable
from trident.state.txid import Sentinel, Txid
from trident.storekit import Puts, StoredRows, WholeCommitMap, by_size, refuse_read_only

_FIRST = "INSERT INTO {table} VALUES (%(name)b, %(new)b) ON CONFLICT DO NOTHING RETURNING 1"
_NEXT = "UPDATE {table} SET value = %(new)b WHERE key = %(name)b AND value = %(found)b RETURNING 1"


class TypedMap(WholeCommitMap):
    """The map of a partition over columns: what it puts and gives are values, not their bytes."""

    facts = MapFacts(commits_atomically=True, shares_keys=True, gives_copies=True, has_typed_columns=True)

    def __init__(
        self, options: PostgresOptions, conf: StateConf, partition: int, columns: Columns, database: Database
    ) -> None:
        what, is_first = _what(options, conf, partition), partition == 0 and not conf.read_only
        view = CommittedView(options, conf, columns, database) if is_first else None
        rows = TypedRows(options, conf, what, columns, view)
        super().__init__(rows, conf, partition, what)
        self._typed, self._sweeps, self.kept_changes = rows, Sweeps(), rows.changes
        self.facts = replace(self.facts, keeps_columns=rows.form is not None, unclaimed_txid=rows.last_txid)

    def begin(self, txid: Txid) -> None:
        super().begin(txid)
        self._typed.batch = int(txid)

    def end(self, txid: Txid) -> None:
        super().end(txid)
        self._typed.batch = -1
        if self._sweeps.due(txid):
            self._typed.sweep(int(txid))

    def multi_get_opaque(self, keys: Sequence[Key]) -> OpaqueTable | None:
        """Read keys as columns; None if rows are faster or fit better, or another put of the commit came first."""
        return None if self._puts else self._typed.find(keys)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write many distinct keys: in a commit at its `end`, else at once; columns only in a commit."""
        if not isinstance(values, OpaqueTable) or values.place is None:
            super().multi_put(keys, values)
            return
        refuse_read_only(self._read_only, f"write {len(keys)} keys", self._what)
        if self._puts is None:
            raise CommitOrderError(f"columns are put outside of a commit: {self._what}")
        self._puts = values

    def _put(self, doing: str, puts: Puts) -> None:
        if isinstance(self._puts, OpaqueTable):
            self._puts = dict(zip(self._typed.names(self._puts.place[0]), self._puts, strict=True))
        super()._put(doing, puts)

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        if force:
            self._typed.forget_witness()
        super().move_sentinel(sentinel, force)


class ByteRows(TypedRows):
    """Keys and values that are bytes, with the sentinels among them: what empties or restores the table takes them as well."""

    emptied = ("TRUNCATE {table}",)

    longest = StoredRows.longest

    def keys(self, names: Sequence[Any]) -> list[Key]:
        return decode_keys(names)

    def pages(self) -> Iterator[Sequence[Any]]:
        last: Any = None
        while page := self._page((False,), last, "key < ' '::bytea"):  # the first byte of a key is a control character
            yield [name for (name,) in page]
            (last,) = page[-1]

    def read_sentinel(self, key: bytes) -> bytes | None:
        query = self._names.sql("SELECT value FROM {table} WHERE key = %(name)b")
        rows = self._rows("read the sentinel", query, {"name": key})
        return rows[0][0] if rows else None

    def _fence(self, sentinel: bytes, found: bytes | None, new: bytes, witness: bytes | None) -> Statement:
        return self._names.sql(_FIRST if found is None else _NEXT), {"name": sentinel, "found": found, "new": new}

    def _next_witness(self, puts: Any) -> bytes | None:
        return None

    def _puts(self, rows: Any) -> Iterator[Statement]:
        keys, values, most = list(rows), list(rows.values()), self._options
        sizes = map(len, values)
        for at in by_size(range(len(keys)), sizes, most.max_keys_per_call, most.max_bytes_per_call) if keys else ():
            some = slice(at[0], at[-1] + 1)
            yield self._put, {"c0": packed_bytes(keys[some]), "c1": packed_bytes(values[some])}


def byte_map(options: PostgresOptions, conf: StateConf, partition: int) -> WholeCommitMap:
    what = _what(options, conf, partition)
    return WholeCommitMap(ByteRows(options, conf, what, ByteColumns.of_bytes(), None), conf, partition, what)


def _what(options: PostgresOptions, conf: StateConf, partition: int) -> str:
    return f"state {conf.prefix!r} partition {partition} in PostgreSQL at {redacted(options.url)}"
