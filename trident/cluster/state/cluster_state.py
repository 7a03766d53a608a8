"""`ClusterState`: a tree of small nodes that all processes of a cluster see; its paths, its events."""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Literal, NamedTuple, Protocol

from trident.cluster_errors import ClusterError

EventKind = Literal["created", "changed", "deleted", "children", "suspended", "connected", "expired"]
"""What a watch, or the session, reports.

`suspended`: no server answers; what is read may be old. `connected`: it answers again, the session and its ephemeral nodes are
still there. `expired`: it answers again, but the session is over: its ephemeral nodes are gone, and another session has begun.
Watches may be over after each of the three, and changes missed: a watcher has to read again.
"""


class ClusterEvent(NamedTuple):
    """One event: of a node, or of the session, which has the path `""`."""

    kind: EventKind
    path: str


class Versioned(NamedTuple):
    """The data of a node and how often it was set: 0 when it was created."""

    data: bytes
    version: int


Callback = Callable[[ClusterEvent], None]


class ClusterState(Protocol):
    """A tree of nodes with data, and one session. Threads may share it; a forked child may not use it.

    Paths begin with `/` and are below a root of the implementation's. Names are of any language (but without what UTF-16
    writes as a pair), data of at most 1,000,000 bytes. All methods raise `ClusterUnreachable` if no server answers within the
    session's timeout; then it is not known whether a change was made.
    """

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        """Set a node that vanishes with this session; if it is of another session, it becomes one of this session."""

    def create_ephemeral_node(self, path: str, data: bytes) -> bool:
        """Create such a node; False, and nothing is done, if there is a node at `path`."""

    def create_sequential(self, path: str, data: bytes) -> str:
        """Create a node whose name is `path` and a number of ten digits, which only grows; returns its path.

        At a ZooKeeper the numbers begin again when the node above was deleted.
        """

    def set_data(self, path: str, data: bytes) -> None:
        """Set a node's data; a node that does not exist is created, persistent, and the nodes above it."""

    def compare_and_set(self, path: str, data: bytes, version: int | None) -> bool:
        """Set a node's data if it has this version; None: create it if there is none. Returns whether it was done."""

    def delete_node(self, path: str) -> None:
        """Delete a node and all below it; harmless if there is none."""

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        """Return a node's data, None if there is no node. `watch`: call the callbacks once when that changes."""

    def get_data_each(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return, for each path, what `get_data` returns, in as few requests as the implementation can."""

    def get_versioned(self, path: str) -> Versioned | None:
        """Return a node's data and version, None if there is no node."""

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        """Return the names of the nodes below, sorted; none if there is no node. `watch`: call them once when these change."""

    def get_data_below(self, path: str) -> dict[str, bytes]:
        """Return the data of all nodes directly below, by name, in as few requests as the implementation can."""

    def get_data_below_each(self, paths: Sequence[str]) -> dict[str, dict[str, bytes]]:
        """Return, for each path, what `get_data_below` returns, in as few requests as the implementation can."""

    def mkdirs(self, path: str) -> None:
        """Create a node without data and those above it, where they are missing."""

    def register(self, callback: Callback) -> str:
        """Call `callback` with every event from now on, in order, in one thread; returns an id for `unregister`."""

    def unregister(self, callback_id: str) -> None:
        """Tell the callback no more; harmless if it is not registered."""

    def close(self) -> None:
        """End the session: its ephemeral nodes vanish at once. Harmless when it is closed."""


# ZooKeeper ends the connection of who sends more than 1,048,575 bytes, names included.
MAX_DATA_BYTES = 1_000_000

# What ZooKeeper refuses in names: among others all that UTF-16 writes as a pair, such as emoji.
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


def checked_path(path: str) -> str:
    """Return the path of a node; what is none is an error. The root alone, `/`, is one."""
    if path == "/":
        return path
    names = path.split("/")
    if names[0] or len(names) < 2 or any(name in ("", ".", "..") for name in names[1:]):
        raise ClusterError(
            f"{path!r} is not the path of a node: a path begins with '/', and no name in it is empty, '.' or '..'"
        )
    refused = _REFUSED.search(path)
    if refused:
        raise ClusterError(f"the path {path!r} has the character {refused[0]!r}, which names of nodes cannot have")
    return path


def checked_way(path: str) -> str:
    """Return the path of a node that may be written: not the root."""
    if checked_path(path) == "/":
        raise ClusterError("the root '/' cannot be written or deleted; name a node below it")
    return path


def checked_data(path: str, data: bytes) -> bytes:
    """Return the data of a node; too much is an error."""
    if len(data) > MAX_DATA_BYTES:
        raise ClusterError(f"{len(data):,} bytes are too many for the node {path!r}, which holds {MAX_DATA_BYTES:,}")
    return data


def above(path: str) -> str:
    """Return the path of the node above."""
    return path.rpartition("/")[0] or "/"


_JOIN_S = 5.0  # a callback may wait for what the closing thread holds
_log = logging.getLogger(__name__)


class EventDispatcher:
    """A queue of events, and the thread that delivers them. A callback may use the cluster state, and may close it."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[str, Callback] = {}
        self._events: SimpleQueue[ClusterEvent | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"trident-{name}-events", daemon=True)
        self._thread.start()

    def register(self, callback: Callback) -> str:
        """Tell this callback all events from now on."""
        callback_id = uuid.uuid4().hex
        with self._lock:
            self._callbacks[callback_id] = callback
        return callback_id

    def unregister(self, callback_id: str) -> None:
        """Tell it no more."""
        with self._lock:
            self._callbacks.pop(callback_id, None)

    def put(self, event: ClusterEvent) -> None:
        """Deliver an event after all earlier ones."""
        self._events.put(event)

    def close(self) -> None:
        """Tell what was queued, then end. In a callback, return at once."""
        self._events.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            self._deliver(event)

    def _deliver(self, event: ClusterEvent) -> None:
        with self._lock:
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            try:
                callback(event)
            except Exception:  # noqa: BLE001  one that fails must not keep the others from their events
                _log.exception("a callback failed at %s", event)
