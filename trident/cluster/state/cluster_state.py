"""`ClusterState`: a tree of small nodes that all processes of a cluster see, as Storm's protocol of that name has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

__all__ = ["Callback", "ClusterEvent", "ClusterState", "EventKind", "Versioned"]

EventKind = Literal["created", "changed", "deleted", "children", "suspended", "connected", "expired"]
"""What a watch, or the session, tells.

`suspended`: no server answers; what is read may be old. `connected`: it answers again, the session and its ephemeral nodes are
still there. `expired`: it answers again, but the session is over: its ephemeral nodes are gone, and another session has begun.
Watches may be over after each of the three, and changes missed: whoever watches reads again.
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
        """Return a node's data, None if there is no node. `watch`: tell the callbacks once when that changes."""

    def get_data_each(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return, for each path, what `get_data` returns, in as few requests as the implementation can."""

    def get_versioned(self, path: str) -> Versioned | None:
        """Return a node's data and version, None if there is no node."""

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        """Return the names of the nodes below, sorted; none if there is no node. `watch`: tell once when these change."""

    def get_data_below(self, path: str) -> dict[str, bytes]:
        """Return the data of all nodes directly below, by name, in as few requests as the implementation can."""

    def get_data_below_each(self, paths: Sequence[str]) -> dict[str, dict[str, bytes]]:
        """Return, for each path, what `get_data_below` returns, in as few requests as the implementation can."""

    def mkdirs(self, path: str) -> None:
        """Create a node without data and those above it, where they are missing."""

    def register(self, callback: Callback) -> str:
        """Let `callback` be told every event from now on, in order, in one thread; returns an id for `unregister`."""

    def unregister(self, callback_id: str) -> None:
        """Tell the callback no more; harmless if it is not registered."""

    def close(self) -> None:
        """End the session: its ephemeral nodes vanish at once. Harmless when it is closed."""
