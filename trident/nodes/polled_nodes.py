"""What nodes need that are rows of a database: a thread that looks for changes, the rules of steps, sessions.

`PolledNodes` looks whether what is watched is as it was read. `LeasedNodes` adds sessions that need nothing but the nodes: each
is a node too, which its process sets again and again. Who sees for a session's timeout, by its own clock and while it looks,
that one was not set, ends it: removes it and the nodes that it owns, in one change, if it still was not set. So no clock is
compared with another one, and none may jump. A process that was out of touch finds that its session is gone.

A change of such nodes leaves its number in the node of its session. So one whose answer was lost is not made twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, TypeVar

from trident.errors import ClusterError
from trident.nodes.interface import Check, Create, Delete, NodeEvent, Put, Refusal, Step, StoredNode, Tell

T = TypeVar("T")
_log = logging.getLogger(__name__)

_MAX_VALUES = 500  # SQLite takes 999, or more since 3.32
LOOK_S = 1.0  # how often a process looks which sessions are over
_SESSIONS = "sessions"  # the nodes of sessions are below it; no path of another one begins so


Changes = Mapping[str, StoredNode | None]
"""By path what nodes hold from now on; None: there is none any more."""


class SqlTable:
    """Nodes as rows of a table, as a connection sees them: with statements that SQLite and PostgreSQL both understand.

    `execute`: of a connection. `table`: its name. `mark`: what stands for a value in a statement. `root`: goes before paths.
    """

    def __init__(
        self, execute: Callable[[str, Sequence[Any]], Any], table: str = "node", mark: str = "?", root: str = ""
    ) -> None:
        self._execute, self._table, self._mark, self._root = execute, table, mark, root

    def find(self, paths: Sequence[str], data: str = "data") -> dict[str, StoredNode]:
        """Return the nodes that are there. `data`: `NULL` where that is not needed."""
        query, root = f"SELECT path, {data}, version, session FROM {self._table} WHERE path", len(self._root)
        return {path[root:]: StoredNode(*node) for path, *node in self._rows(query, paths)}

    def below(self, paths: Sequence[str]) -> dict[str, list[str]]:
        """Return the names below nodes, sorted."""
        found, root = {path: list[str]() for path in paths}, len(self._root)
        for parent, name in self._rows(f"SELECT parent, name FROM {self._table} WHERE parent", list(found)):
            found[parent[root:]].append(name)
        return {path: sorted(names) for path, names in found.items()}

    def owned(self, session: str) -> list[str]:
        """Return the paths of a session's nodes."""
        query = f"SELECT path FROM {self._table} WHERE session = {self._mark}"
        return [path[len(self._root) :] for (path,) in self._execute(query, (session,)).fetchall()]

    def write(self, changes: Changes) -> None:
        mark, table = self._mark, self._table
        for path, node in changes.items():
            if node is None:
                self._execute(f"DELETE FROM {table} WHERE path = {mark}", (self._root + path,))
            elif node.version:  # it is there
                set_data = f"UPDATE {table} SET data = {mark}, version = {mark} WHERE path = {mark}"
                self._execute(set_data, (node.data, node.version, self._root + path))
            else:
                values = (self._root + path, self._root + above(path), path.rpartition("/")[2], *node)
                self._execute(
                    f"INSERT INTO {table} (path, parent, name, data, version, session) VALUES ({', '.join([mark] * 6)}) "
                    "ON CONFLICT (path) DO UPDATE SET data = excluded.data, version = 0, session = excluded.session",
                    values,
                )

    def _rows(self, query: str, paths: Sequence[str]) -> list[Any]:
        if len(paths) > _MAX_VALUES:
            return self._rows(query, paths[:_MAX_VALUES]) + self._rows(query, paths[_MAX_VALUES:])
        marks, values = ", ".join([self._mark] * len(paths)), [self._root + path for path in paths]
        return list(self._execute(f"{query} IN ({marks})", values)) if paths else []


