"""`SqliteNodes`: the nodes of a cluster on one machine, in one SQLite file that all its processes open.

A thread in each process looks every 50 ms whether the file has changed, and whether what is watched is as it was read. What was
created, compared-and-set or deleted is on disk when the call returns; data that is set again, such as a heartbeat, is so with
the next of those or soon after, and survives the death of processes at once.

A session is a file beside that one, which its process keeps locked; it is over when the lock is gone: with its process, however
that ends. Another one finds that out, and removes what the session owned.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trident.cluster.state.cluster_state import above
from trident.cluster.state.sqlite_file import SqliteFile, prepare
from trident.cluster_errors import ClusterError
from trident.servers.local_processes import abandon_in_children, is_locked
from trident.servers.nodes import Create, Delete, NodeEvent, Put, Refusal, Step, StoredNode, Tell

_log = logging.getLogger(__name__)

_SESSIONS_S = 1.0  # how often a process looks which sessions are over
_MAX_PARAMETERS = 500  # SQLite takes 999, or more since 3.32

_FIND = (
    "SELECT version, session, EXISTS (SELECT 1 FROM node AS it WHERE it.parent = node.path) FROM node WHERE path = ?"
)
_OWNERS = "SELECT DISTINCT session FROM node WHERE session IS NOT NULL"


class _RefusedError(Exception):
    """A step of a change cannot be made; so none is."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__()
        self.refusal = refusal


