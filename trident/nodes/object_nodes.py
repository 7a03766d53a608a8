"""The nodes of a cluster in an object store: `nodes/cluster.db`, a SQLite database that is replaced by compare-and-set alone.

If heartbeats were changes of it, each process would wait for all others. So what a session sets again that need not be durable
is in `nodes/sessions/ID`, which it alone writes: rows that stand for those of the database. They say behind which change of the
session they are: with its next one, which contains them, they are void; so is one of a node that another has set since.
"""

import json
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from trident.errors import ClusterError, ClusterUnreachable
from trident.nodes.interface import Create, Put, Step, StoredNode, Tell
from trident.nodes.object_store import ObjectStore, Tag
from trident.nodes.polled_nodes import NOT_THERE, SESSIONS, LeasedNodes, SqlTable, T
from trident.nodes.sqlite_nodes import SCHEMA, check_format
from trident.servers.log_addresses import ObjectAddress
from trident.servers.patience import Patience

_TREE = "cluster.db"
_CHANGES = "changes"  # its version counts the changes, so that no content of the database comes twice
_MARK = "SELECT data FROM node WHERE path = ?"
_SETTERS = """
CREATE TABLE setter (path TEXT PRIMARY KEY, session TEXT NOT NULL) WITHOUT ROWID;
CREATE TRIGGER gone AFTER DELETE ON node BEGIN DELETE FROM setter WHERE path = old.path; END;
"""
_OWN = (
    "SELECT path, data, version FROM node NATURAL JOIN (SELECT path FROM setter WHERE session = ?) ORDER BY path <> ?"
)
_SET = """
UPDATE node SET data = ?1, version = ?2 WHERE path = ?3 AND version < ?2
    AND EXISTS (SELECT 1 FROM setter WHERE path = ?3 AND session = ?4)
"""
_POLL_S = 1.0  # a list is paid for
_LONGEST_PAUSE_S = 0.2


class _Table(SqlTable):
    def carry_out(self, steps: Sequence[Step], session: str) -> None:
        super().carry_out(steps, session)
        for step in steps:
            if isinstance(step, Create | Put):
                self._execute("INSERT OR REPLACE INTO setter VALUES (?, ?)", (step.path, session))


class ObjectNodes(LeasedNodes):
    """The nodes below an address. A read is one request if nothing has changed; implements `Nodes`."""

    # `timeout_s`: how long this process may be out of touch before others end its session, and how long a request may wait.

    def __init__(self, address: ObjectAddress, timeout_s: float, tell: Tell, makes_root: bool = True) -> None:
        self.what = f"the state of the cluster at {address}"
        patience = Patience("the object store", address, ClusterUnreachable, timeout_s)
        answer_s = max(1.0, timeout_s / 3)  # so long that another request may follow before the end of the session
        self._store = ObjectStore(ObjectAddress(f"{address}/nodes"), "a cluster", patience, ClusterError, answer_s)
        self._reading = threading.Lock()
        self._tags: dict[str, object] = {}  # those of the objects when these were read
        self._objects: dict[str, StoredNode] = {}
        self._not_durable = set[str]()  # what this process has set so
        if makes_root:
            self._store.check_conditions()
        if self._store.get(_TREE) is None:
            if not makes_root:
                raise ClusterUnreachable(f"{self.what} {NOT_THERE}")
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
                db.executescript(SCHEMA + _SETTERS)
                db.execute(
                    "INSERT INTO node VALUES (?1, '', ?1, x'', 0, NULL), (?2, '', ?2, x'', 0, NULL)",
                    (_CHANGES, SESSIONS),
                )
                self._store.swap(_TREE, db.serialize(), None)  # unless another process has made it just now
        super().__init__(self.what, timeout_s, tell, _POLL_S)

    def _change(self, steps: Sequence[Step], durable: bool) -> None:
        with self._changing:
            self._check_usable()
            if not durable and self._set_again(steps):
                self._set_at = time.monotonic()
            else:
                super()._change(steps, durable)

    def _set_again(self, steps: Sequence[Step]) -> bool:
        """Set this session, and nodes that it was the last to set; False, and nothing is done, if not all steps do that."""
        self._not_durable |= (paths := {step.path for step in steps})
        if not all(isinstance(step, Put) for step in steps):
            return False
        with self._copy() as (db, _):
            own = {path: data for path, data, _ in db.execute(_OWN, (self._id, self._own))}
            if not {self._own, *paths} <= own.keys():
                return False
            SqlTable(db.execute).carry_out([Put(self._own, own[self._own]), *steps], self._id)
            rows = db.execute(_OWN, (self._id, self._own)).fetchall()
            there = {self._own, *self._not_durable}
            texts = [(path, data.decode("latin-1"), version) for path, data, version in rows if path in there]
        self._store.put(self._own, json.dumps(texts).encode())
        return True

    def _end(self, session: str, version: int | None = None) -> None:
        super()._end(session, version)
        # Of all sessions that are over: a process may have died here, or put its object after the end of its session.
        known = [name for name in self._objects if name.startswith(f"{SESSIONS}/")]
        there = self._read_nodes(lambda table: table.find(known))
        if gone := [name for name in known if name not in there]:
            self._store.remove(gone)

    def _read_nodes(self, look: Callable[[SqlTable], T]) -> T:
        with self._copy() as (db, _):
            return look(SqlTable(db.execute))

    def _transact(self, work: Callable[[SqlTable], T], durable: bool = True) -> T:
        while True:
            with self._copy() as (db, tag):
                before = db.total_changes
                done = work(_Table(db.execute))
                if db.total_changes == before:
                    return done
                db.execute("UPDATE node SET version = version + 1 WHERE path = ?", (_CHANGES,))
                if self._store.swap(_TREE, db.serialize(), tag) is not None:
                    return done
            time.sleep(random.uniform(0.0, _LONGEST_PAUSE_S))  # those who were too late do not come all at once again

    def _count(self) -> object:
        return self._store.tags(waits=False)

    @contextmanager
    def _copy(self) -> Iterator[tuple[sqlite3.Connection, Tag]]:
        """Return a copy of the database, with what sessions have set since, and the tag of its object."""
        with self._reading:
            tree, sessions = self._read()
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            try:
                db.deserialize(tree.data)
                check_format(db, self.what)
                for path, node in sessions.items():
                    (_, mark, _), *_ = rows = json.loads(node.data)
                    if db.execute(_MARK, (path,)).fetchone() == (mark.encode("latin-1"),):
                        session = path.rpartition("/")[2]
                        own = [(data.encode("latin-1"), version, at, session) for at, data, version in rows]
                        db.executemany(_SET, own)
            except (sqlite3.Error, ValueError, TypeError) as error:
                raise ClusterError(
                    f"{self.what} is damaged, below nodes/: {error}; restore it from a backup"
                ) from error
            yield db, tree.version

    def _read(self) -> tuple[StoredNode, dict[str, StoredNode]]:
        tags = self._store.tags()
        if tags != self._tags or not tags:
            kept = {name: self._objects[name] for name in self._objects if tags.get(name) == self._tags.get(name)}
            wanted = [name for name in tags if name.startswith(f"{SESSIONS}/")]
            # The database last: rows that a session has put behind a change of it must not be seen without that change.
            read = {name: kept.get(name) or self._store.get(name) for name in wanted} | {_TREE: self._store.get(_TREE)}
            if read[_TREE] is None:
                raise ClusterError(f"{self.what} was removed while it was open; start this process again")
            self._objects, self._tags = {name: node for name, node in read.items() if node is not None}, tags
        sessions = dict(self._objects)
        return sessions.pop(_TREE), sessions