Find = Callable[[SqlTable, Sequence[str]], Mapping[str, Any]]
"""`find` or `below`."""

Work = Callable[[SqlTable], Changes | str]
"""Says what is to be changed; or in a word why nothing is."""


def carry_out(table: SqlTable, steps: Sequence[Step], session: str) -> dict[str, StoredNode | None] | Refusal:
    """Return what steps change; or why one of them cannot be carried out."""
    paths = [step.path for step in steps]
    paths += [above(step.path) for step in steps if isinstance(step, Create)]
    nodes: dict[str, StoredNode | None] = {**dict.fromkeys(paths), **table.find(paths, "NULL")}
    below = table.below([step.path for step in steps if isinstance(step, Delete)])
    changes: dict[str, StoredNode | None] = {}
    for step in steps:
        if (refusal := _refusal(step, nodes, below)) is not None:
            return refusal
        if not isinstance(step, Check):
            nodes[step.path] = changes[step.path] = _after(step, nodes[step.path], session)
    return changes


def _refusal(step: Step, nodes: Mapping[str, StoredNode | None], below: Mapping[str, Sequence[str]]) -> Refusal | None:
    """Say why a step cannot be carried out; `below`: the names below nodes that are to be deleted, as they were stored."""
    found, path = nodes[step.path], step.path
    match step:
        case Create():
            over = nodes.get(above(path))
            if found is None and over is not None and over.owner is None:
                return None
            return "exists" if found is not None else "missing" if over is None else "ephemeral"
        case _ if found is None:
            return "missing"
        case Put(version=wanted) | Delete(version=wanted) if wanted not in (None, found.version):
            return "version"
        case Delete() if _has_children(path, nodes, below):
            return "not empty"
    return None


def _has_children(path: str, nodes: Mapping[str, StoredNode | None], below: Mapping[str, Sequence[str]]) -> bool:
    stored = {f"{path}/{name}" for name in below.get(path, ())}
    made = {each for each, node in nodes.items() if node is not None and above(each) == path != each}
    return bool(made) or any(child not in nodes for child in stored)


def _after(step: Step, found: StoredNode | None, session: str) -> StoredNode | None:
    match step:
        case Create(_, data, ephemeral):
            return StoredNode(data, 0, session if ephemeral else None)
        case Put(_, data) if found is not None:
            return _set(found, data)
    return None


def above(path: str) -> str:
    """Return the path of the node above."""
    return path.rpartition("/")[0] or "/"


