"""Keys and values as rows of bytes: read and written in bulk, bucket by bucket, a window of keys at a time."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cassandra.query import BatchStatement, BatchType

from states.cassandra.cluster_session import CassandraConnection
from states.cassandra.options import CassandraOptions
from trident.state.encoding.codec import decode_keys, encode_keys
from trident.state.interfaces import Key
from trident.storekit import by_count, by_size

BATCH_BYTES = 40 << 10
"""The largest batch of several rows. The server's own limit is 50 KiB by default, and it counts a little more."""

_ROW_BYTES = 64  # the most that the server counts for a row in addition to key and value
PAGE = 1000
"""The keys of a page of a listing."""
_WINDOW_REQUESTS = 4  # per bucket, on average; with one, every second bucket would need a second, nearly empty request


class StateRows(ABC):
    """The rows of one state.

    `connection`, `options`: where the rows are.
    `what`: the state and its table, for messages.
    """

    def __init__(self, connection: CassandraConnection, options: CassandraOptions, what: str) -> None:
        self._connection, self._options, self._what = connection, options, what

    @abstractmethod
    def get(self, keys: Sequence[Key]) -> list[Any]:
        """Read many keys: one entry per key, in the order asked."""

    @abstractmethod
    def put(self, keys: Sequence[Key], values: Sequence[Any], timestamp: int, check: Callable[[], None]) -> None:
        """Write many keys; `check` is called before each window is sent."""

    @abstractmethod
    def delete(self, keys: Sequence[Key], timestamp: int, check: Callable[[], None]) -> None:
        """Delete many keys; `check` is called before each window is sent."""

    @abstractmethod
    def delete_all(self, timestamp: int) -> None:
        """Delete every key that was written at or before a timestamp."""

    @abstractmethod
    def pages(self) -> Iterator[list[Key]]:
        """Iterate over all keys."""

    def _run(self, statements: Iterator[Any], doing: str) -> Iterator[Any]:
        return self._connection.stream(statements, self._options.max_concurrency, f"{doing} {self._what}")

    def _send(self, statements: Iterator[Any], doing: str) -> None:
        for _ in self._run(statements, doing):
            pass


class RowStatements(StateRows):
    """Rows of keys and values that are bytes, in buckets."""

    def __init__(self, connection: CassandraConnection, table: str, state: str, options: CassandraOptions) -> None:
        super().__init__(connection, options, f"of state {state!r} in {table}")
        self._state = state
        where = "WHERE state = ? AND bucket = ?"
        ttl = f" AND TTL {options.ttl_s}" if options.ttl_s else ""
        read, write = options.read_consistency, options.write_consistency
        self._get = connection.prepare(f"SELECT key, value FROM {table} {where} AND key IN ?", read)
        self._keys = connection.prepare(f"SELECT key FROM {table} {where}", read)
        self._put = connection.prepare(
            f"UPDATE {table} USING TIMESTAMP ?{ttl} SET value = ? {where} AND key = ?", write
        )
        self._delete = connection.prepare(f"DELETE FROM {table} USING TIMESTAMP ? {where} AND key IN ?", write)
        self._delete_bucket = connection.prepare(f"DELETE FROM {table} USING TIMESTAMP ? {where}", write)

    def get(self, keys: Sequence[Key]) -> list[bytes | None]:
        coded, most = encode_keys(keys), self._options.rows_per_read
        found: dict[bytes, bytes] = {}
        for window in by_count(coded, self._window(most)):
            selects = (
                self._get.bind((self._state, bucket, chunk))
                for bucket, wanted in self._by_bucket(dict.fromkeys(window)).items()
                for chunk in by_count(wanted, most)
            )
            for rows in self._run(selects, f"read {len(keys)} keys"):
                found.update(rows)
        return [found.get(key) for key in coded]

    def put(self, keys: Sequence[Key], values: Sequence[bytes], timestamp: int, check: Callable[[], None]) -> None:
        coded = encode_keys(keys)
        for window in by_count(range(len(keys)), self._window(self._options.rows_per_batch)):
            check()
            rows = {coded[at]: values[at] for at in window}
            self._send(self._batches(rows, timestamp), f"write {len(keys)} keys")

    def delete(self, keys: Sequence[Key], timestamp: int, check: Callable[[], None]) -> None:
        most = self._options.rows_per_batch
        for window in by_count(encode_keys(keys), self._window(most)):
            check()
            deletes = (
                self._delete.bind((timestamp, self._state, bucket, chunk))
                for bucket, gone in self._by_bucket(window).items()
                for chunk in by_count(gone, most)
            )
            self._send(deletes, f"delete {len(keys)} keys")

    def delete_all(self, timestamp: int) -> None:
        deletes = (self._delete_bucket.bind((timestamp, self._state, n)) for n in range(self._options.buckets))
        self._send(deletes, "delete the keys")

    def pages(self) -> Iterator[list[Key]]:
        """Iterate over all keys; small buckets share a page."""
        page: list[bytes] = []
        for bucket in range(self._options.buckets):
            select = self._keys.bind((self._state, bucket))
            select.fetch_size = PAGE
            for (key,) in self._connection.paged(select, f"list the keys {self._what}"):
                page.append(key)
                if len(page) == PAGE:
                    yield decode_keys(page)
                    page = []
        if page:
            yield decode_keys(page)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _window(self, rows: int) -> int:
        # This many keys fill the requests of all buckets; only they are in memory in addition to the caller's lists.
        return self._options.buckets * rows * _WINDOW_REQUESTS

    def _by_bucket(self, keys: Iterable[bytes]) -> dict[int, list[bytes]]:
        crc, buckets = zlib.crc32, self._options.buckets
        groups: dict[int, list[bytes]] = {}
        for key in keys:
            groups.setdefault(crc(key) % buckets, []).append(key)
        return groups

    def _batches(self, rows: dict[bytes, bytes], timestamp: int) -> Iterator[Any]:
        for bucket, keys in self._by_bucket(rows).items():
            sizes = (len(key) + len(rows[key]) + _ROW_BYTES for key in keys)
            for batch in by_size(keys, sizes, self._options.rows_per_batch, BATCH_BYTES):
                yield self._batch(bucket, batch, rows, timestamp)

    def _batch(self, bucket: int, keys: Sequence[bytes], rows: dict[bytes, bytes], timestamp: int) -> Any:
        first = keys[0]
        bound = self._put.bind((timestamp, rows[first], self._state, bucket, first))
        if len(keys) == 1:
            return bound
        batch = BatchStatement(BatchType.UNLOGGED, consistency_level=bound.consistency_level)
        batch.is_idempotent = True
        # Binding costs more than everything else here, so it is done once: the other rows differ in two values, and those are
        # bytes, which are sent as they are.
        at, _, state, place, _ = bound.values
        for key in keys:
            bound.values = [at, rows[key], state, place, key]
            batch.add(bound)
        return batch
