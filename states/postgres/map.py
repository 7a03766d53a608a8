"""PostgresBackingMap: one partition of a state as rows of a table, its sentinel among them (R8, R9)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from psycopg import errors

from states.postgres.connection import Connection, Session
from states.postgres.options import PostgresOptions
from states.postgres.statements import FIRST, FREE, NEXT, Statements, table_name
from trident.errors import BackendError, CommitOrderError, CorruptValueError, StateError, UnsupportedOperation
from trident.state.encoding.codec import decode, decode_keys, encode, encode_keys
from trident.state.interfaces import Key, StateConf
from trident.state.sentinel import displaced, is_forward
from trident.state.txid import Sentinel, Txid

__all__ = ["MAX_KEY_BYTES", "PostgresBackingMap"]

MAX_KEY_BYTES = 2_600
"""An entry of an index takes a third of a page at most."""

_UNREAD = b""  # no sentinel is empty

Puts = dict[bytes, bytes | None]
"""What is written by key; None deletes."""


class PostgresBackingMap:
    """One partition's view of a map of bytes in PostgreSQL, with its sentinel. Used by one thread at a time.

    Within `begin` … `end` puts and deletions are collected and become one transaction at `end`; outside of them each
    `multi_put` and `multi_delete` is one of its own. Nothing is connected before the first call.

    Parameters
    ----------
    options
        See `PostgresOptions`.
    conf
        The default name of the table; `read_only`.
    partition
        Number of the state partition. Partitions share the table; each has a sentinel of its own.
    """

    commits_atomically = True  # no seal: rows and sentinel are one transaction

    def __init__(self, options: PostgresOptions, conf: StateConf | None = None, partition: int = 0) -> None:
        conf = StateConf() if conf is None else conf
        self._options, self._read_only = options, conf.read_only
        self._statements = Statements(options.schema, options.table or table_name(conf.prefix))
        self._what = f"state {conf.prefix!r} partition {partition}"
        self._session = Session(options, self._what, conf.read_only)
        self._name = b"sentinel:%d" % partition
        self._seen: bytes | None = _UNREAD  # the sentinel's row as it was read or written last
        self._claim: Sentinel | None = None  # what each write lays there; None: a write compares nothing
        self._base: bytes | None = None  # the row that a write with a claim must find
        self._puts: Puts | None = None  # of the commit that has begun

    # ---- IBackingMap, RemovableMap, ListableMap ----------------------------------------------------------------------

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        """Read many keys: one entry per key, in the order asked, None where never written. Puts of a commit come late."""
        names, size = encode_keys(keys), self._options.max_keys_per_call
        found: dict[bytes, bytes] = {}
        for first in range(0, len(names), size):
            found.update(self._rows(f"read {len(keys)} keys", self._statements.read, names[first : first + size]))
        return list(map(found.get, names))

    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        """Write many distinct keys: in a commit at its `end`, else at once."""
        self._put(f"write {len(keys)} keys", dict(zip(encode_keys(keys), values, strict=True)))

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete keys, absent ones ignored, as `multi_put` writes them."""
        self._put(f"delete {len(keys)} keys", dict.fromkeys(encode_keys(keys)))

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys of all partitions, page by page in the order of their bytes."""
        last, size = b"", self._options.max_keys_per_call
        while page := [name for (name,) in self._rows("list the keys", self._statements.list, last, size)]:
            yield decode_keys(page)
            last = page[-1]

    # ---- BackingMapLifecycle -----------------------------------------------------------------------------------------

    def begin(self, txid: Txid) -> None:
        """Begin a commit under the sentinel that was moved to it; one without a log compares nothing."""
        self._refuse_read_only("begin a commit")
        if self._claim != txid.sentinel:
            self._claim = None
        self._puts = {}

    def end(self, txid: Txid) -> None:
        """Write the puts and the sentinel in one transaction.

        Raises
        ------
        FencedError, StateLossDetected, StatePlaceError
            The sentinel is not what this writer has read. Nothing was written.
        BackendError
            PostgreSQL refused, or did not answer: all is written or nothing.
        """
        puts, self._puts = self._puts, None
        if puts is None:
            raise CommitOrderError(f"end of batch {txid!s} of {self._what} without its begin")
        self._write(f"commit batch {txid!s}", puts)

    # ---- FencedMap, Resettable ---------------------------------------------------------------------------------------

    def read_sentinel(self) -> Sentinel | None:
        """Return the sentinel of this partition, None if there is none; an unfinished commit is void."""
        self._puts, self._seen = None, self._stored()
        return self._sentinel(self._seen)

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Claim the partition for the commit that `begin` starts next; `force` lays the sentinel at once."""
        self._refuse_read_only("move the sentinel")
        if self._seen == _UNREAD:
            self._seen = self._stored()
        found, self._puts = self._sentinel(self._seen), None
        if found is not None and not force and not is_forward(found, sentinel):
            raise displaced(f"move the sentinel of {self._what}", sentinel, found, found)
        self._claim, self._base = sentinel, self._seen
        if force:
            self._write("move the sentinel", {})

    def reset(self) -> None:
        """Remove all keys of the state, of every partition, and all sentinels."""
        self._refuse_read_only("empty the state")

        def empty(connection: Connection) -> None:
            with suppress(errors.UndefinedTable):
                connection.execute(self._statements.empty, ())

        self._session.run("empty the table", empty)
        self._puts, self._claim, self._seen = None, None, _UNREAD

    def close(self) -> None:
        """Close the connection; puts of an unfinished commit are forgotten. The next call opens another one."""
        self._puts = None
        self._session.close()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _put(self, doing: str, puts: Puts) -> None:
        self._refuse_read_only(doing)
        longest = max(puts, key=len, default=b"")
        if len(longest) > MAX_KEY_BYTES:
            raise BackendError(
                f"{doing} of {self._what}: the key {decode_keys([longest])[0]!r:.80} … has {len(longest)} bytes, and an index "
                f"of PostgreSQL takes {MAX_KEY_BYTES}; group by something shorter",
                retryable=False,
            )
        if self._puts is not None:
            self._puts.update(puts)
        elif puts:
            self._write(doing, puts)

    def _write(self, doing: str, puts: Puts) -> None:
        own = self._claim
        # By the token a write whose answer was lost is told from another run of the same attempt.
        new = None if own is None else encode([*own, os.urandom(8)])
        if not self._session.run(doing, lambda connection: self._send(connection, puts, new)):
            found = self._stored()
            if own is not None and found != new:
                raise displaced(f"{doing} of {self._what}", own, self._sentinel(found), self._sentinel(self._base))
        if new is not None:
            self._base = self._seen = new

    def _send(self, connection: Connection, puts: Puts, new: bytes | None) -> bool:
        """Write all or nothing; return False if the sentinel is not what was claimed."""
        fence = FREE if new is None else FIRST if self._base is None else NEXT
        try:
            return self._send_chunks(connection, puts, new, fence)
        except errors.UndefinedTable:
            if fence == NEXT:
                return False
        # Two partitions may make it at the same time.
        with suppress(errors.UniqueViolation, errors.DuplicateTable):
            connection.execute(self._statements.create, ())
        return self._send_chunks(connection, puts, new, fence)

    def _send_chunks(self, connection: Connection, puts: Puts, new: bytes | None, fence: str) -> bool:
        chunks = list(self._chunks(puts))
        with connection.transaction() if len(chunks) > 1 else nullcontext():
            for chunk in chunks:
                given = {**chunk, "name": self._name, "new": new, "base": self._base}
                if connection.execute(self._statements.write(fence), given).fetchone() == (0,):
                    return False
                fence = FREE  # the sentinel's row is locked until the transaction ends
        return True

    def _chunks(self, puts: Puts) -> Iterator[dict[str, list[bytes]]]:
        """Cut a commit into statements; there is at least one, which has the fence."""
        deleted = [key for key, value in puts.items() if value is None]
        rest = puts if not deleted else {key: value for key, value in puts.items() if value is not None}
        keys, values = list(rest), [value for value in rest.values() if value is not None]
        for first, last in self._cuts(list(map(len, values))):
            yield {"keys": keys[first:last], "values": values[first:last], "deleted": deleted}
            deleted = []

    def _cuts(self, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Cut values into statements of as many as may be, in count and bytes."""
        most, room, first = self._options.max_keys_per_call, self._options.max_bytes_per_call, 0
        if len(sizes) <= most and sum(sizes) <= room:
            yield 0, len(sizes)
            return
        for at, size in enumerate(sizes):
            room -= size
            if at > first and (at - first == most or room < 0):
                yield first, at
                first, room = at, self._options.max_bytes_per_call - size
        yield first, len(sizes)

    def _rows(self, doing: str, statement: bytes, *arguments: Any) -> list[Any]:
        """Return the rows of a query; none if there is no table yet."""

        def read(connection: Connection) -> list[Any]:
            try:
                with connection.cursor(binary=True) as cursor:
                    return cursor.execute(statement, arguments).fetchall()
            except errors.UndefinedTable:
                return []

        return self._session.run(doing, read)

    def _stored(self) -> bytes | None:
        rows = self._rows("read the sentinel", self._statements.read, [self._name])
        return rows[0][1] if rows else None

    def _sentinel(self, record: bytes | None) -> Sentinel | None:
        if record is None:
            return None
        try:
            *fields, _token = decode(record)
            return Sentinel(*fields)
        except (StateError, TypeError, ValueError) as error:
            raise CorruptValueError(
                f"the row {self._name!r} of table {self._statements.table} is no sentinel: {record[:80]!r}; another program "
                "wrote it"
            ) from error

    def _refuse_read_only(self, doing: str) -> None:
        if self._read_only:
            raise UnsupportedOperation(f"cannot {doing}: {self._what} was opened to be read only")