class PolledNodes(ABC):
    """Nodes that a thread looks at every `poll_s` seconds. Implements `Nodes`, less the session.

    `what`: what errors call it: "the state of the cluster in FILE".
    """

    def __init__(self, what: str, tell: Tell, poll_s: float) -> None:
        self.what, self._tell, self._poll_s, self._look_s = what, tell, poll_s, LOOK_S
        self._id = uuid.uuid4().hex
        self._process, self._closed = os.getpid(), False
        self._watching = threading.Lock()  # no change is passed over between reading something and watching it
        self._watched: dict[tuple[str, Find], Any] = {}  # what was read of a path, or of the names below it
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trident-cluster-session", daemon=True)

    @abstractmethod
    def _seen(self, look: Callable[[SqlTable], T]) -> T:
        """Return what a look at the nodes finds."""

    @abstractmethod
    def _transact(self, work: Work, durable: bool = True) -> Any:
        """Change what some work says, all at once, and return None; or its word, why not. It may be called several times."""

    @abstractmethod
    def _count(self) -> object:
        """Return what is another one whenever anything has changed; raises an error at once if that is not known."""

    @abstractmethod
    def _look_at_sessions(self, is_back: bool) -> bool:
        """End sessions that are over, and begin another one if this is: then that is told, and False returned.

        `is_back`: whether the keeper was away.
        """

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
        refusal: Refusal | None = self._transact(lambda table: carry_out(table, steps, self._id), durable)
        return refusal

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
            by_path = self._seen(lambda table: find(table, paths))
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
    """Nodes with sessions that are nodes. Begins one and the thread, which `close` ends.

    `timeout_s`: how long this process may be out of touch before others end its session.
    """

    def __init__(self, what: str, timeout_s: float, tell: Tell, poll_s: float) -> None:
        super().__init__(what, tell, poll_s)
        self._timeout_s, self._look_s = timeout_s, min(LOOK_S, timeout_s / 3)
        self._changing = threading.RLock()  # one change after the other: the last one is known by its number
        self._number = 0
        self._looked_at = self._set_at = time.monotonic()
        self._silent: dict[str, tuple[object, float]] = {}  # versions of sessions, and for how long they were seen
        self._begin()
        self._thread.start()

    def change(self, *steps: Step, durable: bool = True) -> Refusal | None:
        self._check_usable()
        with self._changing:
            self._check_usable()  # it may have been closed meanwhile
            self._number += 1
            mark = b"%g %d" % (self._timeout_s, self._number)

            def work(table: SqlTable) -> Changes | str:
                own = table.find([self._own]).get(self._own)
                if own is None or own.data == mark:
                    return "expired" if own is None else {}  # it was made by a try whose answer was lost
                changes = carry_out(table, steps, self._id)
                return changes if isinstance(changes, str) else {**changes, self._own: _set(own, mark)}

            refusal: Refusal | Literal["expired"] | None = self._transact(work, durable)
            while refusal == "expired":
                self._begin_again()
                refusal = self._transact(work, durable)
            if refusal is None:
                self._set_at = time.monotonic()
            return refusal

    def _end_session(self) -> None:
        with self._changing:
            self._transact(lambda table: {**dict.fromkeys(table.owned(self._id)), self._own: None})

    @property
    def _own(self) -> str:
        return f"{_SESSIONS}/{self._id}"

    def _begin(self) -> None:
        self._transact(lambda _: {self._own: StoredNode(b"%g 0" % self._timeout_s, 0)})

    def _begin_again(self) -> None:
        with self._watching:
            self._id = uuid.uuid4().hex
            self._watched.clear()
        self._begin()
        self._tell(NodeEvent("expired", ""))

    def _look_at_sessions(self, is_back: bool) -> bool:
        now, goes_on = time.monotonic(), True
        # Not longer than to the next look: a process that was stopped has not seen what others did meanwhile.
        elapsed, self._looked_at = min(now - self._looked_at, self._look_s), now
        if is_back or now - self._set_at > self._timeout_s / 4:
            with self._changing:
                goes_on = self._transact(self._set_again) is None
                if not goes_on:
                    self._begin_again()
                self._set_at = now
        silent: dict[str, tuple[object, float]] = {}
        for path, node in self._seen(_sessions).items():
            version, seconds = self._silent.get(path, (None, 0.0))
            silent[path] = node.version, seconds + elapsed if node.version == version else 0.0
            if silent[path][1] > float(node.data.split()[0]) and path != self._own:
                self._transact(partial(_end, path, node.version))
        self._silent = silent
        return goes_on

    def _set_again(self, table: SqlTable) -> Changes | str:
        own = table.find([self._own]).get(self._own)
        return "expired" if own is None else {self._own: _set(own, own.data)}


def _set(node: StoredNode, data: bytes) -> StoredNode:
    return StoredNode(data, node.version + 1, node.owner)


def _sessions(table: SqlTable) -> dict[str, StoredNode]:
    return table.find([f"{_SESSIONS}/{name}" for name in table.below([_SESSIONS]).get(_SESSIONS, ())])


def _end(session: str, version: object, table: SqlTable) -> Changes | str:
    """Remove a session that has this version still, and what it owns."""
    found = table.find([session]).get(session)
    if found is None or found.version != version:
        return "version"
    return {**dict.fromkeys(table.owned(session.rpartition("/")[2])), session: None}
