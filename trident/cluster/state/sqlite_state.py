"""`SqliteClusterState`: the state of a cluster on one machine, in one SQLite file that all its processes open.

A poller in each process looks every 50 ms whether the file has changed, reads the journal of changes in its order, and
renews the session's lease. What was created, compared-and-set or deleted is on disk when the call returns; data that is set
again, such as a heartbeat, is so with the next of those or soon after, and survives the death of processes at once.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trident.cluster.state import sqlite_nodes
from trident.cluster.state.cluster_state import (
    Callback,
    EventDispatcher,
    Versioned,
    checked_data,
    checked_path,
    checked_way,
)
from trident.cluster.state.sqlite_file import SqliteFile, prepare
from trident.cluster.state.sqlite_session import SqliteSession
from trident.cluster_errors import ClusterError

_log = logging.getLogger(__name__)

_MAX_PARAMETERS = 500  # SQLite takes 999, or more since 3.32

_T = TypeVar("_T")


class SqliteClusterState:
    """A cluster's state in a file; implements `ClusterState`.

    `path`: the file; it and its folder are made if there are none.
    `session_timeout_s`: how long this process may be stopped before its session is over. One that ends is noticed within a
    second.
    `poll_s`: how often to look for changes of other processes.
    Raises `ClusterError`: the file is damaged, of another program or of another version, or cannot be written.
    """

    def __init__(self, path: Path, session_timeout_s: float = 10.0, poll_s: float = 0.05) -> None:
        prepare(path, session_timeout_s)
        # Two connections: who reads does not wait for a thread that waits to write.
        self._file, self._reader = SqliteFile(path, session_timeout_s), SqliteFile(path, session_timeout_s)
        self._dispatcher = EventDispatcher("cluster")
        self._session = SqliteSession(path, session_timeout_s, poll_s, self._dispatcher)
        self._closed = threading.Event()

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        checked_data(checked_way(path), data)
        self._write(lambda db: sqlite_nodes.replace(db, path, data, self._session.id), durable=False)

    def create_ephemeral_node(self, path: str, data: bytes) -> bool:
        checked_data(checked_way(path), data)
        return self._write(lambda db: sqlite_nodes.create(db, path, data, self._session.id), durable=False)

    def create_sequential(self, path: str, data: bytes) -> str:
        """Create a node whose name ends with a number that no other has."""
        checked_data(checked_way(f"{path}0"), data)

        def create(db: sqlite3.Connection) -> str:
            created = f"{path}{sqlite_nodes.next_number(db):010}"
            sqlite_nodes.create(db, created, data)
            return created

        return self._write(create)

    def set_data(self, path: str, data: bytes) -> None:
        checked_data(checked_way(path), data)
        self._write(lambda db: sqlite_nodes.put(db, path, data), durable=False)

    def compare_and_set(self, path: str, data: bytes, version: int | None) -> bool:
        checked_data(checked_way(path), data)

        def compare(db: sqlite3.Connection) -> bool:
            node = sqlite_nodes.find(db, path)
            if (None if node is None else node.version) != version:
                return False
            sqlite_nodes.put(db, path, data)
            return True

        return self._write(compare)

    def delete_node(self, path: str) -> None:
        checked_way(path)
        self._write(lambda db: sqlite_nodes.delete(db, path))

    def mkdirs(self, path: str) -> None:
        checked_path(path)
        self._write(lambda db: sqlite_nodes.create(db, path, b""))

    # ---- reading -----------------------------------------------------------------------------------------------------

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        checked_path(path)
        watched = self._session.watches.watch_data if watch else None
        node = self._read(path, watched, lambda db: sqlite_nodes.find(db, path))
        return None if node is None else node.data

    def get_versioned(self, path: str) -> Versioned | None:
        checked_path(path)
        return self._read(path, None, lambda db: sqlite_nodes.find(db, path))

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        query = "SELECT name FROM node WHERE parent = ? ORDER BY name"
        checked_path(path)
        watched = self._session.watches.watch_children if watch else None
        return self._read(path, watched, lambda db: [name for (name,) in db.execute(query, (path,))])

    def get_data_below(self, path: str) -> dict[str, bytes]:
        query = "SELECT name, data FROM node WHERE parent = ? ORDER BY name"
        checked_path(path)
        return self._read(path, None, lambda db: dict(db.execute(query, (path,))))

    def get_data_each(self, paths: Sequence[str]) -> list[bytes | None]:
        data = dict(self._select("SELECT path, data FROM node WHERE path IN", paths))
        return [data.get(path) for path in paths]

    def get_data_below_each(self, paths: Sequence[str]) -> dict[str, dict[str, bytes]]:
        """Return the data of all nodes directly below each path."""
        below: dict[str, dict[str, bytes]] = {path: {} for path in paths}
        for parent, name, data in sorted(
            self._select("SELECT parent, name, data FROM node WHERE parent IN", list(below))
        ):
            below[parent][name] = data
        return below

    # ---- events and the session ----------------------------------------------------------------------------------------

    def register(self, callback: Callback) -> str:
        return self._dispatcher.register(callback)

    def unregister(self, callback_id: str) -> None:
        self._dispatcher.unregister(callback_id)

    def close(self) -> None:
        if self._closed.is_set() or not self._file.is_ours:
            return
        self._closed.set()
        self._session.stop()
        try:
            with self._file.writing(durable=False) as db:
                sqlite_nodes.end(db, self._session.id)
        except ClusterError as error:
            _log.warning("the session ends with its lease: %s", error)
        self._file.close()
        self._reader.close()
        self._dispatcher.close()

    def _write(self, act: Callable[[sqlite3.Connection], _T], durable: bool = True) -> _T:
        done = self._in_session(act, durable)
        self._session.kick()
        return done

    def _in_session(self, act: Callable[[sqlite3.Connection], _T], durable: bool) -> _T:
        while True:
            with self._file.writing(durable) as db:
                if sqlite_nodes.is_open(db, self._session.id):
                    return act(db)
            self._session.begin_again()

    def _select(self, query: str, paths: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the rows of a query that ends with `IN`, as they are at one moment."""
        for path in paths:
            checked_path(path)
        rows: list[tuple[Any, ...]] = []
        with self._reader.reading() as db:
            for start in range(0, len(paths), _MAX_PARAMETERS):
                some = paths[start : start + _MAX_PARAMETERS]
                rows += db.execute(f"{query} ({', '.join('?' * len(some))})", some)
        return rows

    def _read(
        self, path: str, watch: Callable[[str, int], None] | None, find: Callable[[sqlite3.Connection], _T]
    ) -> _T:
        if watch is None:
            with self._reader.single() as db:
                return find(db)
        # The poller waits meanwhile: it cannot pass over an entry that comes after what is read here.
        with self._session.watches.lock, self._reader.reading() as db:
            watch(path, sqlite_nodes.journal_end(db))
            return find(db)
