"""Nodes that are rows of a database: a thread that looks for changes, rules of steps, sessions; and those in PostgreSQL.

A session of `LeasedNodes` is a node too, which its process sets again and again. Who sees for a session's timeout, by its own
clock and while it looks, that one was not set, ends it: removes it and what it owns, in one change, if it still was not set. So
no clock is compared with another one, and none may jump. A change leaves its number in the node of its session: so one whose
answer was lost is not made twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from trident.errors import ClusterError, ClusterUnreachable
from trident.extras import needs_package
from trident.nodes.interface import Check, Create, Delete, NodeEvent, Put, Refusal, Step, StoredNode, Tell
from trident.roles import close_on_error
from trident.servers.local_processes import abandon_in_children
from trident.servers.log_addresses import PostgresAddress
from trident.servers.patience import Patience

if TYPE_CHECKING:
    from trident.servers.postgres_connection import PostgresConnection

T = TypeVar("T")
_log = logging.getLogger(__name__)

_MAX_VALUES = 500  # SQLite takes 999, or more since 3.32
LOOK_S = 1.0  # how often a process looks which sessions are over
SESSIONS = "sessions"  # the node above those of sessions; no path of another one begins so
NOT_THERE = "is not there. Correct the address (--cluster, or the variable TRIDENT_CLUSTER), or start a Nimbus with it"

_CREATE = """
    INSERT INTO {0} (path, parent, name, data, version, session) SELECT ?, ?, ?, ?, 0, ?
    WHERE EXISTS (SELECT 1 FROM {0} WHERE path = ? AND session IS NULL) ON CONFLICT DO NOTHING
"""
_PUT = "UPDATE {} SET data = ?, version = version + 1 WHERE path = ? AND version = coalesce(?, version)"
_DELETE = """
    DELETE FROM {0} WHERE path = ? AND version = coalesce(?, version)
        AND NOT EXISTS (SELECT 1 FROM {0} AS below WHERE below.parent = ?)
"""

_POLL_S = 0.1  # this and what follows is of `PostgresNodes` alone
_FORMAT = b"1"
_TABLES = (
    b"CREATE TABLE IF NOT EXISTS trident_nodes (path text PRIMARY KEY, parent text NOT NULL, name text NOT NULL, "
    b"data bytea NOT NULL, version bigint NOT NULL, session text)",
    b"CREATE INDEX IF NOT EXISTS trident_nodes_below ON trident_nodes (parent)",
)
_BEGIN = """
    INSERT INTO trident_nodes VALUES (%s, '', '', %s, 0), (%s, '', '', '', 0), (%s, '', '', '', 0) ON CONFLICT DO NOTHING
"""
_COUNT = "UPDATE trident_nodes SET version = version + 1 WHERE path = %s"


class RefusedError(Exception):
    """A step cannot be carried out, for the reason `why`; nothing is changed."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why)
        self.why: Refusal = why


