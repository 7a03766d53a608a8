"""A state over SQLite: a key-value store of two methods becomes exactly-once counts.

`SQLiteMap` knows nothing of batches: `map_state` adds the values with their txids and attempts, the sentinel and the
cache. Run it twice: the second start goes on after the lines of the first and does not count them again::

    python examples/sqlite_state.py
    cd examples && python -m trident.testing sqlite_state:open_map    # what holds of the store
"""

import sqlite3
from collections.abc import Sequence
from typing import Any

from spouts import FixedBatchSpout
from trident import TridentTopology
from trident.operations import Count, Split
from trident.state import CodecSerializer, Key, SerializedMap, StateConf, encode_keys, map_state
from trident.testing import Limits


class SQLiteMap:
    """An `IBackingMap` of bytes: one row per key."""

    def __init__(self, path: str, prefix: str) -> None:
        # Made in one thread, used by the thread that commits.
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")  # one sync a transaction, and reads beside it
        self._db.execute("CREATE TABLE IF NOT EXISTS state (key BLOB PRIMARY KEY, value BLOB)")
        self._prefix = prefix.encode() + b"/"  # two states may share a file

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        """Read one row per key."""
        one = "SELECT value FROM state WHERE key = ?"
        names = encode_keys(keys, self._prefix)
        rows = [self._db.execute(one, (name,)).fetchone() for name in names]
        return [None if row is None else row[0] for row in rows]

    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        """Write all rows in one transaction."""
        rows = zip(encode_keys(keys, self._prefix), values, strict=True)
        with self._db:  # commits, or rolls back what failed
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", rows)

    def close(self) -> None:
        """Close the file."""
        self._db.close()


LIMITS = Limits(durable=True, repartitions=True, atomic_put=True)


def open_map(conf: StateConf, partition_index: int, num_partitions: int) -> SerializedMap:
    """Called where the state is used; so nothing is connected before."""
    return SerializedMap(SQLiteMap("counts.db", conf.prefix), CodecSerializer())


def build(*lines: str) -> TridentTopology:
    """Count the words of the lines: each, and all together."""
    topology = TridentTopology("words")
    spout = FixedBatchSpout("line: string", 1, *[(line,) for line in lines])
    words = topology.new_stream("lines", spout).each("line", Split(), "word")
    words.group_by("word").persistent_aggregate(map_state(open_map, "opaque", cache=1000), Count(), "count")
    words.persistent_aggregate(map_state(open_map, "opaque"), Count(), "total")
    return topology


def count(*lines: str) -> tuple[Any, Any]:
    """Process the lines that were not processed yet; return some counts and the total."""
    with build(*lines).start(engine="in_process") as running:
        running.process_all_available()
        return running.state("count").multi_get(["the", "cow", "dish"]), running.state("total").get()


def main() -> None:
    """Count two lines; then start again with a third one."""
    print(count("the cow", "the moon"))
    print(count("the cow", "the moon", "the dish"))


if __name__ == "__main__":
    main()
