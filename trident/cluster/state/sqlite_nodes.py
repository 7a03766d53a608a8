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
import re
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from trident.cluster.state.cluster_state import above
from trident.cluster_errors import ClusterError, ClusterUnreachable
from trident.servers.local_processes import abandon_in_children, is_locked, stat_of
from trident.servers.nodes import Create, Delete, NodeEvent, Put, Refusal, Step, StoredNode, Tell

_log = logging.getLogger(__name__)

_SESSIONS_S = 1.0  # how often a process looks which sessions are over
_MAX_PARAMETERS = 500  # SQLite takes 999, or more since 3.32
_LOCK = re.compile(r"POSIX\s+\S+\s+WRITE\s+(\d+)\s+[0-9a-f]+:[0-9a-f]+:(\d+)")  # a line of /proc/locks

_FIND = (
    "SELECT version, session, EXISTS (SELECT 1 FROM node AS it WHERE it.parent = node.path) FROM node WHERE path = ?"
)
_OWNERS = "SELECT DISTINCT session FROM node WHERE session IS NOT NULL"

_FORMAT = 2
_APPLICATION = 0x54524944  # "TRID": distinguishes our file from another program's of the same name

_SCHEMA = f"""
CREATE TABLE node (path TEXT PRIMARY KEY, parent TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL,
    version INTEGER NOT NULL, session TEXT) WITHOUT ROWID;
CREATE UNIQUE INDEX below ON node (parent, name);
CREATE INDEX owned ON node (session) WHERE session IS NOT NULL;
INSERT INTO node VALUES ('/', '', '', x'', 0, NULL);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_FORMAT};
"""


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
        return self._look(
            paths, watch, False, lambda: {path: StoredNode(*node) for path, *node in self._select(query, paths)}
        )

    def names(self, paths: Sequence[str], watch: bool = False) -> list[list[str]]:
        def below() -> dict[str, list[str]]:
            found: dict[str, list[str]] = {path: [] for path in paths}
            for path, name in self._select("SELECT parent, name FROM node WHERE parent IN", list(found)):
                found[path].append(name)
            return {path: sorted(names) for path, names in found.items()}

        return self._look(paths, watch, True, below)

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

    def _look(self, paths: Sequence[str], watch: bool, names: bool, find: Callable[[], dict[str, Any]]) -> list[Any]:
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
        with self._reader.reading(begin=None) as db:
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


class SqliteFile:
    """One connection, for one thread at a time.

    `path`: the file.
    `busy_s`: how long to wait while another process holds it.
    """

    def __init__(self, path: Path, busy_s: float) -> None:
        self.path, self._busy_s = path, busy_s
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        with self._errors():
            # Autocommit: transactions are begun where they are needed.
            self._db = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
        self._inode = _inode(path)

    def writing(self, durable: bool) -> AbstractContextManager[sqlite3.Connection]:
        """Change the file, all or nothing. `durable`: it is on disk afterwards, whatever happens to the machine."""
        return self.reading("BEGIN IMMEDIATE", "FULL" if durable else "NORMAL")

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it, and not one that it was forked from."""
        return self._pid == os.getpid()

    def close(self) -> None:
        """Close it; in a forked child it is left to the parent."""
        if not self.is_ours:
            return
        with self._lock:
            self._closed = True
            self._db.close()

    @contextmanager
    def reading(self, begin: str | None = "BEGIN", synchronous: str | None = None) -> Iterator[sqlite3.Connection]:
        """See the file as it is at one moment. `begin`: None for one statement, which needs no transaction."""
        if not self.is_ours:  # first: a forked child has the lock as another thread left it
            raise ClusterError(
                f"the state of the cluster in {self.path} was opened before this process was forked; open it again here"
            )
        with self._lock, self._errors():
            if self._closed:
                raise ClusterError(f"the state of the cluster in {self.path} is closed")
            if _inode(self.path) != self._inode:
                raise ClusterError(
                    f"{self.path}, the state of the cluster, was removed or replaced while it was open; start this process "
                    "again"
                )
            if synchronous is not None:
                self._db.execute(f"PRAGMA synchronous = {synchronous}")
            if begin is not None:
                self._db.execute(begin)
            try:
                yield self._db
                if begin is not None:
                    self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # an error such as a full disk may have ended it
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _clear(error, self.path, self._busy_s) from error


def prepare(path: Path, busy_s: float) -> None:
    """Make the file if there is none; one of another program or version is an error."""
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)  # settings of topologies may hold secrets
    except OSError as error:
        raise ClusterError(f"the folder {path.parent} of the cluster cannot be made: {error.strerror}") from error
    file = SqliteFile(path, busy_s)
    try:
        _in_wal_mode(file, time.monotonic() + busy_s)
        with file.writing(durable=True) as db:
            is_new = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (found,) = db.execute("PRAGMA user_version").fetchone()
            if is_new:
                for statement in _SCHEMA.split(";\n"):
                    db.execute(statement)
                return
        if application != _APPLICATION:
            raise ClusterError(f"{path} belongs to another program; name another folder for the cluster")
        if found != _FORMAT:
            raise ClusterError(
                f"{path} is of version {found}; this version of the software reads {_FORMAT}. Use the version that made it"
            )
    finally:
        file.close()


def _in_wal_mode(file: SqliteFile, deadline: float) -> None:
    """Let readers go on while one writes. SQLite does not wait here for another process that does the same."""
    while True:
        try:
            with file.reading(begin=None) as db:
                db.execute("PRAGMA journal_mode = WAL")
                return
        except ClusterUnreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1


def _clear(error: sqlite3.Error, path: Path, busy_s: float) -> ClusterError:
    # Errors of Python's own, such as of a closed connection, have no name of SQLite's.
    _, _, name = str(vars(error).get("sqlite_errorname", "")).partition("_")
    match name.partition("_")[0]:
        case "BUSY" | "LOCKED":
            return ClusterUnreachable(
                f"the state of the cluster in {path} was held by another process for {busy_s:g} s; is one stopped or very "
                f"slow?{holders_text(path)}"
            )
        case "FULL":
            return ClusterError(f"the disk of {path}, the state of the cluster, is full; nothing was changed")
        case "NOTADB":
            return ClusterError(f"{path} is not the state file of a cluster; name another folder, or remove the file")
        case "CORRUPT":
            return ClusterError(f"{path}, the state of the cluster, is damaged ({error}); restore it from a backup")
        case "READONLY" | "CANTOPEN" | "PERM" | "AUTH":
            return ClusterError(
                f"{path}, the state of the cluster, cannot be written ({error}); check its folder's rights"
            )
        case _:
            return ClusterError(f"{path}, the state of the cluster, cannot be used: {error}")


def writers_of(file: Path) -> set[int]:
    """Return the processes that hold a file, or what SQLite keeps beside it; none where the system does not show it."""
    try:
        files = {each.stat().st_ino for each in file.parent.glob(f"{file.name}*")}
        # Not by opening the file: to close it again would give back the locks of this process.
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return set()
    return {int(pid) for pid, inode in _LOCK.findall(locks) if int(inode) in files}


def holders_text(file: Path) -> str:
    """Return a sentence on each process that holds the file now, "" if none is known."""
    text = ""
    for pid in sorted(writers_of(file)):
        stat = stat_of(pid)
        is_stopped = stat is not None and stat[0] in "Tt"
        advice = f", and is stopped: let it go on (`kill -CONT {pid}`), or end it" if is_stopped else ""
        text += f" Process {pid} holds it{advice}."
    return text
