"""The sessions of a cluster's SQLite file: leases that live processes renew.

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

from trident.cluster.state import sqlite_nodes
from trident.servers.local_processes import machine

__all__ = ["Lease", "end", "is_open", "lapsed", "open_lease", "renew", "trim_journal"]


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
    row = (session, here, os.getpid(), timeout_s, expires, sqlite_nodes.journal_end(db))
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
        sqlite_nodes.delete_owned(db, session)


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
    # While this process slept, or could not write, others may have been kept from renewing as well.
    return lease.expires < now and now - awake_since > lease.timeout


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True
