"""`SqliteSession`: one session in a cluster's SQLite file; a thread looks for changes and renews its lease."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from trident.cluster.state import sqlite_nodes
from trident.cluster.state.cluster_state import ClusterEvent, EventDispatcher, EventKind, above
from trident.cluster.state.sqlite_file import SqliteFile
from trident.cluster_errors import ClusterError

_log = logging.getLogger(__name__)

_MAX_LOOK_S = 1.0
_MAX_BUSY_S = 1.0


class SqliteSession:
    """One session: its id, which changes when it was over and is begun again; its watches; and its thread."""

    def __init__(self, path: Path, timeout_s: float, poll_s: float, dispatcher: EventDispatcher) -> None:
        self._timeout_s, self._poll_s, self._dispatcher = timeout_s, poll_s, dispatcher
        # A connection of its own: SQLite shows it the changes of all others, including other connections of this process.
        self._file = SqliteFile(path, timeout_s)
        now = time.monotonic()
        with self._file.writing(durable=False) as db:
            for each in sqlite_nodes.lapsed(db, "", now):
                sqlite_nodes.end(db, each)
            self.id = sqlite_nodes.open_lease(db, timeout_s)
            self.watches = JournalWatches(sqlite_nodes.journal_end(db))
        self._file.wait_at_most(min(_MAX_BUSY_S, timeout_s / 4))
        self._seen_version = -1
        self._renewed_at = self._awake_since = self._look_at = now
        self._suspended = self._stopped = False
        self._kicked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trident-cluster-session", daemon=True)
        self._thread.start()

    def kick(self) -> None:
        """Look for changes now: this process made one."""
        if self.watches:
            self._kicked.set()

    def begin_again(self) -> None:
        """Begin another session if this one is over, and report that."""
        with self.watches.lock:
            with self._file.writing(durable=False) as db:
                if sqlite_nodes.is_open(db, self.id):
                    return  # another thread was faster
                self.id = sqlite_nodes.open_lease(db, self._timeout_s)
                self.watches.forget(sqlite_nodes.journal_end(db))
            self._suspended = False
            self._dispatcher.put(ClusterEvent("expired", ""))

    def stop(self) -> None:
        """End the thread; the session is left to the caller."""
        self._stopped = True
        self._kicked.set()
        self._thread.join()
        self._file.close()

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._step()
            except ClusterError as error:
                self._suspend(error)
            self._kicked.wait(self._poll_s)
            self._kicked.clear()

    def _step(self) -> None:
        with self._file.single() as db:
            (version,) = db.execute("PRAGMA data_version").fetchone()
        if version != self._seen_version:
            self._seen_version = version
            self._read_journal()
        now = time.monotonic()
        if now - self._renewed_at >= self._timeout_s / 5 or self._suspended:
            self._renew()
        if now >= self._look_at:
            self._look_at = now + min(_MAX_LOOK_S, self._timeout_s / 20)
            self._end_others()

    def _read_journal(self) -> None:
        query = "SELECT seq, kind, path FROM journal WHERE seq > ? ORDER BY seq"
        with self.watches.lock:
            with self._file.reading() as db:
                if not self.watches:
                    self.watches.position = sqlite_nodes.journal_end(db)
                    return
                entries: list[tuple[int, EventKind, str]] = db.execute(query, (self.watches.position,)).fetchall()
            for event in self.watches.read(entries):
                self._dispatcher.put(event)

    def _renew(self) -> None:
        with self._file.writing(durable=False) as db:
            is_open = sqlite_nodes.renew(db, self.id, self._timeout_s, self.watches.position)
            sqlite_nodes.trim_journal(db)
        now = time.monotonic()
        if now - self._renewed_at > self._timeout_s / 2:
            self._awake_since = now
        self._renewed_at = now
        if not is_open:
            self.begin_again()
        if self._suspended:
            self._suspended = False
            self._dispatcher.put(ClusterEvent("connected", ""))

    def _end_others(self) -> None:
        with self._file.reading() as db:
            if not sqlite_nodes.lapsed(db, self.id, self._awake_since):
                return
        with self._file.writing(durable=False) as db:
            for each in sqlite_nodes.lapsed(db, self.id, self._awake_since):
                sqlite_nodes.end(db, each)
        self._read_journal()  # its own changes are not reported to this connection

    def _suspend(self, error: ClusterError) -> None:
        if not self._suspended:
            self._suspended = True
            _log.warning("the session is suspended: %s", error)
            self._dispatcher.put(ClusterEvent("suspended", ""))


# Watches of one session over the journal of a cluster's SQLite file.


class JournalWatches:
    """Which paths are watched, and since which entry of the journal. Whoever sets a watch or reads the journal holds `lock`."""

    def __init__(self, position: int) -> None:
        self.lock = threading.Lock()
        self.position = position
        self._data: dict[str, list[int]] = {}
        self._children: dict[str, list[int]] = {}

    def __bool__(self) -> bool:
        """Whether anything is watched."""
        return bool(self._data or self._children)

    def watch_data(self, path: str, since: int) -> None:
        """Watch a node, or that it is created."""
        self._add(self._data, path, since)

    def watch_children(self, path: str, since: int) -> None:
        """Watch which nodes are below a node, and whether it is there."""
        self._add(self._children, path, since)

    def forget(self, position: int) -> None:
        """Drop all watches; read the journal from there."""
        self.position = position
        self._data.clear()
        self._children.clear()

    def read(self, entries: Iterable[tuple[int, EventKind, str]]) -> list[ClusterEvent]:
        """Return the events of further entries of the journal, in their order."""
        events = []
        for seq, kind, path in entries:
            self.position = seq
            of_data = self._fires(self._data, path, seq)
            # The children of a node that is changed are the same.
            of_children = kind != "changed" and self._fires(self._children, path, seq)
            if of_data or of_children:
                events.append(ClusterEvent(kind, path))
            if kind != "changed" and self._fires(self._children, above(path), seq):
                events.append(ClusterEvent("children", above(path)))
        return events

    def _add(self, watched: dict[str, list[int]], path: str, since: int) -> None:
        # A watch that an entry has fired which is not read yet does not stand for one that is set after that entry.
        ahead = [each for each in watched.get(path, ()) if each > self.position]
        behind = [each for each in watched.get(path, ()) if each <= self.position][:1]  # all of these wait for the same
        watched[path] = [*behind, *ahead, since] if since > self.position or not behind else [*behind, *ahead]

    @staticmethod
    def _fires(watched: dict[str, list[int]], path: str, seq: int) -> bool:
        waiting = watched.get(path, ())
        later = [since for since in waiting if since >= seq]
        if len(later) == len(waiting):
            return False
        if later:
            watched[path] = later
        else:
            del watched[path]
        return True