class SqlTable:
    """Nodes as rows of a table, as a connection sees them: with statements that SQLite and PostgreSQL both understand."""

    def __init__(
        self, execute: Callable[[str, Sequence[Any]], Any], table: str = "node", mark: str = "?", root: str = ""
    ) -> None:
        self._execute, self._table, self._mark, self._root = execute, table, mark, root

    def find(self, paths: Sequence[str]) -> dict[str, StoredNode]:
        rows = self._select("SELECT path, data, version, session FROM {} WHERE path", paths)
        return {path[len(self._root) :]: StoredNode(*node) for path, *node in rows}

    def below(self, paths: Sequence[str]) -> dict[str, list[str]]:
        found = {path: list[str]() for path in paths}
        for parent, name in self._select("SELECT parent, name FROM {} WHERE parent", list(found)):
            found[parent[len(self._root) :]].append(name)
        return {path: sorted(names) for path, names in found.items()}

    def carry_out(self, steps: Sequence[Step], session: str) -> None:
        """Carry out steps within a transaction, which is rolled back at a `RefusedError`: one of them cannot be carried out."""
        for step in steps:
            if not self._carry_out(step, session):
                raise RefusedError(self._refusal(step))

    def end(self, session: str) -> None:
        self._change("DELETE FROM {} WHERE session = ?", session)

    def _carry_out(self, step: Step, session: str) -> bool:
        """Carry out a step with one statement; False if that finds nothing to change."""
        at, over = self._root + step.path, self._root + above(step.path)
        match step:
            case Create(path, data, ephemeral):
                values = (at, over, path.rpartition("/")[2], data, session if ephemeral else None, over)
                return self._change(_CREATE, *values)
            case Put(_, data, version):
                return self._change(_PUT, data, at, version)
            case Delete(_, version):
                return self._change(_DELETE, at, version, at)
            case Check(path):
                return bool(self.find([path]))

    def _refusal(self, step: Step) -> Refusal:
        over = above(step.path)
        found = self.find([step.path, over])
        match step:
            case Create() if step.path not in found:
                return "ephemeral" if over in found else "missing"
            case Create():
                return "exists"
            case Put() | Delete() if step.path in found:
                return "version" if step.version not in (None, found[step.path].version) else "not empty"
        return "missing"

    def _change(self, statement: str, *values: Any) -> bool:
        """Carry out a statement with `{}` for the table and `?` for values; whether it has changed something."""
        return bool(self._execute(statement.format(self._table).replace("?", self._mark), values).rowcount)

    def _select(self, query: str, paths: Sequence[str]) -> list[Any]:
        if len(paths) > _MAX_VALUES:
            return self._select(query, paths[:_MAX_VALUES]) + self._select(query, paths[_MAX_VALUES:])
        marks, values = ", ".join([self._mark] * len(paths)), [self._root + path for path in paths]
        return list(self._execute(f"{query.format(self._table)} IN ({marks})", values)) if paths else []


Find = Callable[[SqlTable, Sequence[str]], Mapping[str, Any]]  # `find` or `below`


