"""The nodes of a cluster in its SQLite file, and the journal of what happened to them. All within a caller's transaction."""

from __future__ import annotations

import sqlite3

from trident.cluster.state.cluster_state import EventKind, Versioned
from trident.cluster.state.node_paths import above
from trident.cluster_errors import ClusterError

__all__ = ["create", "delete", "delete_owned", "find", "journal_end", "next_number", "put", "replace"]


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
    """Return the number of the last entry of the journal, kept or not; 0 before the first."""
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
    return 0 if row is None else int(row[0])


def _delete_each(db: sqlite3.Connection, paths: list[str]) -> None:
    for path in paths:
        db.execute("DELETE FROM node WHERE path = ?", (path,))
        _note(db, "deleted", path)


def _note(db: sqlite3.Connection, kind: EventKind, path: str) -> None:
    db.execute("INSERT INTO journal (kind, path) VALUES (?, ?)", (kind, path))