class SqliteNodes:
    """The nodes in a file; implements `Nodes`.

    `path`: the file; it and its folder are made if there are none.
    `busy_s`: how long to wait while another process holds the file.
    `poll_s`: how often to look for changes.
    Raises `ClusterError`: the file is damaged, of another program or of another version, or cannot be written.
    """

    def __init__(self, path: Path, busy_s: float, tell: Tell, poll_s: float = 0.05) -> None:
        prepare(path, busy_s)
        self._tell, self._poll_s = tell, poll_s
        self._session = f"{path.name}-session-"  # and its id: the name of its file
        self._folder = path.parent
        # Two connections: who reads does not wait for a thread that waits to write.
        self._writer, self._reader = SqliteFile(path, busy_s), SqliteFile(path, busy_s)
        self._watching = threading.Lock()  # no change is passed over between reading something and watching it
        self._watched: dict[tuple[str, bool], Any] = {}  # what was read of a path, or of the names below it
        self._seen_version = -1
        self._id = uuid.uuid4().hex
        self._lock = -1
        try:
            self._begin()
        except OSError as error:
            self._writer.close()
            self._reader.close()
            raise ClusterError(
                f"the folder {self._folder} of the cluster cannot be used: {error}; check its rights, and how many files a "
                "process may open"
            ) from error
        abandon_in_children(self)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trident-cluster-session", daemon=True)
        self._thread.start()

    @property
    def id(self) -> str:
        return self._id

    @property
    def is_ours(self) -> bool:
        return self._writer.is_ours

    def read(self, paths: Sequence[str], watch: bool = False) -> list[StoredNode | None]:
        query = "SELECT path, data, version, session FROM node WHERE path IN"
        return self._found(
            paths, watch, False, lambda: {path: StoredNode(*node) for path, *node in self._select(query, paths)}
        )

    def names(self, paths: Sequence[str], watch: bool = False) -> list[list[str]]:
        def below() -> dict[str, list[str]]:
            found: dict[str, list[str]] = {path: [] for path in paths}
            for path, name in self._select("SELECT parent, name FROM node WHERE parent IN", list(found)):
                found[path].append(name)
            return {path: sorted(names) for path, names in found.items()}

        return self._found(paths, watch, True, below)

    def change(self, *steps: Step, durable: bool = True) -> Refusal | None:
        try:
            with self._writer.writing(durable) as db:
                for step in steps:
                    if (refusal := self._make(db, step)) is not None:
                        raise _RefusedError(refusal)
        except _RefusedError as error:
            return error.refusal
        return None

    def close(self) -> None:
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join()
        try:
            with self._writer.writing(durable=False) as db:
                db.execute("DELETE FROM node WHERE session = ?", (self._id,))
            self._file(self._id).unlink(missing_ok=True)
        except ClusterError as error:
            _log.warning("what this session owns goes when another process looks: %s", error)
        self.abandon()
        self._writer.close()
        self._reader.close()

    def abandon(self) -> None:
        """Give up the lock, in a forked child too, which would hold it beyond the end of its parent."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _begin(self) -> None:
        with self._writer.writing(durable=False) as db:  # no other process looks meanwhile
            there = self._folder.glob(f"{self._session}*")
            self._end_others(db, [each.name.removeprefix(self._session) for each in there])
            self._lock = os.open(self._file(self._id), os.O_RDONLY | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _make(self, db: sqlite3.Connection, step: Step) -> Refusal | None:
        version, _, has_below = db.execute(_FIND, (step.path,)).fetchone() or (None, None, False)
        match step:
            case Create(path, data, ephemeral):
                if version is not None:
                    return "exists"
                _, owner, _ = db.execute(_FIND, (above(path),)).fetchone() or (None, "", None)
                if owner is not None:
                    return "ephemeral" if owner else "missing"
                row = (path, above(path), path.rpartition("/")[2], data, self._id if ephemeral else None)
                db.execute("INSERT INTO node VALUES (?, ?, ?, ?, 0, ?)", row)
            case _ if version is None:
                return "missing"
            case Put(version=wanted) | Delete(version=wanted) if wanted not in (None, version):
                return "version"
            case Put(path, data):
                db.execute("UPDATE node SET data = ?, version = version + 1 WHERE path = ?", (data, path))
            case Delete(path):
                if has_below:
                    return "not empty"
                db.execute("DELETE FROM node WHERE path = ?", (path,))
        return None

    def _found(self, paths: Sequence[str], watch: bool, names: bool, find: Callable[[], dict[str, Any]]) -> list[Any]:
        if not watch:
            found = find()
        else:
            with self._watching:
                found = find()
                # Who watched it before is told of what this reading has seen already.
                late = [path for path in paths if self._watched.get((path, names), found.get(path)) != found.get(path)]
                self._watched.update({(path, names): found.get(path) for path in paths})
            for path in late:
                self._tell(NodeEvent("changed", path))
        return [found.get(path) for path in paths]

    def _select(self, query: str, values: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the rows of a query that ends with `IN`, as they are at one moment."""
        rows: list[tuple[Any, ...]] = []
        with self._reader.reading() as db:
            for start in range(0, len(values), _MAX_PARAMETERS):
                some = values[start : start + _MAX_PARAMETERS]
                rows += db.execute(f"{query} ({', '.join('?' * len(some))})", some)
        return rows

    def _run(self) -> None:
        is_suspended, next_look = False, time.monotonic() + _SESSIONS_S
        while not self._stopped.wait(self._poll_s):
            try:
                self._tell_changes()
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + _SESSIONS_S
                    self._look_at_sessions()
            except (ClusterError, OSError) as error:  # of the file, or of those of sessions
                if not is_suspended:
                    _log.warning("the session is suspended: %s", error)
                    self._tell(NodeEvent("suspended", ""))
                is_suspended = True
            else:
                if is_suspended:
                    self._tell(NodeEvent("connected", ""))
                is_suspended = False

    def _tell_changes(self) -> None:
        with self._reader.single() as db:
            (version,) = db.execute("PRAGMA data_version").fetchone()  # of what other connections have changed
        if version == self._seen_version:
            return
        self._seen_version = version
        with self._watching:
            data, below = ([path for path, names in self._watched if names == wanted] for wanted in (False, True))
            now: dict[bool, dict[str, Any]] = {
                False: dict(zip(data, self.read(data), strict=True)),
                True: dict(zip(below, self.names(below), strict=True)),
            }
            changed = [(path, names) for (path, names), seen in self._watched.items() if now[names][path] != seen]
            for each in changed:
                del self._watched[each]
        for path in dict.fromkeys(path for path, _ in changed):
            self._tell(NodeEvent("changed", path))

    def _look_at_sessions(self) -> None:
        with self._reader.reading() as db:
            others = [owner for (owner,) in db.execute(_OWNERS) if owner != self._id]
        if not all(is_locked(self._file(owner)) for owner in others):
            with self._writer.writing(durable=False) as db:
                self._end_others(db, others)

    def _end_others(self, db: sqlite3.Connection, ids: Sequence[str]) -> None:
        """Remove what is left of sessions whose lock is gone, among them all that own something."""
        for session in {*ids, *(owner for (owner,) in db.execute(_OWNERS))}:
            if not is_locked(self._file(session)):
                db.execute("DELETE FROM node WHERE session = ?", (session,))
                self._file(session).unlink(missing_ok=True)

    def _file(self, session: str) -> Path:
        return self._folder / f"{self._session}{session}"
