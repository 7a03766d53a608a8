"""CassandraBackingMap: rows, fence and timestamps together, as one backing map; of bytes, or of declared columns."""

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cassandra.query import BatchStatement, BatchType, BoundStatement

from states.cassandra.cluster_session import CassandraConnection, borrow, give_back
from states.cassandra.cql_columns import LENGTH, BytesColumns, Cells, CqlColumns
from states.cassandra.fence import CassandraFence, CassandraRegister, timestamp
from states.cassandra.options import CassandraOptions, table_name
from states.cassandra.schema import PARTITION, TableForm, open_table, quote_name
from trident.errors import CommitOrderError, StateError
from trident.roles import close_on_error
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.interfaces import Key, StateConf, StateType
from trident.state.table import OpaqueTable
from trident.state.txid import Sentinel, Txid
from trident.storekit import by_count, by_size, refuse_read_only

BATCH_BYTES = 40 << 10
"""The largest batch of several rows. The server's own limit is 50 KiB by default, and it counts a little more."""

_ROW_BYTES, _CELL_BYTES = 48, 16  # the most that the server counts in addition to the bytes of the cells
_PAGE = 1000
_WINDOW_REQUESTS = 4  # per bucket, on average; with one, every second bucket would need a second, nearly empty request
_OF_BUCKET = " AND ".join(f"{name} = ?" for name in PARTITION)


class CassandraBackingMap(BackingMap):
    """One partition of a state in a table: a backing map that keeps its own sentinel. Used by one thread at a time."""

    facts = MapFacts(shares_keys=True)

    def __init__(
        self,
        options: CassandraOptions,
        conf: StateConf | None = None,
        partition: int = 0,
        columns: CqlColumns | None = None,
    ) -> None:
        conf = StateConf() if conf is None else conf
        if columns is not None:
            self.facts = replace(self.facts, gives_copies=True, has_typed_columns=True)
        self._columns = columns or BytesColumns()
        self._is_opaque = columns is not None and columns.kind is StateType.OPAQUE
        self._options, self._conf, self._partition = options, conf, partition
        self._table = options.table or table_name(conf.prefix)
        self._what = (
            f"partition {partition} of state {conf.prefix!r} in table {options.keyspace}.{self._table} of Cassandra at "
            f"{options.address}"
        )
        # The commit: the base of its timestamps. None: no commit has begun.
        self._stamp: int | None = None
        self._number = 0
        self._fenced = False  # after the first claim of a sentinel, or try of one, nothing is written without one
        self._closed = False
        self._open()

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        self._at_home()
        return self._rows.get(keys) if keys else []

    def multi_get_opaque(self, keys: Sequence[Key]) -> OpaqueTable | None:
        """Read opaque values as `multi_get` does, as a table; None: what is stored is bytes, or of another kind."""
        return OpaqueTable.of(self.multi_get(keys)) if self._is_opaque else None

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write many keys; return once a quorum has them on its commit logs. Writing the same again is harmless."""
        if len(keys) != len(values):
            raise ValueError(f"write {len(keys)} keys with {len(values)} values: give one value per key")
        if keys:
            at = self._next_timestamp("write")
            self._rows.put(keys, values, at, self._fence.check)

    def multi_delete(self, keys: Sequence[Key]) -> None:
        if keys:
            at = self._next_timestamp("delete")
            self._rows.delete(keys, at, self._fence.check)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        self._at_home()
        return self._rows.pages()

    def begin(self, txid: Txid) -> None:
        """Begin a commit under the sentinel that was moved to it; one without a log is not fenced."""
        self._refuse_read_only("begin a commit")
        if txid.sentinel is None:
            self._begin_unfenced()
        elif self._fence.own != txid.sentinel:
            raise CommitOrderError(f"begin of batch {txid!s} without its sentinel: {self._what}")

    def end(self, txid: Txid) -> None:
        """End the commit. All is durable already; check once more that no other writer took over and nothing was lost."""
        if self._stamp is None:
            raise CommitOrderError(f"end of batch {txid!s} without its begin: {self._what}")
        self._at_home()
        self._fence.check()

    def read_sentinel(self) -> Sentinel | None:
        self._at_home()
        return self._fence.read()

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Replace the sentinel that was read last by a lightweight transaction: forward, or anywhere with `force`."""
        self._refuse_read_only("move the sentinel")
        before, self._stamp, self._fenced = self._stamp, None, True
        stamp = self._fence.claim(sentinel, force)
        if stamp != before:  # otherwise it was sealed, and later writes belong to the same commit
            self._number = 0
        self._stamp = stamp

    def reset(self) -> None:
        """Delete every key of the state and the sentinel of this partition. Earlier writes stay deleted."""
        self._refuse_read_only("empty the state")
        self._stamp, self._fenced = None, False
        floor = self._fence.stamps.raise_floor(None, 0)
        self._rows.delete_all(timestamp(floor, 0))
        self._fence.clear()  # last, so that after a crash in between the sentinel still shows the mismatch

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            give_back(self._connection)

    def _open(self) -> None:
        options, conf = self._options, self._conf
        self._connection = connection = borrow(options)
        with close_on_error(partial(give_back, connection)):
            form = TableForm.of(self._columns, options.buckets)
            table = open_table(connection, options, self._table, form, conf)
            self._rows = StateRows(connection, options, table, self._columns, conf.prefix)
            registers = partial(CassandraRegister, connection, table, conf.prefix, options)
            self._fence = CassandraFence(registers, self._partition, self._what)

    def _at_home(self) -> None:
        if self._closed:
            raise StateError(f"this instance was closed: {self._what}; make another one")
        if self._connection.process != os.getpid():
            self._stamp = None
            self._open()

    def _refuse_read_only(self, doing: str) -> None:
        refuse_read_only(self._conf.read_only, doing, self._what)
        self._at_home()

    def _begin_unfenced(self) -> None:
        self._fence.release()
        self._fenced = False
        self._stamp, self._number = self._fence.stamps.raise_floor(None, 0), 0

    def _next_timestamp(self, doing: str) -> int:
        self._refuse_read_only(doing)
        if self._stamp is None and not self._fenced:
            self._begin_unfenced()
        if self._stamp is None:
            raise CommitOrderError(f"cannot {doing} outside a commit: {self._what}")
        at = timestamp(self._stamp, self._number)
        self._number += 1
        return at


class StateRows:
    """The rows of one state, in `columns` beside the two that name the state and the bucket."""

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
        at = timestamp.to_bytes(8, "big")
        self._send((_bind(self._empty, (at, *partition)) for partition in self._partitions), "delete the keys")

    def pages(self) -> Iterator[list[Key]]:
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
