"""A store of two methods in SQLite: what a user writes, and the only one here that cannot fence."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from trident.state import (
    CodecSerializer,
    Key,
    SerializedMap,
    StateConf,
    StateSpec,
    StateType,
    decode,
    encode,
    map_state,
)

PAGE = 100


class SQLiteMap:
    """An `IBackingMap` of bytes that can also list its keys and be emptied."""

    def __init__(self, path: str, prefix: str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        self._db.execute("PRAGMA journal_mode=WAL")  # readers and a writer at the same time
        self._db.execute("PRAGMA synchronous=NORMAL")  # a killed process loses nothing, a power failure might
        columns = "prefix TEXT, key BLOB, value BLOB, PRIMARY KEY (prefix, key)"
        self._db.execute(f"CREATE TABLE IF NOT EXISTS state ({columns})")
        self._prefix = prefix

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        query = "SELECT value FROM state WHERE prefix = ? AND key = ?"
        found = [self._db.execute(query, (self._prefix, encode(key))).fetchone() for key in keys]
        return [None if row is None else row[0] for row in found]

    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        rows = [(self._prefix, encode(key), value) for key, value in zip(keys, values, strict=True)]
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", rows)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        query = "SELECT key FROM state WHERE prefix = ? AND key > ? ORDER BY key LIMIT ?"
        last = b""
        while page := self._db.execute(query, (self._prefix, last, PAGE)).fetchall():
            last = page[-1][0]
            yield [tuple(decode(key)) for (key,) in page]

    def reset(self) -> None:
        self._db.execute("DELETE FROM state WHERE prefix = ?", (self._prefix,))

    def close(self) -> None:
        self._db.close()


@dataclass(frozen=True)
class _Factory:
    path: str
    kind: str = "opaque"

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> SerializedMap:
        return SerializedMap(SQLiteMap(self.path, conf.prefix), CodecSerializer(StateType(self.kind)))


def sqlite_state(path: str, kind: str = "opaque") -> StateSpec:
    """Return a state in the database file `path`."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
    return map_state(_Factory(path, kind), kind)
