"""The nodes of a cluster on one machine, in one SQLite file that all its processes open, and look at every 50 ms.

What was created, compared-and-set or deleted is on disk when the call returns; data that is set again, such as a heartbeat, is
so soon, and survives the death of processes at once. A session is a file beside, which its process keeps locked: when the lock
is gone, however the process ended, another one removes what the session owned.
"""

import fcntl
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from trident.errors import ClusterError, ClusterUnreachable
from trident.nodes.interface import Tell
from trident.nodes.polled_nodes import PolledNodes, SqlTable, T
from trident.servers.local_processes import abandon_in_children, is_locked, stat_of

_LOCK = re.compile(r"POSIX\s+\S+\s+WRITE\s+(\d+)\s+[0-9a-f]+:[0-9a-f]+:(\d+)")  # a line of /proc/locks
_OWNERS = "SELECT DISTINCT session FROM node WHERE session IS NOT NULL"

_FORMAT = 2
_APPLICATION = 0x54524944  # "TRID": distinguishes our file from another program's of the same name

SCHEMA = f"""
CREATE TABLE node (path TEXT PRIMARY KEY, parent TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL,
    version INTEGER NOT NULL, session TEXT) WITHOUT ROWID;
CREATE UNIQUE INDEX below ON node (parent, name);
CREATE INDEX owned ON node (session) WHERE session IS NOT NULL;
INSERT INTO node VALUES ('/', '', '', x'', 0, NULL);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_FORMAT};
"""


class SqliteNodes(PolledNodes):
    """The nodes in a file, which is made if there is none; implements `Nodes`."""

    def __init__(self, path: Path, busy_s: float, tell: Tell, poll_s: float = 0.05) -> None:
        super().__init__(f"the state of the cluster in {path}", tell, poll_s)
        prepare(path, busy_s)
        self._session = f"{path.name}-session-"  # and its id: the name of its file
        self._folder = path.parent
        # Two connections: who reads does not wait for a thread that waits to write.
        self._writer, self._reader = SqliteFile(path, busy_s), SqliteFile(path, busy_s)
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
        self._thread.start()

    def close(self) -> None:
        super().close()
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

    def _end_session(self) -> None:
        self._transact(lambda table: table.end(self._id), durable=False)
        self._file(self._id).unlink(missing_ok=True)

    def _read_nodes(self, look: Callable[[SqlTable], T]) -> T:
        with self._reader.reading(begin=None) as db:
            return look(SqlTable(db.execute))

    def _transact(self, work: Callable[[SqlTable], T], durable: bool = True) -> T:
        with self._writer.writing(durable) as db:
            return work(SqlTable(db.execute))

    def _count(self) -> object:
        with self._reader.reading(begin=None) as db:
            return db.execute("PRAGMA data_version").fetchone()  # of what other connections have changed

    def _look_at_sessions(self, is_back: bool) -> bool:
        with self._reader.reading() as db:
            others = [owner for (owner,) in db.execute(_OWNERS) if owner != self._id]
        if not all(is_locked(self._file(owner)) for owner in others):
            with self._writer.writing(durable=False) as db:
                self._end_others(db, others)
        return True

    def _end_others(self, db: sqlite3.Connection, ids: Sequence[str]) -> None:
        """Remove what is left of sessions whose lock is gone, among them all that own something."""
        for session in {*ids, *(owner for (owner,) in db.execute(_OWNERS))}:
            if not is_locked(self._file(session)):
                SqlTable(db.execute).end(session)
                self._file(session).unlink(missing_ok=True)

    def _file(self, session: str) -> Path:
        return self._folder / f"{self._session}{session}"


class SqliteFile:
    """One connection, for one thread at a time, that waits `busy_s` while another process holds the file."""

    def __init__(self, path: Path, busy_s: float) -> None:
        self.path, self._busy_s = path, busy_s
        self._lock = threading.Lock()
        with self._errors():
            # Autocommit: transactions are begun where they are needed.
            self._db = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
        self._inode = _inode(path)
        self._synchronous: str | None = None

    def writing(self, durable: bool) -> AbstractContextManager[sqlite3.Connection]:
        """Change the file, all or nothing. `durable`: it is on disk afterwards, whatever happens to the machine."""
        return self.reading("BEGIN IMMEDIATE", "FULL" if durable else "NORMAL")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def reading(self, begin: str | None = "BEGIN", synchronous: str | None = None) -> Iterator[sqlite3.Connection]:
        """See the file as it is at one moment. `begin`: None for one statement, which needs no transaction."""
        with self._lock, self._errors():
            if _inode(self.path) != self._inode:
                raise ClusterError(
                    f"{self.path}, the state of the cluster, was removed or replaced while it was open; start this process "
                    "again"
                )
            if synchronous not in (None, self._synchronous):
                self._db.execute(f"PRAGMA synchronous = {synchronous}")
                self._synchronous = synchronous
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
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)  # settings of topologies may hold secrets
    except OSError as error:
        raise ClusterError(f"the folder {path.parent} of the cluster cannot be made: {error.strerror}") from error
    file = SqliteFile(path, busy_s)
    try:
        _in_wal_mode(file, time.monotonic() + busy_s)
        with file.writing(durable=True) as db:
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                for statement in SCHEMA.split(";\n"):
                    db.execute(statement)
            else:
                check_format(db, path)
    finally:
        file.close()


def check_format(db: sqlite3.Connection, where: object) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise ClusterError(f"{where} belongs to another program; name another folder for the cluster")
    if found != _FORMAT:
        raise ClusterError(
            f"{where} is of version {found}; this version of the software reads {_FORMAT}. Use the version that made it"
        )


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
            return ClusterError(
                f"{path} is not the state file of a cluster; name another folder. If it was one, its beginning is damaged: "
                "restore it from a backup"
            )
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