def above(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class PolledNodes(ABC):
    """Nodes that a thread looks at every `poll_s` seconds. Implements `Nodes`, less the session."""

    def __init__(self, what: str, tell: Tell, poll_s: float) -> None:
        self.what, self._tell, self._poll_s, self._look_s = what, tell, poll_s, LOOK_S
        self._id = uuid.uuid4().hex
        self._process, self._closed = os.getpid(), False
        self._watching = threading.Lock()  # no change is passed over between reading something and watching it
        self._watched: dict[tuple[str, Find], Any] = {}  # what was read of a path, or of the names below it
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trident-cluster-session", daemon=True)

    @abstractmethod
    def _read_nodes(self, look: Callable[[SqlTable], T]) -> T:
        """Return what a look at the nodes finds."""

    @abstractmethod
    def _transact(self, work: Callable[[SqlTable], T], durable: bool = True) -> T:
        """Return what some work does in a transaction; if it raises an error, nothing. It may be called several times."""

    @abstractmethod
    def _count(self) -> object:
        """Return what is another one whenever anything has changed; raises an error at once if that is not known."""

    @abstractmethod
    def _look_at_sessions(self, is_back: bool) -> bool:
        """End sessions that are over, and begin another one if this is: then that is told, and False returned."""

    @property
    def id(self) -> str:
        return self._id

    @property
    def is_ours(self) -> bool:
        return self._process == os.getpid()

    def read(self, paths: Sequence[str], watch: bool = False) -> list[StoredNode | None]:
        return self._look(SqlTable.find, paths, watch)

    def names(self, paths: Sequence[str], watch: bool = False) -> list[list[str]]:
        return self._look(SqlTable.below, paths, watch)

    def change(self, *steps: Step, durable: bool = True) -> Refusal | None:
        self._check_usable()
        try:
            self._change(steps, durable)
        except RefusedError as refused:
            return refused.why
        return None

    def close(self) -> None:
        if self._closed:
            return
        self._stopped.set()
        self._thread.join()
        self._closed = True
        try:
            self._end_session()
        except ClusterError as error:
            _log.warning("what this session owns goes when another process looks: %s", error)

    def _change(self, steps: Sequence[Step], durable: bool) -> None:
        self._transact(lambda table: table.carry_out(steps, self._id), durable)

    @abstractmethod
    def _end_session(self) -> None:
        """Remove this session and what it owns."""

    def _check_usable(self) -> None:
        if not self.is_ours:  # before any lock, which a forked child has as another thread left it
            raise ClusterError(f"{self.what} was opened before this process was forked; open it again here")
        if self._closed:
            raise ClusterError(f"{self.what} is closed")

    def _look(self, find: Find, paths: Sequence[str], watch: bool = False) -> list[Any]:
        self._check_usable()
        with self._watching if watch else nullcontext():
            by_path = self._read_nodes(lambda table: find(table, paths))
            found = [by_path.get(path) for path in paths]
            if not watch:
                return found
            seen = {(path, find): one for path, one in zip(paths, found, strict=True)}
            # Who watched it before is told of what this reading has seen already.
            late = [path for (path, _), one in seen.items() if self._watched.get((path, find), one) != one]
            self._watched |= seen
        for path in late:
            self._tell(NodeEvent("changed", path))
        return found

    def _run(self) -> None:
        is_suspended, goes_on, seen = False, True, object()
        next_look = time.monotonic() + self._look_s
        while not self._stopped.wait(self._poll_s):
            try:
                if (now := self._count()) != seen:
                    self._tell_changes()
                    seen = now
                if is_suspended or time.monotonic() >= next_look:
                    next_look = time.monotonic() + self._look_s
                    goes_on = self._look_at_sessions(is_suspended)
            except Exception as error:  # noqa: BLE001  drivers' and the system's; the next look may be well
                if not is_suspended:
                    _log.warning("%s: the session is suspended: %s", self.what, error)
                    self._tell(NodeEvent("suspended", ""))
                is_suspended = True
            else:
                if is_suspended and goes_on:
                    self._tell(NodeEvent("connected", ""))
                is_suspended = False

    def _tell_changes(self) -> None:
        with self._watching:
            now: dict[tuple[str, Find], Any] = {}
            for find in (SqlTable.find, SqlTable.below):
                watched = [path for path, how in self._watched if how == find]
                now.update(((path, find), each) for path, each in zip(watched, self._look(find, watched), strict=True))
            # In the order in which they were watched, as with ZooKeeper: what was watched last is told last.
            changed = [each for each, seen in self._watched.items() if now[each] != seen]
            for each in changed:
                del self._watched[each]
        for path in dict.fromkeys(path for path, _ in changed):
            self._tell(NodeEvent("changed", path))


class LeasedNodes(PolledNodes):
    """Nodes with sessions that are nodes; others end this one if it is out of touch for `timeout_s`."""

    def __init__(self, what: str, timeout_s: float, tell: Tell, poll_s: float) -> None:
        super().__init__(what, tell, poll_s)
        self._timeout_s, self._look_s = timeout_s, min(LOOK_S, timeout_s / 3)
        self._changing = threading.RLock()  # one change after the other: the last one is known by its number
        self._number = 0
        self._looked_at = self._set_at = time.monotonic()
        self._silent: dict[str, tuple[object, float]] = {}  # versions of sessions, and for how long they were seen
        self._begin()
        self._thread.start()

    def _change(self, steps: Sequence[Step], durable: bool) -> None:
        with self._changing:
            self._check_usable()  # it may have been closed meanwhile
            self._number += 1
            mark = b"%g %d" % (self._timeout_s, self._number)

            def work(table: SqlTable) -> bool:
                own = table.find([self._own]).get(self._own)
                if own is not None and own.data != mark:  # else it was made by a try whose answer was lost
                    table.carry_out([Put(self._own, mark), *steps], self._id)
                return own is not None

            while not self._transact(work, durable):
                self._begin_again()
            self._set_at = time.monotonic()

    def _end_session(self) -> None:
        with self._changing:
            self._end(self._own)

    @property
    def _own(self) -> str:
        return f"{SESSIONS}/{self._id}"

    def _begin(self) -> None:
        create = Create(self._own, b"%g 0" % self._timeout_s)
        with suppress(RefusedError):  # a try whose answer was lost has created it
            self._transact(lambda table: table.carry_out([create], self._id))

    def _begin_again(self) -> None:
        with self._watching:
            self._id = uuid.uuid4().hex
            self._watched.clear()
        self._begin()
        self._tell(NodeEvent("expired", ""))

    def _look_at_sessions(self, is_back: bool) -> bool:
        now, before = time.monotonic(), self._id
        # Not longer than to the next look: a process that was stopped has not seen what others did meanwhile.
        elapsed, self._looked_at = min(now - self._looked_at, self._look_s), now
        if is_back or now - self._set_at > self._timeout_s / 4:
            self._change((), durable=False)
        silent: dict[str, tuple[object, float]] = {}
        for path, node in self._read_nodes(_sessions).items():
            version, seconds = self._silent.get(path, (None, 0.0))
            silent[path] = node.version, seconds + elapsed if node.version == version else 0.0
            if silent[path][1] > float(node.data.split()[0]) and path != self._own:
                self._end(path, node.version)
        self._silent = silent
        return self._id == before

    def _end(self, session: str, version: int | None = None) -> None:
        """Remove a session that has this version still, and what it owns."""

        def work(table: SqlTable) -> None:
            table.carry_out([Delete(session, version)], self._id)
            table.end(session.rpartition("/")[2])

        with suppress(RefusedError):  # it was set again, or removed
            self._transact(work)


def _sessions(table: SqlTable) -> dict[str, StoredNode]:
    return table.find([f"{SESSIONS}/{name}" for name in table.below([SESSIONS])[SESSIONS]])


class PostgresNodes(LeasedNodes):
    """The nodes at an address: rows of a table in PostgreSQL, which several clusters may share. Implements `Nodes`.

    A change is one transaction. It begins by counting itself in the row of the whole tree, which has an empty path: so one
    comes after the other, and whoever looks for changes reads that row alone.
    """

    def __init__(self, address: PostgresAddress, timeout_s: float, tell: Tell, makes_root: bool = True) -> None:
        with needs_package("a cluster's state in PostgreSQL", "postgres", "psycopg"):
            from trident.servers import postgres_connection
        self._make_tables, self._root = postgres_connection.make_tables, f"{address.name}:"
        patience = Patience("PostgreSQL", address, ClusterUnreachable, timeout_s)
        answer_s = max(1.0, timeout_s / 3)  # so long that another request may follow before the end of the session
        self._session = postgres_connection.PostgresSession(
            address.url, address, "cluster", patience, ClusterError, (RefusedError,), answer_s
        )
        abandon_in_children(self._session)
        self.what, self._makes_root = f"the state of the cluster at {address}", makes_root
        with close_on_error(self._session.close):
            if self._session.run(self._prepare) is None:
                raise ClusterUnreachable(f"{self.what} {NOT_THERE}")
            super().__init__(self.what, timeout_s, tell, _POLL_S)

    def close(self) -> None:
        super().close()
        self._session.close()

    def _prepare(self, connection: PostgresConnection) -> tuple[bytes] | None:
        if self._makes_root:
            self._make_tables(connection, "trident_nodes", _TABLES)
            connection.execute(_BEGIN, (self._root, _FORMAT, f"{self._root}/", self._root + SESSIONS))
        found = connection.execute("SELECT data FROM trident_nodes WHERE path = %s", (self._root,)).fetchone()
        if found not in (None, (_FORMAT,)):
            raise ClusterError(
                f"{self.what} is of format version {found[0].decode(errors='replace')}; this version of the software reads "
                f"{_FORMAT.decode()}. Use the version that made it"
            )
        return found

    def _read_nodes(self, look: Callable[[SqlTable], T]) -> T:
        return self._ask(lambda connection: (look(self._table(connection)),))

    def _transact(self, work: Callable[[SqlTable], T], durable: bool = True) -> T:
        def request(connection: PostgresConnection) -> tuple[T] | None:
            with connection.transaction():
                is_there = connection.execute(_COUNT, (self._root,)).rowcount
                return (work(self._table(connection)),) if is_there else None

        return self._ask(request)

    def _table(self, connection: PostgresConnection) -> SqlTable:
        return SqlTable(connection.execute, "trident_nodes", "%s", self._root)

    def _ask(self, request: Callable[[PostgresConnection], tuple[T] | None]) -> T:
        found = self._session.run(request)
        if found is None:
            raise ClusterError(f"{self.what} was removed while it was open; start this process again")
        return found[0]

    def _count(self) -> object:
        query = "SELECT version FROM trident_nodes WHERE path = %s"
        return self._session.try_once(lambda connection: connection.execute(query, (self._root,)).fetchone())
