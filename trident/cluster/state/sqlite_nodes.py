"""The nodes and sessions of a cluster in its SQLite file, and the journal of what happened. All in a caller's transaction.

The sessions of a cluster's SQLite file: leases that live processes renew.

A lease ends at a reading of the machine's clock since its start, which all processes share and which no change of the
wall clock moves; it stands still while a laptop sleeps. A session is over when another process has looked and removed it:
its process is gone, or the machine has started again since, or its lease has run out while the process that looks was
awake itself. So after a time in which no process could write, all sessions go on.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from typing import NamedTuple

from trident.cluster.state.cluster_state import EventKind, Versioned, above
from trident.cluster_errors import ClusterError
from trident.servers.local_processes import machine


def find(db: sqlite3.Connection, path: str) -> Versioned | None:
    """Return a node's data and version."""
    row = db.execute("SELECT data, version FROM node WHERE path = ?", (path,)).fetchone()
    return None if row is None else Versioned(*row)


def put(db: sqlite3.Connection, path: str, data: bytes) -> None:
    """Set a node's data; create it, and those above it, where there is none."""
    changed = db.execute("UPDATE node SET data = ?, version = version + 1 WHERE path = ?", (data, path)).rowcount
    if changed:
        _note(db, "changed", path)
    else:
        create(db, path, data)


def create(db: sqlite3.Connection, path: str, data: bytes, session: str | None = None) -> bool:
    """Create a node, and those above it; False if there is one. `session`: whose end is its end."""
    if db.execute("SELECT 1 FROM node WHERE path = ?", (path,)).fetchone():
        return False
    parent = above(path)
    owner = db.execute("SELECT session FROM node WHERE path = ?", (parent,)).fetchone()
    if owner is None:
        create(db, parent, b"")
    elif owner[0] is not None:
        raise ClusterError(f"the node {parent!r} vanishes with a session; it cannot have the node {path!r} below it")
    row = (path, parent, path.rpartition("/")[2], data, session)
    db.execute("INSERT INTO node VALUES (?, ?, ?, ?, 0, ?)", row)
    _note(db, "created", path)
    return True


def replace(db: sqlite3.Connection, path: str, data: bytes, session: str) -> None:
    """Set a node of this session; one of another session, or of none, is deleted and created again."""
    row = db.execute("SELECT session FROM node WHERE path = ?", (path,)).fetchone()
    if row is not None and row[0] == session:
        put(db, path, data)
        return
    if row is not None:
        if db.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
            raise ClusterError(
                f"the node {path!r} has nodes below it; it cannot become one that vanishes with a session"
            )
        delete(db, path)
    create(db, path, data, session)


def delete(db: sqlite3.Connection, path: str) -> None:
    """Delete a node and all below it."""
    # '0' comes after '/': this is every path that begins with `path` and a slash.
    rows = db.execute(
        "SELECT path FROM node WHERE path = ? OR path > ? AND path < ? ORDER BY path DESC",
        (path, f"{path}/", f"{path}0"),
    ).fetchall()
    _delete_each(db, [row[0] for row in rows])


def delete_owned(db: sqlite3.Connection, session: str) -> None:
    """Delete the nodes of a session."""
    rows = db.execute("SELECT path FROM node WHERE session = ? ORDER BY path", (session,)).fetchall()
    _delete_each(db, [row[0] for row in rows])


def next_number(db: sqlite3.Connection) -> int:
    """Return a number that no node has had."""
    db.execute("UPDATE counter SET last = last + 1")
    return int(db.execute("SELECT last FROM counter").fetchone()[0])


def journal_end(db: sqlite3.Connection) -> int:
    """Return the number of the last entry of the journal, even if it was removed; 0 before the first."""
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
    return 0 if row is None else int(row[0])


def _delete_each(db: sqlite3.Connection, paths: list[str]) -> None:
    for path in paths:
        db.execute("DELETE FROM node WHERE path = ?", (path,))
        _note(db, "deleted", path)


def _note(db: sqlite3.Connection, kind: EventKind, path: str) -> None:
    db.execute("INSERT INTO journal (kind, path) VALUES (?, ?)", (kind, path))


class Lease(NamedTuple):
    """A session as it is in the file: whose it is, and until when it is renewed."""

    id: str
    boot: str
    pid: int
    timeout: float
    expires: float


def open_lease(db: sqlite3.Connection, timeout_s: float) -> str:
    """Begin a session of this process; returns its id."""
    session = uuid.uuid4().hex
    here, expires = machine() or "unknown", time.monotonic() + timeout_s
    row = (session, here, os.getpid(), timeout_s, expires, journal_end(db))
    db.execute("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?)", row)
    return session


def is_open(db: sqlite3.Connection, session: str) -> bool:
    """Tell whether a session was not removed."""
    return db.execute("SELECT 1 FROM session WHERE id = ?", (session,)).fetchone() is not None


def renew(db: sqlite3.Connection, session: str, timeout_s: float, position: int) -> bool:
    """Renew a session whose process has read the journal up to `position`; False if it was removed."""
    row = (time.monotonic() + timeout_s, position, session)
    return db.execute("UPDATE session SET expires = ?, position = ? WHERE id = ?", row).rowcount == 1


def trim_journal(db: sqlite3.Connection) -> None:
    """Remove what every session has read."""
    db.execute("DELETE FROM journal WHERE seq <= (SELECT min(position) FROM session)")


def lapsed(db: sqlite3.Connection, mine: str, awake_since: float) -> list[str]:
    """Return the sessions that are over, asked by a process that has been awake since that time."""
    rows = db.execute("SELECT id, boot, pid, timeout, expires FROM session WHERE id != ?", (mine,)).fetchall()
    return [lease.id for lease in map(Lease._make, rows) if _is_over(lease, awake_since)]


def end(db: sqlite3.Connection, session: str) -> None:
    """End a session: its nodes vanish."""
    if db.execute("DELETE FROM session WHERE id = ?", (session,)).rowcount:
        delete_owned(db, session)


def _is_over(lease: Lease, awake_since: float) -> bool:
    here, there = machine() or "unknown", lease.boot
    if here != there:
        if here.partition(" ")[0] != there.partition(" ")[0]:
            return True
    elif not _runs(lease.pid):
        return True
    now = time.monotonic()
    if lease.expires > now + lease.timeout:  # of an earlier start, on a system that does not number them
        return True
    # While this process slept, or could not write, others may have been unable to renew as well.
    return lease.expires < now and now - awake_since > lease.timeout


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True
