"""A connection to the SQLite file of a cluster: transactions, and errors that say what is wrong with the file."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from trident.cluster_errors import ClusterError, ClusterUnreachable
from trident.servers.local_processes import stat_of

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

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """See the file as it is at one moment."""
        with self._transaction("BEGIN") as db:
            yield db

    @contextlib.contextmanager
    def writing(self, durable: bool) -> Iterator[sqlite3.Connection]:
        """Change the file, all or nothing. `durable`: it is on disk afterwards, whatever happens to the machine."""
        with self._transaction("BEGIN IMMEDIATE", "FULL" if durable else "NORMAL") as db:
            yield db

    @contextlib.contextmanager
    def single(self) -> Iterator[sqlite3.Connection]:
        """Run one statement, which needs no transaction."""
        self._check_process()  # first: a forked child has the lock as another thread left it
        with self._lock, self._errors():
            self._check()
            yield self._db

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

    @contextlib.contextmanager
    def _transaction(
        self, begin: str, synchronous: Literal["FULL", "NORMAL"] | None = None
    ) -> Iterator[sqlite3.Connection]:
        self._check_process()
        with self._lock, self._errors():
            self._check()
            if synchronous is not None:
                self._db.execute(f"PRAGMA synchronous = {synchronous}")
            self._db.execute(begin)
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # an error such as a full disk may have ended it
                    self._db.execute("ROLLBACK")
                raise

    def _check_process(self) -> None:
        if not self.is_ours:
            raise ClusterError(
                f"the state of the cluster in {self.path} was opened before this process was forked; open it again here"
            )

    def _check(self) -> None:
        if self._closed:
            raise ClusterError(f"the state of the cluster in {self.path} is closed")
        if _inode(self.path) != self._inode:
            raise ClusterError(
                f"{self.path}, the state of the cluster, was removed or replaced while it was open; start this process again"
            )

    @contextlib.contextmanager
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
            with file.single() as db:
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


# Which processes hold a file of SQLite's for writing, so that a message can name the one that is in the way.

_LOCK = re.compile(r"POSIX\s+\S+\s+WRITE\s+(\d+)\s+[0-9a-f]+:[0-9a-f]+:(\d+)")


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
